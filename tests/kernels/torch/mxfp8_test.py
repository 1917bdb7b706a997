"""A tensor in MXFP8 (outgrad/mxfp8.py): its powers and codes against float64 at every scale, what is no
number, and lengths that are no multiple of a block."""

import math

import pytest
import torch

from outgrad import library, mxfp8

FORMATS = library.FORMATS


def decoded(x):
    """The codes' and scales' meaning in float64, by the definitions of e4m3 and E8M0."""
    codes, scales = mxfp8.encode(x)
    assert codes.dtype == scales.dtype == torch.uint8 and codes.shape == (x.numel(),)
    assert scales.shape == (math.ceil(x.numel() / 32),) and codes.untyped_storage().nbytes() == x.numel()
    powers = torch.exp2(scales.double() - 127)
    return codes.view(torch.float8_e4m3fn).double() * powers.repeat_interleave(32)[: x.numel()], powers


def test_the_power_is_the_least_and_each_number_the_nearest_at_every_scale():
    """One block with each largest number of e4m3's significands, and between these, at each power of two."""
    draw = torch.Generator().manual_seed(1)
    share = torch.rand(512, 32, generator=draw, dtype=torch.float64) * 2 - 1
    share *= torch.exp2(torch.randint(-20, 1, share.shape, generator=draw).double())
    share[:, 7] = torch.linspace(1, 2, 513, dtype=torch.float64)[:-1] * torch.tensor([1.0, -1.0]).repeat(256)
    share[:, :7], share[:, 8:] = share[:, :7] / 2, share[:, 8:] / 2  # the seventh is the largest
    for exponent in range(-148, 128):
        x = (share * 2.0**exponent).float().flatten()
        found, powers = decoded(x)
        largest = x.double().view(-1, 32).abs().amax(1)
        least = torch.clamp(torch.ceil(torch.log2(largest / 448)), min=-126)
        assert torch.equal(powers, torch.exp2(least)), exponent
        step = powers.repeat_interleave(32)
        off = (found - x.double()).abs()
        assert (off <= torch.maximum(x.double().abs() / 17, 2.0**-10 * step)).all(), exponent
        # nothing of e4m3's is nearer
        ratio = x.double() / step
        unit = torch.exp2(torch.frexp(ratio.abs().clamp(min=2.0**-6)).exponent - 4.0)
        assert torch.equal(found, torch.round(ratio / unit) * unit * step), exponent
        most = torch.finfo(torch.float32).max  # which 256 2^120 exceeds
        want = found.clamp(-most, most).float()
        assert torch.equal(mxfp8.decode(*mxfp8.encode(x), torch.float32), want)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 77, 4096])
def test_lengths_and_types(dtype, n):
    x = (torch.randn(n, generator=torch.Generator().manual_seed(n)) * 3).to(dtype)
    found, _ = decoded(x)
    assert torch.equal(mxfp8.decode(*mxfp8.encode(x), dtype), found.to(dtype))
    of_rows = x[: n // 3 * 3].view(-1, 3).t()  # which lies apart: the order is that of its elements
    assert all(map(torch.equal, mxfp8.encode(of_rows), mxfp8.encode(of_rows.contiguous())))


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_largest_numbers_of_a_type_stay_finite(dtype):
    """Codes of those from 248/256 of a power of two on stand for that power, which the type does not
    have."""
    most = torch.finfo(dtype).max
    x = torch.tensor([most * share for share in (1, 0.97, 0.9, -1, -0.98)], dtype=dtype)
    for given in (x, -x, torch.tensor([math.inf, -math.inf, most], dtype=dtype)):
        read, exact = mxfp8.decode(*mxfp8.encode(given), dtype).double(), given.double().clamp(-most, most)
        assert ((read - exact).abs() <= exact.abs() / 16).all()


def test_what_is_no_number_leaves_its_block_alone():
    x = torch.linspace(-3, 3, 96)
    plain, powers = decoded(x)
    x[5], x[40], x[41], x[70] = math.nan, math.inf, -math.inf, math.nan
    found, again = decoded(x)
    assert torch.equal(powers, again), "none enlarges a scale"
    assert found[5].isnan() and found[70].isnan()
    assert found[40] == 448 * powers[1] and found[41] == -448 * powers[1]
    same = [k for k in range(96) if k not in (5, 40, 41, 70)]
    assert torch.equal(found[same], plain[same])
    for nothing in (torch.zeros(40), torch.full((40,), math.nan), torch.full((40,), -math.inf)):
        found, powers = decoded(nothing)
        assert powers.isfinite().all() and torch.equal(found.isnan(), nothing.isnan())
    assert torch.equal(decoded(torch.tensor([-0.0, 0.0]))[0].signbit(), torch.tensor([True, False]))


def test_fake_tensors_have_its_shapes():
    for n in (0, 5, 64):
        x = torch.randn(n, dtype=torch.bfloat16)
        torch.library.opcheck(torch.ops.outgrad.mxfp8_encode.default, (x,))
        torch.library.opcheck(torch.ops.outgrad.mxfp8_decode.default,
            (*mxfp8.encode(x), torch.bfloat16))
