"""The gated pair act(a) b of gated MLPs, whose backward pass reads a and b and makes the product again.

A gated MLP (N. Shazeer, "GLU Variants Improve Transformer", 2020) multiplies an activation of one Linear's
result by that of another, and gives the product to a third. PyTorch keeps four arrays for it: a, act(a), b
and the product. Here a and b are all that is kept: act(a), act'(a) and, for the gradient of the third
Linear's weight, the product are made again from them, in the pass that gives the gradients of a and b. They
are computed in fp32 and rounded once (kernels/gate.h, which has their errors), so that nothing is lost by it.
"""

import torch

from . import functional, library


def _of(function, name, gates):
    """The operation of an activation that is a gate."""
    operation = gates.get(name) if isinstance(name, str) else None
    if operation is None:
        raise ValueError(f"outgrad.{function}: activation is {name!r}, none of {', '.join(library.GATES)}")
    return operation


def _pair(index):
    def compute(a, b):
        return (library.gated_forward(a, b, index),)

    def gradients(ctx, saved, dy):
        da, db, _ = library.gated_backward(dy, *saved, index, False)
        return da, None if saved[1] is None else db

    return functional._Operation("gated", compute, lambda ctx, inputs, _: ctx.save_for_backward(*inputs),
        gradients, whole=lambda a, b: int(b is None))


def _pair_and_linear(index):
    def compute(a, b, weight, bias):
        return (torch.nn.functional.linear(library.gated_forward(a, b, index), weight, bias),)

    def keep(ctx, inputs, outputs):
        ctx.save_for_backward(*inputs[:3])

    def gradients(ctx, saved, dy):
        a, b, weight = saved
        for_a, for_b, for_weight, for_bias = ctx.needs_input_grad
        rows, da, db, y = dy.reshape(-1, weight.shape[0]), None, None, None
        if for_a or for_b:
            dz = rows.mm(weight).view(*a.shape[:-1], weight.shape[1])
            da, db, y = library.gated_backward(dz, a, b, index, for_weight)
        elif for_weight:
            y = library.gated_forward(a, b, index)
        dweight = rows.t().mm(y.view(-1, weight.shape[1])) if for_weight else None
        return (da if for_a else None, db if for_b else None, dweight, rows.sum(0) if for_bias else None)

    return functional._Operation("gated_linear", compute, keep, gradients)


_pairs = {name: _pair(library.ACTIVATIONS.index(name)) for name in library.GATES}
_pairs_and_linears = {name: _pair_and_linear(library.ACTIVATIONS.index(name)) for name in library.GATES}


def _expect_pair(function, a, b):
    if not (functional._is_usable(a) and (b is None or (functional._is_usable(b) and a.dtype == b.dtype
            and a.device == b.device and a.shape == b.shape))):
        functional._expect(function, a=a, b=b)
        if b.dtype != a.dtype:
            raise TypeError(f"outgrad.{function}: a is {a.dtype}, b {b.dtype}")
        raise ValueError(
            f"outgrad.{function}: a of shape {tuple(a.shape)} and b of shape {tuple(b.shape)} are no pair")
    if b is None and (a.dim() == 0 or a.shape[-1] % 2 != 0):
        raise ValueError(f"outgrad.{function}: a of shape {tuple(a.shape)} has no halves along its last "
            f"dimension, and there is no b")


def gated(a: torch.Tensor, b: torch.Tensor | None = None, activation: str = "silu") -> torch.Tensor:
    """act(a) b, elementwise. Keeps a and b, which are all that its gradient needs; it is exact but for
    rounding.

    a and b are of one type. Without b, the rows of a hold those of both, as after one Linear for both.
    activation: one of gelu, gelu_tanh, silu and sigmoid.

    Shapes: a and b [..., n], or a alone [..., 2 n]; the result [..., n].
    """
    operation = _of("gated", activation, _pairs)
    _expect_pair("gated", a, b)
    return operation(a, None) if b is None else functional.as_it_lies(operation, a, b)


def gated_linear(a: torch.Tensor, b: torch.Tensor | None, weight: torch.Tensor,
        bias: torch.Tensor | None = None, activation: str = "silu") -> torch.Tensor:
    """linear(gated(a, b, activation), weight, bias) as one node of autograd. Keeps a, b and weight; the
    product is made again for the gradient of weight.

    a, b and activation are those of gated; a, b, weight and bias are all of one type or under autocast.

    Shapes: a and b [..., n], or a alone [..., 2 n]; weight [m, n]; bias [m]; the result [..., m].
    """
    operation = _of("gated_linear", activation, _pairs_and_linears)
    _expect_pair("gated_linear", a, b)
    if torch.is_autocast_enabled(a.device.type):
        dtype = torch.get_autocast_dtype(a.device.type)
        a, weight = a.to(dtype), weight.to(dtype)
        b, bias = None if b is None else b.to(dtype), None if bias is None else bias.to(dtype)
    functional._expect("gated_linear", a=a, weight=weight, bias=bias)
    columns = a.shape[-1] if b is not None else a.shape[-1] // 2
    if a.dim() < 2 or weight.dim() != 2 or weight.shape[1] != columns:
        raise ValueError(f"outgrad.gated_linear: a product of {columns} columns and weight of shape "
            f"{tuple(weight.shape)} have no product")
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(f"outgrad.gated_linear: bias has shape {tuple(bias.shape)}, weight gives "
            f"{weight.shape[0]} columns")
    for name, one in (("weight", weight), ("bias", bias)):
        if one is not None and one.dtype != a.dtype:
            raise TypeError(f"outgrad.gated_linear: a is {a.dtype}, {name} {one.dtype}")
    return operation(a, b, weight, bias)
