"""What a GPU measured, as tables: our kernels beside PyTorch's and beside the ceiling of its memory, then models in training.

`python3 notebooks_data/gpu/show.py notebooks_data/gpu/DEVICE` reads what autotune/gpu_run.sh wrote: checks.json, timing.json (ours), torch.json (PyTorch's)
and throughput.json. Times are medians of the rounds kept, with one set of arrays after another, more than the second-level cache holds. The ceiling is
the best that copying or scaling an array reached over all sizes of the run: a copy by itself moves less where arrays are large.
"""

import json
import pathlib
import sys

CEILINGS = ("copy", "scale")


def refuse(why):
    print(f"show: {why}", file=sys.stderr)
    sys.exit(2)


def read(folder, name, schema):
    try:
        document = json.loads((folder / name).read_text())
    except (OSError, ValueError) as error:
        refuse(f"{folder / name}: {error}")
    if document.get("schema") != schema:
        refuse(f"{folder / name}: schema {document.get('schema')!r}, {schema} is needed")
    return document


def of_problem(row):
    return row["name"], row["format"], row["rows"], row["columns"]


def beside_pytorch(ours, theirs):
    """(row of ours, its share of the ceiling, how many times as fast as PyTorch's or None), in the order of the file."""
    ceiling = max(row["gb_per_s"] for row in ours if row["name"] in CEILINGS)
    times = {of_problem(row): row["us_median"] for row in theirs}
    for row in ours:
        if row["name"] not in CEILINGS:
            other = times.get(of_problem(row))
            yield row, row["gb_per_s"] / ceiling, None if other is None else other / row["us_median"]


def equal_digests(folder):
    """(how many, of how many) arrays over all patterns of a format had the bits of the committed sweeps."""
    try:
        digests = json.loads((folder / "checks.json").read_text())["digests"]["digests"]
        return sum(one["equal"] and one["sha256"] == one["sweep"] for one in digests), len(digests)
    except (OSError, ValueError, KeyError) as error:
        refuse(f"{folder / 'checks.json'}: {error!r}")


def show_kernels(folder):
    ours, theirs = read(folder, "timing.json", "outgrad.gpu_time/2"), read(folder, "torch.json", "outgrad.gpu_torch/2")
    equal, all_of_them = equal_digests(folder)
    print(f"{ours['device']}, {ours['sms']} SMs, beside PyTorch {theirs['torch']}; SHA-256 of y, mask and dx equal to the sweeps': {equal} of {all_of_them}")
    print(f"{'kernel':26}{'':6}{'rows x columns':>20}{'us':>11}{'of the ceiling':>16}{'PyTorch / ours':>16}")
    compared = ahead = 0
    for row, share, ratio in beside_pytorch(ours["timings"], theirs["timings"]):
        size = f"{row['rows']} x {row['columns']}"
        faster = "" if ratio is None else f"{ratio:16.2f}"
        print(f"{row['name']:26}{row['format']:6}{size:>20}{row['us_median']:11.1f}{share:16.0%}{faster}")
        if ratio is not None:
            compared += 1
            ahead += ratio > 1
    print(f"ahead of PyTorch in {ahead} of {compared} rows")


def show_models(folder):
    found = read(folder, "throughput.json", "outgrad.throughput/1")
    widths = (26, 16, 14, 14, 8, 14, 9, 14)

    def line(*cells):
        print("".join(f"{cell:<{w}}" if k < 3 else f"{cell:>{w}}" for k, (cell, w) in enumerate(zip(cells, widths, strict=True))).rstrip())

    line(f"model, {found['length']} tokens", "", "", "MiB/sequence", "batch", "sequences/s", "largest", "sequences/s")
    for row in found["rows"]:
        common, largest = row.get("at_common_batch", {}), row.get("at_largest_batch", {})
        speeds = [f"{of['sequences_per_s']:.0f}" if of else "" for of in (common, largest)]
        line(row["model"], row["mode"], row["recipe"], f"{row['mib_per_sequence']:.1f}", common.get("batch", ""), speeds[0], row.get("largest_batch", ""), speeds[1])


def main():
    if len(sys.argv) != 2 or not pathlib.Path(sys.argv[1]).is_dir():
        refuse("takes one folder of a device; see the head of this program")
    folder = pathlib.Path(sys.argv[1])
    show_kernels(folder)
    if (folder / "throughput.json").exists():
        print()
        show_models(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
