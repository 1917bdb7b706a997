"""How far the tuner's model of a GPU is from what a GPU measured; nothing runs on one. Of the defaults of
GELU, LayerNorm and RMSNorm it prints the predicted time of every row of timing.json beside the measured one,
and of the candidates of a search how well their order is predicted.

    python3 tests/gpu/model_error.py [--folder notebooks_data/gpu/nvidia_h200] [--tune PROGRAM] [--rows]

It needs CUDA's run-time compiler. Exit status: 0 within the limits below, 1 beyond, 2 bad usage or damaged
files, 3 where the tuner failed.
"""

import argparse
import collections
import gzip
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
ELEMENTWISE = ("gelu_forward", "gelu_backward")
NORMS = ("layernorm_forward", "layernorm_backward", "rmsnorm_forward", "rmsnorm_backward")
SEARCHED = (*ELEMENTWISE, "layernorm_forward", "layernorm_backward")  # in bf16
# (kernel, columns) whose blocks work otherwise than when they were measured: a norm's backward has as many
# slots a block as keep all SMs busy since then. They are printed, and count in no limit.
CHANGED = {("layernorm_backward", 8192)}
# Errors of the prediction, and the share of the fastest's speed that the first 16 as predicted reach.
MEDIAN, WORST, FIRST_16 = 0.06, 0.15, 0.97


def fail(status, text):
    print(f"model_error: {text}", file=sys.stderr)
    sys.exit(status)


def tune(program, *arguments):
    try:
        done = subprocess.run([*program, *map(str, arguments)], capture_output=True, text=True, check=False)
    except OSError as error:
        fail(3, error)
    if done.returncode != 0:
        fail(3, (done.stderr.strip().splitlines() or [f"{program[0]} ended with {done.returncode}"])[-1])
    return done.stdout


def predicted(program, architecture, rows, folder):
    """{(kernel, format, rows, columns): us} of the defaults."""
    sizes, shapes = ({row[3] for row in rows if row[0] in ELEMENTWISE},
                     {row[2:] for row in rows if row[0] in NORMS})
    calls = [("--kernel", ",".join(NORMS), "--shape", ",".join(f"{r}x{n}" for r, n in sorted(shapes)))]
    calls += [("--kernel", ",".join(ELEMENTWISE), "--elements", size) for size in sorted(sizes)]
    found = {}
    for k, call in enumerate(calls):
        out = folder / str(k)
        tune(program, "--device", architecture, *call, "--evaluations", 1, "--out", out)
        for line in (out / f"tune_{architecture}.jsonl").read_text().splitlines():
            record = json.loads(line)
            if record["state"] == "predicted":
                size = (record["rows"], record["cols"]) if "rows" in record else (1, record["elements"])
                found[record["kernel"], record["format"], *size] = (
                    record["predicted"]["ns_per_element"] * record["elements"] / 1e3)
    return found


def measured_in(folder):
    """(architecture, device, {(kernel, format, rows, columns): us}), and the records of the search, from the
    two files of a folder."""
    path = folder / "timing.json"
    try:
        timing = json.loads(path.read_text())
        rows = {(row["name"], row["format"], row["rows"], row["columns"]): float(row["us_median"])
                for row in timing["timings"] if row["name"] in ELEMENTWISE + NORMS}
        found = timing["arch"], timing["device"], rows
        if not rows:
            raise ValueError("no row of a kernel that is predicted")
        path = folder / "tune_first_day.jsonl.gz"
        return *found, gzip.decompress(path.read_bytes())
    except KeyError as error:
        fail(2, f"{path}: {error} is missing")
    except (OSError, ValueError, TypeError, EOFError, zlib.error) as error:
        fail(2, f"{path}: {getattr(error, 'strerror', None) or error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "notebooks_data/gpu/nvidia_h200")
    parser.add_argument("--tune", help="the program outgrad-tune, in place of ./outgrad tune")
    parser.add_argument("--rows", action="store_true", help="print every row")
    options = parser.parse_args()
    program = [options.tune, "tune"] if options.tune else [str(ROOT / "outgrad"), "tune"]
    architecture, device, measured, recorded = measured_in(options.folder)
    holds = True
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        times = predicted(program, architecture, measured, folder)
        errors = collections.defaultdict(list)
        if lacking := measured.keys() - times.keys():
            fail(1, f"no prediction of {len(lacking)} rows, such as {min(lacking)}")
        for row, us in measured.items():
            error, changed = times[row] / us - 1, (row[0], row[3]) in CHANGED
            if not changed:
                errors[row[0]].append(abs(error))
            if options.rows:
                print(f"{row[0]:20}{row[1]:5}{row[2]:>8} x {row[3]:<10}{us:9.2f} us measured"
                      f"{times[row]:9.2f} predicted{error:+8.1%}{', changed since' if changed else ''}")
        print(f"{device}: predicted time of the defaults beside the measured one")
        for kernel, each in errors.items():
            print(f"  {kernel:20}{len(each):4} rows, error: median {statistics.median(each):.1%}, worst "
                  f"{max(each):.1%}")
        every = [error for each in errors.values() for error in each]
        median, worst = statistics.median(every), max(every)
        print(f"  {'all':20}{len(every):4} rows, error: median {median:.1%}, worst {worst:.1%}")
        holds = holds and median <= MEDIAN and worst <= WORST
        recording = folder / "recording.jsonl"
        recording.write_bytes(recorded)
        for kernel in SEARCHED:
            ranking = json.loads(tune(program, "--device", f"replay:{recording}", "--ranking", architecture,
                                      "--kernel", kernel, "--format", "bf16", "--out", folder / "ranked",
                                      "--json"))
            shares = ", ".join(f"{share:.1%}" for share in ranking["reached"])
            print(f"{ranking['problem']}: {ranking['points']} candidates, Spearman's correlation "
                  f"{ranking['spearman']['value']:.2f}; the first {ranking['first']} as predicted reach "
                  f"{shares} of the fastest's speed")
            holds = holds and ranking["reached"][-1] >= FIRST_16
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
