"""x in few bits, as Mesa and ActNN keep it: stores to compare ours with (stores.py).

Both keep for x the number k of low + k step, a range of x having been cut into equal steps. x is rounded at random, up
with the probability that makes its mean x, by PyTorch's generator, which torch.manual_seed governs. For x in its range,
|x' - x| < step. Beyond it x' is the end of the range: codes saturate, they never wrap. A range is that of the finite x.
NaN has the code 0, so that one NaN or infinity spoils no other element.

Mesa (arXiv:2111.11124): 8 bits; a range for each 64 columns of the last axis, in which its authors have a head. Modules
follow the ranges: c += 0.1 (r - c), before they are used. ActNN (arXiv:2104.14129): 2, 4 or 8 bits; a range for each
256 elements. Its least x and step are rounded to bfloat16, the one down and the other up, before x is quantised by
them: what the backward pass reads is what x was rounded to, and without bias. As published, they are rounded after.

Each is an operator, so that torch.compile keeps what it gives, and neither x nor what is made of it.
"""

import math

import torch
import torch.nn.functional as F

MESA_COLUMNS, MESA_MOMENTUM, MESA_TOP = 64, 0.1, 255
ACTNN_GROUP = 256
# A range has a normal float32 for its width and its step: f' is constant beyond either end of these.
LARGEST, LEAST_STEP = 2.0**126, 2.0**-126


def _finite_range(x, axis):
    """The least and the largest finite x along an axis that is not empty; LARGEST and -LARGEST where there is none."""
    finite = x.isfinite()
    low, high = x.where(finite, math.inf).amin(axis), x.where(finite, -math.inf).amax(axis)
    return low.clamp(-LARGEST, LARGEST), high.clamp(-LARGEST, LARGEST)


def _codes(x, low, step, top):
    return ((x - low) / step + torch.rand_like(x)).floor().nan_to_num(0.0).clamp(0, top).to(torch.uint8)


# --- Mesa --------------------------------------------------------------------------------------------------------------


def _by_columns(of_groups, columns):
    return of_groups.repeat_interleave(MESA_COLUMNS)[:columns]


def _columns(x):
    return x.shape[-1] if x.dim() > 0 else 1


def mesa_ranges(x):
    """[2, groups] in float32: the least and the largest x of each group of columns; crossed where none is finite."""
    columns = _columns(x)
    groups = -(-columns // MESA_COLUMNS)
    if x.numel() == 0:
        return torch.tensor([[LARGEST], [-LARGEST]], device=x.device).expand(2, groups)
    low, high = _finite_range(x.detach().float().reshape(-1, columns), 0)
    missing = (0, groups * MESA_COLUMNS - columns)
    low, high = F.pad(low, missing, value=LARGEST), F.pad(high, missing, value=-LARGEST)
    return torch.stack((low.view(groups, -1).amin(1), high.view(groups, -1).amax(1)))


def mesa_follow(ranges, now):
    """The running ranges moved by those of an x, as a new tensor; ranges is None at first. A group without a finite x
    moves nothing."""
    known = now[0] <= now[1]
    return torch.where(known, now, 0.0) if ranges is None else torch.where(known, ranges + MESA_MOMENTUM * (now - ranges), ranges)


def _mesa_step(ranges):
    return ((ranges[1] - ranges[0]) / MESA_TOP).clamp(min=LEAST_STEP)


@torch.library.custom_op("outgrad::mesa_encode", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def mesa_encode(x: torch.Tensor, ranges: torch.Tensor) -> torch.Tensor:
    """One byte for each x."""
    low, step = (_by_columns(each, _columns(x)) for each in (ranges[0], _mesa_step(ranges)))
    return _codes(x.float().contiguous(), low, step, MESA_TOP)


@mesa_encode.register_fake
def _(x, ranges):
    return torch.empty_like(x, dtype=torch.uint8, memory_format=torch.contiguous_format)


@torch.library.custom_op("outgrad::mesa_decode", mutates_args=())
def mesa_decode(codes: torch.Tensor, ranges: torch.Tensor) -> torch.Tensor:
    """x' in float32, in the shape of x."""
    low, step = (_by_columns(each, _columns(codes)) for each in (ranges[0], _mesa_step(ranges)))
    return codes.float() * step + low


@mesa_decode.register_fake
def _(codes, ranges):
    return torch.empty_like(codes, dtype=torch.float32)


# --- ActNN -------------------------------------------------------------------------------------------------------------


def _rounded_down(x):
    near = x.bfloat16()
    return torch.where(near.float() > x, torch.nextafter(near, torch.full_like(near, -math.inf)), near)


def _shifts(bits, like):
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=like.device)


@torch.library.custom_op("outgrad::actnn_encode", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def actnn_encode(x: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes, 8 / bits a byte, [groups, 32 bits], and for each group low and step in bfloat16, [2, groups]. The last
    group is filled up with x's last element."""
    groups, top = -(-x.numel() // ACTNN_GROUP), 2**bits - 1
    flat = x.float().flatten()
    full = torch.cat((flat, flat[-1:].expand(groups * ACTNN_GROUP - flat.numel()))).view(groups, ACTNN_GROUP)
    low, high = _finite_range(full, 1)
    low = _rounded_down(torch.minimum(low, high))  # crossed where none is finite
    step = -_rounded_down(-((high - low.float()) / top).clamp(min=LEAST_STEP))
    codes = _codes(full, low.float()[:, None], step.float()[:, None], top)
    packed = (codes.view(groups, 32 * bits, 8 // bits) << _shifts(bits, x)).sum(-1, dtype=torch.uint8)
    return packed, torch.stack((low, step))


@actnn_encode.register_fake
def _(x, bits):
    groups = (x.numel() + ACTNN_GROUP - 1) // ACTNN_GROUP
    return x.new_empty((groups, 32 * bits), dtype=torch.uint8), x.new_empty((2, groups), dtype=torch.bfloat16)


@torch.library.custom_op("outgrad::actnn_decode", mutates_args=())
def actnn_decode(packed: torch.Tensor, ranges: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """The first x' in float32, as many as x has elements."""
    codes = ((packed[..., None] >> _shifts(bits, packed)) & (2**bits - 1)).flatten(1)
    low, step = ranges.float()[..., None]
    return (codes * step + low).flatten()[:count].clone()


@actnn_decode.register_fake
def _(packed, ranges, bits, count):
    return packed.new_empty((count,), dtype=torch.float32)
