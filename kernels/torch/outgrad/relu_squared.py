"""ReLU squared (So et al., Primer, NeurIPS 2021) from its output: f(x) = max(x, 0)^2, f'(x) = 2 sqrt(y).

No fit is needed, and no bit, since y tells x where the derivative is not 0. Let u be the unit roundoff of y's
type. y is within u of x^2, hence sqrt(y) within 1.5 u of x after its own rounding, and so is f'. Where y is
subnormal or 0, f' is off by at most 2 sqrt(h), h being half the least subnormal: 2^-11.5 in float16, 2^-66 in
bfloat16, 2^-74 in float32. Where y overflows, as for x >= 256 in float16, f' is infinite, too. PyTorch's
operations compute both passes.
"""

from typing import Any

import torch
from torch import nn

from . import functional, graphs
from .bounds import rounded_up


def _compute(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.relu(x).square_(),)


def _keep(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
    ctx.save_for_backward(*outputs)


def _gradients(ctx: Any, saved: tuple[torch.Tensor, ...], dy: torch.Tensor) -> tuple[torch.Tensor]:
    (y,) = saved
    slope = y.sqrt().mul_(2)
    try:
        return (slope.mul_(dy),)
    except RuntimeError:  # a batch of dy, of which nothing here has the size
        return (slope * dy,)


_relu_squared = functional._Operation("relu_squared", _compute, _keep, _gradients,
    whole=functional._of_elements)


def relu_squared(x: torch.Tensor) -> torch.Tensor:
    """max(x, 0)^2, element by element. Keeps y, which the next layer also keeps.

    Shapes: x [...], of any strides; the result the same.
    """
    functional._expect("relu_squared", x=x)
    return _relu_squared(x)


class ReLUSquared(graphs.Ours, nn.Module):
    """max(x, 0)^2 from its output."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if graphs.is_symbol(x):
            return graphs.as_node(self, x)
        return relu_squared(x)

    def bound(self, dtype: torch.dtype) -> str:
        """In words, how far the gradient may be from the exact one if the output is of dtype."""
        u = functional.UNIT_ROUNDOFF[dtype]
        least = 2 * (functional._HALF_SUBNORMAL[dtype] or 2.0**-150) ** 0.5
        return f"f' within {rounded_up(1.5 * u, 3)} f' + {rounded_up(least, 3)} where y is finite"
