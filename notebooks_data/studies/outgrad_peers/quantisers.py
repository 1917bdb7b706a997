"""x in few bits, as Mesa and ActNN keep it: stores to compare outgrad's with.

Both keep for x the number k of low + k step, a range of x having been cut into equal steps. x is rounded at
random, up with the probability that makes its mean x, by PyTorch's generator, which torch.manual_seed
governs. For x in its range, |x' - x| < step. Beyond it x' is the end of the range: codes saturate, they never
wrap. A range is that of the finite x. NaN has the code 0, so that one NaN or infinity spoils no other
element.

Mesa (arXiv:2111.11124): 8 bits; a range for each 64 columns of the last axis, in which its authors have a
head. Modules follow the ranges: c += 0.1 (r - c), before they are used. ActNN (arXiv:2104.14129): 2, 4 or 8
bits; a range for each 256 elements. Its least x and step are rounded to bfloat16, the one down and the other
up, before x is quantised by them: what the backward pass reads is what x was rounded to, and without bias. As
published, they are rounded after. Instead of the same bits for all groups there may be as many on average:
allocate says how many each one gets. As published, the groups of one sample get the same number; here each
has its own.

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
    """The least and the largest finite x along an axis that is not empty; LARGEST and -LARGEST where there is
    none."""
    finite = x.isfinite()
    low, high = x.where(finite, math.inf).amin(axis), x.where(finite, -math.inf).amax(axis)
    return low.clamp(-LARGEST, LARGEST), high.clamp(-LARGEST, LARGEST)


def _codes(x, low, step, top):
    return ((x - low) / step + torch.rand_like(x)).floor().nan_to_num(0.0).clamp(min=0).clamp(max=top).to(
        torch.uint8)


# --- Mesa -----------------------------------------------------------------------------------------


def _by_columns(of_groups, columns):
    return of_groups.repeat_interleave(MESA_COLUMNS)[:columns]


def _columns(x):
    return x.shape[-1] if x.dim() > 0 else 1


def mesa_ranges(x):
    """[2, groups] in float32: the least and the largest x of each group of columns; crossed where none is
    finite."""
    columns = _columns(x)
    groups = -(-columns // MESA_COLUMNS)
    if x.numel() == 0:
        return torch.tensor([[LARGEST], [-LARGEST]], device=x.device).expand(2, groups)
    low, high = _finite_range(x.detach().float().reshape(-1, columns), 0)
    missing = (0, groups * MESA_COLUMNS - columns)
    low, high = F.pad(low, missing, value=LARGEST), F.pad(high, missing, value=-LARGEST)
    return torch.stack((low.view(groups, -1).amin(1), high.view(groups, -1).amax(1)))


def mesa_follow(ranges, now):
    """The running ranges moved by those of an x, as a new tensor; ranges is None at first. A group without a
    finite x moves nothing."""
    known = now[0] <= now[1]
    return torch.where(known, now, 0.0) if ranges is None else torch.where(known,
        ranges + MESA_MOMENTUM * (now - ranges), ranges)


def _mesa_step(ranges):
    return ((ranges[1] - ranges[0]) / MESA_TOP).clamp(min=LEAST_STEP)


@torch.library.custom_op("outgrad_peers::mesa_encode", mutates_args=(),
    tags=(torch.Tag.nondeterministic_seeded,))
def mesa_encode(x: torch.Tensor, ranges: torch.Tensor) -> torch.Tensor:
    """One byte for each x."""
    low, step = (_by_columns(each, _columns(x)) for each in (ranges[0], _mesa_step(ranges)))
    return _codes(x.float().contiguous(), low, step, MESA_TOP)


@mesa_encode.register_fake
def _(x, ranges):
    return torch.empty_like(x, dtype=torch.uint8, memory_format=torch.contiguous_format)


@torch.library.custom_op("outgrad_peers::mesa_decode", mutates_args=())
def mesa_decode(codes: torch.Tensor, ranges: torch.Tensor) -> torch.Tensor:
    """x' in float32, in the shape of x."""
    low, step = (_by_columns(each, _columns(codes)) for each in (ranges[0], _mesa_step(ranges)))
    return codes.float() * step + low


@mesa_decode.register_fake
def _(codes, ranges):
    return torch.empty_like(codes, dtype=torch.float32)


# --- ActNN ----------------------------------------------------------------------------------------


def _rounded_down(x):
    near = x.bfloat16()
    return torch.where(near.float() > x, torch.nextafter(near, torch.full_like(near, -math.inf)), near)


def _shifts(bits, like):
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=like.device)


def _groups(x):
    """x in float32, [groups, 256]: the last group is filled up with x's last element."""
    flat = x.float().flatten()
    return torch.cat((flat, flat[-1:].expand(-flat.numel() % ACTNN_GROUP))).view(-1, ACTNN_GROUP)


def _low_and_step(full, top):
    """For each group, in bfloat16; top is the largest code."""
    low, high = _finite_range(full, 1)
    low = _rounded_down(torch.minimum(low, high))  # crossed where none is finite
    return low, -_rounded_down(-((high - low.float()) / top).clamp(min=LEAST_STEP))


@torch.library.custom_op("outgrad_peers::actnn_encode", mutates_args=(),
    tags=(torch.Tag.nondeterministic_seeded,))
def actnn_encode(x: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes, 8 / bits a byte, [groups, 32 bits], and for each group low and step in bfloat16, [2,
    groups]. The last group is filled up with x's last element."""
    full, top = _groups(x), 2**bits - 1
    low, step = _low_and_step(full, top)
    codes = _codes(full, low.float()[:, None], step.float()[:, None], top)
    packed = (codes.view(-1, 32 * bits, 8 // bits) << _shifts(bits, x)).sum(-1, dtype=torch.uint8)
    return packed, torch.stack((low, step))


@actnn_encode.register_fake
def _(x, bits):
    groups = (x.numel() + ACTNN_GROUP - 1) // ACTNN_GROUP
    return x.new_empty((groups, 32 * bits), dtype=torch.uint8), x.new_empty((2, groups), dtype=torch.bfloat16)


@torch.library.custom_op("outgrad_peers::actnn_decode", mutates_args=())
def actnn_decode(packed: torch.Tensor, ranges: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """The first x' in float32, as many as x has elements."""
    codes = ((packed[..., None] >> _shifts(bits, packed)) & (2**bits - 1)).flatten(1)
    low, step = ranges.float()[..., None]
    return (codes * step + low).flatten()[:count].clone()


@actnn_decode.register_fake
def _(packed, ranges, bits, count):
    return packed.new_empty((count,), dtype=torch.float32)


# --- ActNN's bits by range ------------------------------------------------------------------------

ACTNN_MOST_BITS = 8


def allocate(sensitivities, average):
    """How many bits, 1 to 8, each part of what is kept gets, so that its numbers have `average` bits or less
    in the mean: int64, [parts]. ActNN (arXiv:2104.14129, section 4.2 and its calc_precision): the variance of
    a part's gradient is its sensitivity C over (2^b - 1)^2, and the sum is made small by taking, from 8 bits
    each, one bit after the other where that adds the least to the sum, until the average is met. No
    allocation has a smaller sum, because each bit taken costs more than the one before.

    sensitivities: float64, finite and not negative, [parts]: of groups of as many numbers each, their squared
    widths; a common factor changes nothing. average: 1 to 8.
    """
    bits = torch.arange(ACTNN_MOST_BITS, 1, -1, dtype=torch.float64, device=sensitivities.device)
    # of taking the last bit of 8, 7, .., 2; rising
    costs = 1 / (2 ** (bits - 1) - 1) ** 2 - 1 / (2**bits - 1) ** 2
    excess = ACTNN_MOST_BITS * len(sensitivities) - math.floor(average * len(sensitivities))
    return (ACTNN_MOST_BITS
        - _taken(sensitivities[:, None] * costs, torch.ones_like(sensitivities), excess).long().sum(1))


def _taken(costs, sizes, excess):
    """Which bits the greedy rule takes, [parts, bits]: those that cost the least for each number, until
    `excess` of them are taken, of the last one only as large a part as is needed. costs: rising along each
    part's row."""
    # in each part from the last bit on, also where all costs are 0
    order = costs.flatten().argsort(stable=True)
    numbers = sizes.double()[:, None].expand_as(costs).flatten()[order]
    taken = ((excess - (numbers.cumsum(0) - numbers)) / numbers).clamp(0, 1)
    return torch.zeros_like(costs).flatten().scatter(0, order, taken).view_as(costs)


# Bits in the mean at which the error of a tensor is measured: 1, 1.5, ..., 8.
ACTNN_LEVELS = tuple(level / 2 for level in range(2, 2 * ACTNN_MOST_BITS + 1))


def share(errors, sizes, budget):
    """How many bits in the mean each of several tensors gets, 1 to 8, so that they have `budget` bits in all:
    float64, [tensors]. The greedy rule of allocate, with measured errors in place of its law C / (2^b - 1)^2,
    and in steps of half a bit, of which the last one taken may be a part.

    errors: float64, finite, [tensors, 15]: of each tensor at each of ACTNN_LEVELS. Where such a row is not
    convex, its convex hull is taken, so that no bits within the budget have a smaller sum of the hulls, nor
    whole or half bits one of the errors. sizes: int64, positive: the numbers of each tensor. budget:
    sum(sizes) to 8 sum(sizes).
    """
    k = torch.arange(len(ACTNN_LEVELS), device=errors.device)
    first, at, last = k[:, None, None], k[:, None], k
    along = (at - first) / (last - first).clamp(min=1)
    chords = errors[:, :, None, None] * (1 - along) + errors[:, None, None, :] * along
    hulls = chords.where((first <= at) & (at <= last), math.inf).amin((1, 3))
    costs = -hulls.diff(dim=1).flip(1) / sizes[:, None]
    return ACTNN_MOST_BITS - _taken(costs, sizes, 2 * (ACTNN_MOST_BITS * sizes.sum().double() - budget)).sum(
        1) / 2


def _auto_bits(full, average):
    low, high = _finite_range(full, 1)
    return allocate((high.double() - low).clamp(min=0).square(), average)


def _planes(bits):
    """Which of 8 planes of bits a group has, [groups, 8]."""
    return torch.arange(ACTNN_MOST_BITS, device=bits.device) < bits[:, None]


@torch.library.custom_op("outgrad_peers::actnn_auto_encode", mutates_args=(),
    tags=(torch.Tag.nondeterministic_seeded,))
def actnn_auto_encode(x: torch.Tensor, average: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The codes of groups that have different bits, `average` in the mean or, where that is no whole number
    of bits, a part of one less in all: [floor(groups average), 32], of each group one row for each of its
    bits, from the lowest on, of which the k-th bit in order is that of element k. Then, for each group, low
    and step as actnn_encode gives them, and its bits, uint8, [groups]. A group's sensitivity is its squared
    width."""
    full = _groups(x)
    bits = _auto_bits(full, average)
    top = 2.0**bits - 1
    low, step = _low_and_step(full, top)
    codes = _codes(full, low.float()[:, None], step.float()[:, None], top[:, None])
    planes = (codes[:, None] >> _shifts(1, x)[:, None] & 1)[_planes(bits)].view(-1, ACTNN_GROUP // 8, 8)
    return (planes << _shifts(1, x)).sum(-1, dtype=torch.uint8), torch.stack((low, step)), bits.to(
        torch.uint8)


@actnn_auto_encode.register_fake
def _(x, average):
    groups = (x.numel() + ACTNN_GROUP - 1) // ACTNN_GROUP
    return (x.new_empty((math.floor(groups * average), ACTNN_GROUP // 8), dtype=torch.uint8),
        x.new_empty((2, groups), dtype=torch.bfloat16), x.new_empty((groups,), dtype=torch.uint8))


@torch.library.custom_op("outgrad_peers::actnn_auto_decode", mutates_args=())
def actnn_auto_decode(packed: torch.Tensor, ranges: torch.Tensor, bits: torch.Tensor,
        count: int) -> torch.Tensor:
    """The first x' in float32, as many as x has elements."""
    planes = torch.zeros((bits.numel(), ACTNN_MOST_BITS, ACTNN_GROUP), dtype=torch.uint8,
        device=packed.device)
    planes[_planes(bits)] = (packed[..., None] >> _shifts(1, packed) & 1).flatten(1)
    low, step = ranges.float()[..., None]
    return ((planes << _shifts(1, packed)[:, None]).sum(1) * step + low).flatten()[:count].clone()


@actnn_auto_decode.register_fake
def _(packed, ranges, bits, count):
    return packed.new_empty((count,), dtype=torch.float32)


def actnn_auto_errors(x, derivative, average):
    """The mean and the variance of f'(x') - f'(x) for each element in actnn:auto with so many bits in the
    mean, in float32, in the shape of x: x' is one end of the step in which x lies, or the other, with the
    probability that makes its mean x. derivative: f' of a float32 tensor."""
    full = _groups(x)
    top = 2.0 ** _auto_bits(full, average) - 1
    low, step = (each.float()[:, None] for each in _low_and_step(full, top))
    at = (full - low) / step
    code = torch.minimum(at.floor().clamp(min=0), top[:, None] - 1)
    up = (at - code).clamp(0, 1)
    below, above = (derivative((code + k) * step + low) - derivative(full) for k in (0, 1))
    mean, variance = (1 - up) * below + up * above, up * (1 - up) * (above - below).square()
    return tuple(each.flatten()[: x.numel()].view(x.shape) for each in (mean, variance))
