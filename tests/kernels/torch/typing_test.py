"""What an editor and a type checker see of the package: every public name is written out where it is defined,
and every argument and result of a public function, class and method has its type."""

import ast
import inspect
import os
import pathlib
import re
import subprocess
import sys
import typing

import pytest
import torch
from torch import nn

import outgrad
from outgrad import library

FOLDER = pathlib.Path(outgrad.__file__).parent
SOURCES = pathlib.Path(os.environ["OUTGRAD_SOURCE_DIR"])
MYPY = pathlib.Path(os.environ["OUTGRAD_BINARY_DIR"]) / "mypy"
PUBLIC = {name: getattr(outgrad, name) for name in outgrad.__all__}
FUNCTIONS = {name: thing for name, thing in PUBLIC.items() if inspect.isroutine(thing)}
CLASSES = {name: thing for name, thing in PUBLIC.items() if inspect.isclass(thing)}


def own_methods(kind):
    """The public methods and properties that a class has from this package, and its constructor if that is
    ours."""
    for base in kind.__mro__:
        if base.__module__.startswith("outgrad"):
            for name, thing in vars(base).items():
                function = thing.fget if isinstance(thing, property) else thing
                if inspect.isfunction(function) and function.__module__.startswith("outgrad") and (
                        name[0] != "_" or name in ("__init__", "__str__")):
                    yield f"{kind.__name__}.{name}", function


METHODS = dict(pair for kind in CLASSES.values() for pair in own_methods(kind))


def test_what_is_public_is_a_function_a_class_or_the_catalogue():
    assert PUBLIC.keys() - FUNCTIONS.keys() - CLASSES.keys() == {"ACTIVATIONS"}
    assert set(library.ACTIVATIONS) <= FUNCTIONS.keys()


@pytest.mark.parametrize("name", [*FUNCTIONS, *METHODS])
def test_every_argument_and_result_has_its_type(name):
    function = {**FUNCTIONS, **METHODS}[name]
    hints = typing.get_type_hints(function)
    arguments = [argument for argument in inspect.signature(function).parameters if argument != "self"]
    assert hints.keys() == {*arguments, "return"}
    assert typing.Any not in (hints["return"], *(hints[a] for a in arguments if a not in ("args", "kwargs")))


@pytest.mark.parametrize("name", PUBLIC)
def test_help_is_there_and_fits_a_terminal(name):
    """ACTIVATIONS is a tuple, whose help is Python's."""
    thing = PUBLIC[name]
    if name == "ACTIVATIONS":
        return
    text = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert text, "no docstring of its own"
    shown = inspect.cleandoc(text)
    assert len(shown.splitlines()[0]) > 20 and all(len(line) <= 110 for line in shown.splitlines()), shown


def takes_arrays(function):
    """The arguments of a function that are tensors, or may be."""
    hints = typing.get_type_hints(function)
    return [name for name, hint in hints.items() if name not in ("return", "example")
        and torch.Tensor in (hint, *typing.get_args(hint))]


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if takes_arrays(FUNCTIONS[name])])
def test_a_docstring_names_the_shape_of_each_array(name):
    """In its last paragraph: "Shapes: x and residual [..., n]; bias [n]; the result as x." """
    last = inspect.getdoc(FUNCTIONS[name]).split("\n\n")[-1].replace("\n", " ")
    assert last.startswith("Shapes: ") and last.endswith("."), last
    parts = last.removeprefix("Shapes: ").split("; ")
    named = {word.strip(",") for part in parts[:-1] for word in part.split(" [")[0].split()}
    assert set(takes_arrays(FUNCTIONS[name])) <= named, last
    assert re.match(r"(the result|y and z|y) (\[|the same|as x)", parts[-1]), parts[-1]


def test_the_types_are_these():
    hints = {name: typing.get_type_hints(FUNCTIONS[name])
        for name in ("silu", "patch", "bounds", "side_channels", "gelu")}
    assert hints["silu"] == {"x": torch.Tensor, "store": str, "return": torch.Tensor}
    assert hints["patch"]["model"] is nn.Module and hints["patch"]["return"] is outgrad.Report
    assert (hints["bounds"]["return"] is outgrad.Bounds
        and hints["side_channels"]["return"] == torch.Tensor | None)
    assert hints["gelu"]["approximate"] == typing.Literal["none", "tanh"]


def test_every_name_is_written_out_where_it_is_defined():
    """An editor runs nothing: it reads the imports of __init__.py, and the definitions of the files that they
    name."""
    assert (FOLDER / "py.typed").is_file()
    imported = {}
    for node in ast.parse((FOLDER / "__init__.py").read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            imported |= {one.name: node.module for one in node.names}
    assert PUBLIC.keys() <= imported.keys()
    for name in PUBLIC:
        written = set()
        for node in ast.parse((FOLDER / f"{imported[name]}.py").read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                written.add(node.name)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                written |= {target.id
                    for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
                    if isinstance(target, ast.Name)}
        assert name in written, f"{imported[name]}.py"
    assert (
        [outgrad.functional._ACTIVATIONS[name] is getattr(outgrad, name)
        for name in library.ACTIVATIONS if name != "gelu"] == [True] * 9)


def mypy():
    """A Python that has mypy, beside the build; skips where pip cannot fetch it."""
    wanted = (pathlib.Path(__file__).parent / "mypy_requirements.txt").read_text()
    stamp, python = MYPY / "requirements.txt", MYPY / "bin/python"
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", MYPY], check=True)
        got = subprocess.run([python, "-m", "pip", "install", "--quiet", "--retries", "1", *re.findall(
            r"^\w\S+", wanted, re.MULTILINE)], capture_output=True, text=True)
        if got.returncode != 0:
            pytest.skip(f"pip cannot fetch mypy: {got.stderr.strip().splitlines()[-1]}")
        stamp.write_text(wanted)
    return python


def checked(folder):
    """What mypy says of the package in a folder, by the settings of pyproject.toml."""
    return subprocess.run([mypy(), "-m", "mypy", "--config-file", SOURCES / "pyproject.toml",
        "--python-executable", sys.executable, "--cache-dir", MYPY / "cache", "-p", "outgrad"], cwd=folder,
        env={**os.environ, "PYTHONPATH": "", "MYPYPATH": ""}, capture_output=True, text=True)


@pytest.mark.nightly
def test_mypy_finds_no_fault_in_the_package():
    done = checked(FOLDER.parent)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
def test_mypy_tells_a_user_of_a_wrong_argument(tmp_path):
    (tmp_path / "outgrad").symlink_to(FOLDER)
    (tmp_path / "user.py").write_text("import torch\n\nimport outgrad\n\n"
        "y: torch.Tensor = outgrad.gelu(torch.ones(3), 'none')\noutgrad.gelu(torch.ones(3), 'erf')\n")
    done = subprocess.run([mypy(), "-m", "mypy", "--python-executable", sys.executable, "--cache-dir",
        MYPY / "cache", "--follow-imports", "silent", "user.py"], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": "", "MYPYPATH": ""}, capture_output=True, text=True)
    (fault,) = re.findall(r"^user.py:(\d+): error: .*arg-type\]$", done.stdout, re.MULTILINE)
    assert fault == "6", done.stdout
