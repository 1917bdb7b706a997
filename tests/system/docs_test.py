"""README.md and the pages of docs/ say what is so: the figures that they claim are those of the committed
headers and results (page_figures.py), the pictures are drawn again, of the same figures, a file that a page
names or links to exists, and where a row of a table names files and then functions, these stand in them. The
theorems of docs/proofs.md are those of Coq's library or of what certify writes.
README.md is short, and its first screen has the gain, a picture and code. page_commands_test.py runs the
pages' commands.

usage: docs_test.py REPOSITORY BUILD
"""

import pathlib
import re
import subprocess
import sys
import tempfile

from page_figures import wrong_figures

BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
THEOREM = re.compile(r"^```coq[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)\)")
DRAWN = re.compile(r"<dc:description>(.*?)</dc:description>", re.DOTALL)
FILE = re.compile(r"`((?:approx|autotune|docs|examples|kernels|tests|validation)/[\w./]+\.\w+)`")
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
        drawn = {path.name: path.read_text() for path in pathlib.Path(folder).iterdir()}
    if drawn.keys() != committed:
        print(f"FAILED: pictures.py draws {sorted(drawn)}; committed are {sorted(committed)}")
        return False
    # Not the bytes, which are another matplotlib's.
    old = [name for name, text in drawn.items()
           if DRAWN.findall(text) != DRAWN.findall((repository / "docs" / name).read_text())]
    if old:
        print(f"FAILED: {old}: of other figures than pictures.py draws today; draw again")
    return not old


def theorems_hold(repository):
    """docs/proofs.md: each statement, by its words, stands in a file for Coq, or in a template of one."""
    def words(text):
        return " ".join(text.split())

    files = "".join(path.read_text() for path in sorted((repository / "approx/proof").rglob("*"))
                    if path.suffix in (".v", ".cpp"))
    files = files.replace("{fit}", "silu_bf16_product").replace("{format}", "8 128")
    known = words("".join(files.replace("{name}", name) for name in ("silu_bf16", "gelu_f32")))
    said = THEOREM.findall((repository / "docs/proofs.md").read_text())
    unknown = [text for text in said if words(text) not in known]
    for text in unknown:
        print(f"FAILED: docs/proofs.md: no such theorem: {text.splitlines()[0]}")
    return len(said) >= 3 and not unknown


def first_screen_holds(repository):
    """What a reader decides by: within 25 lines the table of gains, the picture and three lines of Python."""
    lines = (repository / "README.md").read_text().splitlines()
    screen = "\n".join(lines[:25])
    wants = {"a table": r"^\| --- \|", "BERT-Large's bytes": r"BERT-Large keeps.*\*\*\d",
             "a picture": r"^!\[.+\]\(", "Python": r"^```python\n(.+\n){3}```$"}
    missing = [what for what, pattern in wants.items() if not re.search(pattern, screen, re.MULTILINE)]
    if missing or len(lines) > 150:
        print(f"FAILED: README.md: {len(lines)} lines, its first 25 lack {missing}")
    return not missing and len(lines) <= 150


def main():
    repository, build = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    wrong = wrong_figures(repository, build)
    for line in wrong:
        print(f"FAILED: {line}")
    pages = [repository / "README.md", repository / "examples/README.md",
             *sorted((repository / "docs").glob("*.md"))]
    failed = [page.name for page in pages if not page_holds(page, repository)]
    if not first_screen_holds(repository):
        failed.append("README.md's first screen")
    if not theorems_hold(repository):
        failed.append("docs/proofs.md's theorems")
    if not pictures_hold(repository):
        failed.append("pictures.py")
    print(f"docs: {len(pages)} pages, failed: {failed}")
    return 1 if wrong or failed or len(pages) < 5 else 0


if __name__ == "__main__":
    sys.exit(main())
