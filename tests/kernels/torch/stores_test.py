"""What activations keep instead of y and a bit (outgrad/stores.py): every store of every activation and type
against exact derivatives, within the bound that its header states; the bytes that are kept; modules, patch
and its report; how PyTorch's autograd, compiler and checkpoints use it."""

import copy
import json
import math
import re

import ledger
import pytest
import torch
from functional_test import (
    EXACT,
    SOURCES,
    UNIT_ROUNDOFF,
    X_STAR,
    assert_it_learns,
    copies,
    gelu_slope,
    gradients,
    minimum_of,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

import outgrad
import outgrad_peers
from outgrad import library, report, stores

FORMATS = [torch.float32, torch.float16, torch.bfloat16]
LEAST_SUBNORMAL = {torch.float32: 2.0**-149, torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133}
PAIRS = [(name, store) for name in library.ACTIVATIONS
    for store in stores.STORES if stores.why_not(name, store) is None]
pairs = pytest.mark.parametrize(("name", "store"), PAIRS)
each = pytest.mark.parametrize("store", outgrad_peers.STORES)  # of GELU, which has them all
of_each_kind = pytest.mark.parametrize("store",
    ["y+bit", "parity", "code:5", "dither:3", "mxfp8+bit", "e4m3+bit", "mesa", "actnn:2", "actnn:auto:2"])
RANDOM = ("dither", "mesa", "actnn")


def of(store):
    """The package that has this store."""
    return outgrad_peers if store in outgrad_peers.OF_X else outgrad


def slope(name, x):
    """f'(x) in float64, by PyTorch."""
    x = x.double().requires_grad_()
    if name == "gelu":
        return gelu_slope(x.detach())
    return torch.autograd.grad(EXACT[name](x).sum(), x)[0]


def inputs(dtype):
    """Every finite number of 16 bits. Of float32 those of bf16, and others between them."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16
        if dtype == torch.float32 else dtype)
    x = x[torch.isfinite(x)]
    return torch.cat([x.float(), torch.linspace(-12, 12, 40_001)]) if dtype == torch.float32 else x


def floats_around(x, reach=2**14):
    """x in float32, and so many of its neighbours on either side."""
    return (torch.tensor(x).view(torch.int32) + torch.arange(-reach, reach + 1, dtype=torch.int32)).view(
        torch.float32)


def printed(bounds):
    """The number that a reader of the bound in words takes for it."""
    return float(re.match(r"\|g - f'\(x\)\| <= ([0-9.e-]+)", str(bounds))[1])


def kept_by(store, n, bytes_each, columns=1024):
    """Bytes that a GELU of n elements keeps, its y among them if it keeps y; n is a multiple of 256, columns
    of 64."""
    kind, _, bits = store.partition(":")
    return {
        "y+bit": lambda: n * bytes_each + n // 8,
        "parity": lambda: n * bytes_each,
        "code": lambda: n * int(bits) // 8,
        "dither": lambda: n * int(bits) // 8 + 8,
        "mxfp8+bit": lambda: n + n // 32 + n // 8,
        **{name + beside: lambda b=b: n + n * b // 8 + 4 for name in library.FP8
        for b, beside in enumerate(("", "+bit", "+2bits"))},
        "mesa": lambda: n + columns // 64 * 8,
        "actnn": lambda: n * int(bits.removeprefix("auto:")) // 8 + n // 256 * (5 if "auto" in bits else 4),
    }[kind]()


# --- Gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FORMATS)
@pairs
def test_every_gradient_is_within_the_proven_bound(name, store, dtype):
    x, function = inputs(dtype), getattr(outgrad, name)
    if dtype == torch.float32 and name in library.MASKED:
        x = torch.cat([x, floats_around(X_STAR if name == "gelu" else minimum_of(EXACT[name]))])
    if store == "mxfp8+bit" or stores.is_scaled(store):
        x = x[x.abs() < 2.0**12]  # what its bound is stated for
    bound = outgrad.bounds(name, dtype, store).total
    assert 0 < bound < 0.4
    largest = 0.0
    for order in (torch.arange(x.numel()),
            torch.randperm(x.numel(), generator=torch.Generator().manual_seed(1))):
        y, dx = gradients(lambda x: function(x, store=store), x[order], dy=torch.ones_like(x))
        want = slope(name, x[order])
        off = (dx.double() - want).abs()
        rounding = UNIT_ROUNDOFF[dtype] * (want.abs() + bound) + LEAST_SUBNORMAL[dtype] + 1e-14
        assert (off - bound - rounding).max() <= 0
        largest = max(largest, off.max().item())
        plain = function(x[order])
        if store == "parity" and dtype != torch.float32:
            assert (y.view(torch.int16).int() - plain.view(
                torch.int16).int()).abs().max() == 1, "the branch's bit moves y by a unit at most"
            assert torch.equal(y[y > 0], plain[y > 0])
        else:
            assert torch.equal(y, plain)
    if store != "y+bit" and dtype != torch.float32:
        if stores.is_scaled(store):
            # at this scale; the other is of all scales
            bound = outgrad.bounds(name, dtype, store, y.abs().max().item()).total
        assert largest > 0.5 * bound, "the bound is of this store, and no larger one's"


@pytest.mark.parametrize("name", library.ACTIVATIONS)
def test_the_total_of_float32_is_the_sweeps_and_what_is_printed_holds(name):
    """kA + kB + kK, which was printed before, bounds the error at the x that y and its bit stand for. Next to
    the minimum half of the floats share their y with many others, and f' is further from theirs than from g
    by the error of storing y."""
    sweep = json.loads((SOURCES / f"notebooks_data/sweeps/{name}_f32.json").read_text())["domains"][0]
    assert sweep["x_format"] == "f32" and sweep["counts"]["patterns"] == 2**32
    bounds, worst = outgrad.bounds(name, torch.float32), sweep["T"]
    assert bounds.total == worst["bound"] and "for every float32 x, fit" in str(bounds)
    places = [float.fromhex(worst[branch]["x"]) for branch in ("left", "right") if worst[branch] is not None]
    if name in library.MASKED:
        places.append(X_STAR if name == "gelu" else minimum_of(EXACT[name]))
    x = torch.cat([inputs(torch.float32), *map(floats_around, places)])
    off = (gradients(getattr(outgrad, name), x, dy=torch.ones_like(x))[1].double() - slope(name, x)).abs()
    assert off.max() <= bounds.total + 1e-15 and bounds.total <= printed(bounds)
    assert off.max() == pytest.approx(worst["max"], rel=1e-6), "the sweep's worst x is among these"
    if name == "gelu":
        assert (off > 1.9e-5).sum() > 4_000, "more than was printed before"


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_dy_multiplies_the_gradient(dtype):
    x = torch.randn(1000).to(dtype)
    for name, store in PAIRS:
        torch.manual_seed(1)
        ones = gradients(lambda x, name=name, store=store: getattr(outgrad, name)(x, store=store), x,
            dy=torch.ones_like(x))[1]
        torch.manual_seed(1)
        twice = gradients(lambda x, name=name, store=store: getattr(outgrad, name)(x, store=store), x,
            dy=torch.full_like(x, -2.0))[1]
        assert torch.equal(twice, -2 * ones)


def test_float32_has_no_parity_and_falls_back():
    x = torch.randn(1000) * 3
    for name in library.MASKED:
        both = [gradients(lambda x, name=name, store=store: getattr(outgrad, name)(x, store=store), x)
            for store in ("parity", "y+bit")]
        assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))
        assert outgrad.bounds(name, torch.float32, "parity") == outgrad.bounds(name, torch.float32)


def test_bounds_are_those_of_the_headers():
    assert outgrad.bounds("gelu", torch.bfloat16, "code:4").total == float.fromhex("0x1.420082296614p-5")
    dithered = outgrad.bounds("gelu", torch.bfloat16, "dither:3")
    assert (dithered.total, dithered.bias) == (float.fromhex("0x1.7000929c967fdp-4"),
        float.fromhex("0x1.5afe014087113p-20"))
    assert dithered.fit == "gelu_code" and len(dithered.sha256) == 64 and math.isinf(dithered.evaluation)
    assert (str(dithered)
        == "|g - f'(x)| <= 0.09, |mean g - f'(x)| <= 1.3e-06 for every bfloat16 x, fit gelu_code")
    of_a_block = "for every float16 x of a block of 32 whose largest |y| is below 2^12, fit gelu_mxfp8"
    assert str(outgrad.bounds("gelu", torch.float16, "mxfp8+bit")).endswith(of_a_block)
    for store, largest in (("e4m3+bit", "2^12"), ("e5m2", "2^26")):
        of_a_tensor = (
            f"for every float32 x of a tensor whose largest finite |y| is at most {largest}, fit gelu_fp8")
        assert str(outgrad.bounds("gelu", torch.float32, store)).endswith(of_a_tensor)
    assert "of a tensor whose largest finite |y| is 3.5, fit" in str(outgrad.bounds("gelu", torch.float32,
        "e4m3", largest=3.5))
    with torch.device("meta"):  # where models are made without memory
        assert outgrad.bounds(store="e4m3", largest=3.5).total < outgrad.bounds(store="e4m3").total
    names = {store: outgrad.bounds("gelu", torch.float16, store).fit
        for store in ("y+bit", "parity", "mxfp8+bit", "code:1")}
    assert names == {"y+bit": "gelu_f16", "parity": "gelu_f16_parity", "mxfp8+bit": "gelu_mxfp8",
        "code:1": "gelu_code"}
    assert (len({outgrad.bounds(name, torch.bfloat16, store).sha256 for name, store in PAIRS}) == 10 + 10 + 6
        + 1 + 6)
    # no word has these yet
    _, _, (*_, total, _, _, largest) = library.fit_of("gelu", torch.float32, "int8", 2)
    assert (total, largest) == (float.fromhex("0x1.85487aaa9efdap-5"), 8)
    with pytest.raises(ValueError, match="no fit of gelu"):
        library.fit_of("gelu", torch.float32, "mxfp4", 1)
    with pytest.raises(ValueError, match="outgrad.bounds: tanh has no minimum"):
        outgrad.bounds("tanh", torch.bfloat16, "parity")


def test_bounds_in_words_are_not_below_the_bounds():
    """Rounded to nearest, some would be."""
    for name, store in PAIRS:
        for dtype in FORMATS:
            of = outgrad.bounds(name, dtype, store)
            said = [float(number) for number in re.findall(r"<= ([0-9.e-]+)", str(of))]
            assert of.total <= said[0] <= 1.1 * of.total and (len(said) == 1
                or of.bias <= said[1] <= 1.1 * of.bias), (name, store)


# --- y in 8 bits at a scale -----------------------------------------------------------------------


ACTIVATIONS_OF_FP8 = pytest.mark.parametrize("name", library.MASKED)
FP8 = [store for store in stores.STORES if stores.is_scaled(store)]


@pytest.mark.parametrize("store", FP8)
@ACTIVATIONS_OF_FP8
def test_y_in_8_bits_is_within_the_bound_of_its_scale(name, store):
    """Tensors of any largest |y|, from 0 to the largest float32, which has a bound of its own; those that the
    bound over all scales holds for, too. What is no number changes none of it."""
    generator = torch.Generator().manual_seed(len(name) + len(store))
    for power in (-149, -30, -3, -1, -0.5, 0, 0.3, 0.7, 1, 5, 11.9, 13, 14.5, 17, 25.9, 31, 60, 127.9):
        top = min(2.0**power, torch.finfo(torch.float32).max)
        x = torch.cat([torch.linspace(-min(top, 8), min(top, 8), 4001),
            torch.randn(2000, generator=generator).clamp(-top, top), torch.tensor([top])])
        for strange in ([], [math.inf, -math.inf, math.nan]):
            given = torch.cat([x, torch.tensor(strange)])
            y, dx = gradients(lambda x: getattr(outgrad, name)(x, store=store), given,
                dy=torch.ones_like(given))
            largest = y[torch.isfinite(y)].abs().max().item()
            bound = outgrad.bounds(name, torch.float32, store, largest).total
            off = (dx[: len(x)].double() - slope(name, x)).abs().max().item()
            assert off <= bound + 1e-6, (power, off, bound)
            overall = outgrad.bounds(name, torch.float32, store).total
            assert bound <= overall or largest > (2.0**12 if store.startswith("e4m3") else 2.0**26)
            if strange:
                assert (dx[-3] == pytest.approx(1, abs=bound) and dx[-2] == pytest.approx(0, abs=bound)
                    and dx[-1].isnan())


def test_a_largest_y_below_1_counts_as_1():
    """Otherwise all y from the largest one on would share a code, and the bound would be three times as
    large."""
    of = [outgrad.bounds("gelu", torch.float32, "e4m3+bit", largest).total for largest in (0, 1e-3, 1)]
    assert of[0] == of[1] == of[2] <= outgrad.bounds("gelu", torch.float32, "e4m3+bit").total
    assert library.store_error("gelu", "e4m3", 448 / 1e-3, 1) > 2.5 * of[0]


def test_a_largest_y_belongs_to_stores_with_a_scale():
    for store, largest in (("code:4", 1.0), ("e4m3+bit", -1.0), ("e4m3+bit", math.inf),
            ("e4m3+bit", math.nan), ("e5m2", 1e39)):
        with pytest.raises(ValueError, match="outgrad.bounds: largest is"):
            outgrad.bounds("gelu", torch.float32, store, largest)
    with pytest.raises(ValueError, match="no y in e4m3 of gelu at a scale of 0"):
        library.store_error("gelu", "e4m3", 0.0, 1)


# --- Dithers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", [store for store in outgrad_peers.STORES if store.startswith(RANDOM)])
def test_the_generator_decides_on_what_is_random(store):
    x = torch.randn(10_000)

    def once(seed):
        torch.manual_seed(seed)
        return gradients(lambda x: of(store).gelu(x, store=store), x)[1]

    assert torch.equal(once(1), once(1))
    assert not torch.equal(once(1), once(2))
    torch.manual_seed(1)
    first, second = (gradients(lambda x: of(store).gelu(x, store=store), x)[1] for _ in range(2))
    assert not torch.equal(first, second), "each call has a seed of its own"


@pytest.mark.parametrize("store", ["dither:2", "dither:3"])
@pytest.mark.parametrize("name", library.ACTIVATIONS)
def test_the_mean_of_dithered_gradients_is_the_exact_one(name, store):
    """Over 2^14 elements and 32 seeds. A gradient lies within the bound of f', so by Hoeffding's inequality a
    mean is further from its own expectation than the tolerance for one in 10^9 choices of seeds."""
    at = torch.tensor([-30.0, -3.0, -1.3, -0.7, -0.2, 0.0, 0.4, 1.1, 2.5, 30.0])
    x, seeds = at.repeat_interleave(2**14), 32
    total = torch.zeros(len(at), dtype=torch.float64)
    for seed in range(seeds):
        torch.manual_seed(seed)
        dx = gradients(lambda x: getattr(outgrad, name)(x, store=store), x, dy=torch.ones_like(x))[1]
        total += dx.double().view(len(at), -1).mean(1)
    bounds = outgrad.bounds(name, torch.float32, store)
    tolerance = 2 * bounds.total * math.sqrt(math.log(2 * len(at) * 1e9) / (2 * seeds * 2**14))
    assert bounds.bias < 1e-3 and tolerance < 0.003
    assert (total / seeds - slope(name, at)).abs().max() <= bounds.bias + tolerance + 2.0**-24


# --- What is kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FORMATS)
@each
def test_exactly_these_bytes_are_kept(store, dtype):
    n, actual = 2**20, stores.for_type(store, dtype)
    want = kept_by(actual, n, dtype.itemsize)
    x = torch.randn(1024, 1024).to(dtype).requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        of(store).gelu(x, store=store)
    assert sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}.values()) == want
    found, of_x = of(store).patch(nn.GELU(), example=x, store=store), n * dtype.itemsize
    assert found.total_before == of_x and found.total_after == min(want, of_x)
    if want <= of_x:
        assert found.swapped[0].bytes_after == want
    else:
        assert not found.swapped and found.left_alone[0].why == (f"PyTorch's class keeps {of_x:,} bytes that "
            f"nothing else keeps, ours {want:,}")


@of_each_kind
def test_bytes_beside_the_y_that_a_linear_keeps(store):
    n = 2**20
    model = nn.Sequential(nn.GELU(), nn.Linear(1024, 8, bias=False)).bfloat16()
    found = of(store).patch(model, example=torch.randn(1024, 1024).bfloat16().requires_grad_(), store=store)
    with_y = 0 if store in ("y+bit", "parity") else 2 * n
    assert found.total_before == 2 * n + 2 * n
    assert found.total_after == kept_by(store, n, 2) + with_y
    assert found.swapped[0].bytes_after == kept_by(store, n, 2) - (0 if with_y else 2 * n), "alone"


def test_activations_without_a_minimum_keep_y_alone_or_codes():
    for store, want in (("y+bit", 2 * 1024), ("code:2", 256)):
        found = outgrad.patch(nn.Softplus(), example=torch.randn(1024).bfloat16().requires_grad_(),
            store=store)
        assert found.total_after == want


# --- Modules and patch ----------------------------------------------------------------------------


def network():
    torch.manual_seed(1)
    return (
        nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.SiLU(), nn.LayerNorm(64),
        nn.Softplus(), nn.Linear(64, 4)).bfloat16())


def test_patch_gives_every_activation_its_store_and_unpatch_takes_it():
    model, x = network(), torch.randn(32, 16).bfloat16()
    state = copy.deepcopy(model.state_dict())
    found = outgrad.patch(model, example=x, store={"gelu": "parity", "silu": "code:5"})
    assert [model[k].store for k in (1, 3, 5)] == ["parity", "code:5", "y+bit"]
    assert {one.name: one.store for one in found.swapped} == {"1": "parity", "3": "code:5", "4": None,
        "5": "y+bit"}
    assert {one.name: one.fit for one in found.swapped} == {"1": "gelu_bf16_parity", "3": "silu_code",
        "4": None, "5": "softplus_bf16"}
    text = str(found)
    assert ({"store parity: 1; y+bit wherever x is float32", "store code:5: 3"} <= set(text.splitlines())
        and "store y+bit" not in text)
    of_silu = outgrad.bounds("silu", torch.bfloat16, "code:5")
    assert str(of_silu) in text and f"coefficients silu_code: SHA-256 {of_silu.sha256}" in text
    assert model.state_dict().keys() == state.keys() and all(torch.equal(a, state[k])
        for k, a in model.state_dict().items())
    assert outgrad.patch(model, store="dither:2").swapped == []
    assert [model[k].store for k in (1, 3, 5)] == ["dither:2"] * 3
    outgrad.patch(model)
    assert [model[k].store for k in (1, 3, 5)] == ["y+bit"] * 3
    outgrad.patch(model, store="code:3")
    outgrad.unpatch(model)
    assert type(model[1]) is nn.GELU and not any("store" in vars(module) for module in model)


# --- Norms ----------------------------------------------------------------------------------------

of_norms = pytest.mark.parametrize("store", ["e4m3", "mxfp8", "int8"])


@of_norms
@pytest.mark.parametrize("dtype", FORMATS)
def test_a_norm_keeps_codes_and_scales_in_place_of_y(store, dtype):
    """Beside them 4 bytes a row. The report says so of patched norms, and that the next layer's y is not the
    norm's."""
    rows, n = 16, 128
    of_scales = {"e4m3": 4, "mxfp8": rows * n // 32, "int8": rows * n // 64 * 8}[store]
    model = nn.Sequential(nn.LayerNorm(n), nn.RMSNorm(n), nn.Linear(n, 3)).to(dtype)
    found = outgrad.patch(model, torch.randn(rows, n).to(dtype), store={"norm": store})
    assert [one.bytes_after for one in found.swapped] == [rows * n + of_scales + 4 * rows] * 2
    assert ([one.store for one in found.swapped] == [store] * 2
        and f"store {store}: 0 and 1 more\n" in f"{found}\n")
    assert (f"storing y in {store} moves x^ by at most 2^-2 + " in str(found)
        and f"storing y in {store} moves" in repr(model))
    outgrad.patch(model, store={"norm": "y"})
    assert [one.store for one in model[:2]] == ["y"] * 2 and "storing y moves" in repr(model)
    outgrad.patch(model, store={"norm": store})
    outgrad.patch(model)
    assert [one.store for one in model[:2]] == ["y"] * 2, "what is not named has the default"
    outgrad.patch(model, store={"norm": store})
    outgrad.unpatch(model)
    assert type(model[0]) is nn.LayerNorm and "store" not in vars(model[0])


@of_norms
def test_norms_from_8_bits_in_copies_checkpoints_graphs_and_transforms(store):
    torch.manual_seed(4)
    module, x = outgrad.LayerNorm(64, store=store), torch.randn(8, 64)
    want = gradients(module, x)
    for other in (*copies(module), lambda x: checkpoint(module, x, use_reentrant=False),
            torch.compile(module, fullgraph=True)):
        assert all(torch.equal(a, b) for a, b in zip(gradients(other, x), want, strict=True))
    grad = torch.func.grad(lambda x: (module(x) * 1).sum())(x)
    direct = x.clone().requires_grad_()
    module(direct).sum().backward()
    assert torch.equal(grad, direct.grad)
    direct = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(module(direct).sum(), direct, create_graph=True)
    with pytest.raises(RuntimeError, match="outgrad.layer_norm: the second derivative"):
        slope.sum().backward()


@pytest.mark.parametrize("outlier", (0.0, 1000.0))
def test_the_bound_of_a_norm_in_8_bits_is_of_all_that_share_a_scale(outlier):
    """dgamma of a single row is its x^. In e4m3 one x^ of 45 in a row moves those of others by more."""
    n = 2048
    norm = outgrad.LayerNorm(n, store="e4m3")
    norm.weight.data[1:] = 1e-4
    assert "by at most 2^-2 + 2^-4 |x^| where no |x^| with the same scale exceeds 6" in repr(norm)
    x = torch.linspace(-1, 1, n).repeat(2, 1)
    x[0, 0] += outlier
    y, exact = norm(x), torch.nn.functional.layer_norm(x, (n,))[1]
    (found,) = torch.autograd.grad(y[1].sum(), norm.weight)
    assert norm.side_channels() is None
    moved = (found - exact).abs() <= 2.0**-2 + 2.0**-4 * exact.abs()
    assert moved.all() == (outlier == 0)


def test_what_norms_cannot_keep_is_named():
    x = torch.randn(4, 48)
    for call, why in (
        (lambda: outgrad.patch(network(), store={"norm": "code:4"}),
        "outgrad.patch: store: 'code:4' is no store of norm; there are y, e4m3, mxfp8, int8"),
        (lambda: outgrad.patch(nn.Sequential(nn.LayerNorm(48)), store={"norm": "int8"}),
        "outgrad.patch: 0: store: 48 columns are no whole number of groups of 64"),
        (lambda: outgrad.layer_norm(x, 48, store="mxfp8"),
        "outgrad.layer_norm: store: 48 columns are no whole number of groups of 32"),
        (lambda: outgrad.rms_norm(x, 48, store=8), "outgrad.rms_norm: store: 8 is no store of norms"),
        (lambda: outgrad.RMSNorm(48, store="int8"), "outgrad.RMSNorm: store: 48 columns"),
        (lambda: outgrad.side_channels(torch.ones(48), store="int8"),
        "outgrad.side_channels: store: 48 columns"),
        (lambda: outgrad.patch(network(), store={"softmax": "code:8"}),
        "store: 'code:8' is no store of softmax; there are p, log2:8"),
    ):
        with pytest.raises(ValueError, match=why):
            call()


@of_norms
def test_a_nan_of_x_reaches_its_rows_dx(store):
    x = torch.randn(4, 64)
    x[1, 5] = math.nan
    y, dx = gradients(lambda x: outgrad.layer_norm(x, 64, store=store), x)
    assert y[1].isnan().all() and dx[1].isnan().all() and not dx[[0, 2, 3]].isnan().any()


def test_gelus_tanh_form_has_a_name_of_its_own():
    model = nn.Sequential(nn.GELU(), nn.GELU("tanh"))
    outgrad.patch(model, store={"gelu_tanh": "code:2"})
    assert [one.store for one in model] == ["y+bit", "code:2"]


@pytest.mark.parametrize(
    ("store", "why"),
    [
        ("code:9",
        r"store: 'code:9' is no store; there are y\+bit, parity, code:1 to code:8, dither:2, dither:3, "),
        ("dither:4", "'dither:4' is no store"),
        (4, "4 is no store"),
        ({"gelu": None}, "None is no store"),
        ({"relu": "code:4"}, "store names 'relu', which is none of gelu, "),
        ("parity",
        r"5 cannot have the store 'parity': softplus has no minimum, so its y needs no parity: y\+bit keeps"),
        ({"softplus": "e4m3+2bits"},
        r"5 cannot have the store 'e4m3\+2bits': softplus has no minimum, and e4m3\+2bits is there for"),
        ("e5m2+3bits", r"'e5m2\+3bits' is no store"),
        ({"silu": "mxfp8+bit"},
        r"3 cannot have the store 'mxfp8\+bit': silu has no mxfp8\+bit, gelu alone has it"),
    ],
)
def test_what_cannot_be_is_named_and_nothing_is_patched(store, why):
    model = network()
    with pytest.raises(ValueError, match="outgrad.patch: .*" + why):
        outgrad.patch(model, store=store)
    assert type(model[1]) is nn.GELU and type(model[4]) is nn.LayerNorm
    outgrad.patch(model, store="code:4", norms="autocast")
    with pytest.raises(ValueError):
        outgrad.patch(model, store=store)
    with pytest.raises(RuntimeError):
        outgrad.patch(model, example=torch.randn(4, 7).bfloat16(), store="code:2")
    assert [model[k].store for k in (1, 3, 5)] == ["code:4"] * 3 and model[4].norms == "autocast", "as before"


def test_functions_and_modules_name_what_they_cannot():
    x = torch.randn(8)
    for call, why in (
        (lambda: outgrad.gelu(x, store="bit"), r"outgrad.gelu: store: 'bit' is no store; there are y\+bit"),
        (lambda: outgrad.gelu(x, "tanh", store="mxfp8+bit"),
        "outgrad.gelu_tanh: store: gelu_tanh has no mxfp8"),
        (lambda: outgrad.tanh(x, store="parity"), "outgrad.tanh: store: tanh has no minimum"),
        (lambda: outgrad.silu(x, store=["parity"]), "is no store"),
        (lambda: outgrad.SiLU(store="code:0"), "outgrad.SiLU: store: 'code:0' is no store"),
        (lambda: outgrad.ELU(store="parity"), "outgrad.ELU: store: elu has no minimum"),
        (lambda: outgrad.ELU(0.5, store="code:4"), "outgrad.ELU: store: it computes as PyTorch does"),
    ):
        with pytest.raises(ValueError, match=why):
            call()


@each
def test_modules_compute_what_functions_compute_and_show_their_store(store):
    module, x = of(store).GELU(store=store), torch.randn(8, 64).bfloat16()
    torch.manual_seed(1)
    want = gradients(lambda x: of(store).gelu(x, store=store), x)
    torch.manual_seed(1)
    assert all(torch.equal(a, b) for a, b in zip(gradients(module, x), want, strict=True))
    bound = str(of(store).bounds("gelu", torch.bfloat16, store))
    assert bound in repr(module) and (f"store='{store}'" in repr(module)) == (store != "y+bit")
    assert module.state_dict() == {}


@each
def test_copies_and_pickles_have_the_store(store):
    model = network()
    of(store).patch(model, store={"gelu": store})
    x = torch.randn(8, 16).bfloat16()

    def passed(model):
        torch.manual_seed(1)
        return gradients(model, x)

    want = passed(model)
    for other in copies(model):
        assert other[1].store == store and repr(other) == repr(model)
        assert all(torch.equal(a, b) for a, b in zip(passed(other), want, strict=True))
        assert type(of(store).unpatch(other)[1]) is nn.GELU
    fresh = network()
    fresh.load_state_dict(model.state_dict())


def test_autocasts_type_is_the_ys():
    """A Linear under autocast gives bf16, which has a parity; the model's parameters are float32."""
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU())
    x = torch.randn(32, 64)
    with torch.autocast("cpu", torch.bfloat16):
        found = outgrad.patch(model, example=x, store="parity")
        y = model(x)
    assert y.dtype == torch.bfloat16
    assert found.swapped[0].fit == "gelu_bf16_parity" and found.swapped[0].bytes_after == 32 * 64 * 2


@of_each_kind
def test_a_model_learns_with_each_store(store):
    assert_it_learns(lambda model: of(store).patch(model, store=store))


# --- As PyTorch uses it ---------------------------------------------------------------------------


@each
def test_bytes_are_counted_on_fake_tensors_of_a_gpu(store):
    with report.fake("cuda", torch.bfloat16):
        model = nn.Sequential(nn.Linear(8, 64, bias=False), nn.GELU(), nn.Linear(64, 8, bias=False))
        found = of(store).patch(model, example=torch.empty(32, 8), store=store)
    of_y = 2 * 32 * 64 if store in ("y+bit", "parity") else 0  # which the second Linear keeps
    assert found.swapped[0].bytes_after == kept_by(store, 32 * 64, 2, columns=64) - of_y


def test_the_command_takes_stores(capsys, tmp_path, monkeypatch):
    from outgrad import __main__ as command

    (tmp_path / "stored.py").write_text("import torch\nfrom torch import nn\ndef make():\n"
        "    return (nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8), nn.SiLU()),\n"
        "        torch.empty(4, 8))\n")
    monkeypatch.chdir(tmp_path)
    command.main(["report", "stored:make", "--store", "gelu=parity,silu=code:4"])
    text = capsys.readouterr().out
    assert {"store parity: 1; y+bit wherever x is float32", "store code:4: 3"} <= set(text.splitlines())
    command.main(["report", "stored:make", "--store", "code:1"])
    assert "store code:1: 1 and 1 more\n" in capsys.readouterr().out
    for given, why in (("code:9", "'code:9' is no store"), ("silu=mxfp8+bit", "3 cannot have the store"),
            ("gelu=parity,code:4", "'code:4' is neither")):
        with pytest.raises(SystemExit) as ended:
            command.main(["report", "stored:make", "--store", given])
        assert ended.value.code == 2 and why in capsys.readouterr().err.splitlines()[-1]


@of_each_kind
def test_compiled_gives_the_bits_of_eager(store, dtype=torch.bfloat16):
    torch._dynamo.reset()
    module = of(store).GELU(store=store)
    compiled = torch.compile(lambda x: module(x) * 2, fullgraph=True, backend="aot_eager")
    for rows in (8, 5):
        x = torch.randn(rows, 33).to(dtype)
        if store.startswith(RANDOM):  # a graph has generators of its own, so only the bound is common
            y, dx = gradients(compiled, x, dy=torch.ones_like(x))
            assert torch.equal(y, 2 * outgrad.gelu(x))
            assert ((dx.double() - 2 * slope("gelu", x)).abs().max() <= 2
                * of(store).bounds("gelu", dtype, store).total * 1.01 + 2.0**-7)
        else:
            assert all(torch.equal(a, b)
                for a, b in zip(gradients(lambda x: module(x) * 2, x), gradients(compiled, x), strict=True))


@of_each_kind
def test_a_compiled_graph_keeps_the_same_bytes(store):
    """Through the min-cut partition, which could keep the input instead, or make codes again in the backward
    pass."""
    rows, columns = 64, 1024
    with report.fake("cpu", torch.bfloat16):
        # ranges in training are state
        model = nn.Sequential(nn.Linear(32, columns, bias=False), of(store).GELU(store=store)).eval()
        kept = ledger.kept_compiled(model, torch.empty(rows, 32))
    n = rows * columns
    with_y = 0 if store in ("y+bit", "parity") else 2 * n  # the result is counted too
    assert kept == kept_by(store, n, 2) + with_y


@each
def test_checkpoint_gives_the_same_bits(store):
    def block(x):
        return outgrad.dropout(of(store).gelu(x, store=store), 0.5)

    x = torch.randn(8, 64)
    torch.manual_seed(5)
    plain = gradients(block, x)
    torch.manual_seed(5)
    again = gradients(lambda x: checkpoint(block, x, use_reentrant=False), x)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    torch.manual_seed(5)
    leaf = x.clone().requires_grad_()
    y = checkpoint(block, leaf, use_reentrant=True)
    y.backward(torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape).float())
    assert torch.equal(y, plain[0]) and torch.equal(leaf.grad, plain[1])


@pytest.mark.parametrize("store", outgrad.stores.STORES)
def test_gradients_of_a_batch_are_those_of_its_parts_or_refused(store):
    def operation(x):
        torch.manual_seed(1)
        return outgrad.gelu(x, store=store)

    x = torch.randn(8, 64).bfloat16().requires_grad_()
    y, dys = operation(x), torch.randn(3, 8, 64).bfloat16()
    if store == "y+bit":
        (found,) = torch.autograd.grad(y, x, dys, is_grads_batched=True, retain_graph=True)
        assert all(torch.equal(one, torch.autograd.grad(y, x, dy, retain_graph=True)[0])
            for one, dy in zip(found, dys, strict=True))
        return
    for call in (lambda: torch.autograd.grad(y, x, dys, is_grads_batched=True),
            lambda: torch.autograd.functional.jacobian(operation, x, vectorize=True)):
        with pytest.raises(NotImplementedError, match="outgrad.gelu: torch.vmap over its gradient"):
            call()


@each
def test_transforms_second_derivatives_and_shapes(store):
    def operation(x):
        torch.manual_seed(1)
        return of(store).gelu(x, store=store)

    x = torch.randn(8, 64).bfloat16()
    leaf = x.clone().requires_grad_()
    operation(leaf).pow(2).sum().backward()
    if not store.startswith(RANDOM):  # torch.func has randomness of its own
        assert torch.equal(torch.func.grad(lambda x: operation(x).pow(2).sum())(x), leaf.grad)
    with pytest.raises(NotImplementedError, match="vmap is not supported"):
        torch.func.vmap(lambda x: of(store).gelu(x, store=store), randomness="different")(x)
    for power in (1, 2):  # with power 1, dy itself depends on nothing
        y = operation(leaf).pow(power)
        (dx,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
        with pytest.raises(RuntimeError, match="second derivative"):
            torch.autograd.grad(y.sum() + dx.sum(), leaf)
    wide = torch.randn(64, 8).bfloat16().t()
    want = gradients(operation, wide.contiguous())
    if store in ("dither:2", "dither:3", "mxfp8+bit"):  # what an element's place in memory decides
        want = gradients(lambda x: operation(x.t()).t(), wide)
    assert all(torch.equal(a, b) for a, b in zip(gradients(operation, wide), want, strict=True))
    leaf = x.clone().requires_grad_()
    operation(leaf).sum().backward()  # an expanded dy
    assert torch.equal(leaf.grad, gradients(operation, x, dy=torch.ones_like(x))[1])
    y, dx = gradients(operation, torch.empty(0, 64))
    assert y.shape == dx.shape == (0, 64)
    meta = torch.empty(8, 64, device="meta", requires_grad=True)
    y = of(store).gelu(meta, store=store)
    assert y.is_meta and torch.autograd.grad(y.sum(), meta)[0].shape == meta.shape


@pytest.mark.parametrize("store", ["y+bit", "parity"])
def test_a_y_changed_in_place_is_an_error(store):
    x = torch.randn(8, dtype=torch.bfloat16, requires_grad=True)
    y = of(store).gelu(x, store=store)
    y.add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        y.sum().backward()


@pytest.mark.parametrize("store", ["code:4", "dither:3", "mxfp8+bit", "e4m3+2bits"])
def test_a_y_that_is_not_kept_may_be_changed(store):
    x = torch.randn(8, dtype=torch.bfloat16)
    torch.manual_seed(1)
    want = gradients(lambda x: of(store).gelu(x, store=store), x)[1]
    torch.manual_seed(1)
    assert torch.equal(gradients(lambda x: of(store).gelu(x, store=store).add_(1), x)[1], want)


@each
def test_a_nan_gives_a_nan_unless_a_code_stands_for_it(store):
    y, dx = gradients(lambda x: of(store).gelu(x, store=store),
        torch.tensor([math.nan, 1.0], dtype=torch.bfloat16))
    assert y[0].isnan() and dx[0].isnan() == (store in ("y+bit", "parity", "mxfp8+bit") or store in FP8)
    assert torch.isfinite(dx[1])
