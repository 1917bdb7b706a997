"""Softmax that keeps codes of its output (outgrad/softmax.py): rows against float64 within the proven bound,
what is kept, modules, patch, and attention that keeps codes of its probabilities."""

import math

import pytest
import torch
from functional_test import UNIT_ROUNDOFF, copies
from torch import nn
from torch.utils.checkpoint import checkpoint

import outgrad
from outgrad import library, report

FORMATS = [torch.float32, torch.float16, torch.bfloat16]
formats = pytest.mark.parametrize("dtype", FORMATS)
LEAST_SUBNORMAL = {dtype: torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps for dtype in FORMATS}
STORE = {"softmax": "log2:8"}


def gradients(function, x, dy):
    leaf = x.detach().clone().requires_grad_()
    y = function(leaf)
    return y.detach(), torch.autograd.grad(y, leaf, dy.to(y.dtype))[0]


def exact(x, dy, dim=-1):
    p = torch.softmax(x.double(), dim)
    return p, p * (dy.double() - (p * dy.double()).sum(dim, keepdim=True))


def scores(rows, n, deviation, dtype, seed=1):
    generator = torch.Generator().manual_seed(seed + n)
    return ((torch.randn(rows, n, generator=generator) * deviation).to(dtype),
        torch.randn(rows, n, generator=generator).to(dtype))


# --- Gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 7, 64, 1000, 4096])
@formats
def test_every_row_is_within_the_bound(dtype, n):
    u, tightest = UNIT_ROUNDOFF[dtype], 0.0
    for deviation in (0.0, 0.1, 1.0, 4.0, 20.0):
        x, dy = scores(64, n, deviation, dtype)
        x[1::4, n // 2 :] = -math.inf  # masked; of these rows some
        x[1::4, 0] = 0
        dy[2::4] = dy[2::4].sign()
        dy[3::4] += 100
        y, dx = gradients(outgrad.softmax, x, dy)
        p, ds = exact(x, dy)
        assert ((y.double() - p).abs() <= u * p + 1e-6 * p
            + LEAST_SUBNORMAL[dtype]).all(), "rounded once from fp32"
        assert (dx[x == -math.inf] == 0).all()
        off = (dx.double() - ds).abs().sum(1)
        rounding = u * dx.double().abs().sum(1) * (1 + u) + n * LEAST_SUBNORMAL[dtype]
        for row in range(64):
            total, spread, largest = (ds[row].abs().sum().item(), (dy[row].max() - dy[row].min()).item(),
                dy[row].abs().max().item())
            bound = outgrad.softmax_bound(n, total, spread, largest)
            assert bound <= 0.0651 * total + 1.273e-7 * n * spread + 2e-6 * largest
            assert off[row] <= bound + rounding[row]
            if total > 0 and row % 4 < 2:
                tightest = max(tightest, off[row].item() / bound)
    assert n <= 2 or tightest > 0.2, "the bound is of this store, and no larger one's"


def test_a_row_that_attains_nearly_all_of_the_bound():
    """That of kernels/softmax.h: p' is too large but for a small part of p, in which its error has the sign
    of dy."""
    # in one cell
    first, last = 2.0 ** (3 * (120 - 256) / 32) * (1 + 2e-4), 2.0 ** (3 * (121 - 256) / 32) * (1 - 2e-4)
    up, down = 72, round(72 * first / last)
    rest = int((1 - up * first - down * last) / first)
    p = torch.tensor([first] * up + [last] * down + [first] * rest, dtype=torch.float64)
    x = torch.cat([p, 1 - p.sum(0, keepdim=True)]).log().float()[None]
    dy = torch.zeros_like(x)
    dy[0, :up], dy[0, up : up + down] = 1, -1
    dx, (_, ds) = gradients(outgrad.softmax, x, dy)[1], exact(x, dy)
    off, total = (dx.double() - ds).abs().sum().item(), ds.abs().sum().item()
    assert 0.9 * 0.0649 * total < off <= outgrad.softmax_bound(x.numel(), total, 2, 1)


def test_the_bound_is_infinite_where_fp32_may_overflow():
    dy = torch.tensor([[1.0, -1.0, 1.0]]) * torch.finfo(torch.float32).max
    dx = gradients(outgrad.softmax, torch.zeros(1, 3), dy)[1]
    assert dx[0, 1] == -math.inf and outgrad.softmax_bound(3, 1.0, 1.0, dy.max().item()) == math.inf
    assert outgrad.softmax_bound(3, 1.0, 1.0, 2.0**126) < 2.0**126


def test_axes_and_shapes_are_pytorchs():
    x = torch.randn(3, 4, 5)
    dy = torch.randn(3, 4, 5)
    for dim in (-3, -2, -1, 0, 1, 2):
        got, want = gradients(lambda x, d=dim: outgrad.softmax(x, d), x, dy), exact(x, dy, dim)
        assert got[0].shape == x.shape and (got[0].double() - want[0]).abs().max() < 1e-7
        assert got[0].is_contiguous(), "what is behind a patched Softmax may view it"
        assert ((got[1].double() - want[1]).abs().max() < 0.07 * dy.abs().max()
            and (got[1].double() - want[1]).norm() < 0.05 * want[1].norm())
    one = torch.tensor(2.0, requires_grad=True)
    assert outgrad.softmax(one) == 1 and torch.autograd.grad(outgrad.softmax(one, 0), one)[0] == 0
    for shape in ((0, 4), (4, 0), (0,)):
        y, dx = gradients(outgrad.softmax, torch.empty(shape), torch.empty(shape))
        assert y.shape == dx.shape == shape
    wide = torch.randn(6, 8).t()
    assert all(torch.equal(a, b) for a, b in zip(gradients(outgrad.softmax, wide, wide),
        gradients(outgrad.softmax, wide.contiguous(), wide), strict=True))
    leaf = torch.randn(2, 3, requires_grad=True)
    (outgrad.softmax(leaf) * torch.tensor([1.0, 0, 0])).sum().backward()
    outgrad.softmax(leaf).sum().backward()  # an expanded dy, whose exact gradient is 0
    assert torch.isfinite(leaf.grad).all()


def test_rows_without_a_softmax_are_nan_and_others_are_not():
    x = torch.randn(5, 8)
    x[0, 3], x[1, 3], x[2], x[3, 3] = math.nan, math.inf, -math.inf, -math.inf
    y, dx = gradients(outgrad.softmax, x, torch.randn(5, 8))
    assert (y[:3].isnan().all() and dx[:3].isnan().all() and torch.isfinite(y[3:]).all()
        and torch.isfinite(dx[3:]).all())
    assert y[3, 3] == dx[3, 3] == 0


# --- What is kept ---------------------------------------------------------------------------------


@formats
def test_a_byte_an_element_is_kept(dtype):
    x, kept = torch.randn(64, 128).to(dtype).requires_grad_(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        outgrad.softmax(x)
    assert (sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}.values()) == 64
        * 128)
    found = outgrad.patch(nn.Softmax(-1), example=x, store=STORE)
    assert (found.total_before, found.total_after) == (64 * 128 * dtype.itemsize, 64 * 128)
    with report.fake("cuda", dtype):
        assert (
            outgrad.patch(nn.Softmax(0), example=torch.empty(64, 128, requires_grad=True),
            store=STORE).total_after == 64 * 128)


def test_compiled_checkpointed_and_transformed():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: outgrad.softmax(x) * 2, fullgraph=True, dynamic=True,
        backend="aot_eager")
    for n in (16, 24):
        x, dy = scores(5, n, 2.0, torch.float32)
        want = gradients(lambda x: outgrad.softmax(x) * 2, x, dy)
        assert all(torch.equal(a, b) for a, b in zip(gradients(compiled, x, dy), want, strict=True))
        assert all(torch.equal(a, b)
            for a, b in zip(
            gradients(lambda x: checkpoint(outgrad.softmax, x, use_reentrant=False) * 2, x, dy), want,
            strict=True))
        found = torch.func.grad(lambda x, dy=dy: (outgrad.softmax(x) * 2 * dy).sum())(x)
        assert torch.equal(found, want[1])
    x = torch.randn(4, 8, requires_grad=True)
    with pytest.raises(NotImplementedError, match="outgrad.softmax: torch.vmap is not supported"):
        torch.func.vmap(outgrad.softmax)(x)
    for power in (1, 2):
        y = outgrad.softmax(x).pow(power)
        (dx,) = torch.autograd.grad(y[:, 0].sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="outgrad.softmax: the second derivative"):
            torch.autograd.grad(y.sum() + dx.sum(), x)


def test_what_cannot_be_is_named():
    x = torch.randn(2, 3)
    for call, kind, why in (
        (lambda: outgrad.softmax(x, 2), IndexError, "outgrad.softmax: dim is 2, x has 2 dimensions"),
        (lambda: outgrad.softmax(x, None), TypeError, "outgrad.softmax: dim is None"),
        (lambda: outgrad.softmax(x.double()), TypeError, "outgrad.softmax: x is torch.float64"),
        (lambda: outgrad.softmax([1.0]), TypeError, "outgrad.softmax: x is no tensor but list"),
        (lambda: outgrad.softmax(torch.empty(1, 2**23 + 1, device="meta")), ValueError,
        r"outgrad.softmax: a row of 8388609 elements, where at most 2\^23"),
        (lambda: outgrad.softmax_bound(0, 1, 1, 1), ValueError,
        "outgrad.softmax_bound: softmax has codes for rows of 1 to"),
        (lambda: outgrad.softmax_bound(2**64 + 1, 1, 1, 1), ValueError, "not of 18446744073709551617"),
        (lambda: outgrad.softmax_bound(4.5, 1, 1, 1), TypeError, "outgrad.softmax_bound: n is 4.5"),
        (lambda: outgrad.softmax_bound(4, math.nan, 1, 1), ValueError, "none may be negative"),
        (lambda: outgrad.softmax_bound(4, 1, 1, math.nan), ValueError, "none may be negative"),
        (lambda: outgrad.softmax_bound(4, 1, -1, 1), ValueError, "none may be negative"),
        (lambda: outgrad.Softmax(-1, store="e4m3"), ValueError,
        "outgrad.Softmax: store: 'e4m3' is no store of softmax; there are p, log2:8"),
        (lambda: outgrad.patch(nn.Softmax(-1), store={"softmax": "log2:7"}), ValueError,
        "outgrad.patch: store: 'log2:7' is no store of softmax"),
        (lambda: outgrad.attention(x, x, x, store="log2"), ValueError,
        "outgrad.attention: store: 'log2' is no store of softmax"),
        (lambda: outgrad.attention(x, x, x, form="sdpa", store="log2:8"), ValueError,
        "the form 'sdpa' keeps no probabilities"),
    ):
        with pytest.raises(kind, match=why):
            call()
    module = outgrad.Softmax(-1, store="p")
    module.store = "log2:9"
    with pytest.raises(ValueError, match="outgrad.Softmax: store: 'log2:9' is no store of softmax"):
        module(x)


# --- Modules and patch ----------------------------------------------------------------------------


def test_modules_patch_and_copies():
    model = nn.Sequential(nn.Linear(8, 8), nn.Softmax(dim=-1), nn.Softmax(), nn.LogSoftmax(dim=-1))
    assert outgrad.patch(model).swapped == []
    found = outgrad.patch(model, example=torch.randn(4, 8), store=STORE)
    assert [(one.name, one.kind, one.store) for one in found.swapped] == [("1", "Softmax", "log2:8"),
        ("2", "Softmax", "log2:8")]
    assert "store log2:8: 1 and 1 more" in str(found).splitlines()
    assert "sum |dx' - dx| <= 0.0651 sum |dx| + 1.28e-07 n (max dy - min dy)" in str(found)
    x, dy = torch.randn(4, 8), torch.randn(4, 8)
    want = gradients(outgrad.softmax, x, dy)
    for module in (model[1], *copies(model[1]), outgrad.Softmax(-1, store="log2:8")):
        assert all(torch.equal(a, b) for a, b in zip(gradients(module, x, dy), want, strict=True))
        assert "store='log2:8'" in repr(module)
    with pytest.warns(UserWarning, match="Implicit dimension choice"):
        assert torch.equal(model[2](x), torch.softmax(x, -1))
    outgrad.patch(model)
    assert all(torch.equal(a, b)
        for a, b in zip(gradients(model[1], x, dy), gradients(nn.Softmax(-1), x, dy), strict=True))
    assert type(outgrad.unpatch(model)[1]) is nn.Softmax


# --- Attention ------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ("p", "log2:8"))
@pytest.mark.parametrize("batches", (((1,), (2,), (2,)), ((), (2,), (2,)), ((2,), (2,), (3, 2))))
def test_attention_repeats_what_lacks_a_batch(store, batches):
    torch.manual_seed(2)
    inputs = [torch.randn(*batch, n, 8) for batch, n in zip(batches, (4, 5, 5), strict=True)]

    def result(of):
        of = [one.clone().requires_grad_() for one in of]
        y = outgrad.attention(*of, form="softmax", store=store)
        return y, *torch.autograd.grad(y.square().sum(), of)

    whole = torch.broadcast_shapes(*batches)
    repeated = [one.expand(*whole, *one.shape[-2:]) for one in inputs]
    results = result(inputs), result(repeated), (torch.empty(*whole, 4, 8), *inputs)
    for found, want, one in zip(*results, strict=True):
        assert found.shape == one.shape
        assert torch.allclose(found, want.sum_to_size(one.shape), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("p", [0.0, 0.25])
def test_attention_from_codes_is_within_bounds(p, m=17, n=33, d=16):
    """dv by the error of p', dq and dk by that of a row's scores; in fp32, whose rounding is small beside
    them."""
    torch.manual_seed(1)
    q, k, v, dy = (torch.randn(2, 3, *size) for size in ((m, d), (n, d), (n, 8), (m, 8)))
    mask = torch.rand(m, n) > 0.2

    def passed(store):
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        torch.manual_seed(5)
        y = outgrad.attention(*leaves, mask, p, form="softmax", store=store)
        return y.detach(), *torch.autograd.grad(y, leaves, dy)

    torch.manual_seed(5)
    seed = torch.randint(0, 2**62, (1,), dtype=torch.int64)
    factors = ((library.dropout(torch.ones(2, 3, m, n), seed, p) != 0).double() / (1 - p) if p > 0
        else torch.ones(2, 3, m, n, dtype=torch.float64))
    scale = 1 / math.sqrt(d)
    weights = (q.double() @ k.double().mT * scale).masked_fill(~mask, -math.inf)
    dp = dy.double() @ v.double().mT * factors
    probabilities, ds = exact(weights, dp)
    y, dq, dk, dv = passed("log2:8")
    plain = passed("p")
    assert (y - plain[0]).abs().max() < 1e-5
    relative, least, _ = library.softmax_error(n)
    allowed = ((relative * probabilities + least) * factors).mT @ dy.double().abs()
    off = (dv.double() - (probabilities * factors).mT @ dy.double()).abs()
    assert (off <= allowed + 1e-5).all() and (off / allowed).max() > 0.3
    spread, largest = dp.amax(-1) - dp.amin(-1), dp.abs().amax(-1)
    of_rows = [outgrad.softmax_bound(n, *row) for row in zip(ds.abs().sum(-1).flatten().tolist(),
        spread.flatten().tolist(), largest.flatten().tolist())]
    bound = torch.tensor(of_rows, dtype=torch.float64).view(2, 3, m, 1)
    off = (dq.double() - ds @ k.double() * scale).abs()
    assert (off <= scale * bound * k.double().abs().amax(-2, keepdim=True) + 1e-5).all()
    off = (dk.double() - ds.mT @ q.double() * scale).abs()
    assert (off <= scale * (bound * q.double().abs()).sum(-2, keepdim=True) + 1e-5).all()
    # The scores' gradient is that of outgrad.softmax, to rounding.
    scores = (q @ k.mT).mul_(scale) + torch.zeros(m, n).masked_fill_(~mask, -math.inf)
    of_scores = gradients(outgrad.softmax, scores, (dy @ v.mT) * factors.float())[1] * scale
    assert (dq - of_scores @ k).abs().max() < 1e-5 and (dk - of_scores.mT @ q).abs().max() < 1e-5


@formats
def test_attention_keeps_codes_in_place_of_probabilities(dtype):
    torch.manual_seed(1)
    leaves = [torch.randn(2, 4, 64, 16, dtype=dtype, requires_grad=True) for _ in range(3)]
    known, kept = {t.data_ptr() for t in leaves}, {}

    def pack(tensor):
        kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = outgrad.attention(*leaves, p=0.1, form="softmax", store="log2:8")
    assert sum(size for at, size in kept.items() if at not in known | {y.data_ptr()}) == 2 * 4 * 64 * 64 + 8
    y.sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in leaves)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, k, v: outgrad.attention(q, k, v, p=0.0, form="softmax", store="log2:8"), fullgraph=True,
        backend="aot_eager")
    eager = torch.autograd.grad(outgrad.attention(*leaves, form="softmax", store="log2:8").pow(2).sum(),
        leaves)
    assert all(torch.equal(a, b)
        for a, b in zip(eager, torch.autograd.grad(compiled(*leaves).pow(2).sum(), leaves), strict=True))
