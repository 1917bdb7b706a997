"""The pages of docs/ do what they say: their commands run, from the top of a copy of the repository.

A block of a page begins with its language. `sh`: commands, run in the order of the page, each block by one
shell that ends at the first failure. `sh gpu`: the same, on a machine that may have neither a GPU nor a CUDA
toolkit: there exit status 3, "the environment lacks something", is the other right end. `LANGUAGE PATH`: a
file, written before what follows runs. `python` alone: for a Python with PyTorch;
tests/kernels/torch/patching_test.py runs those. `coq` alone: a theorem, which docs_test.py compares with the
library.

usage: page_commands_test.py REPOSITORY BUILD
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LACKING = 3
LIMIT_S = 1800  # of one block, on a machine that may be busy with other things


def sandbox(repository, folder):
    """What a checkout has, by links; what commands write stays in `folder`."""
    for entry in repository.iterdir():
        if entry.name not in {".git", "build", "out", "mine"}:
            (folder / entry.name).symlink_to(entry)


def run_block(code, place, folder, environment, may_lack):
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], cwd=folder, env=environment, text=True,
                          timeout=LIMIT_S,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode == 0 or (may_lack and done.returncode == LACKING):
        lacking = f" (lacking: {done.stdout.strip().splitlines()[-1]})" if done.returncode else ""
        print(f"{place}: status {done.returncode}{lacking}", flush=True)
        return True
    print(f"FAILED: {place}: status {done.returncode}:\n{code}\n{done.stdout[-3000:]}")
    return False


def page_runs(page, repository, environment):
    text = page.read_text()
    with tempfile.TemporaryDirectory(prefix="outgrad-docs-") as name:
        folder = pathlib.Path(name)
        sandbox(repository, folder)
        for block in BLOCK.finditer(text):
            language, word, code = block.groups()
            place = f"{page.name}:{text.count(chr(10), 0, block.start()) + 1}"
            if language in ("python", "coq") and word is None:
                continue
            if language != "sh":
                (folder / word).write_text(code)
            elif not run_block(code, place, folder, environment, word == "gpu"):
                return False
    return True


def main():
    repository, build = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    if not (build / "outgrad-fit").exists():
        print("skipped: this build has no fitter")
        return 77
    environment = os.environ | {"OUTGRAD_BUILD_DIR": str(build), "OUTGRAD_SOURCE_DIR": str(repository)}
    pages = sorted((repository / "docs").glob("*.md"))
    failed = [page.name for page in pages if not page_runs(page, repository, environment)]
    print(f"commands of {len(pages)} pages, failed: {failed}")
    return 1 if failed or len(pages) < 5 else 0


if __name__ == "__main__":
    sys.exit(main())
