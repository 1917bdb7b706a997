"""An activation and the dropout behind it as one node (outgrad/gates.py): results and gradients against
float64, what is dropped, what is kept, and the blocks of models that patch makes it of."""

import math

import pytest
import torch
from functional_test import UNIT_ROUNDOFF, copies
from gates_test import EXACT, kept_by
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint
from transformers import T5Config, T5GemmaModuleConfig, Wav2Vec2Config
from transformers.models.t5.modeling_t5 import T5DenseActDense, T5DenseGatedActDense
from transformers.models.t5gemma.modeling_t5gemma import T5GemmaMLP
from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2FeedForward

import outgrad
from outgrad import blocks, functional, gates, library

formats = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
every_activation = pytest.mark.parametrize("name", library.PRODUCTS)


def numbers(dtype, *shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(*shape, generator=generator) * scale).to(dtype) for scale in (3, 1)]


@every_activation
@formats
@pytest.mark.parametrize("p", [0.1, 0.5, 0.875])
def test_results_and_gradients_are_within_their_bounds(dtype, name, p):
    x, dy = numbers(dtype, 64, 333)
    x[0, :40], x[1, :40] = 0, -30  # whose products are 0, kept or not
    x.requires_grad_()
    torch.manual_seed(7)
    y = outgrad.activation_dropout(x, p, name)
    (dx,) = torch.autograd.grad(y, x, dy)
    torch.manual_seed(7)
    factor = gates.factor_of(p, dtype)
    b = functional.dropout(torch.ones_like(x), 1 - 1 / factor).detach().double()
    assert set(b.unique().tolist()) == {0.0, factor}, "of the seed that a dropout draws"
    assert abs(factor - 1 / (1 - p)) <= UNIT_ROUNDOFF[dtype] / (1 - p)
    assert torch.equal((y == 0) & y.signbit(), b == 0), "-0 says that an element was dropped"

    wide = x.detach().double().requires_grad_()
    exact = EXACT[name](wide) * b
    (wanted,) = torch.autograd.grad(exact, wide, dy.double())
    u, h = UNIT_ROUNDOFF[dtype], torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps / 2
    assert ((y.double() - exact).abs() <= (u + 2.0**-22) * exact.abs() + 1e-6 + h).all()
    total, *_ = library.product_error(name, dtype)
    # a kept number is no smaller than the one that it was made of: what is subnormal is off by h
    off = (dx.double() - wanted).abs()
    assert (off <= dy.double().abs() * b * (total + math.sqrt(2.01 * h)) + 2 * u * wanted.abs() + h).all()
    assert (dx[b == 0] == 0).all() and off.max() > 0
    halved = dy[0, :40].double() * b[0, :40] / 2  # f'(0) = 1/2
    assert ((dx[0, :40].double() - halved).abs() <= total * b[0, :40] * dy[0, :40].double().abs() + h).all()


@formats
def test_the_mean_of_the_factor_is_1(dtype):
    """So that 1.109375, which is 1 / (1 - 0.1) in bfloat16, does not shrink what a model is trained with."""
    n, factor = 2**22, gates.factor_of(0.1, dtype)
    torch.manual_seed(3)
    y = outgrad.activation_dropout(torch.full((n,), 1.0, dtype=dtype), 0.1, "silu")
    dropped, deviation = (y == 0).double().mean().item(), math.sqrt(0.1 * 0.9 / n)
    assert abs((1 - dropped) * factor - 1) < 5 * deviation * factor
    assert dtype == torch.float16 or abs(dropped - 0.1) > 5 * deviation, "the count tells p' from p"


def test_what_is_kept_and_who_may_keep_it():
    x = torch.randn(64, 96).bfloat16().requires_grad_()
    weight = torch.randn(8, 96).bfloat16()
    size = x.numel()
    kept, y = kept_by(lambda: outgrad.activation_dropout(x, 0.25), x)
    assert kept == 2 * size + size // 8
    weight.requires_grad_()
    kept, _ = kept_by(lambda: F.linear(outgrad.activation_dropout(x, 0.25), weight), x, weight)
    assert kept == 2 * size + size // 8, "the next layer keeps the same array"
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(outgrad.activation_dropout(x, 0.25).mul_(2).sum(), x)
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        dx.sum().backward()


def test_under_checkpoints_compilers_and_transforms():
    x = torch.randn(16, 32).bfloat16().requires_grad_()

    def loss(x):
        return outgrad.activation_dropout(x, 0.25, "gelu_tanh").float().square().sum()

    def gradient(of):
        torch.manual_seed(5)
        return torch.autograd.grad(of(x), x)[0]

    plain = gradient(loss)
    assert torch.equal(plain, gradient(lambda x: checkpoint(loss, x, use_reentrant=False)))
    torch._dynamo.reset()
    assert torch.equal(plain, gradient(torch.compile(loss, fullgraph=True, backend="aot_eager")))
    torch.manual_seed(5)
    assert torch.equal(plain, torch.func.grad(loss)(x.detach()))
    torch.manual_seed(5)
    permuted = torch.randn(4, 6, 5, 3).bfloat16().to(memory_format=torch.channels_last)
    assert outgrad.activation_dropout(permuted).is_contiguous(memory_format=torch.channels_last)


def test_what_drops_nothing_or_all_and_what_is_refused():
    x = torch.randn(8, 16).bfloat16()
    for same in (outgrad.activation_dropout(x, 0.5, training=False), outgrad.activation_dropout(x, 0.0)):
        assert torch.equal(same, outgrad.gelu(x))
    assert (outgrad.activation_dropout(x, 1.0) == 0).all()
    assert gates.factor_of(2.0**-12, torch.bfloat16) is None, "1 / (1 - p) is 1 there"
    assert gates.factor_of(1 - 2.0**-17, torch.float16) is None, "and infinite there"
    assert outgrad.activation_dropout(x[:0]).shape == (0, 16)
    with pytest.raises(ValueError, match="'mish' of torch.bfloat16; there are gelu, gelu_tanh, silu of"):
        outgrad.activation_dropout(x, 0.1, "mish")
    with pytest.raises(ValueError, match="'gelu' of torch.float32; there are .*, and relu"):
        outgrad.activation_dropout(x.float())
    with pytest.raises(ValueError, match="activation_dropout: p is 2, a probability is needed"):
        outgrad.activation_dropout(x, 2)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu", "relu"])
def test_what_becomes_of_a_nan_and_an_infinity(activation):
    """Of a product it is PyTorch's NaN, of dropout +0."""
    x = torch.tensor([math.nan, math.inf]).bfloat16().repeat(40)
    for p in (0.5, 1.0, 1e-9):
        nan, infinity = outgrad.activation_dropout(x, p, activation).view(-1, 2).unbind(1)
        if p == 0.5 and activation != "relu":
            assert nan.isnan().all() and infinity.isnan().any() and not (infinity == 0).any()
        else:
            assert not infinity.isnan().any() and (nan == 0).any() == (infinity == 0).any() == (p >= 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_relu_is_exact(dtype):
    """The bits of its parts, in 16 bits and in float32, without a bit and a seed."""
    x, dy = numbers(dtype, 64, 96)
    x[0, :9], x[1, :9], x[2, :9] = 0, math.nan, math.inf
    x.requires_grad_()
    found = []
    for function in (lambda: outgrad.activation_dropout(x, 0.3, "relu"),
            lambda: outgrad.dropout(torch.relu(x), 0.3)):
        torch.manual_seed(4)
        kept, y = kept_by(function, x)
        found.append((y, *torch.autograd.grad(y, x, dy, create_graph=True)))
        assert kept == y.nbytes + (8 if len(found) == 2 else 0)
    (y, dx), (other, wanted) = found
    assert torch.equal(y.nan_to_num(), other.nan_to_num()) and torch.equal(y.isnan(), other.isnan())
    told = ~x.isnan()  # a dropped NaN is 0, to which no gradient leads
    assert torch.equal(dx[told], wanted[told])
    assert torch.equal(torch.autograd.grad(dx.sum() + 0 * x.nan_to_num().sum(), x)[0], torch.zeros_like(x))
    for p, training in ((0.0, True), (0.5, False)):
        same = outgrad.activation_dropout(x, p, "relu", training)
        assert torch.equal(same.nan_to_num(), torch.relu(x).nan_to_num())
    assert (outgrad.activation_dropout(x, 1.0, "relu") == 0).all()


# --- Models ---------------------------------------------------------------------------------------


class Own(nn.Module):
    """In one expression, and in statements that a return ends."""

    def __init__(self):
        super().__init__()
        self.act, self.drop = nn.SiLU(), nn.Dropout(0.5)
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        y = self.last(self.drop(self.act(self.first(x))))
        z = self.act(y)
        z = self.drop(z)
        g = self.act(x)
        return self.ended(z) + self.drop(g) + g

    def ended(self, z):
        return z


def sequential():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.5), nn.Linear(32, 16), nn.SiLU(),
        nn.Dropout(0.5))


def of_wav2vec2():
    return Wav2Vec2FeedForward(Wav2Vec2Config(hidden_size=16, intermediate_size=32, activation_dropout=0.5,
        hidden_dropout=0.0))


def trained(model, x):
    torch.manual_seed(11)
    model.zero_grad()
    y = model(x)
    y.float().square().sum().backward()
    return [y.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("made, nodes", [(Own, 2), (sequential, 2), (of_wav2vec2, 1)])
def test_blocks_of_models(made, nodes, monkeypatch):
    torch.manual_seed(2)
    model, x, calls = made().bfloat16(), torch.randn(24, 16).bfloat16(), []
    kind, function = type(model), gates.activation_dropout
    monkeypatch.setattr(gates, "activation_dropout", lambda *of: calls.append(of) or function(*of))
    said = outgrad.patch(model)
    assert not calls and not any(blocks.DROPPED in what for _, _, what in said.fused), "only where asked for"
    by_parts = trained(model, x)
    said = outgrad.patch(model, x, store={"gated": "output"})
    assert "activation and dropout (output: |g - f'(a)| <= 0.01" in str(said)
    assert said.total_after < said.total_before
    calls.clear()
    found = trained(model, x)
    assert len(calls) == nodes
    for ours, theirs in zip(found, by_parts, strict=True):  # of the same seeds, so that the same is dropped
        assert (ours - theirs).float().norm() <= 0.05 * theirs.float().norm()
    for loaded in copies(model):
        assert all(map(torch.equal, trained(loaded, x), found))
    calls.clear()
    assert not model.eval()(x).isnan().any() and not calls
    trained(model.train().float(), x.float())
    assert not calls, "float32 has no such fit"
    model.bfloat16()
    drop = next(one for one in model.modules() if isinstance(one, outgrad.Dropout))
    handle = drop.register_forward_hook(lambda *_: None)
    trained(model, x)
    assert len(calls) == (0 if made is not sequential else 1), "a hook sees the parts"
    handle.remove()
    outgrad.unpatch(model)
    assert type(model) is kind and not any("outgrad" in key for one in model.modules() for key in vars(one))


def of_t5_with_relu():
    return T5DenseActDense(T5Config(d_model=16, d_ff=32, dropout_rate=0.5))


def sequential_with_relu():
    return nn.Sequential(nn.Linear(16, 32, bias=False), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(32, 16, bias=False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("made", [of_t5_with_relu, sequential_with_relu])
def test_relu_and_dropout_are_one_node_without_being_asked_for(made, dtype):
    torch.manual_seed(2)
    model, x = made().to(dtype), torch.randn(24, 16).to(dtype)
    plain = made().to(dtype)
    plain.load_state_dict(model.state_dict())
    next(one for one in plain.modules() if isinstance(one, nn.Dropout)).__class__ = outgrad.Dropout
    said = outgrad.patch(model, x)
    assert [what for *_, what in said.fused] == [blocks.DROPPED]
    assert said.total_after == kept_by(lambda: model(x), *model.parameters())[0] == x.nbytes * 3
    assert all(map(torch.equal, trained(model, x), trained(plain, x)))
    for loaded in copies(model):
        assert all(map(torch.equal, trained(loaded, x), trained(model, x)))
    outgrad.unpatch(model)
    assert type(model) is type(plain)
    inplace = nn.Sequential(nn.Linear(16, 32), nn.ReLU(inplace=True), nn.Dropout())
    assert outgrad.patch(inplace).fused == [], "which overwrites its input"


def test_what_an_mlp_keeps():
    """4.85 MB where the activation keeps y beside what the next layer keeps, and 2.75 where it does not."""
    n, width = 4096, 64
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1),
        nn.Linear(4 * width, width))
    x, own = torch.randn(n, width).bfloat16(), list(model.bfloat16().parameters())
    outgrad.patch(model)
    inputs, y, bits = 2 * n * width, 8 * n * width, 4 * n * width // 8
    assert kept_by(lambda: model(x), *own)[0] == inputs + 2 * y + bits + 8 == 4_849_672
    assert outgrad.patch(model, x).total_after == 4_718_600, "with PyTorch's GELU, which keeps no bits"
    said = outgrad.patch(model, x, store={"gated": "output"})
    assert kept_by(lambda: model(x), *own)[0] == said.total_after == inputs + y + bits == 2_752_512


def test_auto_makes_the_node_where_the_error_allows_it():
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64)).bfloat16()
    x = torch.randn(512, 64).bfloat16()
    of_code = outgrad.patch(model, x, store="auto")
    assert [one.store for one in of_code.swapped if one.name == "1"] == ["code:6"]
    said = outgrad.patch(model, x, store="auto", error=2**-5)
    assert blocks.DROPPED in said.fused[0][2] and said.total_after < of_code.total_after
    assert said.total_after == kept_by(lambda: model(x), *model.parameters())[0]
    without = nn.Sequential(nn.Linear(64, 64), nn.Mish(), nn.Dropout()).bfloat16()  # Mish has no such fit
    assert blocks.DROPPED not in str(outgrad.patch(without, x, store="auto", error=2**-5))
    in_float32 = outgrad.patch(model.float(), x.float(), store="auto", error=2**-5)
    assert in_float32.total_after == kept_by(lambda: model(x.float()), *model.parameters())[0]
    assert in_float32.total_after < in_float32.total_before


def test_under_autocast():
    model, x = sequential(), torch.randn(24, 16)
    outgrad.patch(model, store={"gated": "output"})
    with torch.autocast("cpu", torch.bfloat16):
        kept, y = kept_by(lambda: model(x), *model.parameters(), x)
        found = trained(model, x)
    assert y.dtype == torch.bfloat16
    outgrad.patch(model)
    with torch.autocast("cpu", torch.bfloat16):
        more, _ = kept_by(lambda: model(x), *model.parameters(), x)
        by_parts = trained(model, x)
    assert more > kept
    for ours, theirs in zip(found, by_parts, strict=True):
        assert (ours - theirs).float().norm() <= 0.05 * theirs.float().norm()


# --- A dropout behind a pair ----------------------------------------------------------------------


def of_t5():
    return T5DenseGatedActDense(T5Config(d_model=16, d_ff=32, feed_forward_proj="gated-gelu",
        dropout_rate=0.5))


def of_t5_gemma():
    return T5GemmaMLP(T5GemmaModuleConfig(hidden_size=16, intermediate_size=32, dropout_rate=0.5))


class Shown(nn.Module):
    """Something else reads the product too, or it is dropped in one expression."""

    def __init__(self):
        super().__init__()
        self.act, self.drop, self.up, self.gate, self.down = (nn.SiLU(), nn.Dropout(0.5), nn.Linear(16, 32),
            nn.Linear(16, 32), nn.Linear(32, 16))

    def forward(self, x):
        y = self.down(self.drop(self.up(x) * self.act(self.gate(x))))
        z = self.act(self.gate(y)) * self.up(y)
        shown = self.drop(z)
        return self.down(shown) + z.mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("made", [of_t5, of_t5_gemma, Shown])
def test_a_dropout_behind_a_pair_drops_a_factor(made, dtype):
    """So that the product is nobody's: a, b, of which some are 0, and the input are all that is kept."""
    torch.manual_seed(2)
    model, x = made().to(dtype), torch.randn(24, 16).to(dtype)
    plain, tensors = made().to(dtype), [x, *model.parameters()]
    plain.load_state_dict(model.state_dict())
    for part in plain.children():  # the parts of ours, each by itself
        if isinstance(part, nn.Dropout):
            part.__class__ = outgrad.Dropout
    wanted = trained(plain, x)
    pairs = {"recompute": 2, "output": 2, "e4m3": 1} if dtype != torch.float32 else {"recompute": 4}
    for store, size in pairs.items():
        said = outgrad.patch(outgrad.unpatch(model), store={"gated": store})
        assert sum("gated pair" in what for _, _, what in said.fused) == 1
        if made is not Shown:
            kept, _ = kept_by(lambda: model(x), *tensors)
            more = {"recompute": 0, "output": size * 24 * 32 + 24 * 32 // 8, "e4m3": 8}[store]
            # of a, b or b and what stands in its place, and the seed
            of_factors = 2 * size * 24 * 32 if store != "output" else size * 24 * 32
            assert kept == of_factors + more + 8, store
        for ours, theirs in zip(trained(model, x), wanted, strict=True):
            least = 1e-5 if dtype == torch.float32 else 0.1
            assert (ours - theirs).float().norm() <= least * theirs.float().norm(), store
    for loaded in copies(model):
        assert all(map(torch.equal, trained(loaded, x), trained(model, x)))
    drop = next(one for one in model.modules() if isinstance(one, outgrad.Dropout))
    seen = []
    drop.register_forward_hook(lambda module, given, result: seen.append(given[0]))
    with torch.no_grad():
        model(x)
        a, b = [one(x) for one in model.children() if getattr(one, "in_features", 0) == 16]
    assert seen and not any(torch.equal(seen[0], one) for one in (a, b)), "a hook sees the product"


def test_t5_changes_the_type_before_its_last_linear_where_that_is_another():
    model = of_t5().bfloat16()
    model.wo.float()
    x = torch.randn(24, 16).bfloat16()
    wanted = trained(model, x)
    outgrad.patch(model)
    found = trained(model, x)
    assert found[0].dtype == wanted[0].dtype == torch.float32
    y = outgrad.unpatch(model).eval()(x)
    outgrad.patch(model)
    assert (model(x) - y).norm() <= 0.01 * y.norm()


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
def test_a_weight_that_is_computed_is_so_as_often_as_in_t5(weight_dtype):
    """Each time that it is asked for, by a launch or more."""

    class Counted(nn.Module):
        count = 0

        def forward(self, weight):
            self.count += 1
            return 2 * weight

    def count(change):
        counted, model = Counted(), of_t5().bfloat16()
        model.wo.to(weight_dtype)
        change(model)
        parametrize.register_parametrization(model.wo, "weight", counted)
        counted.count = 0
        model(torch.randn(24, 16).bfloat16())
        return counted.count

    assert count(outgrad.patch) == count(lambda model: None)


def test_packed_pairs_are_dropped_behind_the_product():
    """Where a and b are one matrix, b by itself would be kept beside it."""

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.act, self.drop, self.both, self.down = (nn.SiLU(), nn.Dropout(0.5), nn.Linear(16, 64),
                nn.Linear(32, 16))

        def forward(self, x):
            a, b = self.both(x).chunk(2, dim=-1)
            return self.down(self.drop(self.act(a) * b))

    model, x = Packed().bfloat16(), torch.randn(24, 16).bfloat16()
    outgrad.patch(model)
    kept, _ = kept_by(lambda: model(x), x, *model.parameters())
    assert kept == 2 * 24 * (64 + 32) + 8, "both, the dropped product and a seed"
