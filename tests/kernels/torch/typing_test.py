"""What an editor and a type checker see of the package: every public name is written out where it is defined,
and every argument and result of a public function, class and method has its type."""

import ast
import inspect
import pathlib
import typing

import pytest
import torch
from torch import nn

import outgrad
from outgrad import library

FOLDER = pathlib.Path(outgrad.__file__).parent
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
