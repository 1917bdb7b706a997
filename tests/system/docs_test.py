"""The pages of docs/ do what they say: their commands run, from the top of a copy of the repository, and their files are there.

A block of a page begins with its language. `sh`: commands, run in the order of the page, each block by one shell that ends
at the first failure. `sh gpu`: the same, on a machine that may have neither a GPU nor a CUDA toolkit: there exit status 3,
"the environment lacks something", is the other right end. `LANGUAGE PATH`: a file, written before what follows runs. `python`
alone: for a Python with PyTorch; tests/kernels/torch/patching_test.py runs those.
The figures that README.md and how_few_bits.md claim are those of the committed headers and results (page_figures.py).
The pictures of how_it_works.md are drawn again. A source file that a page names exists, and where a row of a table names files and
then functions, these stand in them.

usage: docs_test.py REPOSITORY BUILD
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

from page_figures import wrong_figures

BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)\)")
FILE = re.compile(r"`((?:approx|autotune|docs|kernels|tests|validation)/[\w./]+\.\w+)`")
NAME = re.compile(r"`(\w+)`")
LACKING = 3
LIMIT_S = 1800  # of one block, on a machine that may be busy with other things


def sandbox(repository, folder):
    """What a checkout has, by links; what commands write stays in `folder`."""
    for entry in repository.iterdir():
        if entry.name not in {".git", "build", "out", "mine"}:
            (folder / entry.name).symlink_to(entry)


def run_block(code, place, folder, environment, may_lack):
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], cwd=folder, env=environment, text=True, timeout=LIMIT_S,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode == 0 or (may_lack and done.returncode == LACKING):
        lacking = f" (lacking: {done.stdout.strip().splitlines()[-1]})" if done.returncode else ""
        print(f"{place}: status {done.returncode}{lacking}", flush=True)
        return True
    print(f"FAILED: {place}: status {done.returncode}:\n{code}\n{done.stdout[-3000:]}")
    return False


def names_hold(page, text, repository):
    """Files that the page names exist, NAME.h aside; in a row of a table the cell behind a cell of files has names from them."""
    missing = [path for path in FILE.findall(text) if "NAME" not in path and not (repository / path).exists()]
    for line in text.splitlines():
        cells = line.split("|")
        for files, names in zip(cells, cells[1:]):
            sources = "".join((repository / path).read_text() for path in FILE.findall(files) if (repository / path).exists())
            missing += [f"{name} of {files.strip()}" for name in NAME.findall(names) if sources and not re.search(rf"\b{name}\b", sources)]
    for what in missing:
        print(f"FAILED: {page.name}: no {what}")
    return not missing


def page_holds(page, repository, environment):
    text = page.read_text()
    holds = names_hold(page, text, repository)
    for target in LINK.findall(BLOCK.sub("", text)):
        if not (page.parent / target).exists():
            print(f"FAILED: {page.name}: no {target}")
            holds = False
    with tempfile.TemporaryDirectory(prefix="outgrad-docs-") as name:
        folder = pathlib.Path(name)
        sandbox(repository, folder)
        for block in BLOCK.finditer(text):
            language, word, code = block.groups()
            place = f"{page.name}:{text.count(chr(10), 0, block.start()) + 1}"
            if language == "python" and word is None:
                continue
            if language != "sh":
                (folder / word).write_text(code)
            elif not run_block(code, place, folder, environment, word == "gpu"):
                return False
    return holds


def pictures_hold(repository):
    committed = {path.name for path in (repository / "docs").glob("*.svg")}
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import matplotlib"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            break
    else:
        print("the pictures are not drawn again: no matplotlib (Debian: python3-matplotlib)")
        return bool(committed)
    with tempfile.TemporaryDirectory(prefix="outgrad-docs-") as folder:
        subprocess.run([python, repository / "docs/pictures.py", folder], check=True)
        drawn = {path.name for path in pathlib.Path(folder).iterdir()}
    if drawn != committed:
        print(f"FAILED: pictures.py draws {sorted(drawn)}; committed are {sorted(committed)}")
    return drawn == committed


def main():
    repository, build = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    wrong = wrong_figures(repository, build)
    for line in wrong:
        print(f"FAILED: {line}")
    if wrong:
        return 1
    if not (build / "outgrad-fit").exists():
        print("skipped: this build has no fitter")
        return 77
    environment = os.environ | {"OUTGRAD_BUILD_DIR": str(build), "OUTGRAD_SOURCE_DIR": str(repository)}
    pages = sorted((repository / "docs").glob("*.md"))
    failed = [page.name for page in pages if not page_holds(page, repository, environment)]
    if not pictures_hold(repository):
        failed.append("pictures.py")
    print(f"docs: {len(pages)} pages, failed: {failed}")
    return 1 if failed or len(pages) < 5 else 0


if __name__ == "__main__":
    sys.exit(main())
