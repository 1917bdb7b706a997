"""What tracers of PyTorch make of this package's modules: torch.fx a node each, and torch.jit.script an
error."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Proxy


class Ours:
    """A part of each module that torch.jit.script would try to compile."""

    def __prepare_scriptable__(self) -> None:
        raise RuntimeError(f"outgrad: torch.jit.script compiles no {type(self).__name__} of a patched model; "
            f"call outgrad.unpatch(model) first, or take torch.jit.trace")


def is_symbol(x: object) -> bool:
    """Whether x is what torch.fx traces with."""
    return isinstance(x, Proxy)


def as_node(module: Any, *inputs: Any) -> Any:
    """A call of the module as torch.fx has it of PyTorch's own; it traces what others do within."""
    tracer = inputs[0].tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(module), inputs, {})


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """What runs within is no part of what torch.jit.trace traces."""
    state, become = torch._C._get_tracing_state(), torch._C._set_tracing_state  # type: ignore[attr-defined]
    become(None)
    try:
        yield
    finally:
        become(state)
