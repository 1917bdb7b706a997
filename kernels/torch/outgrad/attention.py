"""Attention and softmax whose backward pass reads the softmax's output (Tempo, NeurIPS 2022).

PyTorch's fused attention keeps even less, and is the default where it applies. Elsewhere this module keeps q, k, v, the
probabilities and 8 bytes; the backward pass computes the dropped-out probabilities again.
"""

import math

import torch

from . import functional, library


def _softmax_gradient(dp, p):
    return torch._softmax_backward_data(dp, p, -1, p.dtype)


# --- Softmax ---------------------------------------------------------------------------------------------------------


def _softmax_dropout_compute(x, seed, p):
    probabilities = torch.softmax(x, -1)
    return (library.dropout(probabilities, seed, p) if p > 0 else probabilities), probabilities


def _softmax_dropout_keep(ctx, inputs, outputs):
    _, seed, ctx.p = inputs
    ctx.save_for_backward(outputs[1], seed)


def _softmax_dropout_gradients(ctx, dy):
    def compute(dy, probabilities, seed):
        return _softmax_gradient(library.dropout(dy.contiguous(), seed, ctx.p) if ctx.p > 0 else dy, probabilities)

    return functional._first_only("softmax_dropout", compute, dy, *ctx.saved_tensors), None, None


_softmax_dropout = functional._Operation("softmax_dropout", _softmax_dropout_compute, _softmax_dropout_keep, _softmax_dropout_gradients)


def softmax_dropout(x, p=0.5, training=True):
    """dropout(softmax(x)) over the last dimension. Keeps the softmax's output and 8 bytes, not the mask of what was dropped."""
    functional._expect("softmax_dropout", x=x)
    p = functional.checked_probability("softmax_dropout", p, training)
    return _softmax_dropout(x.contiguous(), functional.new_seed(x.device), p)


# --- Attention -------------------------------------------------------------------------------------------------------

# Each direction is one operator. A compiler that sees its parts finds the dropped-out probabilities in both passes, and
# keeps those of the forward pass instead of computing them again (AOTAutograd's elimination of common subexpressions
# did).


@torch.library.custom_op("outgrad::attention_forward", mutates_args=())
def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, scale: float, p: float, seed: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.matmul(q, k.transpose(-1, -2)).mul_(scale)
    if bias is not None:
        scores += bias
    probabilities = torch.softmax(scores, -1)
    del scores
    dropped = library.dropout(probabilities, seed, p) if p > 0 else probabilities
    return torch.matmul(dropped, v), probabilities


@torch.library.custom_op("outgrad::attention_backward", mutates_args=())
def _backward(
    dy: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, probabilities: torch.Tensor, scale: float, p: float, seed: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dropped = library.dropout(probabilities, seed, p) if p > 0 else probabilities
    dv = torch.matmul(dropped.transpose(-1, -2), dy)
    del dropped
    dp = torch.matmul(dy, v.transpose(-1, -2))
    ds = _softmax_gradient(library.dropout(dp, seed, p) if p > 0 else dp, probabilities).mul_(scale)
    return torch.matmul(ds, k), torch.matmul(ds.transpose(-1, -2), q), dv


@_forward.register_fake
def _(q, k, v, bias, scale, p, seed):
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty((*q.shape[:-1], k.shape[-2]))


@_backward.register_fake
def _(dy, q, k, v, probabilities, scale, p, seed):
    return tuple(t.new_empty(t.shape) for t in (q, k, v))


def _attention_compute(q, k, v, bias, scale, p, seed):
    return torch.ops.outgrad.attention_forward.default(q, k, v, bias, scale, p, seed)


def _attention_keep(ctx, inputs, outputs):
    q, k, v, _, ctx.scale, ctx.p, seed = inputs
    ctx.save_for_backward(q, k, v, outputs[1], seed)


def _attention_gradients(ctx, dy):
    def compute(dy, q, k, v, probabilities, seed):
        return torch.ops.outgrad.attention_backward.default(dy, q, k, v, probabilities, ctx.scale, ctx.p, seed)

    return (*functional._first_only("attention", compute, dy, *ctx.saved_tensors), None, None, None, None)


_attention = functional._Operation("attention", _attention_compute, _attention_keep, _attention_gradients)


def _fused_applies(q, k, v, mask, p):
    """Whether PyTorch has an attention for these tensors that keeps no probabilities."""
    if q.device.type != "cuda":
        return p == 0  # the fused attention for the CPU has no dropout
    parameters = torch.backends.cuda.SDPAParams(q, k, v, mask, p, False, False)
    return torch.backends.cuda.can_use_flash_attention(parameters) or torch.backends.cuda.can_use_efficient_attention(parameters)


def attention(q, k, v, attn_mask=None, p=0.0, scale=None, training=True, form="auto"):
    """dropout(softmax(q k^T scale + mask)) v; q is [..., m, d], k [..., n, d], v [..., n, e].

    attn_mask: [..., m, n], boolean (True: takes part) or added to the scores; it gets no gradient. scale: 1 / sqrt(d) by
    default. form: "sdpa" is PyTorch's scaled_dot_product_attention, "softmax" is the form of this module, and "auto" is
    "sdpa" where a fused kernel applies.
    """
    functional._expect("attention", q=q, k=k, v=v)
    if form not in ("auto", "sdpa", "softmax"):
        raise ValueError(f"outgrad.attention: form is {form!r}, none of 'auto', 'sdpa', 'softmax'")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"outgrad.attention: q is {q.dtype}, k {k.dtype}, v {v.dtype}")
    if q.dim() < 2 or k.shape[-2:-1] != v.shape[-2:-1] or q.shape[-1] != k.shape[-1]:
        raise ValueError(f"outgrad.attention: q of shape {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit together")
    if attn_mask is not None and attn_mask.requires_grad:
        raise ValueError("outgrad.attention: attn_mask requires a gradient, which it does not get; use scaled_dot_product_attention")
    p = functional.checked_probability("attention", p, training)
    if form == "sdpa" or (form == "auto" and _fused_applies(q, k, v, attn_mask, p)):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask, p, scale=scale)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill_(~attn_mask, -math.inf)
    return _attention(q, k, v, attn_mask, 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale), p, functional.new_seed(q.device))
