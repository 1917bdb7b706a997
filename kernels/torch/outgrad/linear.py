"""Linear whose backward pass reads its input in 8 bits.

The gradient of its weight is dW = dy^T x. Of x, codes in e4m3 or e5m2 at one scale are kept (fp8.py), and dW'
= dy^T x' is computed from what they stand for. With v the unit roundoff of the 8 bits (2^-4 in e4m3, 2^-3 in
e5m2), t their least subnormal (2^-9, 2^-16), u the unit roundoff of x's type and t' its least subnormal, for
every finite x up to 2^127

    |x' - x| <= (v + 3 u) |x| + t / (2 scale) + t',

and |dW' - dW| <= sum |dy| |x' - x| over the rows, apart from the rounding of the product, which PyTorch makes
of either. 3 u |x| has room for x' rounded to x's type, for codes of an activation or a norm, which were made
of its y in fp32, and under autocast, whose type x's is then, for codes that were made of x before. A norm's
codes are RN(RN(y / s)) for its scale s, and are read here with scale = RN(1 / s). That moves x' by at most
2^-23 |x| more, which v |x| has room for: rounding to e4m3 moves no number above its subnormal ones by more
than v / (1 + v) of it, and below that t / (2 scale) is the bound alone. y and the gradients of x and of the
bias are PyTorch's own.
"""

from typing import Literal

import torch

from . import fp8, functional, library


def _compute(x, weight, bias, codes, scale, of):
    return (torch.nn.functional.linear(x, weight, bias),)


def _keep(ctx, inputs, outputs):
    _, weight, _, codes, scale, ctx.of = inputs
    ctx.save_for_backward(codes, scale, weight, outputs[-1])


def _gradients(ctx, saved, dy):
    codes, scale, weight, _ = saved
    for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
    rows = dy.reshape(-1, weight.shape[0])
    x = fp8.decode(codes, scale, ctx.of, dy.dtype).view(-1, weight.shape[1]) if for_weight else None
    return (dy @ weight if for_x else None, rows.T @ x if for_weight else None,
        rows.sum(0) if for_bias else None, None, None, None)


def _codes_of(x, of):
    found = fp8.offered(x, of)
    if found is None:
        values = x.detach()
        scale = fp8.scale_of(values, of, fp8.LEAST)
        found = fp8.encode(values, scale, of), scale
        fp8.offer(x, *found, of)
    return found


_linear = functional._Operation("linear", _compute, _keep, _gradients, without_y=True)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,
        store: Literal["e4m3", "e5m2"] = "e4m3") -> torch.Tensor:
    """x weight^T + bias. For the gradient of weight it keeps x in 8 bits at one scale, store "e4m3" or
    "e5m2". If x is the output of an activation or a norm with a store of that format, both keep the same
    codes, and so do several calls with one x.

    x is [..., n], weight [m, n] and bias [m], all of one type or under autocast.
    """
    if not isinstance(store, str) or store not in library.FP8:
        raise ValueError(
            f"outgrad.linear: store is {store!r}, neither {' nor '.join(map(repr, library.FP8))}")
    of = library.FP8[store]
    functional._expect("linear", x=x, weight=weight, bias=bias)
    if not (torch.is_grad_enabled() and weight.requires_grad):
        return torch.nn.functional.linear(x, weight, bias)  # which keeps no x
    codes, scale = _codes_of(x, of)
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    return _linear(x, weight, bias, codes, scale, of)
