"""A tensor in 8 bits (kernels/tensor_codes.h): e4m3 or e5m2 (OFP8) at one scale, the float32 by which it is
multiplied before it is rounded, or e4m3 in blocks of 32 that share a power of two (MXFP8).

The scale makes the largest finite magnitude the format's largest number. Infinities count as that number, and
NaNs stay NaN; neither has part in the scale.

Who makes codes of a tensor that others read offers them (offer, offered): an activation or a norm those of
its y, and a Linear those of its x, or rows of it, so that all of them keep one storage. An offer holds for
one tensor as long as this has the values that it had: it is refused after every change that PyTorch counts,
for another storage or shape, and for any other tensor that was made of this one. It keeps neither the tensor
nor codes that no graph keeps. What PyTorch does not count is what its own autograd does not notice either: a
change through .data, or by another library.
"""

from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from . import library

TYPES = {library.FP8["e4m3"]: torch.float8_e4m3fn, library.FP8["e5m2"]: torch.float8_e5m2}
LARGEST = {fp8: torch.finfo(dtype).max for fp8, dtype in TYPES.items()}
# Relative to a magnitude in the range of normal numbers, half a unit in the last place; below, half the least
# subnormal.
UNIT_ROUNDOFF = {fp8: torch.finfo(dtype).eps / 2 for fp8, dtype in TYPES.items()}
HALF_SUBNORMAL = {fp8: torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps / 2
    for fp8, dtype in TYPES.items()}
# A largest |y| below 1 of an activation counts as 1. Then the scale is at most the format's largest number,
# up to which the header's bound holds: at a greater scale all large x share one code, although f' still
# varies there.
LEAST_OF_ACTIVATIONS = 1.0
# So that a scale is a normal float32 number: a largest magnitude below LEAST counts as that, and one above
# MOST as MOST, so that what exceeds it is saturated.
LEAST, MOST = 2.0**-100, 2.0**127


def scale_of(x: torch.Tensor, fp8: int, least: float) -> torch.Tensor:
    """The scale of x, [1]. A largest magnitude below `least` counts as `least`."""
    return library.tensor_scale(x, fp8, least)


def encode(x: torch.Tensor, store: int, least: float = LEAST) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes of x in the order of its elements, and its scale, or a byte for each block's."""
    return library.encode_tensor(x, store, least)


def decode(codes: torch.Tensor, scales: torch.Tensor, store: int, dtype: torch.dtype) -> torch.Tensor:
    """What the codes stand for, rounded to dtype."""
    return library.decode_tensor(codes, scales, store, library.FORMATS[dtype])


# --- One storage for all that keep a tensor -------------------------------------------------------


_offers = WeakTensorKeyDictionary()


def _can_have_offers(x: torch.Tensor) -> bool:
    # A graph of torch.compile has no such dictionary, nor one of torch.jit.trace, under a transform another
    # tensor stands for x, and of what was made in inference mode PyTorch counts no changes. Nothing is kept
    # in the forward pass of a checkpoint; a selective one has to see the same operations when it recomputes.
    if (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
            or torch._C._get_tracing_state() is not None or library.is_in_selective_checkpoint()):
        return False
    return (type(x) is torch.Tensor or is_fake(x)) and not x.is_inference()


def _state(x: torch.Tensor) -> tuple[Any, ...]:
    return x._version, x.shape, x.stride(), x.storage_offset(), x.dtype


def offer(x: torch.Tensor, what: Any, *kept: torch.Tensor, step: bool = False) -> None:
    """Says of x, until it changes, that these tensors are what is kept of it: for a format of 8 bits its
    codes and their scale. step: of a norm (kernels/norm_store.h), whose scale s, the four bytes of a float32,
    is what x was divided by and not what it was multiplied by."""
    if _can_have_offers(x):
        # As long as there is a weak reference to its storage, no other storage has the same number.
        _offers.setdefault(x, {})[what] = ([TensorWeakRef(one) for one in kept], step,
            StorageWeakRef(x.untyped_storage()), _state(x))


def offered(x: torch.Tensor, what: Any) -> tuple[torch.Tensor, ...] | None:
    """What of this kind was offered and holds for x now, or None."""
    if not _can_have_offers(x) or (entry := _offers.get(x, {}).get(what)) is None:
        return None
    kept, step, storage, state = entry
    if x.untyped_storage()._cdata != storage.cdata or _state(x) != state:
        return None
    found = tuple(one() for one in kept)
    if any(one is None for one in found):
        return None  # no graph keeps them any more
    if step:  # the first who asks makes RN(1 / s), and those after it find it as long as one keeps it
        known = offered(x, (what, "reciprocal"))
        if known is None:
            known = (found[1].view(torch.float32).reciprocal(),)
            offer(x, (what, "reciprocal"), *known)
        found = found[0], *known
    return found
