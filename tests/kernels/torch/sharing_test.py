"""ActNN's bits shared between layers (outgrad_peers/sharing.py, quantisers.share and actnn_auto_errors): the
errors that are compared are those that drawing shows, the shares are the best ones and keep the mean, they
are kept with the model, and a step that cannot be shared by is refused."""

import copy
import itertools
import math

import numpy
import pytest
import torch
from stores_test import slope
from torch import nn
from torch.utils.checkpoint import checkpoint

import outgrad_peers
from outgrad_peers import quantisers, sharing

LEVELS = quantisers.ACTNN_LEVELS
torch.set_num_threads(1)


# --- Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ("gelu", "silu"))
def test_the_error_is_the_mean_of_what_drawing_gives(name):
    """The mean is that of 300 drawings at some of the levels. Groups differ in width, and in their gradients;
    the last group is not full."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5 * 256 + 70, generator=generator) * torch.logspace(-1, 1, 5 * 256 + 70)
    dy = torch.randn(len(x), generator=generator) * torch.linspace(2, 0.1, len(x))
    exact = dy.double() * slope(name, x)
    sums = []
    torch.manual_seed(1)
    for average in (1, 1.5, 2, 3, 4.5):  # with more bits, the evaluation of f' in fp32 is seen
        mean, variance = quantisers.actnn_auto_errors(x, lambda x: slope(name, x).float(), average)
        assert mean.shape == variance.shape == x.shape and (variance >= 0).all()
        sums.append((dy.double().square() * (mean.double().square() + variance)).sum().item())
        total, drawn = 0, []
        for _ in range(300):
            leaf = x.clone().requires_grad_()
            dx = torch.autograd.grad(outgrad_peers.activation(name, leaf, "actnn:auto:2", average), leaf,
                dy)[0]
            drawn.append((dx.double() - exact).square().sum().item())
            total = total + (dx.double() - exact)
        off = total / 300 - dy.double() * mean
        assert (
            (off.abs() <= 6 * (dy.double().square() * variance / 300).sqrt() + 2e-3 * dy.abs()
            * variance.sqrt().clamp(min=0.05)).all())
        deviation = numpy.std(drawn, ddof=1) / math.sqrt(len(drawn))
        assert abs(numpy.mean(drawn) - sums[-1]) < 5 * deviation + 1e-4 * sums[-1]
    assert sums == sorted(sums, reverse=True)


@pytest.mark.parametrize("scale", (1.0, 1e-6))
def test_errors_arrive_as_by_a_linear_map(scale):
    """J^T from x to the weight of a Linear without bias whose input has rows r at right angles: |J^T e|^2 is
    the sum over rows of |e_r|^2 |r|^2, for all signs of e. With a bias beside it, the sums of e over the rows
    are added, squared."""
    torch.manual_seed(1)
    rows = torch.diag(torch.linspace(0.5, 3, 32))
    weights = rows.square().sum(1).double()
    layer = nn.Linear(32, 256)
    nn.init.ones_(layer.bias)  # there f'' falls everywhere, so that all means have one sign
    x = layer(rows)
    gelu = outgrad_peers.GELU(store="actnn:auto:2")
    dy = scale * torch.randn(32, 256, generator=torch.Generator().manual_seed(1))
    seen = sharing._Seen("", gelu, x, gelu(x))
    got = seen.errors(dy, [layer.weight], torch.Generator().manual_seed(0))
    with_bias = seen.errors(dy, [layer.weight, layer.bias], torch.Generator().manual_seed(0))
    known = []
    for bits in LEVELS:
        mean, variance = (each.double()
            for each in quantisers.actnn_auto_errors(x.detach(), seen.derivative, bits))
        known.append((dy.double() * mean, dy.double().square() * variance))
    of_noise = (known[2][1].sum(1) * weights).sum() / known[2][1].sum()
    for bits, (bias, variance), found, found_with_bias in zip(LEVELS, known, got.tolist(), with_bias.tolist(),
            strict=True):
        of_bias = (bias.square().sum(1) * weights).sum() / bias.square().sum() if bits <= 4 else of_bias
        assert found == pytest.approx((of_bias * bias.square().sum() + of_noise * variance.sum()).item(),
            rel=1e-5)
        if bits <= 4:
            more = bias.sum(0).square().sum().item()
            noise = variance.sum().item()  # of the same, in the mean over signs
            assert more + 0.7 * noise < found_with_bias - found < more + 1.4 * noise
    assert seen.errors(0 * dy, [layer.weight], torch.Generator()).eq(0).all()
    assert gelu.store == "actnn:auto:2" and seen.numbers == 32 * 256


# --- Shares ---------------------------------------------------------------------------------------


def hull_at(errors, bits):
    """The greatest convex function below a row of errors, at these bits."""
    at = [numpy.interp(bits, (LEVELS[i], LEVELS[k]), (errors[i], errors[k]))
        for i, k in itertools.combinations(range(len(LEVELS)), 2) if LEVELS[i] <= bits <= LEVELS[k]]
    return min(at)


@pytest.mark.parametrize("kind", ("law", "convex", "any"))
def test_no_shares_within_the_budget_are_better(kind):
    """Against all 15^3 shares in half bits."""
    generator = torch.Generator().manual_seed(1)
    every = torch.cartesian_prod(*[torch.tensor(LEVELS, dtype=torch.float64)] * 3)
    index = ((every - 1) * 2).long()
    for k in range(30):
        sizes = torch.randint(1, 9, (3,), generator=generator) * 256
        if kind == "law":
            scale = torch.exp(3 * torch.randn(3, 1, generator=generator, dtype=torch.float64))
            errors = scale / (2 ** torch.tensor(LEVELS, dtype=torch.float64) - 1) ** 2
        else:
            falls = torch.exp(2 * torch.randn(3, 14, generator=generator, dtype=torch.float64))
            falls = falls.sort(1, descending=True)[0] if kind == "convex" else falls
            errors = falls.flip(1).cumsum(1).flip(1)
            errors = torch.cat((errors, torch.zeros(3, 1)), 1) + 0.01
        budget = [1.2, 2.0, 3.0, 5.7, 8.0][k % 5] * sizes.sum().item()
        bits = quantisers.share(errors, sizes, budget)
        assert bits.min() >= 1 and bits.max() <= 8 and (bits * sizes).sum().item() == pytest.approx(budget,
            rel=1e-12)
        assert (bits * 2 != (bits * 2).round()).sum() <= 1, "one share alone is no multiple of half a bit"
        within = (every * sizes).sum(1) <= budget * (1 + 1e-12)
        least = errors[torch.arange(3), index].sum(1)[within].min().item()
        assert (sum(hull_at(row, b) for row, b in zip(errors.tolist(), bits.tolist(), strict=True)) <= least
            * (1 + 1e-9))


def test_tensors_alike_share_alike_and_one_without_error_gets_the_least():
    law = 1 / (2 ** torch.tensor(LEVELS, dtype=torch.float64) - 1) ** 2
    sizes = torch.tensor([256, 256, 512])
    assert quantisers.share(law * sizes[:, None], sizes, 2 * 1024).tolist() == [2, 2, 2]
    assert quantisers.share(torch.stack((law, 0 * law, law)), torch.tensor([256] * 3), 768 * 3).tolist() == [
        4, 1, 4]
    torch.testing.assert_close(quantisers.share(law[None], sizes[:1], 640.0),
        torch.tensor([2.5], dtype=torch.float64))


# --- Models ---------------------------------------------------------------------------------------


class Model(nn.Module):
    """Two GELUs, of which the second, with its own weight, has little to say."""

    def __init__(self, weight=1e-3, checkpointed=None):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(16, 256), nn.GELU())
        self.second = nn.Sequential(nn.Linear(16, 512), nn.GELU())
        self.weight, self.checkpointed = weight, checkpointed

    def forward(self, x):
        run = (lambda f, x: f(x)) if self.checkpointed is None else (lambda f, x: checkpoint(f, x,
            use_reentrant=self.checkpointed))
        return run(self.first, x).sum(1) + self.weight * run(self.second, x).sum(1)


def model_and_x(store="actnn:auto:2", **kwargs):
    torch.manual_seed(1)
    model = Model(**kwargs)
    outgrad_peers.patch(model, store=store)
    return model, torch.randn(32, 16)


def shared(model, x):
    return outgrad_peers.share_bits(model, lambda: model(x).square().sum())


def gradient(model, x, seed=1):
    torch.manual_seed(seed)
    return (
        torch.cat([g.flatten()
        for g in torch.autograd.grad(model(x).square().sum(), list(model.parameters()))]).double())


@pytest.mark.parametrize("store", ("actnn:auto:2", "actnn:auto:3"))
def test_layers_share_and_the_mean_stays(store):
    model, x = model_and_x(store)
    average = int(store[-1])
    y = model(x)
    before = [gradient(model, x, seed) for seed in range(20)]
    bits = shared(model, x)
    assert list(bits) == ["first.1", "second.1"] and bits["first.1"] > average > bits["second.1"] >= 1
    assert (256 * bits["first.1"] + 512 * bits["second.1"]) / 768 == pytest.approx(average, rel=1e-12)
    assert torch.equal(model(x), y)
    # Without ours, by autograd of PyTorch's own.
    exact = gradient(outgrad_peers.unpatch(copy.deepcopy(model)), x)
    after = [gradient(model, x, seed) for seed in range(20)]
    distance = lambda gradients: sum((g - exact).square().sum() for g in gradients)  # noqa: E731
    assert distance(after) < 0.5 * distance(before)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        for name in ("first", "second"):
            getattr(model, name)[1](torch.randn(32, 256 if name == "first" else 512, requires_grad=True))
    codes = sum(t.numel() for t in kept if t.dtype == torch.uint8 and t.dim() == 2)
    # Less than one bit of one group is left over of each tensor.
    assert codes <= 32 * 768 * average / 8 < codes + 2 * 32


def test_a_layer_without_gradient_gets_the_least_and_all_without_keep_theirs():
    model, x = model_and_x(weight=0.0)
    bits = shared(model, x)
    assert bits == {"first.1": 4.0, "second.1": 1.0}
    assert outgrad_peers.share_bits(model, lambda: (0 * model(x)).sum()) == bits
    assert outgrad_peers.share_bits(model, lambda: model.first(x).sum()) == {"first.1": 2.0,
        "second.1": 1.0}, "alone it shares with nobody"


def test_sharing_draws_no_more_than_a_step_leaves_no_gradient_and_repeats():
    model, x = model_and_x()
    torch.manual_seed(1)
    model(x)
    state = torch.get_rng_state()
    torch.manual_seed(1)
    first = shared(model, x)
    assert torch.equal(torch.get_rng_state(), state) and all(p.grad is None for p in model.parameters())
    other, _ = model_and_x()
    torch.manual_seed(1)
    with torch.no_grad():
        assert outgrad_peers.share_bits(other, lambda: 2.0**40 * other(x).square().sum()) == first
    assert not any(m._forward_hooks for m in model.modules())


def test_a_layer_whose_error_grows_on_its_way_gets_more():
    """The layers see the same x and the same dy. Then the input of one is a hundredth, and so is its weight's
    gradient."""
    model, x = model_and_x("actnn:auto:3")
    with torch.no_grad():
        for weight_or_bias in ("weight", "bias"):
            getattr(model.second[0], weight_or_bias).view(2, 256, -1)[:] = getattr(model.first[0],
                weight_or_bias).view(256, -1)
    run = lambda factor: lambda: model.first(factor * x).sum() + model.second(x).sum()  # noqa: E731
    assert list(outgrad_peers.share_bits(model, run(1.0)).values()) == [3.0, 3.0]
    with torch.no_grad():
        model.first[0].weight *= 100
    bits = outgrad_peers.share_bits(model, run(0.01))
    assert bits["first.1"] <= 2 and bits["second.1"] >= 3.5


def test_checkpointing_and_reloading_give_the_same_bits():
    model, x = model_and_x()
    torch.manual_seed(2)
    bits = shared(model, x)
    want = gradient(model, x)
    other, _ = model_and_x(checkpointed=False)
    torch.manual_seed(2)
    assert shared(other, x) == bits
    state = model.state_dict()
    assert {name for name in state if "bits" in name} == {"first.1._outgrad_bits", "second.1._outgrad_bits"}
    fresh, _ = model_and_x()
    assert not torch.equal(gradient(fresh, x), want)
    assert str(fresh.load_state_dict(state)) == "<All keys matched successfully>"
    for one in (fresh, copy.deepcopy(model)):
        assert [one.first[1]._outgrad_bits, one.second[1]._outgrad_bits] == list(bits.values())
        assert torch.equal(gradient(one, x), want)


def test_a_state_that_cannot_be_loaded_is_refused():
    model, x = model_and_x()
    shared(model, x)
    state = model.state_dict()
    for store in ("actnn:2", "y+bit"):
        other, _ = model_and_x(store)
        with pytest.raises(RuntimeError, match='Unexpected key.*"first.1._outgrad_bits"'):
            other.load_state_dict(state)
    for bad in (0.5, 9.0, math.nan):
        other, _ = model_and_x()
        with pytest.raises(RuntimeError,
                match=f"first.1._outgrad_bits is {bad}, which is no mean of 1 to 8 bits"):
            other.load_state_dict(state | {"first.1._outgrad_bits": torch.tensor(bad)})
        assert other.first[1]._outgrad_bits is None


def test_another_store_ends_it():
    model, x = model_and_x()
    bits = shared(model, x)
    assert f"bits={bits['first.1']:.3g}" in repr(model.first[1])
    outgrad_peers.patch(model, store={"gelu": "actnn:auto:2"})
    assert model.first[1]._outgrad_bits == bits["first.1"]
    outgrad_peers.patch(model, store="actnn:auto:3")
    assert model.first[1]._outgrad_bits is None and "bits" not in repr(model.first[1])
    shared(model, x)
    outgrad_peers.unpatch(model)
    assert not any("bits" in name for name in (*vars(model.first[1]), *model.state_dict()))


def test_a_compiled_model_follows_its_shares():
    torch._dynamo.reset()
    model, x = model_and_x()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    before = gradient(compiled, x)
    bits = outgrad_peers.share_bits(model, lambda: compiled(x).square().sum())
    assert bits["first.1"] > 2 > bits["second.1"]
    assert torch.equal(gradient(compiled, x), gradient(model, x)) and not torch.equal(gradient(model, x),
        before)


# --- Refused --------------------------------------------------------------------------------------


def test_what_cannot_be_shared_is_refused_and_changes_nothing():
    model, x = model_and_x()
    bits = shared(model, x)

    def refused(error, why, closure=lambda: None, of=model):
        with pytest.raises(error, match=why):
            outgrad_peers.share_bits(of, closure)
        if of is model:
            assert ({"first.1": model.first[1]._outgrad_bits, "second.1": model.second[1]._outgrad_bits}
                == bits)
        assert not any(m._forward_hooks for m in model.modules())

    refused(TypeError, "outgrad_peers.share_bits: a module is needed, not int", of=3)
    refused(ValueError, "outgrad_peers.share_bits: no activation of the model has the store actnn:auto:K",
        of=nn.Sequential(nn.GELU(), outgrad_peers.GELU(store="actnn:2")))
    for loss in (lambda: model(x), lambda: model(x).sum().backward(), lambda: 3.0):
        refused(TypeError, "outgrad_peers.share_bits: closure gave no tensor of one number", loss)
    for loss in (lambda: model(x).sum().detach(), lambda: model.first[0](x).sum(), lambda: torch.ones(())):
        refused(RuntimeError, "the loss has no gradient that comes through first.1, second.1", loss)
    refused(RuntimeError, "first.1: x or its gradient is not finite", lambda: (math.inf * model(x)).sum())
    refused(RuntimeError, "first.1: x or its gradient is not finite", lambda: model(x * math.nan).sum())
    refused(KeyError, "mine", lambda: {}["mine"])
    refused(RuntimeError, "no gradient that comes through",
        lambda: model_and_x(checkpointed=True)[0](x.requires_grad_()).sum())
