"""Linear whose backward pass reads its input in 8 bits, or some rows of it.

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

Of rows drawn at random (rows.py) those are kept that were drawn, each over its probability p, in x's type or
in 8 bits; and dW' = dy^T x' over them. Its mean is dW, but that each x / p is rounded as x is above. So a
Linear's other gradients are exact, and that of its weight has a variance instead of a bound.
"""

import math
from typing import Any

import torch

from . import fp8, functional, library, rows, sharded, stores
from .arguments import shown


def _compute(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, kept: torch.Tensor,
        index: torch.Tensor | None, scale: torch.Tensor | None, of: int | None) -> tuple[torch.Tensor]:
    return (functional.pytorchs_linear(x, weight, bias),)


def _keep(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
    _, weight, _, *kept, ctx.of = inputs
    ctx.save_for_backward(*kept, weight, outputs[-1])


def _gradients(ctx: Any, saved: tuple[Any, ...], dy: torch.Tensor) -> tuple[Any, ...]:
    kept, index, scale, weight, _ = saved
    for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
    dx, dweight, dbias = functional.linear_gradients(dy, None, weight, for_x, False, for_bias)
    if for_weight:
        of_rows = functional.matrix_of(dy)
        drawn = of_rows if index is None else of_rows.index_select(0, index)
        x = kept if ctx.of is None else fp8.decode(kept, scale, ctx.of, dy.dtype)
        dweight = drawn.T @ x.view(len(drawn), weight.shape[1])
        if index is not None:  # what is no number in a row that was not drawn is in dW, too
            dweight += (of_rows * 0).sum(0)[:, None]
    return dx, dweight, dbias, None, None, None, None


# of (x, weight, bias, what is kept, which rows it is of, the codes' scale, their format); of all rows, and of
# no codes, the latter are None
_linear = functional._Operation("linear", _compute, _keep, _gradients, without_y=True)


def _codes_of(x: torch.Tensor, of: Any) -> tuple[torch.Tensor, torch.Tensor]:
    codes, scale = fp8.encode(x.detach(), of)
    fp8.offer(x, of, codes, scale)
    return codes, scale


def _rows_of(x: torch.Tensor, percent: int, of: int | None, dtype: torch.dtype,
        row_weights: torch.Tensor | None,
        seed: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Who reads the same x as others keeps the rows that they keep, whatever its seed."""
    what = percent, of, dtype
    found: Any = fp8.offered(x, what) if row_weights is None else None
    if found is None:
        n = math.prod(x.shape[:-1])
        found = rows.sample(x.detach().reshape(n, x.shape[-1]),
            None if row_weights is None else row_weights.detach(), seed, -(-n * percent // 100),
            dtype if of is None else torch.float32)
        if of is not None:
            # codes would saturate it, and the mean of dW' would not be dW
            drawn = found[0].masked_fill(found[0].abs() > fp8.MOST, math.nan)
            codes, scale = fp8.encode(drawn, of)
            found = codes, found[1], scale
        if row_weights is None:
            fp8.offer(x, what, *found)
    return found if of is not None else (*found, None)


def _expect_fits(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, autocast: bool, store: str,
        row_weights: torch.Tensor | None) -> None:
    if weight.dim() != 2 or x.shape[-1:] != weight.shape[1:]:
        raise ValueError(
            f"outgrad.linear: x of shape {tuple(x.shape)} and weight of shape {tuple(weight.shape)} have no "
            f"product")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"outgrad.linear: bias has shape {tuple(bias.shape)}, weight gives "
            f"{weight.shape[0]} columns")
    for name, one in (("weight", weight), ("bias", bias)):
        if one is not None and one.dtype != x.dtype and not autocast:
            raise TypeError(f"outgrad.linear: x is {x.dtype}, {name} {one.dtype}")
    if row_weights is None:
        return
    if stores.OF_LINEARS[store][0] is None:
        raise ValueError(f"outgrad.linear: row_weights are for rows:1 to rows:99, store is {store!r}")
    if not (isinstance(row_weights, torch.Tensor) and row_weights.is_floating_point()
            and row_weights.layout is torch.strided and row_weights.shape == x.shape[:-1]
            and row_weights.device == x.device):
        raise ValueError(
            f"outgrad.linear: row_weights has to be of a floating type and of shape {tuple(x.shape[:-1])} on "
            f"{x.device}, a number for each row of x")


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, store: str = "e4m3",
        row_weights: torch.Tensor | None = None) -> torch.Tensor:
    """x weight^T + bias. For the gradient of weight it keeps what `store` says of x.

    "e4m3" or "e5m2": x in 8 bits at one scale. If x is the output of an activation or a norm with a store of
    that format, both keep the same codes, and so do several calls with one x.

    "rows:P", P from 1 to 99: of the n rows of x ceil(n P / 100), drawn at random, so that the gradient of
    weight has the exact one as its mean (rows.py has its variance). They are drawn in proportion to their
    norms, times row_weights if given, such as norms that rows of y's gradient had. "rows:P+e4m3" and
    "rows:P+e5m2" keep these rows in 8 bits, or all of x, as "e4m3", where others keep that and no checkpoint
    runs. Each call draws a seed from PyTorch's generator, also where no gradient is recorded, so that
    checkpointing repeats it. A NaN or an infinity in x or in the gradient of y makes the gradient of weight
    NaN, but for infinities of an x that is kept as "e4m3" keeps it, as its largest finite numbers.

    x, weight and bias are all of one type or under autocast. row_weights are not negative, of any floating
    type.

    Shapes: x [..., n]; weight [m, n]; bias [m]; row_weights [...]; the result [..., m].
    """
    if not isinstance(store, str) or store not in stores.OF_LINEARS:
        raise ValueError(f"outgrad.linear: store is {shown(store)}, none of {stores.WORDS_OF_LINEARS}")
    percent, name = stores.OF_LINEARS[store]
    of = None if name is None else library.FP8[name]
    functional._expect("linear", x=x, weight=weight, bias=bias)
    sharded.refuse("linear", x, weight)
    autocast = functional.is_autocast(x)
    _expect_fits(x, weight, bias, autocast, store, row_weights)
    if not weight.requires_grad or library.is_exporting():
        return torch.nn.functional.linear(x, weight, bias)  # without gradient it keeps no x; exported.py
    seed = None if percent is None else functional.new_seed(x.device)
    if not library.is_recorded():
        return torch.nn.functional.linear(x, weight, bias)
    dtype = functional.dtype_under_autocast(x)
    # of a checkpoint's two passes the second one finds codes alive that the first one did not
    shares = of is not None and (percent is None or not library.is_in_checkpoint())
    codes = fp8.offered(x, of) if shares else None
    if percent is not None and codes is None:
        kept, index, scale = _rows_of(x, percent, of, dtype, row_weights, seed)
    else:
        index, (kept, scale) = None, codes or _codes_of(x, of)
    if autocast:
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    return _linear(x, weight, bias, kept, index, scale, of)
