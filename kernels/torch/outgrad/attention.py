"""Attention and softmax whose backward pass reads the softmax's output (Tempo, NeurIPS 2022).

PyTorch's fused attention keeps even less, and is the default where it applies. Elsewhere this module keeps q,
k, v, the probabilities and 8 bytes; the backward pass computes the dropped-out probabilities again. In place
of the probabilities it may keep their codes of 8 bits (softmax.py). Then the gradient of v is that of the
probabilities p' that these stand for, and the one of the scores is within softmax_bound.
"""

import contextlib
import math
from typing import Any, Literal

import torch

from . import functional, library, stores
from .arguments import is_one_of, is_within, shown


def _softmax_gradient(dp: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return torch._softmax_backward_data(dp, p, -1, p.dtype)


# --- Softmax --------------------------------------------------------------------------------------


def _softmax_dropout_compute(x: torch.Tensor, seed: torch.Tensor,
        p: float) -> tuple[torch.Tensor, torch.Tensor]:
    probabilities = torch.softmax(x, -1)
    return (library.dropout(probabilities, seed, p) if p > 0 else probabilities), probabilities


def _softmax_dropout_keep(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
    _, seed, ctx.p = inputs
    ctx.save_for_backward(outputs[1], seed)


def _softmax_dropout_gradients(ctx: Any, saved: tuple[Any, ...],
        dy: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    probabilities, seed = saved
    return _softmax_gradient(library.dropout(dy, seed, ctx.p) if ctx.p > 0 else dy, probabilities), None, None


_softmax_dropout = functional._Operation(
    "softmax_dropout", _softmax_dropout_compute, _softmax_dropout_keep, _softmax_dropout_gradients)


def softmax_dropout(x: torch.Tensor, p: float = 0.5, training: bool = True) -> torch.Tensor:
    """dropout(softmax(x)) over the last dimension. Keeps the softmax's output and 8 bytes, no mask.

    Shapes: x [..., n]; the result the same.
    """
    functional._expect("softmax_dropout", x=x)
    p = functional.checked_probability("softmax_dropout", p, training)
    return _softmax_dropout(x.contiguous(), functional.new_seed(x.device), p)


# --- Attention ------------------------------------------------------------------------------------

# Each direction is one operator. A compiler that sees its parts finds the dropped-out probabilities in both
# passes, and keeps those of the forward pass instead of computing them again (AOTAutograd's elimination of
# common subexpressions did). kept: the probabilities, or their codes if coded.


def _scores(q: torch.Tensor, k: torch.Tensor, scale: float) -> torch.Tensor:
    """q k^T scale, scaled before it is rounded to the type: q k^T itself may be beyond float16."""
    scores = q.new_empty((*q.shape[:-1], k.shape[-2]))
    parts = math.prod(q.shape[:-2])
    first, second, result = (one.reshape(parts, *one.shape[-2:]) for one in (q, k, scores))
    result.baddbmm_(first, second.transpose(1, 2), beta=0, alpha=scale)
    return scores


def _of_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
        *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    kept = q.new_empty((*q.shape[:-1], k.shape[-2]))
    coded = rest[-1]
    return (q.new_empty((*q.shape[:-1], v.shape[-1])),
        q.new_empty((kept.numel(),), dtype=torch.uint8) if coded else kept)


def _of_backward(dy: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
        *_: Any) -> tuple[torch.Tensor, ...]:
    return tuple(t.new_empty(t.shape) for t in (q, k, v))


@library.python_operator("attention_forward", _of_forward)
def _forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, scale: float,
        p: float, seed: torch.Tensor, coded: bool) -> tuple[torch.Tensor, torch.Tensor]:
    scores = _scores(q, k, scale)
    if bias is not None:
        scores += bias
    if coded:
        probabilities, kept = library.softmax_forward_code(scores, scores.shape[-1])
    else:  # in a type of its own autocast would give float32
        kept = probabilities = torch.softmax(scores, -1, dtype=scores.dtype)
    if bias is not None and scores.numel() > 0:
        lost = scores.amax(-1, keepdim=True) == -math.inf
        probabilities.masked_fill_(lost, 0)
        if coded:  # a row of zeros is one of NaN; with a single least p' in it, its ds are 0
            kept.view(scores.shape)[..., :1].masked_fill_(lost, 1)
    del scores
    dropped = library.dropout(probabilities, seed, p) if p > 0 else probabilities
    return torch.matmul(dropped, v), kept


@library.python_operator("attention_backward", _of_backward)
def _backward(dy: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kept: torch.Tensor,
        scale: float, p: float, seed: torch.Tensor,
        coded: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if coded:
        values = torch.tensor(library.softmax_values(), dtype=q.dtype, device=q.device)
        probabilities = values[kept.int()].view(*q.shape[:-1], k.shape[-2])
    else:
        probabilities = kept
    dropped = library.dropout(probabilities, seed, p) if p > 0 else probabilities
    dv = torch.matmul(dropped.transpose(-1, -2), dy)
    del dropped
    dp = torch.matmul(dy, v.transpose(-1, -2))
    dp = library.dropout(dp, seed, p) if p > 0 else dp
    ds = (
        (library.softmax_backward_code(dp, kept, k.shape[-2]) if coded
        else _softmax_gradient(dp, probabilities)).mul_(scale))
    return torch.matmul(ds, k), torch.matmul(ds.transpose(-1, -2), q), dv


def _attention_keep(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
    q, k, v, _, ctx.scale, ctx.p, seed, ctx.coded = inputs
    ctx.save_for_backward(q, k, v, outputs[1], seed)


def _attention_gradients(ctx: Any, saved: tuple[Any, ...], dy: torch.Tensor) -> tuple[Any, ...]:
    q, k, v, kept, seed = saved
    found = _backward(dy, q, k, v, kept, ctx.scale, ctx.p, seed, ctx.coded)
    return *found, None, None, None, None, None


_attention = functional._Operation("attention", _forward, _attention_keep, _attention_gradients)


def _fused_applies(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None,
        p: float) -> bool:
    """Whether PyTorch has an attention for these tensors that keeps no probabilities."""
    if q.device.type != "cuda":
        return p == 0  # the fused attention for the CPU has no dropout
    parameters = torch.backends.cuda.SDPAParams(q, k, v, mask, p, False, False)
    return (torch.backends.cuda.can_use_flash_attention(parameters)
        or torch.backends.cuda.can_use_efficient_attention(parameters))


def _batch_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[int, ...]:
    """The dimensions before the last two of what these give."""
    if min(q.dim(), k.dim(), v.dim()) >= 2 and k.shape[-2] == v.shape[-2] and q.shape[-1] == k.shape[-1]:
        first, *others = (one.shape[:-2] for one in (q, k, v))
        if all(one == first for one in others):
            return first
        with contextlib.suppress(RuntimeError):
            return torch.broadcast_shapes(first, *others)
    raise ValueError(f"outgrad.attention: q of shape {tuple(q.shape)}, k {tuple(k.shape)} and v "
        f"{tuple(v.shape)} do not fit together")


def _expect_mask(mask: object, q: torch.Tensor, scores: tuple[int, ...]) -> None:
    """scores: their shape, which a mask may be repeated to."""
    if not (isinstance(mask, torch.Tensor) and mask.device == q.device and mask.layout is torch.strided
            and (mask.dtype in (torch.bool, torch.float64) or mask.dtype in library.FORMATS)):
        found = f"{mask.dtype} on {mask.device}" if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise TypeError(f"outgrad.attention: attn_mask is {found}; a dense boolean or floating tensor "
            f"on {q.device} is needed")
    of_scores = scores[len(scores) - mask.dim() :]
    if mask.dim() > len(scores) or any(one not in (1, all_of_it)
            for one, all_of_it in zip(mask.shape, of_scores, strict=True)):
        raise ValueError(f"outgrad.attention: attn_mask has shape {tuple(mask.shape)}, the scores have "
            f"{scores}")
    if mask.requires_grad:
        raise ValueError("outgrad.attention: attn_mask requires a gradient, which it does not get; use "
            "scaled_dot_product_attention")


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attn_mask: torch.Tensor | None = None,
        p: float = 0.0, scale: float | None = None, training: bool = True,
        form: Literal["auto", "sdpa", "softmax"] = "auto",
        store: Literal["p", "log2:8"] = "p") -> torch.Tensor:
    """dropout(softmax(q k^T scale + mask)) v.

    attn_mask: boolean (True: takes part) or added to the scores; it gets no gradient, and a row of which
    nothing takes part is 0. scale: 1 / sqrt(d) by default. form: "sdpa" is PyTorch's
    scaled_dot_product_attention, "softmax" is the form of this module, and "auto" is "sdpa" where a fused
    kernel applies. store: what the form "softmax" keeps, the probabilities "p" or their codes "log2:8".
    Under autocast all is in its type. In the form "softmax" the scores q k^T scale are rounded to the type of
    q; PyTorch's fused kernels have them in float32.

    Shapes: q [..., m, d]; k [..., n, d]; v [..., n, e]; attn_mask [..., m, n]; the result [..., m, e].
    """
    functional._expect("attention", q=q, k=k, v=v)
    if functional.is_autocast(q):
        q, k, v = (one.to(functional.dtype_under_autocast(q)) for one in (q, k, v))
    if not is_one_of(form, ("auto", "sdpa", "softmax")):
        raise ValueError(f"outgrad.attention: form is {shown(form)}, none of 'auto', 'sdpa', 'softmax'")
    if (why := stores.why_not_other("softmax", store)) is not None:
        raise ValueError(f"outgrad.attention: store: {why}")
    coded = store != stores.OTHERS["softmax"][0]
    if coded and form == "sdpa":
        raise ValueError(
            f"outgrad.attention: store {store!r} is one of the form 'softmax'; the form 'sdpa' keeps no "
            f"probabilities")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"outgrad.attention: q is {q.dtype}, k {k.dtype}, v {v.dtype}")
    batch = _batch_of(q, k, v)
    if attn_mask is not None:
        _expect_mask(attn_mask, q, (*batch, q.shape[-2], k.shape[-2]))
    if scale is not None and not is_within(scale, -math.inf):
        raise TypeError(f"outgrad.attention: scale is {shown(scale)}, a number is needed")
    p = functional.checked_probability("attention", p, training)
    if form == "sdpa" or (form == "auto" and _fused_applies(q, k, v, attn_mask, p)):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask, p, scale=scale)
    if not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:  # what is repeated gets the sum of its gradients
        q, k, v = (one.expand(*batch, *one.shape[-2:]) for one in (q, k, v))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill_(~attn_mask, -math.inf)
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)
    return _attention(q, k, v, attn_mask, scale, p, functional.new_seed(q.device), coded)
