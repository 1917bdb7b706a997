"""Softmax whose backward pass reads its output p from codes of 8 bits (kernels/softmax.h).

A code is log2 p in steps of 3/32: p' is within 3.25% of p from 6.4e-8 up, and 0 below. dx = p' (dy - sum(p'
dy) / sum(p')). Over a row of n elements, sum |dx - ds| is at most 0.0651 sum |ds| + 1.273e-7 n (max dy - min
dy), apart from the rounding of dx and terms of 2^-24 |dy|; softmax_bound has all of it but the rounding of
dx.
"""

import math
from typing import Any

import torch

from . import functional, library
from .arguments import is_within, shown, whole_number





def _keep(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
    ctx.columns = inputs[1]
    ctx.save_for_backward(*outputs[1:])


def _gradients(ctx: Any, saved: tuple[torch.Tensor, ...], dy: torch.Tensor) -> tuple[torch.Tensor, None]:
    codes, _ = saved
    return library.softmax_backward_code(dy, codes, ctx.columns), None


_softmax = functional._Operation("softmax", library.softmax_forward_code, _keep, _gradients, without_y=True)


def softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """softmax(x) along dim, computed in fp32 and rounded once to the type of x. Keeps one byte an element,
    and not its output.

    A row (along dim) has at most 2^23 elements. Where x is -inf, p and the gradient are 0. A row with a NaN,
    with +inf, or with nothing but -inf gives NaN in all of p and of the gradient.

    Shapes: x [...], of any strides; the result the same, contiguous as PyTorch's.
    """
    functional._expect("softmax", x=x)
    if x.dim() == 0:
        return softmax(x.view(1), dim).view(())
    if (index := whole_number(dim)) is None:
        raise TypeError(f"outgrad.softmax: dim is {shown(dim)}, the number of a dimension is needed")
    dim = index
    if not -x.dim() <= dim < x.dim():
        raise IndexError(f"outgrad.softmax: dim is {shown(dim)}, x has {x.dim()} dimensions")
    columns = x.shape[dim]
    if columns > library.MOST_SOFTMAX:
        raise ValueError(f"outgrad.softmax: a row of {columns} elements, where at most 2^23 have codes")
    if dim in (-1, x.dim() - 1):
        return _softmax(x.contiguous(), columns)
    return _softmax(x.movedim(dim, -1).contiguous(), columns).movedim(-1, dim).contiguous()


def softmax_bound(n: int, total: float, spread: float, largest: float) -> float:
    """How far the gradient of a row of n elements can be from softmax's, in the sum of magnitudes, before it
    is rounded to its type. total: sum |ds| of the exact gradient; spread: the largest less the least dy;
    largest: the greatest |dy|. Infinite for a |dy| above 2^126, with which fp32 may overflow."""
    given = total, spread, largest
    if not all(is_within(one, 0) for one in given):
        first, second, third = map(shown, given)
        raise ValueError(f"outgrad.softmax_bound: total, spread and largest are {first}, {second} and "
            f"{third}; none may be negative")
    if (elements := whole_number(n)) is None:
        raise TypeError(f"outgrad.softmax_bound: n is {shown(n)}, the number of a row's elements is needed")
    try:
        bound = library.softmax_error(elements, total, spread, largest)[2]
    except ValueError as error:
        raise ValueError(f"outgrad.softmax_bound: {error}") from None
    return bound if largest <= 2.0**126 else math.inf
