"""Linear that keeps its input in 8 bits (outgrad/linear.py): the bound of its weight's gradient, all else as
in PyTorch, and one storage for an activation and the Linear after it, which is never used for another
tensor."""

import copy
import functools
import json
import math

import ledger
import pytest
import torch
import torch.nn.functional as F
from functional_test import UNIT_ROUNDOFF, assert_it_learns, copies
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import outgrad
from outgrad import fp8, library, report

FORMATS = [torch.float32, torch.float16, torch.bfloat16]
formats = pytest.mark.parametrize("dtype", FORMATS)
kinds = pytest.mark.parametrize("store", library.FP8)
E4M3, E5M2 = library.FP8.values()


def gradients(function, x, weight, bias, dy=None):
    leaves = [t if t is None else t.detach().clone().requires_grad_() for t in (x, weight, bias)]
    y = function(*leaves)
    dy = torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype) if dy is None else dy
    return y.detach(), *torch.autograd.grad(y, [t for t in leaves if t is not None], dy)


def of_its_codes(x, dy, store="e4m3"):
    """dW from the codes that a Linear makes by itself."""
    of = library.FP8[store]
    stored = fp8.decode(*fp8.encode(x, of), of, x.dtype)
    return dy.reshape(-1, dy.shape[-1]).T @ stored.view(-1, x.shape[-1])


# --- Gradients ------------------------------------------------------------------------------------


@kinds
@formats
def test_the_weights_gradient_is_within_its_bound(dtype, store):
    """Random x of all magnitudes, against dy^T x in float64. The product's own rounding is bounded too, in
    any order of its sums: PyTorch's is in fp32."""
    generator, of, tightest = torch.Generator().manual_seed(1), library.FP8[store], 0.0
    u, least = UNIT_ROUNDOFF[dtype], torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    for rows, power, spread in ((1, 0, 0), (3, -8, 20), (64, 3, 4), (64, 0, 24), (512, -12, 8), (256, 5, 0)):
        x = (
            (torch.randn(rows, 48, generator=generator)
            * torch.exp2(-spread * torch.rand(rows, 48, generator=generator)) * 2.0**power).to(dtype))
        dy, weight = (torch.randn(rows, 16, generator=generator).to(dtype),
            torch.randn(16, 48, generator=generator).to(dtype))
        found = gradients(lambda *args: outgrad.linear(*args, store=store), x, weight, None, dy)[2].double()
        scale = fp8.scale_of(x, of, fp8.LEAST).item()
        moved = (fp8.UNIT_ROUNDOFF[of] + 3 * u) * x.double().abs() + fp8.HALF_SUBNORMAL[of] / scale + least
        bound = dy.double().abs().T @ moved
        rounding = ((rows + 2) * 2.0**-24 * (dy.double().abs().T @ (x.double().abs() + moved)) + u
            * found.abs() + least)
        off = (found - dy.double().T @ x.double()).abs()
        assert (off <= bound + rounding).all()
        tightest = max(tightest, (off / (bound + rounding)).max().item())
    assert tightest > 0.5


@kinds
@formats
def test_all_else_is_pytorchs(dtype, store):
    x, weight, bias = torch.randn(2, 5, 24).to(dtype), torch.randn(7, 24).to(dtype), torch.randn(7).to(dtype)
    for given, with_bias in ((x, bias), (x, None), (x[0, 0], bias), (x.transpose(0, 1), bias), (x[:0], bias)):
        got = gradients(lambda *args: outgrad.linear(*args, store=store), given, weight, with_bias)
        want = gradients(F.linear, given, weight, with_bias)
        assert all(torch.equal(a, b)
            for a, b in zip((got[0], got[1], *got[3:]), (want[0], want[1], *want[3:]), strict=True))
        assert got[2].shape == want[2].shape and got[2].dtype == dtype


def test_what_is_no_number_stays_where_it_is():
    """A NaN in x spoils one column of dW, as in PyTorch; an infinity counts as the largest finite |x|."""
    x, weight = torch.randn(8, 6), torch.randn(3, 6)
    x[2, 1], x[3, 4] = math.nan, math.inf
    dw = gradients(outgrad.linear, x, weight, None, torch.ones(8, 3))[2]
    assert dw[:, 1].isnan().all() and torch.isfinite(dw[:, [0, 2, 3, 4, 5]]).all()


def test_what_needs_no_x_keeps_none():
    x, weight = torch.randn(8, 64, requires_grad=True), torch.randn(16, 64)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        outgrad.linear(x, weight).sum().backward()
    assert torch.equal(x.grad, torch.ones(8, 16) @ weight)
    assert {t.data_ptr() for t in kept} == {weight.data_ptr()}, "a weight without a gradient needs no x"


def test_second_derivatives_and_transforms():
    x, weight = torch.randn(4, 8, requires_grad=True), torch.randn(3, 8, requires_grad=True)
    for power in (1, 2):
        y = outgrad.linear(x, weight).pow(power)
        dw = torch.autograd.grad(y.sum(), weight, create_graph=True)[0]
        with pytest.raises(RuntimeError, match="outgrad.linear: the second derivative"):
            torch.autograd.grad(y.sum() + dw.sum(), x)
    plain = gradients(outgrad.linear, x, weight, None, torch.ones(4, 3))
    found = torch.func.grad(lambda x, w: outgrad.linear(x, w).sum(), argnums=(0, 1))(x.detach(),
        weight.detach())
    assert all(torch.equal(a, b) for a, b in zip(found, plain[1:], strict=True))
    with pytest.raises(NotImplementedError, match="outgrad.linear: torch.vmap is not supported"):
        torch.func.vmap(lambda x: outgrad.linear(x, weight))(x)


class Sharded(torch.Tensor):
    """What is looked for in a DTensor."""

    device_mesh = None


def test_what_cannot_be_is_named():
    x, weight = torch.randn(4, 8), torch.randn(3, 8)
    no_parts = "outgrad.linear: it takes no DTensors; give it each process's own part"
    for call, kind, why in (
        (lambda: outgrad.linear(x, weight, store="mxfp8"), ValueError,
        "outgrad.linear: store is 'mxfp8', none of e4m3, e5m2, rows:1 to rows:99, "),
        (lambda: outgrad.linear(x, weight, store=["e4m3"]), ValueError, "outgrad.linear: store is"),
        (lambda: outgrad.linear(x.double(), weight), TypeError, "outgrad.linear: x is torch.float64"),
        (lambda: outgrad.linear(x, [1.0]), TypeError, "outgrad.linear: weight is no tensor but list"),
        (lambda: outgrad.linear(x.as_subclass(Sharded), weight), NotImplementedError, no_parts),
        (lambda: outgrad.linear(x, weight.as_subclass(Sharded)), NotImplementedError, no_parts),
        (lambda: outgrad.linear(x, weight.t()), ValueError,
        r"outgrad.linear: x of shape \(4, 8\) and weight of shape \(8, 3\) have no product"),
        (lambda: outgrad.linear(x, weight[0]), ValueError, r"weight of shape \(8,\) have no product"),
        (lambda: outgrad.linear(x, weight.half()), TypeError, "x is torch.float32, weight torch.float16"),
        (lambda: outgrad.linear(x, weight, x[0]), ValueError, r"bias has shape \(8,\), weight gives 3 col"),
        (lambda: outgrad.Linear(4, 4, store="e4m3+bit"), ValueError,
        r"outgrad.Linear: store: 'e4m3\+bit' is no store of linear; there are x, e4m3, e5m2, rows:1 to "),
        (lambda: outgrad.patch(nn.Linear(4, 4), store={"linear": "e4m3+bit"}), ValueError,
        r"store: 'e4m3\+bit' is no store of linear"),
        (lambda: outgrad.patch(nn.Linear(4, 4), store={"linear": 8}), ValueError,
        "store: 8 is no store of linear"),
        (lambda: outgrad.patch(nn.Linear(4, 4), store={"norm": "code:4"}), ValueError,
        "'code:4' is no store of norm; there are y, e4m3, mxfp8, int8"),
        (lambda: outgrad.patch(nn.Linear(4, 4), store={"lineare": "x"}), ValueError,
        "store names 'lineare', which is none of gelu, .*, linear, "),
    ):
        with pytest.raises(kind, match=why):
            call()


# --- One storage for an activation and the Linear after it ----------------------------------------

ROWS, WIDTH = 64, 256


def mlp(between=nn.Identity, dtype=torch.bfloat16):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, WIDTH), nn.GELU(), between(), nn.Linear(WIDTH, 8)).to(dtype)


STORE = {"gelu": "e4m3+bit", "linear": "e4m3"}
CODES, BITS, SCALE = ROWS * WIDTH, ROWS * WIDTH // 8, 4


def test_an_mlp_keeps_codes_once_and_a_bit():
    """In bf16, and in fp32, where x itself would be four times as large."""
    for dtype in (torch.bfloat16, torch.float32):
        model, x = mlp(dtype=dtype), torch.randn(ROWS, 32).to(dtype)
        found = outgrad.patch(model, example=x, store=STORE)
        own = ROWS * 32 + SCALE  # of the first Linear
        assert found.total_after == own + CODES + SCALE + BITS
        assert found.total_before == (ROWS * 32 + 2 * CODES) * dtype.itemsize
        assert {one.name: one.bytes_after for one in found.swapped} == {"0": own, "1": BITS, "3": 0}
        assert found.components_after == {"Linear": own, "GELU": BITS, "(several modules)": CODES + SCALE}
        with_y = outgrad.patch(mlp(dtype=dtype), example=x)
        assert with_y.total_after == (ROWS * 32 + CODES) * dtype.itemsize + BITS


def test_other_formats_are_not_shared():
    found = outgrad.patch(mlp(), example=torch.randn(ROWS, 32).bfloat16(),
        store={"gelu": "e4m3+bit", "linear": "e5m2"})
    assert found.total_after == ROWS * 32 + SCALE + 2 * (CODES + SCALE) + BITS


def gradient_of_last(model, x):
    """(y of the activation as the last Linear got it, dW of the last Linear for a dy of ones)."""
    seen = []
    with model[3].register_forward_pre_hook(lambda _, given: seen.append(given[0])):
        out = model(x)
    (dw,) = torch.autograd.grad(out, model[3].weight, torch.ones_like(out))
    return seen[0].detach(), dw


def shared(model, x):
    """Whether the last Linear used the activation's codes. Inputs are small, so that |y| < 1 has another
    scale by itself."""
    y, dw = gradient_of_last(model, 0.1 * x)
    assert y.abs().max() < 0.9
    dy = torch.ones(*y.shape[:-1], 8, dtype=y.dtype)
    codes, scale = fp8.encode(y, E4M3, fp8.LEAST_OF_ACTIVATIONS)
    of_both = dy.reshape(-1, 8).T @ fp8.decode(codes, scale, E4M3, y.dtype).view(-1, y.shape[-1])
    alone = of_its_codes(y, dy)
    assert not torch.equal(of_both, alone)
    assert torch.equal(dw, of_both) or torch.equal(dw, alone), "of y's own codes, and of nothing else"
    return torch.equal(dw, of_both)


class Changed(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, y):
        return self.change(y)


@pytest.mark.parametrize(
    ("between", "used"),
    [
        (nn.Identity, True),
        (lambda: nn.Dropout(0.0), True),
        (lambda: nn.Dropout(0.5), False),
        (lambda: Changed(lambda y: y.mul_(1.5)), False),
        (lambda: Changed(lambda y: y.view(y.shape)), False),
        (lambda: Changed(lambda y: y.flip(0)), False),
        (lambda: Changed(lambda y: y.clone()), False),
        (lambda: Changed(lambda y: y + 0.01), False),
    ],
    ids=["nothing", "dropout of nothing", "dropout", "in place", "view", "flip", "clone", "sum"],
)
def test_codes_are_used_for_this_y_alone(between, used):
    """fp32: there, codes of y itself are what the kernel makes of x."""
    model = mlp(between, torch.float32)
    outgrad.patch(model, store=STORE)
    assert shared(model, torch.randn(ROWS, 32)) == used
    assert shared(model, torch.randn(2, 3, 32)) == used


def test_dropout_in_evaluation_passes_the_codes_on():
    model = mlp(lambda: nn.Dropout(0.5), torch.float32)
    outgrad.patch(model, store=STORE)
    assert shared(model.eval(), torch.randn(ROWS, 32))


def test_two_linears_read_one_storage():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.act, self.a, self.b = nn.GELU(), nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 16)

        def forward(self, x):
            y = self.act(x)
            return self.a(y).sum() + self.b(y).sum()

    found = outgrad.patch(Two().bfloat16(), example=torch.randn(ROWS, WIDTH).bfloat16().requires_grad_(),
        store=STORE)
    assert found.total_after == CODES + SCALE + BITS


def test_linears_that_read_one_x_keep_it_once():
    """As the three before an attention do. An x that changes between is kept as it was, and as it is."""

    class Three(nn.Module):
        def __init__(self, change=False):
            super().__init__()
            self.q, self.k, self.v, self.change = (nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8),
                nn.Linear(WIDTH, 16), change)

        def forward(self, x):
            x = x + 1
            together = self.q(x).sum() + self.k(x).sum()
            return together + self.v(x.mul_(2) if self.change else x).sum()

    x = torch.randn(ROWS, WIDTH)
    for change in (False, True):
        model = Three(change)
        found = outgrad.patch(model, example=x, store=STORE)
        assert found.total_after == (CODES + SCALE) * (2 if change else 1)
        model(x).backward()
        for k, module in enumerate((model.q, model.k, model.v)):
            seen = (x + 1) * (2 if change and k == 2 else 1)
            assert torch.equal(module.weight.grad, of_its_codes(seen, torch.ones(ROWS, module.out_features)))


# --- A norm and the Linears after it --------------------------------------------------------------

NORM = {"norm": "e4m3", "linear": "e4m3"}


class Block(nn.Module):
    """A norm that three Linears read, as before an attention, or other things in between."""

    def __init__(self, norm=nn.LayerNorm, between=None, **options):
        super().__init__()
        self.norm, self.between = norm(WIDTH, **options), between
        self.q, self.k, self.v = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 16)
        with torch.no_grad():
            self.norm.weight.copy_(torch.linspace(0.5, 2, WIDTH))

    def forward(self, x):
        y = self.norm(x)
        self.seen = y.detach().clone() if self.between is None else (y := self.between(y)).detach().clone()
        return self.q(y).sum() + self.k(y).sum() + self.v(y).sum()


def codes_of_norm(x, norm):
    """(codes, s), as the norm's kernel makes them."""
    beta = getattr(norm, "bias", None)
    eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
    _, codes, scales, *_ = library.norm_forward_8bit(x, WIDTH, norm.weight.float(),
        None if beta is None else beta.float(), eps, beta is None, None, E4M3)
    return codes, scales.view(torch.float32)


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
@formats
def test_linears_keep_the_codes_of_the_norm_before_them(norm, dtype):
    """Bytes: the codes, the norm's scale and its reciprocal, 4 for each row, and nothing of the Linears'
    own."""
    model, x = Block(norm).to(dtype), (3 * torch.randn(ROWS, WIDTH)).to(dtype)
    found = outgrad.patch(model, example=x, store=NORM)
    assert found.total_after == CODES + 2 * SCALE + 4 * ROWS
    assert {one.name: one.bytes_after for one in found.swapped} == {"norm": SCALE + 4 * ROWS, "q": 0, "k": 0,
        "v": 0}
    apart = outgrad.patch(Block(norm).to(dtype), example=x, store={"norm": "int8", "linear": "e4m3"})
    of_norm = CODES + ROWS * WIDTH // 64 * 8 + 4 * ROWS
    assert apart.total_after == of_norm + CODES + SCALE, "codes of another format are no Linear's"


@formats
def test_what_a_linear_reads_of_a_norm_is_within_the_bound(dtype):
    """In rows of all magnitudes, against dy^T y in float64 for the y that the Linear was given; and it is the
    norm's codes that it reads."""
    u, least, tightest = (UNIT_ROUNDOFF[dtype], torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps,
        0.0)
    for seed, power in ((1, 0), (2, -6), (3, 3), (4, -12)):
        torch.manual_seed(seed)
        model = Block(elementwise_affine=True).to(dtype)
        with torch.no_grad():
            model.norm.weight.copy_(2.0 ** (power - 3 * torch.rand(WIDTH)))
            model.norm.bias.normal_().mul_(2.0**power)
        outgrad.patch(model, store=NORM)
        x = torch.randn(ROWS, WIDTH).to(dtype)
        model(x).backward()
        y, dw, dy = model.seen, model.q.weight.grad, torch.ones(ROWS, 8, dtype=dtype)
        codes, s = codes_of_norm(x, model.norm)
        scale = s.reciprocal()
        stored = fp8.decode(codes, scale, E4M3, dtype).view(ROWS, WIDTH)
        assert torch.equal(dw, dy.T @ stored)
        moved = ((fp8.UNIT_ROUNDOFF[E4M3] + 3 * u) * y.double().abs()
            + fp8.HALF_SUBNORMAL[E4M3] / scale.item()
            + least)
        off = (stored.double() - y.double()).abs()
        assert (off <= moved).all()
        tightest = max(tightest, (off / moved).max().item())
        bound = (moved.sum(0) + (ROWS + 2) * 2.0**-24 * (y.double().abs() + moved).sum(0) + u
            * dw.double().abs() + least)
        assert ((dw.double() - y.double().sum(0)).abs() <= bound).all()
    assert tightest > 0.75, "the bound has room for bf16's three roundings"


@pytest.mark.parametrize(
    ("between", "used"),
    [
        (None, True),
        (nn.Dropout(0.0), True),
        (nn.Dropout(0.5), False),
        (Changed(lambda y: y.mul_(1.5)), False),
        (Changed(lambda y: y.view(y.shape)), False),
        (Changed(lambda y: y.clone()), False),
        (Changed(lambda y: y + 0.01), False),
    ],
    ids=["nothing", "dropout of nothing", "dropout", "in place", "view", "clone", "sum"],
)
def test_codes_of_a_norm_are_used_for_its_y_alone(between, used):
    model = Block(between=between)
    outgrad.patch(model, store=NORM)
    # The largest |y| is made one from which RN(448 / amax) and RN(1 / RN(amax / 448)) differ in the codes of
    # others.
    for seed in range(20):
        x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed))
        model.zero_grad()
        model(x).backward()
        codes, s = codes_of_norm(x, model.norm)
        ones = torch.ones(ROWS, 8)
        of_norm = ones.T @ fp8.decode(codes, s.reciprocal(), E4M3, torch.float32).view(ROWS, WIDTH)
        alone = of_its_codes(model.seen, ones)
        if not torch.equal(of_norm, alone):
            break
    assert not torch.equal(of_norm, alone)
    assert torch.equal(model.q.weight.grad, of_norm if used else alone)
    # Another tensor that has the y's place in memory.
    y = model.norm(x)
    other = torch.randn(ROWS, WIDTH)
    assert (fp8.offered(y, E4M3) is not None and fp8.offered(y, E5M2) is None
        and fp8.offered(other, E4M3) is None)
    y.data = other
    assert fp8.offered(y, E4M3) is None


def test_a_norms_codes_live_as_long_as_its_graph():
    norm, x = outgrad.LayerNorm(WIDTH, store="e4m3"), torch.randn(ROWS, WIDTH)
    with torch.no_grad():
        assert fp8.offered(norm(x), E4M3) is None
    y = norm(x)
    first, again = fp8.offered(y, E4M3), fp8.offered(y, E4M3)
    assert all(a.data_ptr() == b.data_ptr() for a, b in zip(first, again, strict=True)), "one scale for all"
    del first, again
    assert outgrad.linear(y, torch.ones(2, WIDTH, requires_grad=True)).grad_fn is not None  # and that is gone
    assert fp8.offered(y, E4M3) is not None, "the norm's are there as long as its graph"
    y = y.detach_()
    assert fp8.offered(y, E4M3) is None
    assert fp8.offered(outgrad.LayerNorm(WIDTH, store="int8")(x), E4M3) is None


def test_under_autocast():
    """x of the activation is bf16 there, or fp32 where no product came before: then the Linear converts its
    y, whose codes stay the codes."""
    model, x = mlp(dtype=torch.float32), torch.randn(ROWS, 32)
    with torch.autocast("cpu", torch.bfloat16):
        found = outgrad.patch(model, example=x, store=STORE)
        assert found.swapped[-1].bytes_after == 8 * WIDTH * 2, "the weight's copy in bf16"
        y, dw = gradient_of_last(model, x)
        assert y.dtype == torch.bfloat16 and dw.dtype == torch.float32
    plain = copy.deepcopy(model)
    outgrad.patch(plain)
    with torch.autocast("cpu", torch.bfloat16):
        want = gradient_of_last(plain, x)[1]
    assert 0 < (dw - want).norm() / want.norm() < 0.1
    last = nn.Sequential(nn.GELU(), nn.Linear(WIDTH, 8))
    with torch.autocast("cpu", torch.bfloat16):
        found = outgrad.patch(last, example=torch.randn(ROWS, WIDTH, requires_grad=True), store=STORE)
    assert found.total_after == CODES + SCALE + BITS + 8 * WIDTH * 2


def test_a_selective_checkpoint_sees_the_same_operations_when_it_recomputes():
    """Though the codes that a norm and a Linear could share are not kept in its forward pass."""

    def keeps(ctx, operator, *args, **kwargs):
        return (CheckpointPolicy.MUST_SAVE if operator is torch.ops.aten.mul.Tensor
            else CheckpointPolicy.PREFER_RECOMPUTE)

    norm = outgrad.LayerNorm(WIDTH, store="e4m3")
    first, second = (outgrad.Linear(WIDTH, 8, store="e4m3") for _ in range(2))
    x = torch.randn(ROWS, WIDTH, requires_grad=True)

    def block(x):
        y = norm(x)
        return first(y) * second(y)

    inputs = [x, *norm.parameters(), first.bias]
    expected = torch.autograd.grad(block(x).sum(), inputs)
    z = checkpoint(block, x, use_reentrant=False,
        context_fn=functools.partial(create_selective_checkpoint_contexts, keeps))
    found = torch.autograd.grad(z.sum(), inputs)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_of_each_part_give_gradients_of_the_same_codes(reentrant):
    model, x = mlp(dtype=torch.float32), 0.1 * torch.randn(ROWS, 32)
    outgrad.patch(model, store=STORE)
    parameters = list(model.parameters())

    def passed(forward):
        leaf = x.clone().requires_grad_()
        for p in parameters:
            p.grad = None
        forward(leaf).sum().backward()
        return [leaf.grad, *(p.grad for p in parameters)]

    def again(part, value):
        return checkpoint(part, value, use_reentrant=reentrant)

    want = passed(model)
    assert all(torch.equal(a, b) for a, b in zip(passed(lambda x: again(model, x)), want, strict=True))
    # The cut lies between the activation and the Linear: before it or after it the codes are not at hand, and
    # are made anew of y.
    y = model[:2](x).detach()
    alone = of_its_codes(y, torch.ones(ROWS, 8))
    for forward in (lambda x: model[2:](again(model[:2], x)), lambda x: again(model[2:], model[:2](x)),
            lambda x: again(model[2:], again(model[:2], x))):
        got = passed(forward)
        assert all(torch.equal(a, b) for k, (a, b) in enumerate(zip(got, want, strict=True)) if k != 3)
        assert torch.equal(got[3], want[3]) or torch.equal(got[3], alone)


def test_compiled_it_makes_codes_of_its_own():
    torch._dynamo.reset()
    model, x = mlp(dtype=torch.float32), 0.1 * torch.randn(ROWS, 32)
    outgrad.patch(model, store=STORE)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for rows in (ROWS, 5):
        want = model(x[:rows]).sum()
        got = compiled(x[:rows]).sum()
        assert torch.equal(got, want)
        names = ("0.weight", "0.bias", "3.weight", "3.bias")
        got, want = (dict(zip(names, torch.autograd.grad(one, list(model.parameters())), strict=True))
            for one in (got, want))
        assert all(torch.equal(got[name], want[name]) for name in names if name != "3.weight")
        assert torch.equal(got["3.weight"], of_its_codes(model[:2](x[:rows]).detach(), torch.ones(rows, 8)))


def test_a_graph_of_autograd_has_the_codes_once():
    """AOTAutograd traces what runs. Its min-cut partition could keep x, or make codes again in the backward
    pass."""
    with report.fake("cpu", torch.bfloat16):
        model = nn.Sequential(nn.Linear(32, WIDTH), nn.GELU(), nn.Linear(WIDTH, 8))
        outgrad.patch(model, store=STORE)
        kept = ledger.kept_compiled(model, torch.empty(ROWS, 32))
    assert kept == ROWS * 32 + SCALE + CODES + SCALE + BITS + ROWS * 8 * 2, "the last is the result"


# --- Modules and patch ----------------------------------------------------------------------------


@formats
@kinds
def test_modules_show_their_store_and_survive_copies(dtype, store):
    module, x = outgrad.Linear(24, 7, store=store).to(dtype), torch.randn(5, 24).to(dtype)
    want = gradients(lambda x, *_: module(x), x, None, None)
    assert torch.equal(want[0], F.linear(x, module.weight, module.bias))
    words = ("storing x moves it by at most (2^-4 + 3 u) |x| + 2^-10 / scale + t'" if store == "e4m3"
        else "(2^-3 + 3 u) |x| + 2^-17 / scale + t'")
    assert words in repr(module) and f"store={store!r}" in repr(module)
    for other in copies(module):
        assert other.store == store and torch.equal(
            gradients(lambda x, *_, other=other: other(x), x, None, None)[1], want[1])
    nn.Linear(24, 7).to(dtype).load_state_dict(module.state_dict())


def test_patch_takes_linears_where_it_is_asked():
    class Own(nn.Linear):
        pass

    def network():
        return nn.Sequential(nn.Linear(8, 8), nn.GELU(), Own(8, 8), nn.MultiheadAttention(8, 2),
            nn.Linear(8, 8).double())

    model = network()
    found = outgrad.patch(model)
    assert (type(model[0]) is nn.Linear and [one.kind for one in found.swapped] == ["GELU"]
        and found.left_alone == [])
    outgrad.patch(model, store={"linear": "x"})
    assert type(model[0]) is nn.Linear
    found = outgrad.patch(model, store={"linear": "e4m3"})
    assert type(model[0]) is outgrad.Linear and [(one.name, one.store) for one in found.swapped] == [
        ("0", "e4m3")]
    assert [one.name for one in found.left_alone] == ["2", "3.out_proj", "4"]
    assert "is a class of its own" in found.left_alone[0].why and "float64" in found.left_alone[2].why
    assert "store e4m3: 0" in str(found).splitlines() and "(2^-4 + 3 2^-24) |x|" in str(found)
    assert model[1].store == "y+bit"
    outgrad.patch(model, store={"linear": "e5m2"})
    assert model[0].store == "e5m2"
    with pytest.raises(RuntimeError):
        outgrad.patch(model, example=torch.randn(3, 5), store={"linear": "e4m3"})
    assert model[0].store == "e5m2", "as before"
    outgrad.patch(model)
    assert model[0].store == "x" and "as in PyTorch" in repr(model[0])
    x = torch.randn(5, 8)
    assert all(torch.equal(a, b) for a, b in zip(gradients(lambda x, *_: model[0](x), x, None, None),
        gradients(F.linear, x, model[0].weight, model[0].bias)[:2], strict=True))
    outgrad.unpatch(model)
    assert type(model[0]) is nn.Linear and "store" not in vars(model[0])


def test_bytes_are_counted_on_fake_tensors_of_a_gpu():
    with report.fake("cuda", torch.bfloat16):
        found = outgrad.patch(nn.Sequential(nn.Linear(32, WIDTH), nn.GELU(), nn.Linear(WIDTH, 8)),
            example=torch.empty(ROWS, 32), store=STORE)
    assert found.total_after == ROWS * 32 + SCALE + CODES + SCALE + BITS


def test_berts_layers_keep_codes_once(tmp_path):
    """Hugging Face's: the GELU and the Linear after it. The Linears whose x something else keeps anyway are
    left alone."""
    pytest.importorskip("transformers")
    length, width, wide, layers = 64, 64, 256, 2
    sizes = {"hidden_size": width, "intermediate_size": wide, "num_hidden_layers": layers,
        "num_attention_heads": 4, "vocab_size": 128}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **sizes}))
    found, plain = (report.of(str(tmp_path), 1, length, "bf16", store=store) for store in (STORE, "y+bit"))
    alone = {one.name: one.bytes_after for one in found.swapped}
    left = {one.name for one in found.left_alone}
    for k in range(layers):
        layer = f"bert.encoder.layer.{k}"
        assert alone[f"{layer}.intermediate.intermediate_act_fn"] == length * wide // 8, "bits"
        assert alone[f"{layer}.output.dense"] == 0
        three = {f"{layer}.attention.self.{name}" for name in ("query", "key", "value")}
        if k == 0:  # between the norm and these stands a dropout
            assert {alone[name] for name in three} == {0}
        assert left >= {f"{layer}.attention.output.dense"} | (three if k > 0 else set())
    assert found.components_after["(several modules)"] >= length * (layers * wide + width)
    assert found.total_after < plain.total_after


def test_a_model_learns():
    assert_it_learns(lambda model: outgrad.patch(model, store=STORE))
