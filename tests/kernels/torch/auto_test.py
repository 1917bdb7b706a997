"""What patch chooses from an example (auto.py): never more bytes than PyTorch, and with store="auto" the
fewest that any choice gives; within the bounds that the report names."""

import copy
import itertools
import math
import random

import architectures
import pytest
import torch
import transformers
from nights import at_night
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import outgrad
from outgrad import auto, functional, patching, report, stores

ROWS, WIDTH, WIDE = 64, 64, 128
ACTIVATIONS = {nn.GELU: torch.nn.functional.gelu, nn.SiLU: torch.nn.functional.silu}


def kept_by(model, example):
    """Bytes of storages that a pass saves, parameters and buffers apart: a count of this file's own."""
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    found, alive = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and storage.nbytes():
            found[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = model(**example) if isinstance(example, dict) else model(example)
    del result
    return sum(found.values())


class LoRA(nn.Module):
    """A frozen Linear and a product of two small ones beside it."""

    def __init__(self, base, rank):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


def with_lora(model, names, rank=4):
    model.requires_grad_(False)
    for module in [*model.modules()]:
        for name, child in [*module.named_children()]:
            if name in names and type(child) is nn.Linear:
                setattr(module, name, LoRA(child, rank))
    return model


# --- Any network ----------------------------------------------------------------------------------


class Sum(nn.Module):
    """x and what each of several branches makes of it."""

    def __init__(self, *branches):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x):
        return x + sum(branch(x) for branch in self.branches)


class Product(nn.Module):
    """A gated MLP, of Linears of which some are frozen."""

    def __init__(self, linear, activation):
        super().__init__()
        self.gate, self.up, self.down, self.act = linear(), linear(), linear(), activation

    def forward(self, x):
        return self.down(self.act(self.gate(x)) * self.up(x))


KINDS = ["linear", "norm", "activation", "dropout", "pair", "sum", "row"]  # the last two of others


def network(seed, dtype):
    """A random network of few modules that patch knows, with norms whose gamma is 0, frozen Linears, dropout
    and sums between them, and an x that may have a gradient."""
    draw = random.Random(seed)
    torch.manual_seed(seed)

    def linear():
        return nn.Linear(WIDTH, WIDTH).requires_grad_(draw.random() < 0.5)

    def norm():
        found = nn.LayerNorm(WIDTH) if draw.random() < 0.5 else nn.RMSNorm(WIDTH)
        if draw.random() < 0.4:
            nn.init.zeros_(found.weight)
        return found

    def activation():
        return draw.choice([*ACTIVATIONS])()

    def part(depth):
        kind = draw.choice(KINDS[: 7 if depth else 5])
        if kind == "sum":
            return Sum(*(part(depth - 1) for _ in range(draw.randint(1, 3))))
        if kind == "row":
            return nn.Sequential(*(part(depth - 1) for _ in range(draw.randint(2, 3))))
        made = {"linear": linear, "norm": norm, "activation": activation, "dropout": lambda: nn.Dropout(0.25),
            "pair": lambda: Product(linear, activation())}
        return made[kind]()

    model = nn.Sequential(linear(), *(part(2) for _ in range(3)), linear()).to(dtype)
    return model, torch.randn(ROWS, WIDTH).to(dtype).requires_grad_(draw.random() < 0.5)


@pytest.mark.parametrize("seed", [*range(4), *at_night(range(4, 12))])
def test_no_network_keeps_more_than_pytorch_and_auto_keeps_no_more_than_a_store(seed):
    model, x = network(seed, [torch.float32, torch.bfloat16][seed % 2])
    kinds, before = [type(m) for m in model.modules()], kept_by(model, x)
    total = {}
    for store in ("y+bit", "code:2", "auto", {"gelu": "auto", "linear": "e4m3"}):
        said = outgrad.patch(model, x, store=store)
        total[str(store)] = said.total_after
        assert said.total_before == before and said.total_after == kept_by(model, x) <= before, (store, said)
        outgrad.unpatch(model)
        assert [type(m) for m in model.modules()] == kinds
    assert total["auto"] <= total["y+bit"]


@pytest.mark.parametrize("seed", range(8))
def test_no_choice_of_all_keeps_fewer_bytes(seed):
    """Against each way to give every module PyTorch's class or a store within the error, all measured."""
    model, x = network(100 + seed, torch.bfloat16)
    error = 0.04
    names = [one.name for one in outgrad.patch(model).swapped]
    options = [[auto.PYTORCHS, *(["y+bit", "parity", "code:4"]
        if isinstance(model.get_submodule(name), outgrad.modules._Activation) else ["y"])] for name in names]
    outgrad.unpatch(model)
    if not 1 <= math.prod(map(len, options)) <= 64:
        pytest.skip(f"{len(names)} modules")
    by_kind, least = stores.by_kind("y+bit"), math.inf
    for chosen in itertools.product(*options):
        decided = {model.get_submodule(name): auto.Decision(store, "")
            for name, store in zip(names, chosen, strict=True)}
        patching._patched(model, "fp32", by_kind, decided)
        least = min(least, kept_by(model, x))
        outgrad.unpatch(model)
    assert outgrad.patch(model, x, store="auto", error=error).total_after == least


# --- What it was made for -------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*architectures.TESTED[2:6], *at_night(architectures.TESTED[:2]
    + architectures.TESTED[6:])])
def test_architectures_keep_no_more_than_with_pytorch(name):
    """And as many bytes as the table says that is committed."""
    written = {row["name"]: row for row in architectures.written()["rows"]}[name]
    for store in architectures.STORES:
        said = architectures.report_of(name, "bf16", store)
        assert said.total_after <= said.total_before, store
        assert [said.total_before, said.total_after] == written["bf16"][store], store


@pytest.mark.nightly
def test_the_table_of_architectures_is_what_is_counted():
    assert [architectures.row_of(name) for name in architectures.NAMES] == architectures.written()["rows"]


def test_no_row_of_the_table_of_architectures_keeps_more():
    rows = architectures.written()["rows"]
    assert {row["name"] for row in rows} == {*architectures.NAMES} and len(rows) >= 55
    for row, kind, store in itertools.product(rows, architectures.TYPES, architectures.STORES):
        before, after = row[kind][store]
        assert after <= before and row[kind]["auto"][1] <= row[kind]["y+bit"][1], row["name"]


def vit(layers):
    """ViT-Base in bf16, of fake tensors, with LoRA on query and value, and its example."""
    from transformers.initialization import no_init_weights

    with no_init_weights():
        model = transformers.ViTForImageClassification(transformers.ViTConfig(num_hidden_layers=layers,
            hidden_dropout_prob=0.0))
    model = with_lora(model, ("q_proj", "v_proj"), rank=8).train()
    model.classifier.requires_grad_(True)
    return model, {"pixel_values": torch.empty(8, 3, 224, 224), "labels": torch.zeros(8, dtype=torch.int64)}


@pytest.mark.nightly
def test_lora_on_a_vit():
    """12 layers of ViT-Base: y + bit would keep 1.0625 of a GELU's x, which nothing else keeps."""
    ratios = {}
    for store, error in (("y+bit", None), ("auto", None), ("auto", 2.0**-5), ("auto", 2.0**-4)):
        with report.fake("cuda", torch.bfloat16), report._FusedAttention():
            said = outgrad.patch(*vit(12), store=store, error=error)
        ratios[store, error] = said.total_after / said.total_before
        chosen = {one.store for one in said.swapped if one.kind == "GELUActivation"}
        assert chosen == {("y+bit", None): set(), ("auto", None): {"code:6"}, ("auto", 2.0**-5): {"code:5"},
            ("auto", 2.0**-4): {"code:4"}}[store, error]
    print("LoRA on q and v of a ViT, of eager's bytes:", {key: round(one, 3) for key, one in ratios.items()})
    assert ratios["auto", 2.0**-4] <= 0.66 and ratios["auto", None] <= 0.69


def test_lora_on_an_mlp():
    """Of two Linears, the second frozen, whose x nothing keeps."""
    ratios = {}
    for error in (None, 2.0**-4):
        torch.manual_seed(1)
        frozen = nn.Linear(256, 64).requires_grad_(False)
        model = nn.Sequential(LoRA(nn.Linear(64, 256), 4), nn.GELU(), frozen)
        said = outgrad.patch(model.bfloat16(), torch.randn(256, 64).bfloat16(), store="auto", error=error)
        ratios[error] = said.total_after / said.total_before
    print("LoRA on an MLP, of eager's bytes:", ratios)
    assert ratios[2.0**-4] <= 0.45 and ratios[None] <= 0.51


def llamas_mlp(names):
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaMLP

    torch.manual_seed(1)
    return with_lora(LlamaMLP(LlamaConfig(hidden_size=64, intermediate_size=256)), names).bfloat16()


@pytest.mark.parametrize(("names", "needs", "ratio", "store"), [
    # a, b and, for the LoRA of down_proj, their product: of four arrays three
    (("gate_proj", "up_proj", "down_proj"), True, 0.77, "y+bit"),
    (("gate_proj", "up_proj"), True, 0.70, "y+bit"),
    # b has no gradient, so that PyTorch keeps b and x, and act(a) is nobody's: a code is less than a
    (("gate_proj",), False, 0.73, "code:6"),
    # a has no gradient: PyTorch keeps act(a) alone, where a pair would keep both
    (("up_proj",), False, 1.0, None)])
def test_lora_on_llamas_mlp_keeps_a_pair_where_that_is_least(names, needs, ratio, store):
    model, x = llamas_mlp(names), torch.randn(512, 64).bfloat16().requires_grad_(needs)
    said = outgrad.patch(model, x, store="auto")
    assert [one.store for one in said.swapped] == [store] * (store is not None)
    assert said.total_after <= ratio * said.total_before and said.total_after == kept_by(model, x)


@pytest.mark.parametrize(("names", "store", "error", "ratio", "kept"), [
    # the LoRA of down_proj keeps the product anyway: beside it one array and a bit for two
    (("gate_proj", "up_proj", "down_proj"), "auto", 2**-5, 0.55, "output"),
    # nobody keeps the product
    (("gate_proj", "up_proj"), "auto", 2**-4, 0.40, "e4m3"),
    *at_night([(("gate_proj", "up_proj", "down_proj"), "auto", 2**-4, 0.54, "e4m3"),
        (("gate_proj", "up_proj", "down_proj"), {"gated": "auto", "linear": "e4m3"}, 2**-4, 0.39, "e4m3"),
        (("gate_proj", "up_proj"), "auto", 2**-5, 0.70, None)])])
def test_lora_on_llamas_mlp_within_an_error(names, store, error, ratio, kept):
    model, x = llamas_mlp(names), torch.randn(512, 64).bfloat16().requires_grad_()
    said = outgrad.patch(model, x, store=store, error=error)
    print(f"LoRA on {', '.join(names)}, of eager's bytes: {said.total_after / said.total_before:.3f}")
    assert said.total_after <= ratio * said.total_before and said.total_after == kept_by(model, x)
    ((_, _, what),) = said.fused
    assert what == "gated pair" if kept is None else what.startswith(f"gated pair ({kept}: ")


def test_norms_whose_channels_are_all_beside_y_are_left_alone():
    """In bf16 x^ takes four bytes where x takes two."""
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64)).bfloat16()
    nn.init.zeros_(model[1].weight)
    x = torch.randn(512, 64).bfloat16()
    said = outgrad.patch(model, x)
    assert not said.swapped and said.total_after == said.total_before == kept_by(model, x)
    assert said.left_alone[0].why.startswith("PyTorch's class keeps 6")
    nn.init.ones_(model[1].weight)
    assert [one.name for one in outgrad.patch(model, x).swapped] == ["1"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_activation_before_a_dropout(dtype):
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64)).to(dtype)
    x = torch.randn(512, 64).to(dtype)
    said, n = outgrad.patch(model, x), 512 * 256
    assert [one.name for one in said.swapped] == ["2"] and [one.name for one in said.left_alone] == ["1"]
    assert said.total_after == kept_by(model, x) < said.total_before
    again = outgrad.patch(model, x, store="auto")  # of a patched model
    assert again.total_before == said.total_before
    of_gelu = {one.name: (one.store, one.bytes_after) for one in again.swapped}.get("1")
    assert of_gelu == (None if dtype == torch.float32 else ("code:6", n * 6 // 8))


def test_norms_of_one_x_are_left_alone_together():
    """Each alone would save nothing while the others keep x."""
    model = Sum(*(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64).requires_grad_(False)) for _ in range(3)))
    said = outgrad.patch(model, torch.randn(512, 64).requires_grad_())
    assert not said.swapped and len(said.left_alone) == 3 and said.total_after == said.total_before
    assert all(one.why.startswith("PyTorch's class keeps 4,096 bytes") for one in said.left_alone)


def test_norms_in_8_bits_where_the_error_allows_them():
    """The frozen Linear keeps no y."""
    def made():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64).requires_grad_(False))

    x = torch.randn(512, 64)
    for error, store in ((None, None), (0.2, None), (0.25, "e4m3")):
        model = made()
        said = outgrad.patch(model, x, store={"norm": "auto"}, error=error)
        assert [one.store for one in said.swapped] == [store] and said.total_after == kept_by(model, x)
    n = 512 * 64  # the first Linear keeps 4 n
    assert "store e4m3, chosen: 1" in str(said) and said.total_after == 4 * n + n + 4 + 4 * 512


def test_codes_that_linears_keep_anyway_are_shared_where_the_error_allows_it():
    """e4m3 of a norm's and of a GELU's y, which the Linears after them keep in e4m3."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.q, self.k = nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 64)
            self.act, self.out = nn.GELU(), nn.Linear(64, 8)

        def forward(self, x):
            x = self.norm(x)
            return self.out(self.act(self.q(x) + self.k(x)))

    x, n = torch.randn(512, 64).bfloat16(), 512 * 64
    kinds = {"gelu": "auto", "norm": "auto", "linear": "e4m3"}
    for error, of_norm, of_gelu in ((None, None, "code:6"), (2.0**-4, None, "e4m3+bit"),
            (0.25, "e4m3", "e4m3+bit")):
        model = Block().bfloat16()
        said = outgrad.patch(model, x, store=kinds, error=error)
        found = {one.name: one.store for one in said.swapped}
        assert (found["norm"], found["act"]) == (of_norm, of_gelu), error
        assert said.total_after == kept_by(model, x)
        # Linears whose x the norm keeps in its own type are PyTorch's.
        assert "out" in found and ("q" in found) == ("k" in found) == (of_norm == "e4m3")
    assert said.total_after == n + 8 + 4 * 512 + n + n // 8 + 4


# --- How far the gradients are --------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, 2.0**-6, 2.0**-4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_gradients_are_within_the_bounds_that_the_report_names(dtype, error):
    """Against float64 autograd of what the modules were; the derivative is rounded to dtype once more."""
    torch.manual_seed(1)
    frozen = nn.Linear(256, 256).requires_grad_(False)
    model = nn.Sequential(*(part for kind in ACTIVATIONS for part in (nn.Linear(256, 256), kind(), frozen)))
    model, x = model.to(dtype), 3 * torch.randn(64, 256).to(dtype)
    said = outgrad.patch(model, x, store="auto", error=error)
    for one in said.swapped:
        module = model.get_submodule(one.name)
        bounds = outgrad.bounds(module.activation, dtype, one.store)
        assert one.chosen and one.bound == str(bounds)
        assert bounds.total <= max(error or 0, outgrad.bounds(module.activation, dtype).total)
        at = torch.linspace(-6, 6, 4001).to(dtype).requires_grad_()
        (got,) = torch.autograd.grad(module(at).sum(), at)
        exact = at.detach().double().requires_grad_()
        (want,) = torch.autograd.grad(ACTIVATIONS[getattr(nn, type(module).__name__)](exact).sum(), exact)
        rounded = 0 if dtype == torch.float32 else functional.UNIT_ROUNDOFF[dtype] * 1.2
        assert (got.double() - want).abs().max() <= bounds.total + rounded
    assert len(said.swapped) == (0 if dtype == torch.float32 and error is None else 2)


def test_the_gradient_of_a_weight_is_within_what_its_bound_makes_of_it():
    """|dW - exact| <= |x|^T (|dh| T), for one activation with code:4 in a model in float32."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8).requires_grad_(False))
    x, exact = torch.randn(100, 32), copy.deepcopy(model).double()
    exact(x.double()).sum().backward()
    said = outgrad.patch(model, x, store="auto", error=2.0**-4)
    assert [one.store for one in said.swapped] == ["code:4"]
    model(x).sum().backward()
    dh = model[2].weight.double().sum(0).abs().expand(100, 64)
    room = outgrad.bounds("gelu", torch.float32, "code:4").total * dh.T @ x.double().abs()
    off = (model[0].weight.grad.double() - exact[0].weight.grad).abs()
    assert (off <= room + 1e-4).all() and off.max() > 1e-2


# --- patch ----------------------------------------------------------------------------------------


def test_a_model_that_keeps_more_because_it_is_patched_is_left_alone():
    """No storage that a module keeps tells of it: only the measurement does."""

    class Spiteful(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.act, self.last = nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)

        def forward(self, x):
            y = self.last(self.act(self.first(x)))
            return y if type(self.act) is nn.GELU else y.exp().sin().cos()

    model, x = Spiteful(), torch.randn(32, 64)
    for store in ("y+bit", "auto"):
        said = outgrad.patch(model, x, store=store)
        assert type(model.act) is nn.GELU and not said.swapped and not said.fused
        assert said.total_after == said.total_before == kept_by(model, x)
        of_ours, of_pytorchs = said.total_before + 8448, said.total_before
        assert said.left_alone[0].why == (f"with ours the model keeps {of_ours:,} bytes, with PyTorch's "
            f"classes {of_pytorchs:,}")
        assert "left alone: act (GELU): with ours" in str(said)


def test_a_block_keeps_attributes_that_settings_have_the_names_of():
    """A pair that keeps more than PyTorch is patched, measured and undone by one call."""
    model = llamas_mlp(("up_proj",))
    model.store, model.norms = "mine", 3
    said = outgrad.patch(model, torch.randn(512, 64).bfloat16())
    assert not said.swapped and not said.fused and (model.store, model.norms) == ("mine", 3)


def test_few_passes_are_made(monkeypatch):
    passes, run = [], patching._run
    monkeypatch.setattr(patching, "_run", lambda *given: passes.append(given[2]) or run(*given))
    mlp = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).bfloat16()
    x = torch.randn(32, 64).bfloat16()
    outgrad.patch(mlp, x, store="auto")
    assert len(passes) == 2, "y + bit is least where the next Linear keeps y"
    outgrad.patch(mlp.requires_grad_(False), x.requires_grad_(), store="auto")
    assert len(passes) == 5, "one more to measure a code"
    outgrad.patch(mlp)
    assert len(passes) == 5


def test_a_second_patch_measures_against_pytorch_and_keeps_what_was_set():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64), nn.SiLU())
    x = torch.randn(8, 64)
    first = outgrad.patch(model, x, store="code:2")
    model[1].tau = 2.0**-9
    again = outgrad.patch(model, x, store="code:2")
    assert (again.total_before, again.total_after) == (first.total_before, first.total_after)
    assert [one.name for one in again.swapped] == ["1", "3"] and model[1].tau == 2.0**-9
    found = model[1]._outgrad_found
    with pytest.raises(RuntimeError):
        outgrad.patch(model, torch.randn(8, 7), store="auto")
    assert model[3].store == "code:2" and model[1].tau == 2.0**-9 and model[1]._outgrad_found is found
    assert outgrad.patch(model).swapped == [] and model[3].store == "y+bit"
    outgrad.unpatch(model)
    assert type(model[3]) is nn.SiLU and not any("outgrad" in key for m in model for key in vars(m))


def test_fake_tensors_give_the_choices_of_real_ones():
    def said():
        model = nn.Sequential(nn.Linear(64, 128, dtype=torch.bfloat16), nn.GELU(), nn.Dropout(0.1),
            nn.Linear(128, 64, dtype=torch.bfloat16), nn.LayerNorm(64, dtype=torch.bfloat16))
        return outgrad.patch(model, torch.randn(32, 64, dtype=torch.bfloat16), store="auto")

    real = said()
    with FakeTensorMode():
        faked = said()
    assert [(one.name, one.store) for one in real.swapped] == [(one.name, one.store) for one in faked.swapped]
    assert real.total_after == faked.total_after


def test_a_compiled_model_is_measured_as_it_was_before():
    parts = [nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64).requires_grad_(False)]
    x = torch.randn(32, 64).bfloat16()
    plain = outgrad.patch(copy.deepcopy(nn.Sequential(*parts)).bfloat16(), x, store="auto")
    model = torch.compile(nn.Sequential(*parts).bfloat16(), backend="eager")
    said = outgrad.patch(model, x, store="auto")
    assert (said.total_before, said.total_after) == (plain.total_before, plain.total_after)
    assert [one.name for one in said.swapped] == [f"_orig_mod.{one.name}" for one in plain.swapped]
    assert torch.equal(model(x), model._orig_mod(x))


def test_what_cannot_be_chosen_is_said_and_nothing_is_patched():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.randn(4, 8)
    for given, why in (
        ({"store": "auto"}, "store 'auto' needs an example"),
        ({"store": {"norm": "auto"}}, "store 'auto' needs an example"),
        ({"example": x, "store": {"linear": "auto"}}, "'auto' is no store of linear; there are x, e4m3"),
        ({"example": x, "error": 0.1}, "error is 0.1, but no store is 'auto'"),
        *(({"example": x, "store": "auto", "error": wrong}, f"error is {wrong!r}, which takes a positive")
        for wrong in (0, -1.0, math.inf, math.nan, "0.1", True)),
    ):
        with pytest.raises(ValueError, match=why):
            outgrad.patch(model, **given)
        assert type(model[1]) is nn.GELU
    with pytest.raises(ValueError, match="'auto' is no store"):
        outgrad.GELU(store="auto")
