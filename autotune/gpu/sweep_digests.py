#!/usr/bin/env python3
"""Compares the outputs of a device over every bit pattern with the SHA-256 of the exhaustive sweeps (validation/sweep/digest.h).

usage: sweep_digests.py OUTGRAD_TUNE SWEEPS [--device D] [--formats f32,f16,bf16] [--folder DIR]

OUTGRAD_TUNE is the executable, SWEEPS a folder with gelu_FORMAT.json of `outgrad validate` (notebooks_data/sweeps). x runs over all patterns of
the format itself; y, mask and dx at dy = 1 come from `eval`. DIR holds the arrays on their way, up to 4.3 GB at a time for f32 (default: /dev/shm).
Exit status: 0 all equal, 1 a difference, 2 bad usage or input, 3 no numpy.
"""
import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy
except ImportError:
    sys.exit((print("outgrad: sweep_digests: no numpy", file=sys.stderr), 3)[1])

CHUNK = 1 << 22  # patterns that are hashed as one
CALL = 1 << 28  # patterns of one call of eval, a multiple of CHUNK
# bits, pattern of the infinity, of the canonical NaN, of 1
FORMATS = {"f32": (32, 0x7F800000, 0x7FC00000, 0x3F800000), "f16": (16, 0x7C00, 0x7E00, 0x3C00), "bf16": (16, 0x7F80, 0x7FC0, 0x3F80)}


def refuse(why):
    print(f"outgrad: sweep_digests: {why}", file=sys.stderr)
    sys.exit(2)


def patterns(bits, infinity, begin, end):
    """The sweep's order: -largest ... -0, +0 ... largest, then +inf and NaNs, -inf and NaNs."""
    sign = 1 << (bits - 1)
    index = numpy.arange(begin, end, dtype=numpy.int64)
    special = index - 2 * infinity
    negative = sign + infinity - 1 - index
    return numpy.where(
        index < infinity, negative,
        numpy.where(special < 0, index - infinity,
                    numpy.where(special < sign - infinity, special + infinity, sign + infinity + special - (sign - infinity))),
    ).astype(f"<u{bits // 8}")


def canonical(words, infinity, nan):
    top = words.dtype.type((1 << (8 * words.itemsize - 1)) - 1)
    words[(words & top) > infinity] = nan
    return words


def digests(arguments, name, folder):
    bits, infinity, nan, one = FORMATS[name]
    word = numpy.dtype(f"<u{bits // 8}")
    size = 1 << bits
    call = min(size, CALL)
    outputs = {key: hashlib.sha256() for key in ("y", "mask", "dx")}
    file = {key: folder / key for key in ("x", "y", "mask", "dy", "dx")}
    numpy.full(call, one, word).tofile(file["dy"])
    common = [arguments.executable, "eval", "--activation", "gelu", "--format", name, "--device", arguments.device]
    for begin in range(0, size, call):
        patterns(bits, infinity, begin, begin + call).tofile(file["x"])
        forward = ["--op", "forward", "--x", file["x"], "--y", file["y"], "--mask", file["mask"]]
        backward = ["--op", "backward", "--dy", file["dy"], "--y", file["y"], "--mask", file["mask"], "--dx", file["dx"]]
        for operation in (forward, backward):
            ended = subprocess.run(common + operation, stdout=subprocess.DEVNULL)
            if ended.returncode:
                sys.exit(ended.returncode)
        arrays = {key: canonical(numpy.fromfile(file[key], word), infinity, nan) for key in ("y", "dx")}
        arrays["mask"] = numpy.fromfile(file["mask"], "<u4")
        for key, array in arrays.items():
            chunk = CHUNK // 32 if key == "mask" else CHUNK
            for at in range(0, len(array), chunk):
                outputs[key].update(hashlib.sha256(array[at:at + chunk].tobytes()).digest())
    return {key: sum_of.hexdigest() for key, sum_of in outputs.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = refuse
    parser.add_argument("executable")
    parser.add_argument("sweeps", type=pathlib.Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--folder", default="/dev/shm")
    arguments = parser.parse_args()
    if not os.access(arguments.executable, os.X_OK) or os.path.isdir(arguments.executable):
        refuse(f"{arguments.executable}: no such executable")
    if not os.path.isdir(arguments.folder) or not os.access(arguments.folder, os.W_OK):
        refuse(f"--folder {arguments.folder}: no folder that can be written to")
    equal = True
    for name in arguments.formats.split(","):
        if name not in FORMATS:
            refuse(f"--formats: '{name}' is unknown ({', '.join(FORMATS)})")
        path = arguments.sweeps / f"gelu_{name}.json"
        try:
            domains = json.loads(path.read_text(encoding="utf-8"))["domains"]
            want = next(domain["sha256"] for domain in domains if domain["x_format"] == name)
            want = {key: want[key] for key in ("y", "mask", "dx")}
        except OSError as error:
            refuse(f"{path}: {error.strerror}")
        except (ValueError, KeyError, TypeError, StopIteration):
            refuse(f"{path}: sha256: no digests of x in {name}")
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            got = digests(arguments, name, pathlib.Path(folder))
        for key in want:
            same = got[key] == want[key]
            equal = equal and same
            print(f"{name} {key:4} {got[key]} {'as the sweep' if same else 'DIFFERS from ' + want[key]}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
