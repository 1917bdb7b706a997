"""Builds the pages as a site: lays out each page and each file that a page links to, writes the page of
the Python interface, has Doxygen write those of the C and C++ headers, and has MkDocs build all of it. A link
that leads nowhere is an error.

usage: python docs/site.py [FOLDER]    (default: out/site)
       after `pip install -r docs/site_requirements.txt` and, for doxygen, `apt-get install doxygen`

The site is FOLDER/html. Pages stay where they are: their links hold in the repository and on the site.
"""

import ast
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
SECOND_WORD = re.compile(r"^(```\w+) \S+$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def linked(page):
    """The files that a page links to; of a folder, nothing."""
    for target in LINK.findall(CODE.sub("", page.read_text())):
        path = (page.parent / target).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            yield path


def reachable():
    """README.md, CHANGELOG.md, and what they lead to."""
    seen, new = set(), {ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")}
    while new:
        seen |= new
        new = {path for page in new if page.suffix == ".md" for path in linked(page)} - seen
    return seen


def interface():
    """The page of the Python interface: every public name, in the order of __all__."""
    for node in ast.parse((ROOT / "kernels/torch/outgrad/__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
            names = ast.literal_eval(node.value)
    return "# Python interface\n\n" + "\n\n".join(f"::: outgrad.{name}" for name in names) + "\n"


def run(command, **environment):
    """Ends with what the program wrote, unless it succeeds."""
    try:
        done = subprocess.run(command, cwd=ROOT, check=False, env={**os.environ, **environment},
            stderr=subprocess.PIPE, text=True)
    except FileNotFoundError:
        print(f"site.py: {command[0]} is missing: apt-get install {command[0]}", file=sys.stderr)
        sys.exit(3)
    if done.returncode != 0:
        sys.exit(done.stderr)


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "out/site").resolve()
    pages = folder / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    for path in reachable():
        place = pages / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            # `sh gpu`, `cpp FILE`: the second word is for page_commands_test.py, and Markdown takes one.
            place.write_text(SECOND_WORD.sub(r"\1", path.read_text()))
        else:
            shutil.copyfile(path, place)
    (pages / "api.md").write_text(interface())
    (pages / "headers").mkdir()
    run(["doxygen", "docs/Doxyfile"], OUTGRAD_HEADER_PAGES=str(pages / "headers"))
    # Not --quiet, which hides warnings from --strict, too.
    run([sys.executable, "-m", "mkdocs", "build", "--strict", "-f", "mkdocs.yml"],
        OUTGRAD_SITE_PAGES=str(pages), OUTGRAD_SITE=str(folder / "html"))
    print(folder / "html/index.html")


if __name__ == "__main__":
    main()
