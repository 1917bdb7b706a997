"""The gated pair act(a) b of gated MLPs, and what its backward pass reads.

A gated MLP (N. Shazeer, "GLU Variants Improve Transformer", 2020) multiplies an activation of one Linear's
result by that of another, and gives the product to a third. PyTorch keeps four arrays for it: a, act(a), b
and the product z. Here, by `store`:

    recompute  a and b. act(a), act'(a) and, for the gradient of the third Linear's weight, the product are
               made again from them, in the pass that gives the gradients of a and b. They are computed in
               fp32 and rounded once (kernels/gate.h, which has their errors), so that nothing is lost by it
    output     z, which the third Linear needs anyway, and beside it one number of its type, which is b, and
               one bit an element. z / b is act(a) rounded once, and act'(a) a function of it and the bit
               (kernels/product.h, which says what is kept where z is 0, and how much more is lost where it is
               subnormal, below 2^-14 in float16). Nothing is made again. float16 and bfloat16; gelu,
               gelu_tanh and silu
    e4m3       a and b in e4m3, each at one scale of the tensor (fp8.py), from which all is made again. e5m2
               likewise
    mxfp8      a and b in e4m3, with a scale for each block of 32 (fp8.py), likewise

An activation and the dropout behind it are such a pair, too: b is 0 where an element is dropped, and the
factor of what is kept everywhere else. `output` of it is the dropped result, which the next layer keeps, and
a bit an element: the sign of a zero of the product says whether b was 0, and no seed is kept. So that the
mean of b is 1, what drops is p' = 1 - 1 / b for the number b of the type that is nearest to 1 / (1 - p), and
|p' - p| <= (1 - p) u / (1 - u). ReLU needs no bit and no such b: its gradient passes where the result is
above 0.

In 8 bits the a' that stands for a is within d = (v + 3 u) |a| + t / (2 scale) + t' of it, with the v, t, u
and t' of linear.py and the scale of the tensor or of a's block. So act'(a') is within max |act''| d of
act'(a), where max |act''| is 1/2 for silu, 0.8 for both forms of gelu and 0.1 for sigmoid, and act(a') within
1.13 d of act(a). An infinity counts as the largest finite number there, as in fp8.py; from a and b themselves
it gives NaN or an infinity.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from . import fp8, functional, library, stores
from .arguments import shown
from .bounds import rounded_up


class _Store(NamedTuple):
    """What a pair keeps. `kept` are a and b, or z and what else compute gave, or what it gave beside z."""

    compute: Callable[..., Any]  # (a, b) -> (z, *more)
    gradients: Callable[..., Any]  # (dz, kept, packed, with_z) -> (da, db, z); db is None of a packed a
    product: Callable[..., Any]  # (kept, dtype, shape) -> z
    keeps_inputs: bool = False
    keeps_product: bool = False

    def kept(self, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        """Of (a, b) and (z, *more)."""
        return inputs if self.keeps_inputs else outputs if self.keeps_product else outputs[1:]


def _recompute(index: int) -> _Store:
    def gradients(dz: torch.Tensor, kept: tuple[Any, ...], packed: bool,
            with_z: bool) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        da, db, z = library.gated_backward(dz, *kept[:2], index, with_z)
        return da, None if packed else db, z

    return _Store(lambda a, b: (library.gated_forward(a, b, index),), gradients,
        lambda kept, dtype, shape: library.gated_forward(*kept[:2], index), keeps_inputs=True)


def _output(index: int) -> _Store:
    def gradients(dz: torch.Tensor, kept: tuple[Any, ...], packed: bool,
            with_z: bool) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        da, db = library.product_backward(dz, *kept[:3], index, packed)
        return da, None if packed else db, kept[0]

    return _Store(lambda a, b: tuple(library.product_forward(a, b, index)), gradients,
        lambda kept, dtype, shape: kept[0], keeps_product=True)


# A factor in 8 bits: {word: its number among the stores}.
_CODES = {word: library.STORES[word].number for word in (*library.FP8, stores.MXFP8)}


def _in_8_bits(index: int, of: int) -> _Store:
    block = library.BY_NUMBER[of].block  # in which the halves of packed rows may be no whole ones

    def compute(a: torch.Tensor, b: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        if b is not None or block == 0 or a.shape[-1] % (2 * block) == 0:
            return tuple(library.gated_forward_8bit(a, b, index, of))
        first, second = a.chunk(2, -1)
        return library.gated_forward(a, b, index), *fp8.encode(first, of), *fp8.encode(second, of)

    def pair(kept: tuple[Any, ...], dtype: torch.dtype, shape: Sequence[int]) -> list[torch.Tensor]:
        of_a, scales_of_a, of_b, scales_of_b = kept[:4]
        return [fp8.decode(codes, scales, of, dtype).view(shape)
            for codes, scales in ((of_a, scales_of_a), (of_b, scales_of_b))]

    def gradients(dz: torch.Tensor, kept: tuple[Any, ...], packed: bool,
            with_z: bool) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        if not packed or block == 0 or dz.shape[-1] % block == 0:
            da, db, z = library.gated_backward_8bit(dz, *kept[:4], index, of, packed, with_z)
            return da, None if packed else db, z
        da, db, z = library.gated_backward(dz, *pair(kept, dz.dtype, dz.shape), index, with_z)
        return torch.cat((da, db), -1), None, z

    return _Store(compute, gradients,
        lambda kept, dtype, shape: library.gated_forward(*pair(kept, dtype, shape), index))


def _pair(store: _Store) -> functional._Operation:
    def keep(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
        ctx.save_for_backward(*store.kept(inputs, outputs))
        ctx.packed = inputs[1] is None

    def gradients(ctx: Any, saved: tuple[Any, ...], dy: torch.Tensor) -> tuple[Any, ...]:
        return store.gradients(dy, saved, ctx.packed, False)[:2]

    return functional._Operation("gated", store.compute, keep, gradients,
        without_y=not (store.keeps_inputs or store.keeps_product), whole=lambda a, b: int(b is None))


def _pair_and_linear(store: _Store) -> functional._Operation:
    def compute(a: torch.Tensor, b: torch.Tensor | None, weight: torch.Tensor,
            bias: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        z, *more = store.compute(a, b)
        result = functional.pytorchs_linear(z, weight, bias)
        return (result, z, *more) if store.keeps_product else (result, *more)

    def keep(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
        ctx.save_for_backward(inputs[2], *(inputs[:2] if store.keeps_inputs else outputs[1:]))
        ctx.packed = inputs[1] is None

    def gradients(ctx: Any, saved: tuple[Any, ...], dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weight, *kept = saved
        for_a, for_b, for_weight, for_bias = ctx.needs_input_grad
        da = db = None
        z: Any = None
        dz, _, dbias = functional.linear_gradients(dy, None, weight, for_a or for_b, False, for_bias)
        if for_a or for_b:
            da, db, z = store.gradients(dz, kept, ctx.packed, for_weight)
        elif for_weight:
            z = store.product(kept, dy.dtype, (*dy.shape[:-1], weight.shape[1]))
        _, dweight, _ = functional.linear_gradients(dy, z, weight, False, for_weight, False)
        return da if for_a else None, db if for_b else None, dweight, dbias

    return functional._Operation("gated_linear", compute, keep, gradients,
        without_y=not store.keeps_inputs)


def _dropped(index: int) -> functional._Operation:
    def compute(x: torch.Tensor, seed: torch.Tensor, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
        factors = library.dropout(torch.ones_like(x), seed, 1 - 1 / factor)
        z, _, mask = library.product_forward(x, factors, index)
        return z, mask

    def keep(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
        ctx.save_for_backward(*outputs)
        ctx.factor = inputs[2]

    def gradients(ctx: Any, saved: tuple[Any, ...], dz: torch.Tensor) -> tuple[Any, ...]:
        z, mask = saved
        da, _ = library.product_backward(dz, z, torch.full_like(z, ctx.factor), mask, index, False)
        return da, None, None

    return functional._Operation("activation_dropout", compute, keep, gradients,
        whole=functional._of_elements)


def _relu_and_dropout() -> functional._Operation:
    def keep(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
        ctx.save_for_backward(outputs[0])
        ctx.factor = 1 / (1 - inputs[2])

    def gradients(ctx: Any, saved: tuple[Any, ...], dz: torch.Tensor) -> tuple[Any, ...]:
        return (dz * ctx.factor).masked_fill(saved[0] <= 0, 0), None, None

    return functional._Operation("activation_dropout",
        lambda x, seed, p: (library.dropout(torch.relu(x), seed, p),), keep, gradients, differentiable=True,
        whole=functional._of_elements)


_RELU = "relu"
_activations_and_dropouts = {_RELU: _relu_and_dropout(),
    **{name: _dropped(library.ACTIVATIONS.index(name)) for name in library.PRODUCTS}}


def _stores_of(name: str) -> dict[str, _Store]:
    """{word of stores.OF_PAIRS: what it means for this gate}."""
    index = library.ACTIVATIONS.index(name)
    found = {stores.DEFAULT_OF_PAIRS: _recompute(index), **{word: _in_8_bits(index, of)
        for word, of in _CODES.items()}}
    if name in library.PRODUCTS:
        found[stores.OUTPUT] = _output(index)
    return found


_stores = {(name, word): store for name in library.GATES for word, store in _stores_of(name).items()}
_pairs, _pairs_and_linears = ({key: make(store) for key, store in _stores.items()}
    for make in (_pair, _pair_and_linear))


def _of(function: str, operations: dict[tuple[str, str], functional._Operation], name: str, store: str,
        dtype: torch.dtype) -> functional._Operation:
    """The operation of an activation that is a gate, with a store."""
    if not isinstance(name, str) or name not in library.GATES:
        raise ValueError(
            f"outgrad.{function}: activation is {shown(name)}, none of {', '.join(library.GATES)}")
    known = isinstance(store, str) and store in stores.OF_PAIRS
    if not known or stores.for_pair(store, name, dtype) != store:
        raise ValueError(f"outgrad.{function}: {stores.why_not_pair(store)}")
    if store in _CODES and not library.is_recorded():
        store = stores.DEFAULT_OF_PAIRS  # the same z, without codes that nothing would read
    return operations[name, store]


def bound(store: str, names: Sequence[str]) -> str:
    """In words, how far what a pair of any of these gates keeps may be off."""
    if (fp8_type := library.FP8.get(store)) is not None:
        u, largest = fp8.UNIT_ROUNDOFF[fp8_type], fp8.LARGEST[fp8_type]
        normal = math.floor(math.log2(largest * u / fp8.HALF_SUBNORMAL[fp8_type]))
        return (f"both factors within a relative {u:g} above 2^-{normal} of their tensor's largest, if that "
            f"is from 2^-100 to 2^127, and in float16 above 2^-14")
    if store == stores.MXFP8:  # a largest is above 224 times its scale, and 2^-6 the least normal number
        return (f"both factors within a relative {2.0**-4:g} above 2^-13 of the largest of their block, if "
            f"that is at least 2^-118")
    off = _off(names) if store == stores.OUTPUT else None
    return ("both factors, exact" if off is None else f"{off}, where |f(a) b| > 2^-14 or |b| >= 1/2; "
        "float32 keeps both factors")


def bound_of_dropped(store: str, names: Sequence[str]) -> str:
    """In words, how far the gradient of an activation with the dropout behind it may be off."""
    off = _off(names) if store == stores.OUTPUT else None
    return "as its parts" if off is None else f"{off}; float32 as its parts"


def _off(names: Sequence[str]) -> str | None:
    of = [name for name in names if name in library.PRODUCTS]
    found = (f"{rounded_up(max(library.product_error(name, dtype)[0] for name in of), 2)} in {word}"
        for word, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)))
    return f"|g - f'(a)| <= {' and '.join(found)}" if of else None


def factor_of(p: float, dtype: torch.dtype) -> float | None:
    """The number of a type that is nearest to 1 / (1 - p); None if there is none, or none but 1."""
    if not 0 < p < 1 or 1 / (1 - p) > torch.finfo(dtype).max:
        return None
    share, exponent = math.frexp(1 / (1 - p))
    unit = functional.UNIT_ROUNDOFF[dtype]
    factor = math.ldexp(round(share / unit) * unit, exponent)
    return factor if factor > 1 else None


def _expect_pair(function: str, a: Any, b: Any) -> None:
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


def gated(a: torch.Tensor, b: torch.Tensor | None = None, activation: str = "silu",
        store: str = stores.DEFAULT_OF_PAIRS) -> torch.Tensor:
    """act(a) b, elementwise. By default it keeps a and b, which are all that its gradient needs; it is exact
    but for rounding.

    a and b are of one type. Without b, the rows of a hold those of both, as after one Linear for both.
    activation: one of gelu, gelu_tanh, silu and sigmoid. store: what else to keep: "output", which is the
    result, b and a bit, in float16 and bfloat16; "e4m3", "e5m2" or "mxfp8", which are a and b in 8 bits
    (gates.py has their errors, and patch's report states them).

    Shapes: a and b [..., n], or a alone [..., 2 n]; the result [..., n].
    """
    _expect_pair("gated", a, b)
    operation = _of("gated", _pairs, activation, store, a.dtype)
    return operation(a, None) if b is None else functional.as_it_lies(operation, a, b)


def gated_linear(a: torch.Tensor, b: torch.Tensor | None, weight: torch.Tensor,
        bias: torch.Tensor | None = None, activation: str = "silu",
        store: str = stores.DEFAULT_OF_PAIRS) -> torch.Tensor:
    """linear(gated(a, b, activation), weight, bias) as one node of autograd. By default it keeps a, b and
    weight, and makes the product again for the gradient of weight.

    a, b, activation and store are those of gated; a, b, weight and bias are all of one type or under
    autocast.

    Shapes: a and b [..., n], or a alone [..., 2 n]; weight [m, n]; bias [m]; the result [..., m].
    """
    _expect_pair("gated_linear", a, b)
    functional._expect("gated_linear", a=a, weight=weight, bias=bias)
    if functional.is_autocast(a):
        dtype = torch.get_autocast_dtype(a.device.type)
        a, weight = a.to(dtype), weight.to(dtype)
        b, bias = None if b is None else b.to(dtype), None if bias is None else bias.to(dtype)
    operation = _of("gated_linear", _pairs_and_linears, activation, store, a.dtype)
    columns = math.prod(a.shape[-1:]) // (2 if b is None else 1)
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


def activation_dropout(x: torch.Tensor, p: float = 0.5, activation: str = "gelu",
        training: bool = True) -> torch.Tensor:
    """dropout(act(x), p) as one node of autograd, which keeps its result, as the next layer does, and one bit
    an element; apart the two keep act(x) beside that.

    activation: one of gelu, gelu_tanh and silu, for x in float16 and bfloat16; or relu, in float32 too, of
    which no bit is kept and all is exact. Of the others the gradient is dx = dz b g, where
    b is what an element was multiplied by, a number of x's type or 0, and |g - act'(x)| has the bound of a
    pair's store "output" (gates.py, which also has the probability with which elements are dropped: p up to
    a rounding of 1 - p to x's type). There a NaN stays one and an infinity becomes one if it is dropped, as
    in PyTorch; where 1 / (1 - p) is no such b, as with p = 1, and of relu it is 0, as outgrad.dropout has it.

    Shapes: x [...], of any strides; the result the same.
    """
    functional._expect("activation_dropout", x=x)
    if not isinstance(activation, str) or not drops(activation, x.dtype):
        raise ValueError(f"outgrad.activation_dropout: {shown(activation)} of {x.dtype}; there are "
            f"{', '.join(library.PRODUCTS)} of float16 and bfloat16, and {_RELU}")
    p = functional.checked_probability("activation_dropout", p, training)
    how = (p if 0 < p < 1 else None) if activation == _RELU else factor_of(p, x.dtype)
    if how is None:
        y = torch.relu(x) if activation == _RELU else getattr(functional, activation)(x)
        return y if p == 0 else functional.dropout(y, p)
    operation = _activations_and_dropouts[activation]
    return functional.as_it_lies(lambda x: operation(x, functional.dropout_seed(x), how), x)


def drops(activation: str, dtype: torch.dtype) -> bool:
    """Whether an activation of this type and the dropout behind it can be one node."""
    return activation == _RELU or stores.for_pair(stores.OUTPUT, activation, dtype) == stores.OUTPUT
