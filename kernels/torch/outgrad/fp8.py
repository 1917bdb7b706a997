"""A tensor in 8 bits, e4m3 or e5m2 (OFP8), at one scale: the float32 by which it is multiplied before it is rounded.

The scale makes the largest finite magnitude the format's largest number. Infinities count as that number, and NaNs stay
NaN; neither has part in the scale. It is an operator, so that torch.compile keeps what it gives, and not what it is made
of.
"""

import torch

from . import library

LARGEST = {library.FP8["e4m3"]: 448.0, library.FP8["e5m2"]: 57344.0}
# Of an activation a largest |y| below 1 counts as 1. Then the scale is at most the format's largest number, up to which
# the header's bound holds: at a greater scale all large x share one code, although f' still varies there.
LEAST_OF_ACTIVATIONS = 1.0
# So that a scale and all that is divided by it are normal float32 numbers.
MOST = 2.0**127


@torch.library.custom_op("outgrad::fp8_scale", mutates_args=())
def scale_of(x: torch.Tensor, fp8: int, least: float) -> torch.Tensor:
    """The scale of x, [1]. A largest magnitude below `least` counts as `least`, and one above 2^127 as 2^127, so that what
    exceeds that is saturated."""
    largest = x.abs().nan_to_num(nan=0.0, posinf=0.0).amax().float() if x.numel() > 0 else x.new_zeros((), dtype=torch.float32)
    return (LARGEST[fp8] / largest.clamp(least, MOST)).view(1)


@scale_of.register_fake
def _(x, fp8, least):
    return x.new_empty((1,), dtype=torch.float32)
