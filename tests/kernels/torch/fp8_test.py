"""Tensors in 8 bits at one scale (outgrad/fp8.py): what codes stand for, the kernels' rounding, what is no
number, and an offer of codes, which holds for one tensor as long as nothing changes it."""

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
from outgrad import fp8, library, mxfp8

FORMATS = [torch.float32, torch.float16, torch.bfloat16]
formats = pytest.mark.parametrize("dtype", FORMATS)
kinds = pytest.mark.parametrize("of", library.FP8.values())
E4M3 = library.FP8["e4m3"]


def decoded(x, of, least=fp8.LEAST):
    """(x', scale)"""
    scale = fp8.scale_of(x, of, least)
    return fp8.decode(fp8.encode(x, scale, of), scale, of, x.dtype).view(x.shape), scale.item()


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
    scale = fp8.scale_of(y, of, fp8.LEAST_OF_ACTIVATIONS)
    assert torch.equal(fp8.encode(y, scale, of), library.store_forward(x, 0, of, 1, None, scale)[0])


@kinds
@pytest.mark.parametrize("dtype", FORMATS[1:])
def test_many_numbers_have_the_bits_of_few(dtype, of):
    """Many numbers are looked up in a table of all, few ones are converted."""
    x = torch.arange(2**16).to(torch.int16).view(dtype).repeat(5)[:-3]
    scale = torch.tensor([37.77])
    few, many = torch.cat([fp8.encode(part, scale, of) for part in x.split(2**16)]), fp8.encode(x, scale, of)
    is_nan = x.isnan()  # whose sign PyTorch keeps for some
    assert x.numel() >= 2**18 and torch.equal(few.masked_fill(is_nan, 0), many.masked_fill(is_nan, 0))
    assert fp8.decode(many, scale, of, dtype)[is_nan].isnan().all()
    codes = torch.arange(2**8, dtype=torch.uint8).repeat(300)
    values = codes.view(fp8.TYPES[of]).float().div(scale).to(dtype)
    assert torch.equal(fp8.decode(codes, scale, of, dtype).view(torch.int16), values.view(torch.int16))


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
@formats
def test_a_scale_has_the_bits_that_devices_give(dtype, of):
    """A CPU computes it in float64, unless there is an infinity, which counts for nothing: then as a device
    does."""
    draw, most = torch.Generator().manual_seed(of), torch.finfo(dtype).max
    for power in range(-149, 128):
        x = (torch.rand(2, generator=draw) + 1).double().mul_(2.0**power).clamp_(max=most).to(dtype)
        for least in (fp8.LEAST, fp8.LEAST_OF_ACTIVATIONS):
            scale = fp8.scale_of(x, of, least)
            assert torch.equal(scale, fp8.scale_of(torch.cat((x, x.new_tensor([-math.inf]))), of, least))
            assert scale.dtype == torch.float32 and scale.shape == (1,)


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


# What each call gives PyTorch to do on a CPU, where views and arrays without values are nothing.
OPERATIONS = {
    "scale": 4,  # aminmax, two numbers read, one written
    "encode": 3,
    "decode": 3,
    "mxfp8 encode": 12,
    "mxfp8 decode": 6,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_operations_make_codes(dtype, monkeypatch):
    """A layer of few rows waits for the host, whose time goes with their number."""
    x = torch.randn(4, 64).to(dtype)
    scale, (codes, scales) = fp8.scale_of(x, E4M3, fp8.LEAST), mxfp8.encode(x)
    nothing = {"detach", "view", "_unsafe_view", "slice", "unsqueeze"}
    monkeypatch.setattr(library, "is_watched", lambda x: False)
    for name, call in {
        "scale": lambda: fp8.scale_of(x, E4M3, fp8.LEAST),
        "encode": lambda: fp8.encode(x, scale, E4M3),
        "decode": lambda: fp8.decode(codes, scale, E4M3, dtype),
        "mxfp8 encode": lambda: mxfp8.encode(x),
        "mxfp8 decode": lambda: mxfp8.decode(codes, scales, dtype),
    }.items():
        with Calls() as calls:
            call()
        found = {one: count for one, count in calls.all.items() if one not in nothing}
        assert sum(found.values()) <= OPERATIONS[name], (name, found)


def test_an_operator_in_python_is_called_where_something_watches():
    x = torch.randn(4, 64)
    with Calls() as calls:
        outgrad.gated(x, x, store="e4m3")
    assert calls.all["fp8_scale"] == calls.all["fp8_encode"] == 2
    traced = torch.jit.trace(lambda x: fp8.scale_of(x, E4M3, fp8.LEAST), x)
    assert "fp8_scale" in str(traced.graph)
    assert torch.equal(traced(2 * x), fp8.scale_of(2 * x, E4M3, fp8.LEAST))
    assert fp8.scale_of(x.to("meta"), E4M3, fp8.LEAST).is_meta


@pytest.mark.parametrize("function, beside", [
    (lambda x: outgrad.gated(x, x, store="e4m3"), "fp8_"),
    (lambda x: outgrad.gated(x, x, store="mxfp8"), "mxfp8_"),
    (lambda x: outgrad.gated_linear(x, None, torch.ones(3, 32), store="e5m2"), "fp8_"),
    (lambda x: outgrad.gelu(x, store="e4m3+bit"), "fp8_"),
])
def test_without_a_graph_there_are_no_codes(function, beside):
    """The same results, in as much time as where nothing is kept in 8 bits."""
    x = torch.randn(4, 64, requires_grad=True)
    with torch.no_grad(), Calls() as calls:
        found = function(x)
    assert torch.equal(found, function(x)) and not [one for one in calls.all if one.startswith(beside)]


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
    assert torch.equal(codes, fp8.encode(y, scale, of))
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
