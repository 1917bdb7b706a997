"""Times the commands that README.md begins with, each in a clone of its own, as for somebody who has just
fetched the repository. Debian's packages and PyTorch are there before, so that no download is timed.

usage: first_commands.py PYTHON RECORD [NAME...]    NAME: pip, check, run, test; all four where none is named.
PYTHON has PyTorch and what `pip install .` builds with (tests/kernels/torch/requirements.txt). RECORD, by
convention notebooks_data/studies/first_commands.json, has the last time of each command (schema
outgrad.first_commands/1); a command that failed is recorded as such, and what it said is shown. To be run
alone on a machine, without a compiler's cache.
"""

import datetime
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from record import ROOT, provenance, read, write

SCHEMA = "outgrad.first_commands/1"
# name: (the command as README.md has it, what it leaves behind)
COMMANDS = {
    "pip": ("pip install .", "site"),
    "check": ("./outgrad check kernels/generated/gelu_bf16.h", "build"),
    "run": ("./outgrad run", "build"),
    "test": ("./outgrad test", "build"),
}


def size_of(folder):
    """MiB of the files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()) / 2**20


def measured(name, python, folder):
    """The row of a command, and what it printed."""
    command, leaves = COMMANDS[name]
    clone = folder / name
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    words = command.split()
    if name == "pip":
        words = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target",
                 "site", "."]
    uncached = {key: value for key, value in os.environ.items() if "COMPILER_LAUNCHER" not in key}
    begin = time.monotonic()
    done = subprocess.run(words, cwd=clone, env={**uncached, "OUTGRAD_TORCH": python}, text=True, check=False,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    seconds = round(time.monotonic() - begin)
    row = {"command": command, "date": datetime.date.today().isoformat(), **provenance(clone),
           "seconds": seconds, "MiB": round(size_of(clone / leaves), 1), "status": done.returncode}
    if suite := re.search(r"Total Test time \(real\) = *([0-9.]+) sec", done.stdout):  # ctest's
        row["suite_seconds"] = round(float(suite[1]))
    return row, done.stdout


def main():
    python, record, *names = sys.argv[1:] if len(sys.argv) > 2 else ("", "", "")
    if not record or not set(names) <= set(COMMANDS):
        print(f"usage: first_commands.py PYTHON RECORD [{'|'.join(COMMANDS)}]...", file=sys.stderr)
        return 2
    if shutil.which(python) is None:
        print(f"outgrad: {python}: is no program that can be run", file=sys.stderr)
        return 2
    python, record = os.path.abspath(shutil.which(python)), pathlib.Path(record)
    try:
        known = read(record, SCHEMA, "commands")
    except (OSError, ValueError) as error:
        print(f"outgrad: {record}: {error}", file=sys.stderr)
        return 2
    status = 0
    with tempfile.TemporaryDirectory(prefix="outgrad-first-") as folder:
        for name in names or COMMANDS:
            row, said = measured(name, python, pathlib.Path(folder))
            known["commands"][name] = row
            write(record, known)
            print(f"{row['command']}: {row['seconds']} s, {row['MiB']} MiB, exit status {row['status']}",
                  flush=True)
            if row["status"] != 0:
                print(said, file=sys.stderr)
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
