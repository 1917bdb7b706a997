"""The pages of docs/ say what is so: the figures that README.md and how_few_bits.md claim are those of the
committed headers and results (page_figures.py), the pictures of how_it_works.md are drawn again, a file that
a page names or links to exists, and where a row of a table names files and then functions, these stand in
them. page_commands_test.py runs the pages' commands.

usage: docs_test.py REPOSITORY BUILD
"""

import pathlib
import re
import subprocess
import sys
import tempfile

from page_figures import wrong_figures

BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)\)")
FILE = re.compile(r"`((?:approx|autotune|docs|kernels|tests|validation)/[\w./]+\.\w+)`")
NAME = re.compile(r"`(\w+)`")


def names_hold(page, text, repository):
    """Files that the page names exist, NAME.h aside; in a row of a table the cell behind a cell of files has
    names from them."""
    missing = [path for path in FILE.findall(text) if "NAME" not in path and not (repository / path).exists()]
    for line in text.splitlines():
        cells = line.split("|")
        for files, names in zip(cells, cells[1:]):
            sources = "".join((repository / path).read_text() for path in FILE.findall(files)
                              if (repository / path).exists())
            missing += [f"{name} of {files.strip()}" for name in NAME.findall(names) if sources
                        and not re.search(rf"\b{name}\b", sources)]
    for what in missing:
        print(f"FAILED: {page.name}: no {what}")
    return not missing


def page_holds(page, repository):
    text = page.read_text()
    holds = names_hold(page, text, repository)
    for target in LINK.findall(BLOCK.sub("", text)):
        if not (page.parent / target).exists():
            print(f"FAILED: {page.name}: no {target}")
            holds = False
    return holds


def pictures_hold(repository):
    committed = {path.name for path in (repository / "docs").glob("*.svg")}
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import matplotlib"], stderr=subprocess.DEVNULL,
                          check=False).returncode == 0:
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
    pages = sorted((repository / "docs").glob("*.md"))
    failed = [page.name for page in pages if not page_holds(page, repository)]
    if not pictures_hold(repository):
        failed.append("pictures.py")
    print(f"docs: {len(pages)} pages, failed: {failed}")
    return 1 if wrong or failed or len(pages) < 5 else 0


if __name__ == "__main__":
    sys.exit(main())
