"""A study whose ways differ in what some modules keep for their backward pass: runs of the networks of
stores.py, with the distance of each way's gradient at the same weights and batch along the run of `exact`.
"""

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

import torch

import stores
from paired import interval


@dataclasses.dataclass(frozen=True)
class Study:
    """ways: the first two are exact and control. take(model, way) gives a model's modules a way."""

    result: pathlib.Path
    schema: str
    command: str
    ways: tuple[str, ...]
    take: Callable
    tasks: tuple = stores.TASKS

    def gradient_of(self, task, model, batch, way):
        self.take(model, way)
        found = torch.autograd.grad(task.loss(model, batch), list(model.parameters()))
        self.take(model, "exact")
        return torch.cat([g.flatten() for g in found]).double()

    def probe(self, task, model, batch, other, ways=None):
        """How far each of these ways' gradient is from the exact one at these weights and this batch."""
        exact = self.gradient_of(task, model, batch, "exact")
        away = lambda g: float(f"{((g - exact).norm() / exact.norm()).item():.6g}")  # noqa: E731
        return {"other_batch": away(self.gradient_of(task, model, other, "exact")),
                "ways": {way: away(self.gradient_of(task, model, batch, way))
                         for way in (ways or self.ways)[2:]}}

    def summary_of(self, runs, probes):
        ended, summary = {(r["task"], r["way"], r["seed"]): r["validation"] for r in runs}, []
        for task in dict.fromkeys(r["task"] for r in runs):
            for way in self.ways:
                of_way = {seed: value for (t, w, seed), value in ended.items() if (t, w) == (task, way)}
                row = {"task": task, "way": way, "validation": statistics.fmean(of_way.values())}
                if way != "exact":
                    row["from_exact"] = interval(
                        [value - ended[task, "exact", seed] for seed, value in of_way.items()],
                        len(self.ways) - 1)
                found = [p["ways"][way] for p in probes if p["task"] == task and way in p["ways"]]
                summary.append(row | ({"relative_l2": statistics.median(found)} if found else {}))
        return summary

    def run(self, numbered):
        """A task's number, a seed, a way and steps."""
        task, seed, way, steps = numbered
        of_task = self.tasks[task]
        return stores.run(of_task, seed, way, steps or of_task.steps, self.ways, self.take, self.probe)

    def train(self, tasks=None, seeds=None, steps=None, processes=1):
        """All runs of these tasks, a line for each as it ends; seeds and steps: else those of the tasks. A
        run uses one thread, and several processes share the runs."""
        todo = [(k, seed, way, steps) for k, task in enumerate(self.tasks) if task in (tasks or self.tasks)
                for seed in range(1, (seeds or task.seeds) + 1) for way in self.ways]
        runs, probes, start = [], [], time.monotonic()
        with contextlib.ExitStack() as stack:
            each = map(self.run, todo)
            if processes > 1:
                each = stack.enter_context(multiprocessing.get_context("fork").Pool(processes)).imap(
                    self.run, todo)
            for ended, found in each:
                runs, probes = [*runs, ended], [*probes, *found]
                print(f"{time.monotonic() - start:5.0f} s: {ended['task']} seed {ended['seed']} "
                      f"{ended['way']:12} {ended['validation']}", file=sys.stderr, flush=True)
        return {"schema": self.schema, "command": self.command, "torch": torch.__version__, "runs": runs,
                "probes": probes, "summary": self.summary_of(runs, probes)}

    def main(self, description):
        parser = argparse.ArgumentParser(description=description.split("\n\n")[0])
        parser.add_argument("--write", action="store_true", help=f"write {self.result.name}")
        parser.add_argument("--show", action="store_true",
                            help="train nothing: print the summary of what was written")
        parser.add_argument("--processes", type=int, default=1, help="that share the runs (default: 1)")
        options = parser.parse_args()
        found = (json.loads(self.result.read_text()) if options.show
                 else self.train(processes=options.processes))
        if options.write:
            self.result.write_text(json.dumps(found, indent=1) + "\n")
        show(found)


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
