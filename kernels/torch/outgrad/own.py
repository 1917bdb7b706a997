"""An activation of your own that keeps a code of its derivative, from the header that `./outgrad emit` wrote
for it."""

import contextlib
import hashlib
import math
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import nn

from . import functional, graphs, stores
from .arguments import shown
from .bounds import Bounds

_KINDS = ("code", "dither")
_NUMBER = r"-?(0x[0-9a-f]+(\.[0-9a-f]*)?p[+-]?\d+|\d+(\.\d*)?(e[+-]?\d+)?)f?"  # as `emit` writes one


class CodeHeader:
    """What a code header states: its name, the range of f', what it takes for granted of g, and its bounds.
    Only `./outgrad check` proves them."""

    path: pathlib.Path
    sha256: str
    name: str
    lo: float
    hi: float
    gradient: float
    bias: float

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"outgrad.CodeHeader: path is {shown(path)}, the path of a header is needed")
        self.path = pathlib.Path(path)
        try:
            content = self.path.read_bytes()
            text = content.decode("ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: no header of codes: "
                f"{getattr(error, 'strerror', None) or error}") from None
        self.sha256 = hashlib.sha256(content).hexdigest()
        constants = re.findall(
            r"^  static constexpr (?:float|double|const char\*) k(\w+) = ([^;\n]+);", text, re.MULTILINE)
        self._constants = dict(constants)
        if len(self._constants) < len(constants):
            raise ValueError(f"{path}: no header of codes: a constant stands there twice")
        self.name = self._word("Name")
        self.lo, self.hi, self.gradient = self._number("Lo"), self._number("Hi"), self._number("G")
        self.bias = self._number("Bias")

    def _word(self, key: str) -> str:
        if key not in self._constants:
            raise ValueError(f"{self.path}: no header of codes: it has no k{key}")
        return self._constants[key].strip('"')

    def _number(self, key: str) -> float:
        word, number = self._word(key), math.nan
        if re.fullmatch(_NUMBER, word) is not None:
            digits = word.removesuffix("f")
            with contextlib.suppress(OverflowError):
                number = float.fromhex(digits) if "x" in digits else float(digits)
        if not math.isfinite(number):
            raise ValueError(f"{self.path}: no header of codes: k{key} is {word}")
        return number

    def bounds(self, kind: Literal["code", "dither"], bits: int) -> Bounds:
        """Those of a code of so many bits. `evaluation` is what the caller promises of its gradient."""
        dithered = kind == "dither"
        key = f"Dithered{bits}" if dithered else f"T{bits}"
        total, least = self._number(key), (self.hi - self.lo) / 2.0 ** (bits + 1)
        if total < least:
            raise ValueError(f"{self.path}: no header of codes: k{key} is {self._constants[key]}, and no "
                f"code of {bits} bits is nearer than {least:.6g} to all of kLo to kHi")
        over = f"every x with |x| <= {self._number('XLimit'):g}" if "XLimit" in self._constants else "every x"
        return Bounds(self.name, self.sha256, self.gradient, total, math.inf, over,
            self.bias if dithered else math.inf)


class CodedActivation(graphs.Ours, nn.Module):
    """An activation f of your own, elementwise, whose backward pass reads a code of f'(x) and neither x nor
    y.

    header    the path of a header of codes for f (docs/your_own_activation.md), or a CodeHeader
    value     f as a function of a tensor, which gives a tensor of the same shape and type
    gradient  f' likewise; it gets x in float32. The bounds hold for a gradient within the header's kG of
              f'(x), which is a promise of yours: nothing here can check it.
    store     code:1 to code:8, or dither:2 or dither:3 (stores.py)

    Neither function is differentiated by PyTorch: dx = dy times what the code stands for. |x| beyond the
    header's kXLimit, to which its proofs go, gets the code of the gradient that it has.
    """

    header: CodeHeader
    bounds: Bounds

    def __init__(self, header: str | os.PathLike[str] | CodeHeader,
            value: Callable[[torch.Tensor], torch.Tensor], gradient: Callable[[torch.Tensor], torch.Tensor],
            store: str = "code:4") -> None:
        super().__init__()
        kind, _, bits = store.partition(":") if isinstance(store, str) else ("", "", "")
        if kind not in _KINDS or store not in stores.STORES:
            raise ValueError(
                f"outgrad.CodedActivation: store: {shown(store)} is none of code:1 to code:8, dither:2 and "
                f"dither:3")
        for what, one in (("value", value), ("gradient", gradient)):
            if not callable(one):
                raise TypeError(f"outgrad.CodedActivation: {what} is {shown(one)}, a function is needed")
        self.header = header if isinstance(header, CodeHeader) else CodeHeader(header)
        self.value, self.gradient, self.store = value, gradient, store
        self.bounds = self.header.bounds(cast(Literal["code", "dither"], kind), int(bits))
        self._make()

    def _make(self) -> None:
        between, (kind, _, bits) = (self.header.lo, self.header.hi), self.store.partition(":")
        self._operation = functional.keeping_own_codes(f"CodedActivation of {self.header.name}", self.value,
            self.gradient, between, int(bits), kind == "dither")

    def __getstate__(self) -> dict[str, Any]:
        return {name: one for name, one in self.__dict__.items() if name != "_operation"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._make()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if graphs.is_symbol(x):
            return graphs.as_node(self, x)
        return self._operation(x)

    def extra_repr(self) -> str:
        return f"store={self.store!r}, {self.bounds}"
