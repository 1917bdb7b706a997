"""Tensors in 8 bits (outgrad/fp8.py): what codes at one scale and in blocks stand for, the kernels' rounding,
what is no number, and an offer of codes, which holds for one tensor as long as nothing changes it."""

import copy
import gc
import math
import pickle

import pytest
import torch
from drift_test import Calls
from functional_test import UNIT_ROUNDOFF
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import TensorWeakRef

import outgrad
from outgrad import fp8, library

FORMATS = list(library.FORMATS)
formats = pytest.mark.parametrize("dtype", FORMATS)
kinds = pytest.mark.parametrize("of", library.FP8.values())
E4M3, MXFP8 = library.FP8["e4m3"], library.STORES["mxfp8"].number


def decoded(x, of, least=fp8.LEAST):
    """(x', scale)"""
    codes, scale = fp8.encode(x, of, least)
    assert torch.equal(scale, fp8.scale_of(x, of, least)) and scale.dtype == torch.float32
    return fp8.decode(codes, scale, of, x.dtype).view(x.shape), scale.item()


# --- Codes ----------------------------------------------------------------------------------------


@kinds
@formats
def test_what_codes_stand_for_is_within_the_stated_distance(dtype, of):
    """Tensors have every magnitude, and their least elements are subnormal numbers of the 8 bits and
    below."""
    generator, tightest = torch.Generator().manual_seed(of), 0.0
    v, u, t = (fp8.UNIT_ROUNDOFF[of], UNIT_ROUNDOFF[dtype],
        torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps)
    assert (v, fp8.HALF_SUBNORMAL[of]) == ((2.0**-4, 2.0**-10) if of == E4M3 else (2.0**-3, 2.0**-17))
    for power in (-140, -100, -30, -14, -3, 0, 2, 9, 15, 60, 126.9):
        if 2.0**power > torch.finfo(dtype).max:
            continue
        spread = torch.exp2(-24 * torch.rand(20_000, generator=generator))
        x = ((torch.rand(20_000, generator=generator) * 2 - 1) * spread * 2.0**power).to(dtype)
        found, scale = decoded(x, of)
        off, allowed = ((found.double() - x.double()).abs(),
            (v + 3 * u) * x.double().abs() + fp8.HALF_SUBNORMAL[of] / scale + t)
        assert (off <= allowed).all(), power
        tightest = max(tightest, (off / allowed).max().item())
    assert tightest > 0.8


@kinds
def test_codes_are_rounded_as_the_kernels_round(of):
    x = torch.randn(10_000) * 3
    y = outgrad.gelu(x)
    codes, scale = fp8.encode(y, of, fp8.LEAST_OF_ACTIVATIONS)
    assert torch.equal(codes, library.store_forward(x, 0, of, 1, None, scale)[0])


@kinds
@formats
def test_codes_are_those_that_pytorch_makes(dtype, of):
    """Of every number of 16 bits; what is a NaN has one code, where PyTorch keeps the sign of some."""
    x = (torch.randn(2**16, generator=torch.Generator().manual_seed(of)) * 3 if dtype == torch.float32
        else torch.arange(2**16).to(torch.int16).view(dtype))
    codes, scale = fp8.encode(x, of)
    largest = x[x.isfinite()].abs().max().float().clamp(max=fp8.MOST)
    assert scale.item() == ((largest / 4).reciprocal() * (fp8.LARGEST[of] / 4)).item()
    limits = -fp8.LARGEST[of], fp8.LARGEST[of]
    want = (x * scale).clamp_(*limits).to(fp8.TYPES[of]).view(torch.uint8).masked_fill(x.isnan(), 0x7F)
    assert torch.equal(codes, want)
    values = codes.view(fp8.TYPES[of]).float().div(scale).to(dtype)
    found = fp8.decode(codes, scale, of, dtype)
    assert torch.equal(found.isnan(), x.isnan())
    assert torch.equal(found.nan_to_num(nan=0.0), values.nan_to_num(nan=0.0))


@kinds
@formats
def test_what_is_no_number_has_no_part_in_the_scale(dtype, of):
    x = torch.tensor([math.nan, 3.0, math.inf, -math.inf, -5.0, 0.0], dtype=dtype)
    found, scale = decoded(x, of)
    assert scale == torch.tensor(fp8.LARGEST[of] / 5).item()
    assert (found[0].isnan() and found[2:5].tolist() == [5, -5, -5] and found[5] == 0
        and abs(found[1] - 3) <= 3 / 8)
    for strange in (math.nan, math.inf, 0.0):
        found, scale = decoded(torch.full((3,), strange, dtype=dtype), of)
        assert 0 < scale < math.inf and (found.isnan().all() if math.isnan(strange)
            else torch.isfinite(found).all())
    assert decoded(torch.empty(0, dtype=dtype), of)[0].numel() == 0
    top = torch.finfo(dtype).max
    found, scale = decoded(torch.tensor([top, -top, 1.0], dtype=dtype), of)
    assert scale >= 2.0**-126 and torch.isfinite(found).all() and found[0] == -found[1] >= top / 2


@kinds
def test_a_scale_is_none_that_flushing_subnormals_makes_0(of):
    x = torch.tensor([1.5e38, -5e37])
    want = decoded(x, of)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor flushes no subnormals")
    try:
        found = decoded(x, of)
    finally:
        torch.set_flush_denormal(False)
    assert found[1] == want[1] > 0 and torch.equal(found[0], want[0])


@pytest.mark.parametrize("function, calls_of", [
    (lambda x: fp8.scale_of(x, E4M3, fp8.LEAST), {"tensor_scale": 1}),
    (lambda x: fp8.decode(*fp8.encode(x, E4M3), E4M3, x.dtype), {"encode_tensor": 1, "decode_tensor": 1}),
    (lambda x: fp8.decode(*fp8.encode(x, MXFP8), MXFP8, x.dtype), {"encode_tensor": 1, "decode_tensor": 1}),
    (lambda x: outgrad.gated(x, x, store="e4m3"), {"gated_forward_8bit": 1}),
    (lambda x: outgrad.gated(x, x, store="mxfp8"), {"gated_forward_8bit": 1}),
])
def test_a_step_is_one_operator(function, calls_of):
    """A layer of few rows waits for the host, whose time goes with their number."""
    x = torch.randn(4, 64)
    with Calls() as calls:
        function(x)
    nothing = {"detach", "view", "new_empty"}
    assert {one: count for one, count in calls.all.items() if one not in nothing} == calls_of


def test_tracers_see_the_operators():
    x = torch.randn(4, 64)
    traced = torch.jit.trace(lambda x: fp8.scale_of(x, E4M3, fp8.LEAST), x)
    assert "tensor_scale" in str(traced.graph)
    assert torch.equal(traced(2 * x), fp8.scale_of(2 * x, E4M3, fp8.LEAST))
    assert fp8.scale_of(x.to("meta"), E4M3, fp8.LEAST).is_meta


@pytest.mark.parametrize("function", [
    lambda x: outgrad.gated(x, x, store="e4m3"),
    lambda x: outgrad.gated(x, x, store="mxfp8"),
    lambda x: outgrad.gated_linear(x, None, torch.ones(3, 32), store="e5m2"),
    lambda x: outgrad.gelu(x, store="e4m3+bit"),
])
def test_without_a_graph_there_are_no_codes(function):
    """The same results, in as much time as where nothing is kept in 8 bits."""
    x = torch.randn(4, 64, requires_grad=True)
    with torch.no_grad(), Calls() as calls:
        found = function(x)
    assert torch.equal(found, function(x))
    assert not [one for one in calls.all if "encode" in one or "8bit" in one]


# --- Blocks ------------------------------------------------------------------------------------


def in_blocks(x):
    """The codes' and scales' meaning in float64, by the definitions of e4m3 and E8M0."""
    codes, scales = fp8.encode(x, MXFP8)
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
        found, powers = in_blocks(x)
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
        assert torch.equal(fp8.decode(*fp8.encode(x, MXFP8), MXFP8, torch.float32), want)


@formats
@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 77, 4096])
def test_lengths_and_types_of_blocks(dtype, n):
    x = (torch.randn(n, generator=torch.Generator().manual_seed(n)) * 3).to(dtype)
    found, _ = in_blocks(x)
    assert torch.equal(fp8.decode(*fp8.encode(x, MXFP8), MXFP8, dtype), found.to(dtype))
    of_rows = x[: n // 3 * 3].view(-1, 3).t()  # which lies apart: the order is that of its elements
    assert all(map(torch.equal, fp8.encode(of_rows, MXFP8), fp8.encode(of_rows.contiguous(), MXFP8)))


@formats
def test_the_largest_numbers_of_a_type_stay_finite(dtype):
    """Codes of those from 248/256 of a power of two on stand for that power, which the type does not
    have."""
    most = torch.finfo(dtype).max
    x = torch.tensor([most * share for share in (1, 0.97, 0.9, -1, -0.98)], dtype=dtype)
    for given in (x, -x, torch.tensor([math.inf, -math.inf, most], dtype=dtype)):
        read = fp8.decode(*fp8.encode(given, MXFP8), MXFP8, dtype).double()
        exact = given.double().clamp(-most, most)
        assert ((read - exact).abs() <= exact.abs() / 16).all()


def test_what_is_no_number_leaves_its_block_alone():
    x = torch.linspace(-3, 3, 96)
    plain, powers = in_blocks(x)
    x[5], x[40], x[41], x[70] = math.nan, math.inf, -math.inf, math.nan
    found, again = in_blocks(x)
    assert torch.equal(powers, again), "none enlarges a scale"
    assert found[5].isnan() and found[70].isnan()
    assert found[40] == 448 * powers[1] and found[41] == -448 * powers[1]
    same = [k for k in range(96) if k not in (5, 40, 41, 70)]
    assert torch.equal(found[same], plain[same])
    for nothing in (torch.zeros(40), torch.full((40,), math.nan), torch.full((40,), -math.inf)):
        found, powers = in_blocks(nothing)
        assert powers.isfinite().all() and torch.equal(found.isnan(), nothing.isnan())
    assert torch.equal(in_blocks(torch.tensor([-0.0, 0.0]))[0].signbit(), torch.tensor([True, False]))


# --- Offers ---------------------------------------------------------------------------------------


def offering(store="e4m3+bit", n=64):
    """(y, its codes), of an activation whose graph keeps the codes."""
    x = torch.randn(4, n, requires_grad=True)
    y = outgrad.gelu(x, store=store)
    found = fp8.offered(y, library.FP8[store[:4]])
    assert found is not None
    return y, found


@pytest.mark.parametrize("store", ["e4m3", "e4m3+bit", "e5m2+2bits"])
def test_an_offer_is_of_what_the_activation_keeps(store):
    kept, of = [], library.FP8[store[:4]]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y, (codes, scale) = offering(store)
    addresses = {t.data_ptr() for t in kept}
    assert codes.data_ptr() in addresses and scale.data_ptr() in addresses
    assert torch.equal(codes, fp8.encode(y, of, fp8.LEAST_OF_ACTIVATIONS)[0])
    assert fp8.offered(y, 1 - of) is None, "the other format has other codes"


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y.add_(1),
        lambda y: y.view(-1)[3:5].zero_(),
        lambda y: y.detach().mul_(2),
        lambda y: y.t_(),
        lambda y: setattr(y, "data", torch.zeros(4, 64)),
        lambda y: [setattr(y, "data", torch.zeros(4, 64)) for _ in range(20)],
        lambda y: setattr(y, "data", y.data.half()),
    ],
    ids=["in place", "of a part", "of an alias", "transposed", "other data", "other data again",
    "other type"],
)
def test_a_changed_y_has_no_codes(change):
    y, _ = offering()
    with torch.no_grad():
        change(y)
    assert fp8.offered(y, E4M3) is None


def test_other_tensors_made_of_y_have_no_codes():
    y, _ = offering()
    for other in (y.view(2, 128), y[:], y.detach(), y.clone(), y * 1, y.bfloat16(), y.t(),
            copy.deepcopy(y.detach()), torch.nn.Parameter(y.detach())):
        assert fp8.offered(other, E4M3) is None
    assert fp8.offered(y, E4M3) is not None


def test_an_offer_holds_nothing_in_memory():
    y, found = offering()
    alive = [TensorWeakRef(t) for t in found]
    del found
    gc.collect()
    assert all(one() is not None for one in alive)
    y.sum().backward()  # frees what the graph keeps
    gc.collect()
    assert fp8.offered(y, E4M3) is None and all(one() is None for one in alive)


def test_an_offer_leaves_no_trace_on_the_tensor():
    """Data that passed a Linear can be copied, pickled and freed as before."""
    x, linear = torch.randn(4, 8), outgrad.Linear(8, 3, store="e4m3")
    out = linear(x)
    assert fp8.offered(x, E4M3) is not None and vars(x) == {}
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert torch.equal(other, x) and fp8.offered(other, E4M3) is None
    storage = StorageWeakRef(x.untyped_storage())
    del out
    x.data = torch.zeros(1)
    assert storage.expired() and fp8.offered(x, E4M3) is None
    known = len(fp8._offers)
    assert known > 0
    del x
    gc.collect()
    assert len(fp8._offers) < known


def test_nothing_is_offered_that_no_graph_keeps():
    with torch.no_grad():
        assert fp8.offered(outgrad.gelu(torch.randn(8), store="e4m3+bit"), E4M3) is None
    assert fp8.offered(outgrad.gelu(torch.randn(8), store="e4m3+bit"), E4M3) is None
    with torch.inference_mode():
        assert fp8.offered(outgrad.gelu(torch.randn(8), store="e4m3+bit"), E4M3) is None
