"""The derivatives of operators in graphs of torch.export, which has no autograd Functions: it calls each
operator by itself.

Such a graph computes and keeps what eager mode does. What differs: the stores e4m3, e5m2 and mxfp8 of an
activation keep y and its bit, because y is the result of another operator than what they keep; a pair in
mxfp8 whose packed halves are no whole blocks keeps both factors, for the same reason. A Linear is PyTorch's,
whatever its store: it keeps all of its input, from which the gradient of its weight is exact; so it keeps the
product of a pair before it, too. No norm says that a channel has drifted; one that has drifted too far makes
its gradients NaN.
"""

from collections.abc import Callable
from typing import Any

import torch

from . import functional, library


def _gives(name: str, keep: Callable[..., Any], gradients: Callable[..., Any]) -> None:
    """The derivative of an operator: keep(ctx, inputs, outputs) stores what gradients(ctx, saved, *dy) reads,
    where dy is None for a result that does not reach the loss. keep says of ctx.leads_back that it is False
    where nothing that it stores leads from a graph of the backward pass to the input: recording such a graph
    is an error then, and not only differentiating it."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.leads_back = True
        keep(ctx, inputs, (output,) if isinstance(output, torch.Tensor) else output)

    def backward(ctx: Any, *dy: Any) -> Any:
        given = dy[0] if isinstance(dy[0], list) else dy
        recorded = torch.is_grad_enabled() and name != "dropout"
        if recorded and not ctx.leads_back:
            raise functional.no_second_derivative(name)
        found = (functional._recorded(name, gradients, ctx, given) if recorded
            else gradients(ctx, ctx.saved_tensors, *given))
        # PyTorch 2.10 wants none for arguments that the call left to their defaults
        return tuple(found[: len(ctx.needs_input_grad)])

    torch.library.register_autograd(f"outgrad_exported::{name}", backward, setup_context=setup_context)


def _keep_activation(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
    ctx.activation = inputs[-1]
    ctx.save_for_backward(*outputs)


_gives("activation_forward", _keep_activation,
    lambda ctx, saved, dy, _: (library.activation_backward(dy, *saved, ctx.activation), None))


def _keep_store(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
    _, *ctx.of, seed, scale = inputs
    store = library.BY_NUMBER[ctx.of[1]]
    ctx.leads_back = store.keeps_y
    ctx.save_for_backward(seed, scale, *outputs[store.writes_y and not store.keeps_y :])


def _store_gradients(ctx: Any, saved: tuple[Any, ...], dy: torch.Tensor, *_: Any) -> tuple[Any, ...]:
    seed, scale, *kept = saved
    return library.store_backward(dy, kept, *ctx.of, seed, scale), *[None] * 5


_gives("store_forward", _keep_store, _store_gradients)


def _keep_pair(ctx: Any, inputs: tuple[Any, ...], _: Any) -> None:
    *pair, ctx.activation = inputs
    ctx.save_for_backward(*pair)


def _pair_gradients(ctx: Any, saved: tuple[Any, ...], dy: torch.Tensor) -> tuple[Any, ...]:
    da, db, _ = library.gated_backward(dy, *saved, ctx.activation, False)
    return da, None if saved[1] is None else db, None


_gives("gated_forward", _keep_pair, _pair_gradients)


def _keep_pair_in_8_bits(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
    _, b, *ctx.of = inputs
    ctx.packed, ctx.leads_back = b is None, False
    ctx.save_for_backward(*outputs[1:])


def _gradients_of_pair_in_8_bits(ctx: Any, saved: tuple[Any, ...], dy: torch.Tensor,
        *_: Any) -> tuple[Any, ...]:
    da, db, _ = library.gated_backward_8bit(dy, *saved, *ctx.of, ctx.packed, False)
    return da, None if ctx.packed else db, None, None


_gives("gated_forward_8bit", _keep_pair_in_8_bits, _gradients_of_pair_in_8_bits)


def _keep_product(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
    _, b, ctx.activation = inputs
    ctx.packed = b is None
    ctx.save_for_backward(*outputs)


def _product_gradients(ctx: Any, saved: tuple[Any, ...], dz: torch.Tensor, *_: Any) -> tuple[Any, ...]:
    da, db = library.product_backward(dz, *saved, ctx.activation, ctx.packed)
    return da, None if ctx.packed else db, None


_gives("product_forward", _keep_product, _product_gradients)
_gives("bias_gelu_forward", lambda ctx, inputs, outputs: ctx.save_for_backward(*outputs, inputs[1]),
    lambda ctx, saved, dy, _: library.bias_gelu_backward(dy, *saved[:2], dy.shape[-1], saved[2]))
_gives("dropout", functional._dropout_keep, functional._dropout_gradients)


def _keep_softmax(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
    ctx.columns, ctx.leads_back = inputs[1], False
    ctx.save_for_backward(outputs[1])


_gives("softmax_forward_code", _keep_softmax,
    lambda ctx, saved, dy, _: (library.softmax_backward_code(dy, *saved, ctx.columns), None))
_gives("norm_forward", functional._norm_keep,
    lambda ctx, saved, dy, *_: functional._gradients_from_y(ctx, saved, dy))


def _keep_norm_in_8_bits(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
    *of_norm, ctx.store = inputs
    ctx.leads_back = False
    functional._norm_keep(ctx, (*of_norm, None, 0.0), (*outputs[1:], None))


_gives("norm_forward_8bit", _keep_norm_in_8_bits,
    lambda ctx, saved, dy, *_: functional._gradients_from_8_bits(ctx, saved, dy, ctx.store)[:8])


def _keep_norm_of_sum(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
    _, _, columns, gamma, beta, eps, rms, channels, seed, p, _, _, tau = inputs
    of_sum = seed, p, columns, gamma, beta, eps, rms, channels, None, tau
    ctx.save_for_backward(*functional._kept_of_norm_of_sum(ctx, of_sum, *outputs[:3]))


def _norm_of_sum_gradients(ctx: Any, saved: tuple[Any, ...], dy: torch.Tensor | None, _: Any, __: Any,
        dz_next: torch.Tensor | None) -> tuple[Any, ...]:
    for_x, for_residual, _, *of_parameters = ctx.needs_input_grad[:5]
    if dy is None:  # only z reaches the loss
        return dz_next if for_x else None, dz_next if for_residual else None, *[None] * 11
    dz, dx, dgamma, dbeta = functional._gradients_of_norm_of_sum(ctx, saved, dy, dz_next,
        (for_x, *of_parameters))
    return dx if for_x else None, dz if for_residual else None, None, dgamma, dbeta, *[None] * 8


_gives("norm_forward_of_sum", _keep_norm_of_sum, _norm_of_sum_gradients)
