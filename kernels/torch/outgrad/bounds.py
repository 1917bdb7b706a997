"""The bounds of the fits that the backward passes run: those that the compiled-in coefficient headers prove,
and for float32 the totals that sweeps over every x counted."""

import dataclasses
import decimal
import math

import torch

from . import fp8, library, stores, swept
from .arguments import is_one_of, is_within, shown


def rounded_up(value: float, digits: int) -> str:
    """A bound in words: the least number of so many digits that is not below it."""
    context = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    return f"{float(context.create_decimal(value)):.{digits}g}"


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Upper bounds of |g - ...| for the gradient dx = dy g; infinite where no header and no sweep states
    one."""

    fit: str  # its coefficients and proofs are in kernels/generated/<fit>.h
    sha256: str  # of that header
    evaluation: float  # kA + kB + kK: against f' at the x that y and the bit stand for
    total: float  # kT, or for y in float32 what a sweep counted (swept.py): against f'(x)
    regret: float  # kR: the part of kT that the storage of y does not excuse
    over: str  # the x that total is about, in words
    # kBias, of a dithered code: of the mean of g over all dithers against f'(x), over every x
    bias: float = math.inf

    def __str__(self) -> str:
        mean = f", |mean g - f'(x)| <= {rounded_up(self.bias, 2)}" if math.isfinite(self.bias) else ""
        return f"|g - f'(x)| <= {rounded_up(self.total, 2)}{mean} for {self.over}, fit {self.fit}"


def _inputs(dtype: torch.dtype, store: str, largest: float | None, most: float) -> str:
    """The x that a store's total is about, in words. most: the largest |y| of a tensor for which it holds."""
    every = f"every {str(dtype).removeprefix('torch.')} x"
    if largest is not None:
        return f"{every} of a tensor whose largest finite |y| is {largest:g}"
    if store == "mxfp8+bit":
        return f"{every} of a block of 32 whose largest |y| is below 2^12"
    if math.isfinite(most):
        return (f"{every} of a tensor whose largest finite |y| is at most "
            f"2^{math.log2(most):g}")
    return every


def bounds(activation: str = "gelu", dtype: torch.dtype = torch.float32, store: str = stores.DEFAULT,
        largest: float | None = None) -> Bounds:
    """Bounds of an activation's gradient for a y of dtype and what the store keeps (stores.py). That of
    mxfp8+bit holds in every block of 32 whose largest |y| is below 2^12.

    The bound of a y in e4m3 or e5m2 at a scale holds in every tensor whose largest finite |y| is at most
    2^12, or 2^26 in e5m2. largest: this largest |y|; then the bound is that at its scale, and there is one
    for every tensor."""
    if not is_one_of(activation, library.ACTIVATIONS):
        raise ValueError(f"outgrad.bounds: {shown(activation)} is none of {', '.join(library.ACTIVATIONS)}")
    if not library.is_format(dtype):
        raise TypeError(f"outgrad.bounds: {shown(dtype)} is none of float32, float16, bfloat16")
    if (why := stores.why_not(activation, store)) is not None:
        raise ValueError(f"outgrad.bounds: {why}")
    if largest is not None and not (stores.is_scaled(store)
            and is_within(largest, 0, torch.finfo(torch.float32).max)):
        raise ValueError(
            f"outgrad.bounds: largest is {shown(largest)}, which takes a finite float32 from 0 on and a "
            f"store in e4m3 or e5m2; the store is {store}")
    name, bits = stores.STORES[stores.for_type(store, dtype)]
    fit, sha256, (a_plus_b, k, t, r, bias, most) = library.fit_of(activation, dtype, name, bits,
        stores.is_dithered(store))
    if largest is not None:
        scale = fp8.scale_of(torch.tensor([largest], dtype=torch.float32, device="cpu"),
            library.STORES[name].number, fp8.LEAST_OF_ACTIVATIONS)
        t = library.store_error(activation, name, scale.item(), bits)
    over = _inputs(dtype, store, largest, most)
    if math.isinf(t):
        t = swept.TOTALS[fit]
    return Bounds(fit, sha256, a_plus_b + k, t, r, over, bias)
