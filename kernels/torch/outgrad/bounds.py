"""The proven bounds of the fits that the backward passes run, from the coefficient headers that were compiled in."""

import dataclasses
import math

import torch

from . import library


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Upper bounds of |g - ...| for the gradient dx = dy g; infinite where the header states none."""

    fit: str  # its coefficients and proofs are in kernels/generated/<fit>.h
    sha256: str  # of that header
    evaluation: float  # kA + kB + kK: against f' at the x that y and the bit stand for
    total: float  # kT: against f'(x), over every x of the format
    regret: float  # kR: the part of kT that the storage of y does not excuse

    def __str__(self):
        stated = self.total if math.isfinite(self.total) else self.evaluation
        return f"|g - f'| <= {stated:.2g}, fit {self.fit}"


def bounds(activation="gelu", dtype=torch.float32):
    """Bounds of an activation's gradient for y stored in dtype."""
    if activation not in library.ACTIVATIONS:
        raise ValueError(f"outgrad.bounds: {activation!r} is none of {', '.join(library.ACTIVATIONS)}")
    if dtype not in library.FORMATS:
        raise TypeError(f"outgrad.bounds: {dtype} is none of float32, float16, bfloat16")
    fit, sha256, (a_plus_b, k, t, r) = library.fit_of(activation, dtype)
    return Bounds(fit, sha256, a_plus_b + k, t, r)
