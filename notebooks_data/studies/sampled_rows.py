"""What sampled rows do to training: the three small networks of stores.py, whose Linears keep in place of
their input what outgrad.Linear's store of this name keeps.

    python notebooks_data/studies/sampled_rows.py [--write]
    python notebooks_data/studies/sampled_rows.py --show

The first trains and prints a summary, with --write it also writes ../training/sampled_rows.json. The second
prints the summary of that file. Tasks, batches, pairs of runs and intervals are those of stores.py; GELUs are
PyTorch's in all ways. Beside where training ended stands what a way does at the same weights and batch along
the run of `exact`: the median distance of the gradient by all parameters from the exact one (relative, L2),
one draw at each probe.
"""

import argparse
import json
import statistics
import sys
import time

import torch
from torch import nn

import outgrad
import stores
from paired import interval

RESULT = stores.RESULT.with_name("sampled_rows.json")
WAYS = ("exact", "control", "rows:30", "rows:30+e4m3")


def take(model, way):
    """Gives all Linears of a model the store of this name."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.__class__ = outgrad.Linear
            module.store = "x" if way in ("exact", "control") else way


def gradient_of(task, model, batch, way):
    take(model, way)
    found = torch.autograd.grad(task.loss(model, batch), list(model.parameters()))
    take(model, "exact")
    return torch.cat([g.flatten() for g in found]).double()


def probe(task, model, batch, other, ways):
    """How far each of these ways' gradient is from the exact one at these weights and this batch."""
    exact = gradient_of(task, model, batch, "exact")
    away = lambda g: float(f"{((g - exact).norm() / exact.norm()).item():.6g}")  # noqa: E731
    return {"other_batch": away(gradient_of(task, model, other, "exact")),
            "ways": {way: away(gradient_of(task, model, batch, way)) for way in ways[2:]}}


def summary_of(runs, probes):
    ended, summary = {(r["task"], r["way"], r["seed"]): r["validation"] for r in runs}, []
    for task in dict.fromkeys(r["task"] for r in runs):
        for way in WAYS:
            of_way = {seed: value for (t, w, seed), value in ended.items() if (t, w) == (task, way)}
            row = {"task": task, "way": way, "validation": statistics.fmean(of_way.values())}
            if way != "exact":
                row["from_exact"] = interval(
                    [value - ended[task, "exact", seed] for seed, value in of_way.items()], len(WAYS) - 1)
            found = [p["ways"][way] for p in probes if p["task"] == task and way in p["ways"]]
            summary.append(row | ({"relative_l2": statistics.median(found)} if found else {}))
    return summary


def study(tasks=stores.TASKS, seeds=None, steps=None):
    """All runs, a line for each as it ends; seeds and steps: else those of the tasks."""
    runs, probes, start = [], [], time.monotonic()
    for task in tasks:
        for seed in range(1, (seeds or task.seeds) + 1):
            for way in WAYS:
                ended, found = stores.run(task, seed, way, steps or task.steps, WAYS, take, probe)
                runs, probes = [*runs, ended], [*probes, *found]
                print(f"{time.monotonic() - start:5.0f} s: {task.name} seed {seed} {way:12} "
                      f"{ended['validation']}", file=sys.stderr, flush=True)
    return {"schema": "outgrad.row_training/1",
            "command": "python notebooks_data/studies/sampled_rows.py --write", "torch": torch.__version__,
            "runs": runs, "probes": probes, "summary": summary_of(runs, probes)}


def show(found):
    for row in found["summary"]:
        line = f"{row['task']:11}{row['way']:13}{row['validation']:8.4f}"
        if row.get("from_exact"):
            line += "  from exact {mean:+.4f} [{low:+.4f}, {high:+.4f}]".format(**row["from_exact"])
        if "relative_l2" in row:
            line += f"  gradient off by {row['relative_l2']:.2g}"
        print(line)
    for task in dict.fromkeys(p["task"] for p in found["probes"]):
        away = statistics.median(p["other_batch"] for p in found["probes"] if p["task"] == task)
        print(f"{task}: another batch's gradient lies {away:.2g} away")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--show", action="store_true",
                        help="train nothing: print the summary of what was written")
    options = parser.parse_args()
    found = json.loads(RESULT.read_text()) if options.show else study()
    if options.write:
        RESULT.write_text(json.dumps(found, indent=1) + "\n")
    show(found)


if __name__ == "__main__":
    main()
