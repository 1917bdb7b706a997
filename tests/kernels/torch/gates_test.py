"""Gated pairs (outgrad/gates.py): results and gradients against float64, what is kept, packed matrices, what
is refused, and the MLPs of models, found by the source of their forward."""

import copy
import json
import math
import pathlib
import re

import pytest
import torch
import transformers
from blocks_test import unfused
from functional_test import UNIT_ROUNDOFF, copies
from nights import at_night
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import outgrad
from outgrad import blocks, fp8, gates, library, report
from outgrad.bounds import rounded_up

SOURCES = pathlib.Path(__file__).parents[3]

FORMATS = [torch.float32, torch.float16, torch.bfloat16]
formats = pytest.mark.parametrize("dtype", FORMATS)
EXACT = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
}
every_gate = pytest.mark.parametrize("name", EXACT)


def kept_by(function, *tensors):
    """Bytes of the storages that the graph of a result keeps, beside those of these tensors."""
    own, found = {t.untyped_storage().data_ptr() for t in tensors}, {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function()
    return sum(found.values()), result


def pair(dtype, *shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(*shape, generator=generator) * scale).to(dtype) for scale in (3, 1, 1)]


def test_the_gates_are_those_of_the_library():
    assert set(EXACT) == set(library.GATES)


@every_gate
@formats
def test_results_and_gradients_are_rounded_once(dtype, name):
    a, b, dy = pair(dtype, 7, 333)
    a, b = a.requires_grad_(), b.requires_grad_()
    y = outgrad.gated(a, b, name)
    found = torch.autograd.grad(y, (a, b), dy)
    wide = [t.detach().double().requires_grad_() for t in (a, b)]
    exact = EXACT[name](wide[0]) * wide[1]
    u, least = UNIT_ROUNDOFF[dtype], torch.finfo(dtype).smallest_normal
    assert ((y.double() - exact).abs() <= u * exact.abs() + 1e-6 * wide[1].abs() + least).all()
    for gradient, wanted in zip(found, torch.autograd.grad(exact, wide, dy.double()), strict=True):
        slack = 2e-6 * dy.double().abs() * (1 + wide[0].abs() + wide[1].abs()) + least
        assert ((gradient.double() - wanted).abs() <= (u + 2.0**-22) * wanted.abs() + slack).all()


def test_halves_without_a_gradient_give_none_to_their_matrix():
    """Views that were taken without gradients have a base that has some, and PyTorch leads none back."""
    whole = torch.randn(3, 8, requires_grad=True) * 1

    def reaches(a, b):
        assert a._base is whole
        found = outgrad.gated(*blocks._as_packed(a, b)).sum()
        return torch.autograd.grad(found, whole, allow_unused=True)[0] is not None

    with torch.no_grad():
        without = whole.chunk(2, 1)
    assert not reaches(*without)
    assert reaches(*whole.chunk(2, 1)) and blocks._as_packed(*whole.chunk(2, 1))[0] is whole


def test_a_half_with_a_hook_gets_its_gradient():
    """A hook, or what retain_grad has set up, is of the half and not of its matrix."""
    whole = torch.randn(3, 8).requires_grad_()
    a, b = whole.chunk(2, 1)
    a.register_hook(lambda gradient: 0 * gradient)
    b.retain_grad()
    outgrad.gated(*blocks._as_packed(a, b)).sum().backward()
    assert whole.grad[:, :4].eq(0).all() and torch.equal(b.grad, whole.grad[:, 4:]) and b.grad.ne(0).all()


class TenTimes(torch.autograd.Function):
    """x with ten times its gradient, as a view of it or itself."""

    @staticmethod
    def forward(ctx, x, as_view):
        return x.view_as(x) if as_view else x

    @staticmethod
    def backward(ctx, dy):
        return 10 * dy, None


def viewed_behind_a_hook(half):
    half.register_hook(lambda gradient: 10 * gradient)
    return half.view(half.shape)


@pytest.mark.parametrize("between", [lambda half: TenTimes.apply(half, True),
    lambda half: TenTimes.apply(half, False), viewed_behind_a_hook])
@pytest.mark.parametrize("is_leaf", [False, True])
def test_what_stands_between_a_matrix_and_a_half_is_not_left_out(between, is_leaf):
    leaf = torch.randn(3, 8).requires_grad_()
    whole = leaf if is_leaf else leaf * 1

    def gradient(between):
        a, b = whole.chunk(2, 1)
        return torch.autograd.grad(outgrad.gated(*blocks._as_packed(between(a), b)).sum(), leaf,
            retain_graph=True)[0]

    want, got = gradient(lambda half: half), gradient(between)
    assert torch.equal(got[:, :4], 10 * want[:, :4]) and torch.equal(got[:, 4:], want[:, 4:])


def test_each_way_to_the_halves_of_a_matrix_is_known():
    whole = torch.randn(2, 3, 8).requires_grad_()
    for matrix in (whole, whole * 1, whole.detach()):
        for a, b in (matrix.chunk(2, -1), matrix.split(4, -1), matrix.split([4, 4], -1),
                matrix.tensor_split(2, -1), (matrix[..., :4], matrix[..., 4:]),
                (matrix[:, :, :4], matrix[:, :, 4:]), (matrix.narrow(-1, 0, 4), matrix.narrow(-1, 4, 4))):
            assert blocks._as_packed(a, b) == (matrix, None)


@formats
def test_halves_of_rows_are_a_pair(dtype):
    whole = torch.cat(pair(dtype, 5, 48)[:2], 1).requires_grad_()
    a, b = (half.detach().clone().requires_grad_() for half in whole.chunk(2, 1))
    dy = pair(dtype, 5, 48)[2]
    y, apart = outgrad.gated(whole), outgrad.gated(a, b)
    assert y.shape == (5, 48) and torch.equal(y, apart)
    (dwhole,), parts = torch.autograd.grad(y, whole, dy), torch.autograd.grad(apart, (a, b), dy)
    assert torch.equal(dwhole, torch.cat(parts, 1))
    views = outgrad.gated(*whole.chunk(2, 1))
    assert torch.equal(views, y) and torch.equal(torch.autograd.grad(views, whole, dy)[0], dwhole)


@pytest.mark.parametrize("store", ["recompute", "output", "e4m3", "mxfp8"])
def test_interleaved_factors_keep_what_halves_do(store):
    """As GPT-OSS packs its experts' a and b: the matrix that both are views of, and no copy of either."""
    whole = torch.cat(pair(torch.bfloat16, 5, 48)[:2], 1).requires_grad_()
    weight = torch.randn(24, 48).bfloat16().requires_grad_()
    dy, columns = torch.randn(5, 24).bfloat16(), torch.arange(96).view(2, 48).t().flatten()
    interleaved = whole.detach()[:, columns].requires_grad_()

    def of_halves(function, *behind):
        return function(*whole.chunk(2, 1), *behind, store=store)

    def of_columns(function, *behind):
        return function(interleaved[:, ::2], interleaved[:, 1::2], *behind, store=store)

    for function, behind, dz in ((outgrad.gated, (), pair(torch.bfloat16, 5, 48)[2]),
            (outgrad.gated_linear, (weight,), dy)):
        kept, wanted = kept_by(lambda: of_halves(function, *behind), *behind)
        same, found = kept_by(lambda: of_columns(function, *behind), *behind)
        assert torch.equal(found, wanted) and same == kept
        assert kept == whole.nbytes or store != "recompute"
        for grads in zip(torch.autograd.grad(found, (interleaved, *behind), dz),
                torch.autograd.grad(wanted, (whole, *behind), dz), strict=True):
            assert torch.equal(grads[0], grads[1][:, columns] if grads[1].shape == whole.shape else grads[1])


@every_gate
@formats
def test_a_linear_behind_a_pair(dtype, name):
    a, b, _ = (t.requires_grad_() for t in pair(dtype, 6, 40))
    weight, bias = (t.to(dtype).requires_grad_() for t in (torch.randn(24, 40) / 6, torch.randn(24)))
    dy = torch.randn(6, 24).to(dtype)
    kept, result = kept_by(lambda: outgrad.gated_linear(a, b, weight, bias, name), a, b, weight, bias)
    assert kept == 0, "a, b and weight are all"
    parts = F.linear(outgrad.gated(a, b, name), weight, bias)
    assert torch.equal(result, parts)
    found, wanted = (torch.autograd.grad(of, (a, b, weight, bias), dy) for of in (result, parts))
    assert all(map(torch.equal, found, wanted))
    for k in range(4):  # with gradients for one alone
        given = [t.detach().requires_grad_(i == k) for i, t in enumerate((a, b, weight, bias))]
        (one,) = torch.autograd.grad(outgrad.gated_linear(*given, name), given[k], dy)
        assert torch.equal(one, wanted[k])
    whole = torch.cat((a, b), 1)
    packed = outgrad.gated_linear(whole, None, weight, bias, name)
    assert torch.equal(packed, parts)
    assert torch.equal(torch.autograd.grad(packed, a, dy, retain_graph=True)[0], wanted[0])
    assert torch.equal(torch.autograd.grad(packed, weight, dy)[0], wanted[2])


# --- The other stores -----------------------------------------------------------------------------

OF_PRODUCTS = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
in_8_bits = pytest.mark.parametrize("store", [*library.FP8, "mxfp8"])
# max |act''|, as gates.py has it
BENDS = {"gelu": 0.8, "gelu_tanh": 0.8, "silu": 0.5, "sigmoid": 0.1}


def gradients_of(dtype, name, store, a, b, dy):
    a, b = (t.detach().clone().requires_grad_() for t in (a, b))
    y = outgrad.gated(a, b, name, store)
    return y, torch.autograd.grad(y, (a, b), dy)


@pytest.mark.parametrize("name", library.PRODUCTS)
@OF_PRODUCTS
def test_gradients_from_the_product_are_within_their_bounds(dtype, name):
    a, b, dy = pair(dtype, 64, 333)
    y, (da, db) = gradients_of(dtype, name, "output", a, b, dy)
    assert torch.equal(y, outgrad.gated(a, b, name)), "the product is that of the other stores"
    wide = [t.double().requires_grad_() for t in (a, b)]
    exact_a, exact_b = torch.autograd.grad(EXACT[name](wide[0]) * wide[1], wide, dy.double())
    total, relative, absolute = library.product_error(name, dtype)
    h, size = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps / 2, wide[1].abs()
    lost = (2.01 * h * size * BENDS[name]).sqrt()  # of a subnormal product, kernels/product.h
    for found, wanted, bound in ((da, exact_a, size * total + lost),
            (db, exact_b, relative * EXACT[name](wide[0]).abs() + absolute + h / size)):
        slack = 2 * UNIT_ROUNDOFF[dtype] * wanted.abs() + h
        assert ((found.double() - wanted).abs() <= dy.double().abs() * bound + slack).all()
    assert ((da.double() - exact_a).abs() > UNIT_ROUNDOFF[dtype] * exact_a.abs()).any(), "it is not exact"


@pytest.mark.parametrize("name", library.PRODUCTS)
def test_the_bound_of_the_product_in_float16_has_a_condition(name):
    """Small factors of all kinds: where the condition holds the bound does, and elsewhere it does not."""
    said = gates.bound("output", [name])
    found = re.fullmatch(r"\|g - f'\(a\)\| <= 0.01\d+ in bfloat16 and (0.00\d+) in float16, where "
        r"\|f\(a\) b\| > 2\^-(14) or \|b\| >= 1/2; float32 keeps both factors", said)
    assert found, said
    assert "2^-14" not in gates.bound_of_dropped("output", [name]), "its b is above 1"
    scales = 2.0 ** torch.arange(-20, 4)
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(24, 24, 200, generator=generator) * of
        for of in (scales.view(24, 1, 1), scales.view(24, 1)))
    a, b = a.half(), b.half()
    _, (da, _) = gradients_of(torch.float16, name, "output", a, b, torch.ones_like(a))
    wide = [t.double().requires_grad_() for t in (a, b)]
    exact = EXACT[name](wide[0]) * wide[1]
    wanted, size = torch.autograd.grad(exact.sum(), wide)[0], wide[1].detach().abs()
    slack = 2 * UNIT_ROUNDOFF[torch.float16] * wanted.abs() + 2.0**-25
    within = (da.double() - wanted).abs() <= float(found[1]) * size + slack
    condition = (exact.abs() > 2.0 ** -int(found[2])) | (size >= 0.5)
    assert condition.any() and within[condition].all() and not within[~condition].all()


@OF_PRODUCTS
def test_a_zero_factor_loses_no_gradient(dtype):
    """A zero-initialised up-projection: nothing could be told from a product of 0 alone."""
    a, _, dy = pair(dtype, 5, 64)
    for zero in (torch.zeros_like(a), -torch.zeros_like(a)):
        _, (da, db) = gradients_of(dtype, "silu", "output", a, zero, dy)
        assert (da == 0).all()
        wanted = dy.float() * F.silu(a.float()).to(dtype).float()
        assert torch.equal(db, wanted.to(dtype))
        _, (da, db) = gradients_of(dtype, "silu", "output", zero, a, dy)
        assert (db == 0).all()
        assert ((da.float() - 0.5 * dy.float() * a.float()).abs()
            <= 0.02 * (dy.float() * a.float()).abs()).all()


def twice_the_largest(x):
    """Of each element's block in MXFP8: 448 times its power of two is below that."""
    blocks = F.pad(x.abs().flatten(), (0, -x.numel() % 32)).view(-1, 32)
    return 2 * blocks.amax(1).repeat_interleave(32)[: x.numel()].view(x.shape)


def front_of_pairs(name):
    return json.loads((SOURCES / f"notebooks_data/front/{name}.json").read_text())["gated_pairs"]


@pytest.mark.parametrize("store", ["e4m3", "mxfp8"])
@pytest.mark.parametrize("name", ["silu", "gelu"])
def test_the_front_has_room_for_what_8_bits_make_of_every_a(name, store):
    """Every a of bf16 up to the largest of its tensor, or block, for some of these. With dz = b = 1 da is
    act'(a'), rounded once."""
    front = next(one for one in front_of_pairs(name) if one["name"].startswith(store))
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    greatest = 0.0
    for largest in (8.0625, 8.5, 11.0, 12.875, 15.9375, 16.0):
        a = every[every.abs() <= largest]
        a = torch.cat((a, a[:1].expand(-len(a) % 31)))
        of_blocks = torch.cat((a.view(-1, 31), torch.full((len(a) // 31, 1), largest).bfloat16()), 1)
        b = torch.ones_like(of_blocks)
        _, (da, _) = gradients_of(torch.bfloat16, name, store, of_blocks, b, torch.ones_like(b))
        wide = of_blocks.double()
        slope = torch.autograd.functional.jvp(EXACT[name], wide, torch.ones_like(wide))[1]
        off = (da.double() - slope).abs()
        assert (off <= front["proven"] * (1 + 2.0**-8) + 2.0**-8 * slope.abs()).all()
        greatest = max(greatest, (off - 2.0**-8 * slope.abs()).max().item())
    assert greatest > 0.8 * front["proven"]


@every_gate
@in_8_bits
@formats
def test_gradients_from_8_bits_are_within_their_bounds(dtype, store, name):
    a, b, dy = pair(dtype, 16, 333)
    y, (da, db) = gradients_of(dtype, name, store, a, b, dy)
    assert torch.equal(y, outgrad.gated(a, b, name))
    fp8_type = library.FP8[store if store in library.FP8 else "e4m3"]
    u, wide = UNIT_ROUNDOFF[dtype], [t.double() for t in (a, b)]

    def off(x):
        scale = fp8.LARGEST[fp8_type] / (x.abs().max() if store in library.FP8 else twice_the_largest(x))
        return (fp8.UNIT_ROUNDOFF[fp8_type] + 3 * u) * x.abs() + fp8.HALF_SUBNORMAL[fp8_type] / scale + 1e-30

    slope = torch.autograd.functional.jvp(EXACT[name], wide[0], torch.ones_like(wide[0]))[1]
    of_a, of_b, f = off(wide[0]), off(wide[1]), EXACT[name](wide[0])
    bound_a = wide[1].abs() * BENDS[name] * of_a + 1.14 * of_b + 1e-5
    for found, wanted, bound in ((da, wide[1] * slope, bound_a), (db, f, 1.13 * of_a + 1e-5)):
        wanted, allowed = dy.double() * wanted, dy.double().abs() * bound
        assert ((found.double() - wanted).abs() <= allowed + 2 * u * (wanted.abs() + allowed) + 1e-7).all()


@pytest.mark.parametrize("store, dtype", [("output", torch.bfloat16), ("output", torch.float16),
    ("e4m3", torch.bfloat16), ("e5m2", torch.float32), ("mxfp8", torch.bfloat16)])
def test_what_a_store_keeps_and_a_linear_reads(store, dtype):
    n, rows = 40, 6
    a, b, _ = (t.requires_grad_() for t in pair(dtype, rows, n))
    weight, bias = (t.to(dtype).requires_grad_() for t in (torch.randn(24, n) / 6, torch.randn(24)))
    dy, size = torch.randn(rows, 24).to(dtype), rows * n
    given = a, b, weight, bias
    kept, result = kept_by(lambda: outgrad.gated_linear(*given, "silu", store), *given)
    # the product, what stands beside it and a bit; or codes of both, and two scales, or one of each block
    assert kept == {"output": 2 * 2 * size + 4 * -(-size // 32), "mxfp8": 2 * (size + -(-size // 32))}.get(
        store, 2 * size + 2 * 4)
    assert torch.equal(result, outgrad.gated_linear(a, b, weight, bias)), "what is kept changes no result"
    found = torch.autograd.grad(result, (a, b, weight, bias), dy)
    with torch.no_grad():
        dz = dy.mm(weight)
    _, (da, db) = gradients_of(dtype, "silu", store, a, b, dz)
    assert torch.equal(found[0], da) and torch.equal(found[1], db)
    whole = torch.cat((a, b), 1).detach().requires_grad_()
    packed = torch.autograd.grad(outgrad.gated_linear(whole, None, weight, bias, "silu", store),
        (whole, weight), dy)
    assert torch.equal(packed[0], torch.cat((da, db), 1)) and torch.equal(packed[1], found[2])
    for k in range(4):  # with gradients for one alone
        given = [t.detach().requires_grad_(i == k) for i, t in enumerate((a, b, weight, bias))]
        (one,) = torch.autograd.grad(outgrad.gated_linear(*given, "silu", store), given[k], dy)
        assert torch.equal(one, found[k])
    (da,) = torch.autograd.grad(outgrad.gated(a, b, "silu", store).sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        da.sum().backward()
    empty = outgrad.gated(a[:0], b[:0], "silu", store)
    assert empty.shape == (0, n) and torch.autograd.grad(empty.sum(), a)[0].abs().sum() == 0


@pytest.mark.parametrize("store", ["output", "e4m3", "mxfp8"])
def test_stores_under_checkpoints_compilers_and_transforms(store):
    a, b, _ = (t.requires_grad_() for t in pair(torch.bfloat16, 4, 16))
    weight = torch.randn(8, 16, dtype=torch.bfloat16, requires_grad=True)

    def loss(a, b, weight):
        return outgrad.gated_linear(a, b, weight, None, "silu", store).float().square().sum()

    plain = torch.autograd.grad(loss(a, b, weight), (a, b, weight))
    again = torch.autograd.grad(checkpoint(loss, a, b, weight, use_reentrant=False), (a, b, weight))
    torch._dynamo.reset()
    compiled = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(a, b, weight),
        (a, b, weight))
    transformed = torch.func.grad(loss, argnums=(0, 1, 2))(a.detach(), b.detach(), weight.detach())
    for found in (again, compiled, transformed):
        assert all(map(torch.equal, plain, found))


def test_empty_and_strided_arrays():
    for shape in ((0,), (3, 0), (0, 4)):
        a, b = torch.zeros(shape, requires_grad=True), torch.zeros(shape, requires_grad=True)
        y = outgrad.gated(a, b)
        y.sum().backward()
        assert y.shape == a.grad.shape == b.grad.shape == shape
    a, b, _ = pair(torch.float32, 6, 8)
    assert torch.equal(outgrad.gated(a.t(), b.t()), outgrad.gated(a, b).t())
    weight = torch.randn(5, 8)
    assert outgrad.gated_linear(a[:0], b[:0], weight).shape == (0, 5)


def test_what_is_refused():
    a, b, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(4, 8)
    with pytest.raises(ValueError, match="gated: activation is 'mish', none of gelu, gelu_tanh"):
        outgrad.gated(a, b, "mish")
    with pytest.raises(ValueError, match="gated_linear: activation is 3"):
        outgrad.gated_linear(a, b, weight, activation=3)
    with pytest.raises(ValueError, match="gated: store is 'z', none of recompute, output, e4m3, e5m2"):
        outgrad.gated(a, b, store="z")
    of_16_bits = "store is 'output', which pairs of gelu, gelu_tanh, silu have in float16 and bfloat16"
    with pytest.raises(ValueError, match=f"gated_linear: {of_16_bits}"):
        outgrad.gated_linear(a, b, weight, store="output")
    with pytest.raises(ValueError, match=f"gated: {of_16_bits}"):
        outgrad.gated(a.half(), b.half(), "sigmoid", "output")
    with pytest.raises(ValueError, match=r"a of shape \(3, 8\) and b of shape \(3, 7\) are no pair"):
        outgrad.gated(a, b[:, :7])
    with pytest.raises(TypeError, match="a is torch.float32, b torch.bfloat16"):
        outgrad.gated(a, b.bfloat16())
    with pytest.raises(TypeError, match="a is torch.int32"):
        outgrad.gated(a.int(), b)
    with pytest.raises(TypeError, match="b is no tensor but int"):
        outgrad.gated(a, 3)
    with pytest.raises(ValueError, match="no halves along its last dimension"):
        outgrad.gated(a[:, :7])
    with pytest.raises(ValueError, match="a product of 8 columns and weight of shape"):
        outgrad.gated_linear(a, b, weight[:, :5])
    with pytest.raises(ValueError, match="a product of 1 columns and weight of shape"):
        outgrad.gated_linear(a[0, 0], b[0, 0], weight)
    with pytest.raises(ValueError, match="bias has shape"):
        outgrad.gated_linear(a, b, weight, torch.zeros(3))
    with pytest.raises(TypeError, match="a is torch.float32, weight torch.float16"):
        outgrad.gated_linear(a, b, weight.half())
    a.requires_grad_()
    (da,) = torch.autograd.grad(outgrad.gated(a, b).sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        da.sum().backward()


def test_under_autocast_checkpoints_and_compilers():
    a, b, _ = (t.requires_grad_() for t in pair(torch.float32, 4, 16))
    weight = torch.randn(8, 16, requires_grad=True)

    def gradients(function):
        return torch.autograd.grad(function(a, b, weight).float().square().sum(), (a, b, weight))

    plain = gradients(outgrad.gated_linear)
    again = gradients(lambda *of: checkpoint(outgrad.gated_linear, *of, use_reentrant=False))
    torch._dynamo.reset()
    compiled = gradients(torch.compile(outgrad.gated_linear, fullgraph=True, backend="aot_eager"))
    assert all(map(torch.equal, plain, again)) and all(map(torch.equal, plain, compiled))
    with torch.autocast("cpu", torch.bfloat16):
        y = outgrad.gated_linear(a, b, weight)
        mixed = gradients(outgrad.gated_linear)
    assert y.dtype == torch.bfloat16
    for one, wanted in zip(mixed, plain, strict=True):
        assert one.dtype == torch.float32 and (one - wanted).norm() <= 0.03 * wanted.norm()


def test_codes_of_the_slope_have_no_place():
    """The page's table of what they would be, from the library's bounds, and what it says of it."""
    page = (SOURCES / "docs/how_few_bits.md").read_text().partition("### No codes of f' for pairs")[2]
    found = next(one for one in front_of_pairs("silu") if one["name"].startswith("e4m3"))
    in_e4m3, v = found["proven"], found["errors"]["b"]
    of_product, relative, _ = library.product_error("silu", torch.bfloat16)
    codes = {bits: outgrad.bounds("silu", torch.bfloat16, f"code:{bits}").total for bits in range(1, 9)}
    f, half, exact = rounded_up(relative, 2), rounded_up(v, 3), ("2.3e-7", "0", "0")
    wanted = {"`recompute`: a and b": ("32", "32", *exact),
        "`output`: z, b and a bit": ("17", "33", f"{up(of_product)}", f, "0"),
        **{f"z, b and a code of {k} bits": (f"{16 + k}", f"{32 + k}", up(codes[k]), f, "0")
        for k in (5, 6, 8)},
        "`e4m3`: a and b": ("16", "16", up(in_e4m3), "-", half),
        **{f"b and f(a) in e4m3, a code of {k} bits": (f"{16 + k}",) * 2 + (up(codes[k]), half, half)
        for k in (5, 8)}}
    rows = dict(re.findall(r"^\| (.+?) \| (.+) \|$", page.partition("\n\n- **In all**")[0], re.MULTILINE))
    assert {name: tuple(rows[name].split(" | ")) for name in wanted} == wanted
    for name in library.PRODUCTS:
        by_product = library.product_error(name, torch.bfloat16)[0]
        by_code = [outgrad.bounds(name, torch.bfloat16, f"code:{bits}").total for bits in range(1, 9)]
        assert min(by_code[:5]) > by_product > max(by_code[5:])
    assert codes[5] < in_e4m3 < codes[4]
    steepest = 1.0999  # of SiLU
    assert steepest * v < 0.068 and steepest * v + (1 + v) * in_e4m3 < 0.09
    assert steepest * v + (1 + v) * codes[8] < 0.071


def up(bound):
    return f"{math.ceil(bound * 1e5) / 1e5:.5f}"


# --- Models ---------------------------------------------------------------------------------------


class Reversed(nn.Module):
    """b first, in one expression and in statements of which another one needs what the gate gives."""

    def __init__(self):
        super().__init__()
        self.act, self.up, self.gate, self.down = (nn.SiLU(), nn.Linear(8, 16), nn.Linear(8, 16),
            nn.Linear(16, 8))

    def forward(self, x):
        y = self.down(self.up(x) * self.act(self.gate(x)))
        g = self.act(self.gate(x))
        h = self.up(x)
        z = g * h
        return y + self.down(z) + g.mean()


class Statements(nn.Module):
    """As T5 has it, with what a pair is not: a shape that is spread, and a gate times itself."""

    def __init__(self):
        super().__init__()
        self.act, self.wi_0, self.wi_1, self.wo = (nn.GELU("tanh"), nn.Linear(8, 16), nn.Linear(8, 16),
            nn.Linear(16, 8))

    def forward(self, x):
        gelu = self.act(self.wi_0(x))
        linear = self.wi_1(x)
        x = gelu * linear
        x = self.wo(x)
        return x * self.act(x[:, :1]) + self.act(x) * 2.0


class Deleted(Reversed):
    """A product that is deleted by its name, and one that is read behind a return."""

    def forward(self, x):
        z = self.act(self.gate(x)) * self.up(x)
        y = self.down(z)
        del z
        try:
            z = self.act(self.gate(y)) * self.up(x)
            return self.down(z)
        finally:
            self.last = z.detach()


def trained(model, x):
    model.zero_grad()
    y = model(x)
    y.float().square().sum().backward()
    return [y.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("kind, pairs", [(Reversed, 1), (Statements, 1), (Deleted, 2)])
def test_products_are_found_by_the_source(kind, pairs, monkeypatch):
    torch.manual_seed(2)
    model, x = kind(), torch.randn(5, 8)
    before, calls = trained(model, x), []
    for name in ("_pairs", "_pairs_and_linears"):
        found = getattr(gates, name)
        monkeypatch.setattr(gates, name, {key: lambda *of, one=one: calls.append(of) or one(*of)
            for key, one in found.items()})
    said = outgrad.patch(model)
    assert [what for _, _, what in said.fused] in (["gated pair"], ["gated pair and Linears of one input"])
    after = trained(model, x)
    assert len(calls) == pairs
    for ours, theirs in zip(after, before, strict=True):
        assert (ours - theirs).norm() <= 1e-5 * theirs.norm()
    outgrad.unpatch(model)
    assert type(model) is kind and all(map(torch.equal, trained(model, x), before))


class Changes(Reversed):
    def forward(self, x):
        """What the second statement changes in place has gone into the gate before."""
        g = self.act(x)
        h = x.mul_(2)
        z = g * h
        return z


@torch.no_grad()
def test_a_gate_of_an_array_that_changes_runs_before():
    model, x = Changes(), torch.randn(5, 8)
    before = model(x.clone())
    assert outgrad.patch(model).fused == []
    torch.testing.assert_close(model(x), before)


def test_hooks_and_stores_keep_the_parts():
    model, x, seen = Reversed(), torch.randn(5, 8), []
    outgrad.patch(model)
    model.act.register_forward_hook(lambda *_: seen.append(1))
    trained(model, x)
    assert len(seen) == 2
    coded = outgrad.patch(Reversed(), store="code:4")
    assert coded.swapped[0].store == "code:4"
    other = Reversed()
    outgrad.patch(other, store="code:4")
    other.act.require("code:4")
    assert blocks._takes_pair(other.act, x, x) is None


CONFIGS = {
    "llama": (transformers.LlamaConfig, {}),
    "mistral": (transformers.MistralConfig, {}),
    "qwen2": (transformers.Qwen2Config, {}),
    "gemma": (transformers.GemmaConfig, {"head_dim": 8}),
    "gemma2": (transformers.Gemma2Config, {"head_dim": 8}),
    "glm": (transformers.GlmConfig, {"head_dim": 8, "pad_token_id": 0}),
    "phi3": (transformers.Phi3Config, {"pad_token_id": 0}),
    "olmo2": (transformers.Olmo2Config, {}),
}


def language_model(name):
    kind, more = CONFIGS[name]
    torch.manual_seed(5)
    config = kind(vocab_size=64, hidden_size=32, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64,
        attn_implementation="eager", **more)
    return transformers.AutoModelForCausalLM.from_config(config)


def loss_of(model, tokens):
    return model(input_ids=tokens, labels=tokens, use_cache=False).loss


@pytest.mark.parametrize("name", CONFIGS)
def test_mlps_of_language_models(name, monkeypatch):
    model, tokens = language_model(name).train(), torch.arange(48).view(2, 24) % 64
    parts = unfused(model, monkeypatch)
    original, tensors = copy.deepcopy(model), list(model.parameters())
    example = {"input_ids": tokens, "labels": tokens, "use_cache": False}
    said = outgrad.patch(model, example)
    mlps = [key for key, _, what in said.fused if "gated pair" in what]
    assert mlps == [f"model.layers.{k}.mlp" for k in range(2)]
    kept = kept_by(lambda: loss_of(model, tokens), *tensors, *model.buffers())[0]
    before = kept_by(lambda: loss_of(parts, tokens), *parts.parameters(), *parts.buffers())[0]
    less = 2 * 48 * 96 // 8 * (32 + 1)
    packed = name in ("glm", "phi3")  # whose halves the activation copies
    assert before - kept >= less if packed else before - kept == less, "a product and a mask less a layer"
    assert said.total_after == kept, "what patch counts on the example is what is kept"
    for loss in (loss_of(original, tokens), loss_of(model, tokens)):
        loss.backward()
    for (key, ours), (_, theirs) in zip(model.named_parameters(), original.named_parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() <= 2e-4 * theirs.grad.norm() + 1e-7, key


def test_experts(monkeypatch):
    """Mixtures keep a and b of all experts as their one matrix, and no product of the gate beside."""
    torch.manual_seed(5)
    config = transformers.MixtralConfig(vocab_size=64, hidden_size=32, intermediate_size=96,
        num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4, num_local_experts=4,
        max_position_embeddings=64, attn_implementation="eager", experts_implementation="grouped_mm")
    model, tokens = transformers.MixtralForCausalLM(config).bfloat16().train(), torch.arange(48).view(2, 24)
    parts = unfused(model, monkeypatch)
    original = copy.deepcopy(model)
    said = outgrad.patch(model)
    assert ("model.layers.0.mlp.experts", "MixtralExperts", "gated pair") in said.fused
    kept, by_parts = (kept_by(lambda one=one: loss_of(one, tokens), *one.parameters(), *one.buffers())[0]
        for one in (model, parts))
    assert by_parts - kept == 48 * 2 * 96 // 8 * (16 + 1), "act(a), of two experts a token, and its mask"
    for one in (original, model):
        loss_of(one, tokens).backward()
    for (key, ours), (_, theirs) in zip(model.named_parameters(), original.named_parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() <= 0.05 * theirs.grad.norm() + 1e-7, key
    for loaded in copies(model):
        assert torch.equal(loss_of(loaded, tokens), loss_of(model, tokens))
    outgrad.unpatch(model)
    assert type(model.model.layers[0].mlp.experts) is type(original.model.layers[0].mlp.experts)


def test_what_a_layer_of_llama_keeps(tmp_path, monkeypatch):
    """Of Llama-3-8B, for 4096 tokens in bf16, on a GPU that need not exist."""

    def kept(layers):
        file = tmp_path / f"{layers}.json"
        file.write_text(json.dumps({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
            "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": layers,
            "vocab_size": 1024, "max_position_embeddings": 4096}))
        found = report.of(str(file), length=4096)
        return found.total_before, found.total_after

    def of_a_layer():
        return [round((b - a) / 2**20, 1) for a, b in zip(kept(1), kept(2), strict=True)]

    assert of_a_layer() == [784.5, 368.5]
    monkeypatch.setattr(blocks, "_takes_pair", lambda *_: None)
    assert of_a_layer() == [784.5, 487.5], "with the product of its parts"


@pytest.mark.parametrize("name, store", [("llama", "e5m2"), ("phi3", "e4m3"),
    *at_night([("phi3", "output"), ("gemma", "output"), ("qwen2", "mxfp8")])])
def test_stores_of_pairs_of_a_model(name, store):
    model, tokens = language_model(name).bfloat16().train(), torch.arange(48).view(2, 24) % 64
    example = {"input_ids": tokens, "labels": tokens, "use_cache": False}
    exact = copy.deepcopy(model)
    outgrad.patch(exact)
    said = outgrad.patch(model, example, store={"gated": store})
    whats = [what for key, _, what in said.fused if key.endswith("mlp")]
    bound = {"output": r"\|g - f'\(a\)\| <= 0.01\d+ in bfloat16 and 0.00\d+ in float16, where \|f\(a\) b",
        "e4m3": "both factors within a relative 0.0625",
        "e5m2": "both factors within a relative 0.125",
        "mxfp8": r"both factors within a relative 0.0625 above 2\^-13 of the largest of their block, if that "
        r"is at least 2\^-118"}[store]
    assert len(whats) == 2, whats
    assert all(re.search(rf"gated pair \({store}: {bound}", what) for what in whats), whats
    kept, by_default = (kept_by(lambda one=one: loss_of(one, tokens), *one.parameters(), *one.buffers())[0]
        for one in (model, exact))
    elements = 2 * 48 * 96  # of both layers
    more = {"output": elements // 8, "mxfp8": 2 * elements // 32 - 2 * elements}.get(store, 16 - 2 * elements)
    assert kept - by_default == more
    for one in (exact, model):
        loss_of(one, tokens).backward()
    for (key, ours), (_, theirs) in zip(model.named_parameters(), exact.named_parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() <= 0.15 * theirs.grad.norm() + 1e-7, key
    for loaded in copies(model):
        assert torch.equal(loss_of(loaded, tokens), loss_of(model, tokens))
        of_blocks = [one for one in loaded.modules() if isinstance(one, blocks.Rewritten)]
        assert {one._outgrad_pairs for one in of_blocks} == {store}
    outgrad.unpatch(model)
    assert not any("_outgrad_pairs" in one.__dict__ for one in model.modules())


def test_float32_falls_back_to_recompute():
    model = language_model("llama")
    outgrad.patch(model, store={"gated": "output"})
    tokens = torch.arange(24).view(1, 24)
    loss_of(model, tokens).backward()
    with pytest.raises(ValueError, match="'code:4' is no store of gated; there are recompute, output, e4m3"):
        outgrad.patch(model, store={"gated": "code:4"})


def test_a_packed_model_copies_no_halves(monkeypatch):
    """Where one Linear gives a and b, its result is what is kept, and its gradient is made whole."""
    model, given = language_model("phi3"), []
    outgrad.patch(model)
    silu = "silu", "recompute"
    found = gates._pairs_and_linears[silu]
    monkeypatch.setitem(gates._pairs_and_linears, silu, lambda *of: given.append(of) or found(*of))
    monkeypatch.setitem(gates._pairs, silu, lambda *of: given.append(of))
    tokens = torch.arange(24).view(1, 24)
    loss_of(model, tokens).backward()
    assert len(given) == 2 and all(b is None and a.shape[-1] == 192 for a, b, *_ in given)


def test_copies_of_a_patched_mlp():
    model, tokens = language_model("llama"), torch.arange(24).view(1, 24)
    outgrad.patch(model)
    wanted = loss_of(model, tokens)
    for loaded in copies(model):
        assert torch.equal(loss_of(loaded, tokens), wanted) and not math.isnan(wanted)
