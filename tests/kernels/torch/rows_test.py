"""Rows of a Linear's input that are drawn at random (outgrad/rows.py): the mean and the variance of the
weight's gradient, which rows are drawn, that all else is PyTorch's, what is kept and who shares it, and the
published method's bias."""

import hashlib
import itertools
import math

import ledger
import pytest
import torch
import torch.nn.functional as F
from functional_test import UNIT_ROUNDOFF, assert_it_learns, copies
from linear_test import FORMATS, formats, gradients
from torch import nn
from torch.utils.checkpoint import checkpoint

import outgrad
from outgrad import fp8, library, report, rows, stores
from outgrad_peers import wta_crs

E4M3 = library.FP8["e4m3"]
STORE = "rows:30"
# of 20 draws
DIGEST = "ee569cf3e338e3615658c87cd9ee486fefbe1db015233e520fa2bdea597247a2"


@pytest.fixture(autouse=True)
def one_thread():
    """Many small operations on larger arrays, for which threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def seeds(count, seed=1):
    return torch.randint(0, 2**62, (count, 1), generator=torch.Generator().manual_seed(seed))


def probabilities(weights, k):
    """p_i = min(1, w_i / t) with the sum k, in float64: rows are added to the sure ones until none of the
    others has more than 1."""
    w, sure = weights.double(), torch.zeros(len(weights), dtype=torch.bool)
    while True:
        p = torch.where(sure, 1.0, w * (k - sure.sum()) / w[~sure].sum())
        if not (more := p > 1).any():
            return p
        sure |= more


def variance(weights, k, g):
    """Of sum g_i / p_i over the rows drawn, for each element of g, [n, ..]: the formula of rows.py, with
    lengths in exact integers."""
    p = probabilities(weights, k)
    sure = p >= 1
    pieces, piece = k - int(sure.sum()), int(weights[~sure].sum())
    found = of_h = of_h2 = sum1 = sum2 = torch.zeros_like(g[0])
    behind, place = 0, 0
    for i in range(len(p)):
        if sure[i] or weights[i] == 0:
            continue
        end = piece - place % piece  # to the end of this piece
        length, v = int(weights[i]) * pieces, g[i] / p[i]
        place += length
        if length < end:
            sum1, sum2 = sum1 + length / piece * v, sum2 + length / piece * v**2
            continue
        a, b = (end / piece, (length - end) / piece) if length > end else (0.0, 0.0)
        if length == end:
            sum1, sum2 = sum1 + length / piece * v, sum2 + length / piece * v**2
        of_r, of_r2 = (behind * of_h + sum1) / (1 - a), (behind * of_h2 + sum2) / (1 - a)
        square_of_mean = (behind**2 * of_h2 + 2 * behind * of_h * sum1 + sum1**2) / (1 - a) ** 2
        found = (found + (1 - a) ** 2 * (of_r2 - square_of_mean)
            + a * (1 - a - b) * (v**2 - 2 * v * of_r + of_r2))
        q = a / (1 - b)
        of_h, of_h2 = q * of_r + (1 - q) * v, q * of_r2 + (1 - q) * v**2
        behind, sum1, sum2 = b, torch.zeros_like(found), torch.zeros_like(found)
    return found


def with_replacement(weights, k, g):
    """The variance if the rows that are not sure are drawn with replacement, as WTA-CRS draws them."""
    p = probabilities(weights, k)
    g, p, drawn = g[p < 1], p[p < 1], k - (p == 1).sum()
    return (g**2 / p[:, None, None]).sum(0) - g.sum(0) ** 2 / drawn


def problem(n, spread, seed=1):
    """x and dy of n rows, whose norms vary by exp(spread)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator) * torch.exp(spread * torch.randn(n, 1, generator=generator))
    return x, torch.randn(n, 4, generator=generator)


PROBLEMS = [(40, 12, 1.0), (40, 12, 0.0), (40, 30, 0.5), (40, 39, 0.3), (200, 60, 2.0), (7, 1, 1.0)]
problems = pytest.mark.parametrize(("n", "k", "spread"), PROBLEMS)


def estimates(x, dy, k, draws):
    """dW' for so many seeds, [draws, m, columns], in float64, and dy_i^T x_i, [n, m, columns]."""
    weights, _ = rows.weights_of(x)
    index, over = rows.draw(weights, seeds(draws), k)
    g = dy.double()[:, :, None] * x.double()[:, None]
    taken = torch.zeros(draws, len(x), dtype=torch.float64).scatter_(1, index, over)
    return weights, g, (taken @ g.flatten(1)).view(draws, *g.shape[1:])


# --- Mean and variance ----------------------------------------------------------------------------


@problems
def test_the_mean_of_the_gradient_is_the_gradient(n, k, spread):
    """Over 10^4 draws, by Bernstein's inequality for each element: all of them together leave their interval
    with a probability below 10^-6."""
    draws, x, dy = 10_000, *problem(n, spread)
    weights, g, found = estimates(x, dy, k, draws)
    wanted, var, p = g.sum(0), variance(weights, k, g), probabilities(weights, k)
    sizes = (g / p[:, None, None]).abs().sort(0, descending=True).values
    largest = sizes[:k].sum(0) + wanted.abs()  # of |dW' - dW|
    chance = math.log(2 * wanted.numel() * len(PROBLEMS) / 1e-6)
    reach = largest * chance / (3 * draws)
    reach = reach + (reach**2 + 2 * var * chance / draws).sqrt()
    assert ((found.mean(0) - wanted).abs() <= reach + 1e-12 * sizes[0]).all()
    assert (reach < 0.13 * var.sqrt() + 0.003 * largest).all()


@problems
def test_the_variance_is_that_of_the_formula(n, k, spread):
    """Of each element within 5%, over 40,000 draws. And it is at most that of drawing with replacement, and
    within the bound in words."""
    x, dy = problem(n, spread)
    weights, g, found = estimates(x, dy, k, 40_000)
    var = variance(weights, k, g)
    off = ((found - g.sum(0)).square().mean(0) / var - 1).abs()
    assert off.max() < 0.05
    assert (var <= with_replacement(weights, k, g) * (1 + 1e-12)).all()
    norms, of_dy = x.double().norm(dim=1), dy.double().norm(dim=1)
    bound = norms.sum() * (norms * of_dy**2).sum() / k
    assert var.sum() <= bound * (1 + 2.0**-10)
    print(f"{n} rows, {k} drawn: {var.sum() / with_replacement(weights, k, g).sum():.3f} of the variance "
        f"with replacement, {var.sum() / bound:.3f} of the bound")


def test_the_published_method_is_biased_and_ours_is_not():
    """Where a few rows have more than 0.999 of all shares, the others are never drawn: the mean of dW' lacks
    them. With a gradient that they alone have, all of it is lost."""
    x, dy = torch.full((64, 3), 1e-4), torch.ones(64, 2)
    x[:4], dy[:4, 1] = 10.0, 0.0
    k, generator = 20, torch.Generator().manual_seed(1)
    g = dy.double()[:, :, None] * x.double()[:, None]
    wanted, published = g.sum(0), torch.zeros(2, 3, dtype=torch.float64)
    for _ in range(100):
        index, factors = wta_crs.draw(x.norm(dim=1), dy.norm(dim=1), k, generator)
        assert sorted(index.tolist()) == [0, 1, 2, 3] and (factors == 1).all()
        published += (factors[:, None, None] * g[index]).sum(0) / 100
    assert (published[1] == 0).all() and (wanted[1] > 0.005).all()
    weights, _, found = estimates(x, dy, k, 1000)
    deviation = (variance(weights, k, g) / 1000).sqrt()
    assert ((found.mean(0) - wanted).abs() <= 6 * deviation + 1e-9).all()
    assert 6 * deviation[1].max() + 1e-9 < 0.05 * wanted[1].min(), "0 is far out of the interval"


def test_the_published_method_where_it_drops_nothing():
    """It is what we say that it is: unbiased, with the variance of drawing with replacement."""
    x, dy = problem(40, 1.0)
    norms, ones = x.norm(dim=1), torch.ones(40)
    generator, g = torch.Generator().manual_seed(1), dy.double()[:, :, None] * x.double()[:, None]
    found = []
    for _ in range(4000):
        index, factors = wta_crs.draw(norms, ones, 12, generator)
        assert len(index) == 12
        found.append((factors[:, None, None] * g[index]).sum(0))
    found, weights = torch.stack(found), rows.weights_of(x)[0]
    var = with_replacement(weights, 12, g)
    assert ((found.mean(0) - g.sum(0)).abs() < 5 * (var / 4000).sqrt()).all()
    assert (found.var(0) / var - 1).abs().max() < 0.2
    assert (variance(weights, 12, g) < 0.95 * var).all()


# --- Which rows are drawn -------------------------------------------------------------------------


def test_random_words_are_those_of_the_kernels():
    for seed in (0, 1, 2**61 + 12345):
        first, second, *_ = rows._words(torch.tensor([seed]), 9)
        assert [(a << 32 | b) % 2**62 for a, b in zip(first.tolist(), second.tolist(), strict=True)] == [
            library.seed_at(seed, 4 * counter) for counter in range(9)]


WEIGHTS = {
    "mixed": [5, 1, 9, 100, 3, 3, 3, 2, 50, 7],
    "equal": [4] * 10,
    "one of all": [2**30] + [1] * 9,
    "zeros": [0, 3, 0, 0, 5, 0, 1, 0, 0, 0],
    "nothing": [0] * 10,
    "halves": [1, 1, 2, 2, 4, 4, 8, 8, 16, 16],
}


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
def test_k_rows_are_drawn_each_once_with_its_probability(weights):
    """For each k, 2000 draws; frequencies within 6 deviations."""
    weights, draws = torch.tensor(weights), 2000
    n, positive = len(weights), int((weights > 0).sum())
    for k in range(1, n + 1):
        index, over = rows.draw(weights, seeds(draws, k), k)
        assert index.shape == over.shape == (draws, k) and index.min() >= 0 and index.max() < n
        counts = torch.zeros(draws, n).scatter_add_(1, index, torch.ones(draws, k))
        assert counts.max() == 1, "no row twice"
        if positive <= k:
            assert (counts[:, weights > 0] == 1).all() and (over == 1).all()
            continue
        p = probabilities(weights, k)
        torch.testing.assert_close(over, 1 / p[index], rtol=1e-12, atol=0)
        deviation = (p * (1 - p) / draws).sqrt()
        assert ((counts.double().mean(0) - p).abs() <= 6 * deviation + 1e-12).all()


def test_weights_are_norms_of_rows_in_any_order_of_their_sums():
    for dtype, columns in itertools.product(FORMATS, (1, 7, 1024, 4096)):
        generator = torch.Generator().manual_seed(columns)
        x = (torch.randn(50, columns, generator=generator)
            * torch.exp2(4 * torch.randn(50, 1, generator=generator))).to(dtype)
        weights, no_number = rows.weights_of(x)
        norms = x.double().norm(dim=1)
        found, wanted = weights / weights.max(), norms / norms.max()
        assert weights.max() == 2**30 and no_number == 0
        assert (found >= wanted * (1 - 2.0**-8)).all() and (found <= wanted * (1 + 2.0**-8)).all()
        for other in (x.flip(1), x.t().contiguous().t(), x[:, torch.randperm(columns, generator=generator)]):
            assert torch.equal(rows.weights_of(other)[0], weights)
    x = torch.randn(5, 8)
    for power in (-60, 60, 120):
        assert torch.equal(rows.weights_of(x * 2.0**power)[0], rows.weights_of(x)[0])
    assert (rows.weights_of(x * 2.0**-140)[0] > 0).all(), "each row that is not 0 can be drawn"
    x[1] = 0
    assert ((rows.weights_of(x)[0] == 0) == torch.tensor([False, True, False, False, False])).all()
    given = torch.tensor([0.0, 1.0, 2.0, 4.0, 8.0])
    weights, _ = rows.weights_of(torch.ones(5, 8), given)
    assert weights.tolist() == [1, 2**27, 2**28, 2**29, 2**30]


def test_the_same_rows_are_drawn_on_every_machine():
    """And for a batch of seeds as for each of them, and whatever the number of threads."""
    generator = torch.Generator().manual_seed(1)
    # the same on every machine, which randn is not
    x = (torch.randint(-1000, 1000, (500, 6), generator=generator)
        << torch.randint(0, 12, (500, 1), generator=generator)).float()
    weights, _ = rows.weights_of(x)
    index, over = rows.draw(weights, seeds(20), 150)
    digest = hashlib.sha256(index.numpy().tobytes() + over.numpy().tobytes()).hexdigest()
    assert digest == DIGEST
    torch.set_num_threads(3)
    for k, seed in enumerate(seeds(20)):
        kept, which = rows.sample(x, None, seed, 150, torch.float32)
        assert torch.equal(which.long(), index[k]) and torch.equal(kept, x[which] * over[k].float()[:, None])


def test_nothing_waits_for_a_device():
    """On fake tensors each look at a value is an error."""
    with report.fake("cuda", torch.bfloat16):
        weights, no_number = rows.weights_of(torch.empty(50, 64), torch.empty(50))
        index, over = rows.draw(weights, torch.empty(1, dtype=torch.int64), 15)
        assert index.device.type == over.device.type == no_number.device.type == "cuda"
        with pytest.raises(Exception, match="item|data-dependent|local_scalar_dense"):
            int(index[0])


# --- The Linear -----------------------------------------------------------------------------------


def of_its_rows(x, dy, store, seed, given=None):
    """dW of a Linear whose generator had this seed."""
    torch.manual_seed(seed)
    percent, name = stores.OF_LINEARS[store]
    of_x, of_dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    k = math.ceil(len(of_x) * percent / 100)
    kept, index = rows.sample(of_x, given, torch.randint(0, 2**62, (1,)), k,
        torch.float32 if name else x.dtype)
    if name:
        of = library.FP8[name]
        kept = fp8.decode(*fp8.encode(kept, of), of, dy.dtype).view(kept.shape)
    return of_dy[index.long()].T @ kept


@pytest.mark.parametrize("store", ["rows:1", STORE, "rows:99", "rows:30+e4m3", "rows:50+e5m2"])
@formats
def test_all_else_is_pytorchs(dtype, store):
    torch.manual_seed(1)
    x, weight, bias = torch.randn(2, 5, 24).to(dtype), torch.randn(7, 24).to(dtype), torch.randn(7).to(dtype)
    for given, with_bias in ((x, bias), (x, None), (x[0, 0], bias), (x.transpose(0, 1), bias), (x[:0], bias)):
        torch.manual_seed(5)
        got = gradients(lambda *args: outgrad.linear(*args, store=store), given, weight, with_bias)
        want = gradients(F.linear, given, weight, with_bias)
        assert all(torch.equal(a, b)
            for a, b in zip((got[0], got[1], *got[3:]), (want[0], want[1], *want[3:]), strict=True))
        assert got[2].shape == want[2].shape and got[2].dtype == dtype
        dy = torch.linspace(-1, 1, want[0].numel()).view(want[0].shape).to(dtype)
        assert torch.equal(got[2], of_its_rows(given, dy, store, 5))


@pytest.mark.parametrize("name", library.FP8)
def test_rows_in_8_bits_are_within_the_bound_of_the_rows(name):
    """Of x' = x / p, as for all of x; the product's own rounding is in it."""
    u, of, tightest = UNIT_ROUNDOFF[torch.bfloat16], library.FP8[name], 0.0
    for spread in (0.0, 0.5, 2.0):
        x, dy = (t.bfloat16() for t in problem(200, spread))
        found = of_its_rows(x, dy, f"rows:30+{name}", 1).double()
        torch.manual_seed(1)
        kept, index = rows.sample(x, None, torch.randint(0, 2**62, (1,)), 60, torch.float32)
        scale, of_dy = fp8.scale_of(kept, of, fp8.LEAST).item(), dy[index.long()].double()
        moved = (fp8.UNIT_ROUNDOFF[of] + 3 * u) * kept.double().abs() + fp8.HALF_SUBNORMAL[of] / scale
        bound = of_dy.abs().T @ moved + u * found.abs()
        bound += 62 * 2.0**-24 * (of_dy.abs().T @ (kept.double().abs() + moved))
        off = (found - of_dy.T @ kept.double()).abs()
        assert (off <= bound).all()
        tightest = max(tightest, (off / bound).max().item())
    assert tightest > 0.15


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_a_row_over_its_probability_that_exceeds_float32_is_not_saturated(dtype):
    x = (torch.tensor([3e37, 1.0]) * torch.ones(20, 1)).to(dtype)
    for store in ("rows:5", "rows:5+e4m3", "rows:5+e5m2"):
        dw = gradients(lambda *args, of=store: outgrad.linear(*args, store=of), x,
            torch.ones(1, 2).to(dtype), None, torch.ones(20, 1).to(dtype))[2]
        assert not dw[0, 0].isfinite() and (dw[0, 1] - 20).abs() <= 20 / 8, store


def test_what_is_no_number_is_in_the_gradient():
    """Also where its row is not drawn, and where so many are none that not all could be."""
    weight = torch.randn(3, 6)
    ones = torch.ones(10, 3)

    def dw(x, dy=ones, **options):
        return gradients(lambda *args: outgrad.linear(*args, store=STORE, **options), x, weight, None, dy)[2]

    assert torch.isfinite(dw(torch.randn(10, 6))).all()
    for value, some in itertools.product((math.nan, math.inf, -math.inf), (1, 10)):
        x = torch.randn(10, 6)
        x[:some, 2] = value
        assert dw(x).isnan().all()
        for row in range(10):
            dy = ones.clone()
            dy[row, 1] = value
            found = dw(torch.randn(10, 6), dy)
            assert found[1].isnan().all() or not torch.isfinite(found[1]).any()
            assert torch.isfinite(found[[0, 2]]).all()
        given = ones[:, 0].clone()
        given[3] = value
        assert dw(torch.randn(10, 6), row_weights=given).isnan().all()
    assert dw(torch.randn(10, 6), row_weights=-ones[:, 0]).isnan().all()
    x, weight = torch.full((10, 6), math.inf), weight.requires_grad_()
    other = outgrad.linear(x, weight)  # whose codes of all rows are shared, in which an infinity is finite
    shared = outgrad.linear(x, weight, store="rows:30+e4m3")
    assert torch.isfinite(torch.autograd.grad(shared.nan_to_num(0).sum() + 0 * other.sum().nan_to_num(0),
        weight)[0]).all()
    assert (dw(torch.zeros(10, 6)) == 0).all()


def test_weights_of_rows_say_how_often_they_are_drawn():
    """With weights that the gradient's rows have, the variance is less, and the mean the same."""
    x, dy = problem(40, 0.0)
    dy *= torch.exp(2 * torch.randn(40, 1, generator=torch.Generator().manual_seed(3)))
    weight, given = torch.randn(4, 6), dy.norm(dim=1)
    g = dy.double()[:, :, None] * x.double()[:, None]
    plain, steered = (variance(rows.weights_of(x, of)[0], 12, g).sum() for of in (None, given))
    assert steered < 0.3 * plain
    found = [gradients(lambda *args: outgrad.linear(*args, store=STORE, row_weights=given), x, weight, None,
        dy)[2] for _ in range(300)]
    mean, deviation = torch.stack(found).double().mean(0), (variance(rows.weights_of(x, given)[0], 12, g)
        / 300).sqrt()
    assert ((mean - g.sum(0)).abs() < 6 * deviation).all()
    torch.manual_seed(2)
    one = gradients(lambda *args: outgrad.linear(*args, store=STORE, row_weights=given), x, weight, None,
        dy)[2]
    assert torch.equal(one, of_its_rows(x, dy, STORE, 2, given))


def kept_by(call):
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = call()
    return y, {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}


@formats
def test_what_is_kept(dtype):
    """ceil(n P / 100) rows and 4 bytes for each; for a weight without a gradient, nothing of x, and no number
    is drawn."""
    x, weight = torch.randn(50, 64).to(dtype), torch.randn(16, 64).to(dtype)
    for frozen, store in itertools.product((False, True), (STORE, "rows:1", "rows:31+e4m3")):
        percent, name = stores.OF_LINEARS[store]
        k = math.ceil(50 * percent / 100)
        weight.requires_grad_(not frozen)
        state = torch.get_rng_state()
        y, kept = kept_by(lambda: outgrad.linear(x.requires_grad_(), weight, store=store))  # noqa: B023
        of_rows = k * 64 * (1 if name else dtype.itemsize) + 4 * k + (4 if name else 0)
        assert sum(kept.values()) == weight.numel() * dtype.itemsize + (0 if frozen else of_rows)
        assert torch.equal(torch.get_rng_state(), state) == frozen
        y.sum().backward()
        torch.testing.assert_close(x.grad, torch.ones(50, 16, dtype=dtype) @ weight.detach())
        x.grad = None
    weight.requires_grad_()
    with torch.no_grad():
        torch.manual_seed(1)
        outgrad.linear(x, weight, store=STORE)
        after = torch.get_rng_state()
    torch.manual_seed(1)
    outgrad.linear(x, weight, store=STORE)
    assert torch.equal(torch.get_rng_state(), after), "as a checkpoint's first pass, so its second"


class Three(nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.norm = norm or nn.Identity()
        self.q, self.k, self.v = nn.Linear(64, 8), nn.Linear(64, 8), nn.Linear(64, 16)

    def forward(self, x):
        y = self.norm(x + 1)
        return torch.cat([self.q(y), self.k(y), self.v(y)], -1)


def test_linears_that_read_one_x_keep_its_rows_once():
    model, x = Three(), torch.randn(50, 64)
    found = outgrad.patch(model, example=x, store={"linear": STORE})
    assert found.total_after == 15 * 64 * 4 + 15 * 4
    outgrad.patch(model, store={"linear": "rows:30+e4m3"})
    found = outgrad.patch(model, example=x, store={"linear": "rows:30+e4m3"})
    assert found.total_after == 15 * 64 + 15 * 4 + 4
    torch.manual_seed(1)
    model(x).sum().backward()
    for module in (model.q, model.k, model.v):
        want = of_its_rows(x + 1, torch.ones(50, module.out_features), "rows:30+e4m3", 1)
        assert torch.equal(module.weight.grad, want)


def test_codes_that_a_norm_keeps_of_all_rows_are_read():
    """They cost nothing, and have no variance. Rows in x's own type are drawn from y itself."""
    model, x = Three(nn.LayerNorm(64)), torch.randn(50, 64)
    of_norm = 50 * 64 + 4 + 4 * 50
    stored = outgrad.patch(model, example=x, store={"norm": "e4m3", "linear": "rows:30+e4m3"})
    assert stored.total_after == of_norm + 4
    model(x).sum().backward()
    found = model.q.weight.grad
    outgrad.patch(model, store={"norm": "e4m3", "linear": "e4m3"})
    model.zero_grad()
    model(x).sum().backward()
    assert torch.equal(model.q.weight.grad, found)
    apart = outgrad.patch(model, example=x, store={"norm": "e4m3", "linear": STORE})
    assert apart.total_after == of_norm + 15 * 64 * 4 + 15 * 4


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("store", [STORE, "rows:30+e4m3"])
def test_checkpoints_draw_the_same_rows(reentrant, store):
    """And dropout after it drops the same elements. The rows of an x that another Linear reads outside are
    that one's, or, where a reentrant checkpoint hides that it is the same x, others."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 32), nn.Dropout(0.5),
        nn.Linear(32, 32))
    outgrad.patch(model, store={"linear": store})
    x, outer = torch.randn(50, 64), outgrad.Linear(64, 32, store=store)

    def passed(forward):
        leaf = x.clone().requires_grad_()
        model.zero_grad()
        torch.manual_seed(3)
        outside = outer(leaf)
        (forward(leaf) + outside).square().sum().backward()
        return [model[0].weight.grad, leaf.grad, *(p.grad.clone() for p in [*model.parameters()][1:])]

    want = passed(model)
    got = passed(lambda leaf: checkpoint(model, leaf, use_reentrant=reentrant))
    assert all(torch.equal(a, b) for a, b in zip(got[1:], want[1:], strict=True))
    assert torch.equal(got[0], want[0]) != reentrant


@pytest.mark.parametrize("codes_are_made", ["inside", "outside"])
def test_a_checkpoint_draws_where_codes_would_be_shared(codes_are_made):
    """In its forward pass nothing is kept, and in the second one the codes of others are alive, or not any
    more: both passes have to keep alike."""
    norm, linear = outgrad.LayerNorm(64, store="e4m3"), outgrad.Linear(64, 32, store="rows:50+e4m3")
    other, x = outgrad.Linear(64, 32, store="e4m3"), torch.randn(50, 64, requires_grad=True)
    inside = codes_are_made == "inside"

    def gradient(forward, x):
        linear.zero_grad()
        torch.manual_seed(3)
        outside = None if inside else other(x)
        y = forward(x)
        if outside is not None:
            outside.sum().backward()  # frees its codes
        y.sum().backward()
        return linear.weight.grad

    before = norm if inside else torch.nn.Identity()
    with torch.no_grad():
        given = before(x)
    want = gradient(lambda x: linear(given.clone()), x)
    got = gradient(lambda x: checkpoint(lambda x: linear(before(x)), x, use_reentrant=False), x)
    assert torch.equal(got, want)


def test_compiled():
    torch._dynamo.reset()
    model, x = Three(), torch.randn(50, 64)
    outgrad.patch(model, store={"linear": STORE})
    model.k.weight.requires_grad_(False)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for n in (50, 7, 20):
        torch.manual_seed(4)
        y = compiled(x[:n])
        assert torch.equal(y, model(x[:n]))
        y.sum().backward()
        for name in ("q", "v"):
            weight = model.get_submodule(name).weight
            mean = torch.ones(n, weight.shape[0]).T @ (x[:n] + 1)
            assert 0 < (weight.grad - mean).norm() < mean.norm()
            weight.grad = None


def test_a_graph_of_autograd_has_the_rows_and_not_x():
    with report.fake("cpu", torch.bfloat16):
        model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))
        outgrad.patch(model, store={"gelu": "code:4", "linear": STORE})
        kept = ledger.kept_compiled(model, torch.empty(50, 64))
    assert kept == 15 * (64 + 256) * 2 + 2 * 15 * 4 + 50 * 256 // 2 + 50 * 8 * 2, "the last is the result"


def test_bytes_are_counted_on_fake_tensors_of_a_gpu():
    with report.fake("cuda", torch.bfloat16):
        found = outgrad.patch(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)),
            example=torch.empty(50, 64), store={"gelu": "code:4", "linear": "rows:30+e4m3"})
    assert found.total_after == 15 * (64 + 256) + 2 * (15 * 4 + 4) + 50 * 256 // 2


def test_under_autocast():
    """Rows are kept in autocast's type, rounded once from x, and dW is in the weight's."""
    torch.manual_seed(1)
    module, x = outgrad.Linear(64, 8, store=STORE), torch.randn(50, 64)
    with torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(1)
        y, kept = kept_by(lambda: module(x))
        assert y.dtype == torch.bfloat16 and torch.equal(y, F.linear(x, module.weight, module.bias))
    assert sum(kept.values()) == 15 * 64 * 2 + 15 * 4 + 64 * 8 * 2, "the last is the weight's copy"
    y.sum().backward()
    torch.manual_seed(1)
    of_rows, _ = rows.sample(x, None, torch.randint(0, 2**62, (1,)), 15, torch.bfloat16)
    want = torch.ones(15, 8, dtype=torch.bfloat16).T @ of_rows
    assert module.weight.grad.dtype == torch.float32 and torch.equal(module.weight.grad, want.float())


def test_second_derivatives_and_transforms():
    x, weight = torch.randn(10, 8, requires_grad=True), torch.randn(3, 8, requires_grad=True)
    y = outgrad.linear(x, weight, store=STORE).square()
    dw = torch.autograd.grad(y.sum(), weight, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="outgrad.linear: the second derivative"):
        torch.autograd.grad(y.sum() + dw.sum(), x)
    torch.manual_seed(1)
    found = torch.func.grad(lambda w: outgrad.linear(x.detach(), w, store=STORE).sum())(weight.detach())
    assert torch.equal(found, of_its_rows(x.detach(), torch.ones(10, 3), STORE, 1))


def test_what_cannot_be_is_named():
    x, weight = torch.randn(10, 8), torch.randn(3, 8)
    words = r"e4m3, e5m2, rows:1 to rows:99, and these with \+e4m3 or \+e5m2"

    def given(row_weights, store=STORE):
        return lambda: outgrad.linear(x, weight, store=store, row_weights=row_weights)

    for call, kind, why in (
        *((lambda store=store: outgrad.linear(x, weight, store=store), ValueError,
        f"outgrad.linear: store is '{store}', none of {words}")
        for store in ("rows:0", "rows:100", "rows:030", "rows:2.5", "rows", "rows:30%", "x")),
        (lambda: outgrad.Linear(4, 4, store="rows:100"), ValueError,
        f"outgrad.Linear: store: 'rows:100' is no store of linear; there are x, {words}"),
        (lambda: outgrad.patch(nn.Linear(4, 4), store={"linear": "rows:0"}), ValueError,
        "'rows:0' is no store of linear"),
        (lambda: outgrad.linear(torch.randn(10, 7), weight, store=STORE), ValueError,
        r"outgrad.linear: x of shape \(10, 7\) and weight of shape \(3, 8\) have no product"),
        (lambda: outgrad.linear(torch.tensor(1.0), weight, store=STORE), ValueError,
        r"outgrad.linear: x of shape \(\) and weight"),
        (given(torch.ones(9)), ValueError,
        r"outgrad.linear: row_weights has to be of a floating type and of shape \(10,\) on cpu"),
        (given(torch.ones(10, dtype=torch.int64)), ValueError, "outgrad.linear: row_weights has to be"),
        (given([1.0] * 10), ValueError, "outgrad.linear: row_weights has to be"),
        (given(torch.ones(10).to_sparse()), ValueError, "outgrad.linear: row_weights has to be"),
        (given(torch.ones(10), "e4m3"), ValueError,
        "outgrad.linear: row_weights are for rows:1 to rows:99, store is 'e4m3'"),
    ):
        with pytest.raises(kind, match=why):
            call()


# --- Modules and patch ----------------------------------------------------------------------------


def test_modules_and_reports_speak_of_a_variance():
    module, x = outgrad.Linear(24, 7, store="rows:30+e4m3"), torch.randn(10, 24)
    words = "E |dW' - dW|^2 <= sum |x| sum |x| |dy|^2 / k with k = 30% of the rows"
    assert words in repr(module) and "(2^-4 + 3 u) |x| + 2^-10 / scale" in repr(module)
    for other in copies(module):
        assert other.store == "rows:30+e4m3"
        torch.manual_seed(1)
        other(x).sum().backward()
        assert torch.equal(other.weight.grad, of_its_rows(x, torch.ones(10, 7), "rows:30+e4m3", 1))
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU()).bfloat16()
    text = str(outgrad.patch(model, example=x[:, :8].bfloat16(), store={"linear": STORE}))
    assert words in text and "storing x moves it by at most 2^-8 |x| + 2^-133" in text
    assert "store rows:30: 0" in text.splitlines()
    outgrad.unpatch(model)
    assert type(model[0]) is nn.Linear and "store" not in vars(model[0])


@pytest.mark.parametrize("store", [STORE, "rows:30+e4m3"])
def test_a_model_learns(store):
    assert_it_learns(lambda model: outgrad.patch(model, store={"linear": store}))
