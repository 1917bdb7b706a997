"""The commands of pages that run Python are there: each program says its options, which needs the packages
that it imports, has those that the page names, and imports no package that its page does not name."""

import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

SOURCES = pathlib.Path(os.environ["OUTGRAD_SOURCE_DIR"])
STUDIES = SOURCES / "notebooks_data/studies"
PAGES = [page for folder in ("docs", "examples", "notebooks_data")
    for page in (SOURCES / folder).rglob("*.md")]
OPTIONS = {}  # by program: those that pages name
for text in (page.read_text() for page in PAGES):
    for program, words in re.findall(r"python (notebooks_data/studies/\w+\.py)([^`\n]*)", text):
        OPTIONS.setdefault(program, set()).update(re.findall(r"--[\w-]+", words))


def test_each_study_is_listed_and_its_results_have_a_command():
    listed = set(re.findall(r"^\| `(\w+\.py)`", (STUDIES / "README.md").read_text(), re.MULTILINE))
    assert listed == {path.name for path in STUDIES.glob("*.py") if "__main__" in path.read_text()}
    assert len(OPTIONS) >= 7 and {program.rpartition("/")[2] for program in OPTIONS} <= listed


@pytest.mark.nightly
@pytest.mark.parametrize("program", OPTIONS)
def test_the_program_of_a_command_has_its_options(program):
    done = subprocess.run([sys.executable, SOURCES / program, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert OPTIONS[program] <= set(re.findall(r"--[\w-]+", done.stdout)), done.stdout


def test_a_study_imports_what_its_page_names():
    """transformers by those that the page says need it, and otherwise PyTorch, this package and their own."""
    page = (STUDIES / "README.md").read_text()
    need = set(re.findall(r"`(\w+)\.py`", re.search(r"`pip install \.`\);\n(.*) need transformers", page)[1]))
    own = {path.stem for path in STUDIES.iterdir()} | {"outgrad", "torch"} | sys.stdlib_module_names
    found = {}
    for path in STUDIES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = ([one.name for one in node.names] if isinstance(node, ast.Import) else
                [node.module] if isinstance(node, ast.ImportFrom) and node.level == 0 else [])
            for name in {each.partition(".")[0] for each in names} - own:
                found.setdefault(name, set()).add(path.stem)
    assert found == {"transformers": need}
