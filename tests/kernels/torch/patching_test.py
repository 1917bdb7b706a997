"""patch and unpatch of Hugging Face's models with random weights, and their training; and the page
docs/train_with_it.md, whose code runs here."""

import copy
import functools
import inspect
import math
import os
import pathlib
import pickle
import re
import statistics

import pytest
import torch
import transformers
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrize
from transformers import activations
from transformers.activations import ReLUSquaredActivation
from transformers.models.bloom.modeling_bloom import BloomGelu
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import outgrad
from outgrad import originals, patching

SOURCES = pathlib.Path(os.environ["OUTGRAD_SOURCE_DIR"])
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    "vocab_size": 97, "max_position_embeddings": 66}


def model_of(name, dropout=0.0, seed=1):
    torch.manual_seed(seed)
    if name == "gpt2":
        config = transformers.GPT2Config(vocab_size=97, n_positions=64, n_embd=64, n_layer=2, n_head=4,
            resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout)
        return transformers.GPT2LMHeadModel(config)
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    if name == "vit":
        size = {key: SMALL[key]
            for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
        return transformers.ViTForImageClassification(transformers.ViTConfig(image_size=16, patch_size=4,
            **size, **rates))
    kinds = {"bert": (transformers.BertForMaskedLM, transformers.BertConfig),
        "roberta": (transformers.RobertaForMaskedLM, transformers.RobertaConfig)}
    return kinds[name][0](kinds[name][1](**SMALL, **rates))


def example_of(name):
    generator = torch.Generator().manual_seed(2)
    if name == "vit":
        return {"pixel_values": torch.randn(3, 3, 16, 16, generator=generator),
            "labels": torch.tensor([0, 1, 0])}
    tokens = torch.randint(3, 97, (3, 40), generator=generator)
    return {"input_ids": tokens, "labels": tokens.roll(1, 1)}


def step(model, example):
    model.zero_grad()
    loss = model(**example).loss
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


models = pytest.mark.parametrize("name", ["bert", "gpt2", "roberta", "vit"])


class ExactNorm(nn.LayerNorm):
    """In float64, and rounded once in each direction."""

    def forward(self, x):
        return (
            nn.functional.layer_norm(x.double(), self.normalized_shape, self.weight.double(),
            self.bias.double(), self.eps).to(x.dtype))


class ExactGELU(nn.Module):
    def __init__(self, approximate):
        super().__init__()
        self.approximate = approximate

    def forward(self, x):
        return nn.functional.gelu(x.double(), approximate=self.approximate).to(x.dtype)


def with_exact_modules(model):
    """A copy whose norms and GELUs are as exact as results in fp32 can be."""
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.LayerNorm:
                child.__class__ = ExactNorm
            elif type(child).__name__ in ("GELUActivation", "NewGELUActivation"):
                setattr(module, name,
                    ExactGELU("tanh" if type(child).__name__ == "NewGELUActivation" else "none"))
    return model


@models
def test_the_first_gradient_is_that_of_the_model(name):
    """To 3e-7. Where a model's gradient is less certain than that, so that modules without any error but a
    last rounding move it further too: hardly more than those do, and from the one in float64 no further than
    PyTorch's is."""
    model, example = model_of(name).train(), example_of(name)
    _, exact = step(copy.deepcopy(model).double(),
        {key: t.double() if t.is_floating_point() else t for key, t in example.items()})
    _, want = step(model, example)
    _, best = step(with_exact_modules(model), example)
    outgrad.patch(model)
    _, got = step(model, example)
    relative = lambda a, b: ((a.double() - b.double()).norm() / b.double().norm()).item()  # noqa: E731
    distance, least, own, ours = relative(got, want), relative(best, want), relative(want, exact), relative(
        got, exact)
    print(f"{name}: ours differs from PyTorch's by {distance:.2g}, that of exact modules by {least:.2g}; "
          # fmt: skip
          f"from float64's PyTorch's by {own:.2g}, ours by {ours:.2g} (first gradients, relative, L2)")
    assert 0 < distance <= max(3e-7, 1.25 * least)
    assert ours <= max(3e-7, 1.25 * own)


@models
def test_unpatch_gives_everything_back(name):
    model, example = model_of(name).eval(), example_of(name)
    kinds = [(key, id(module), type(module)) for key, module in model.named_modules()]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    before = model(**example).loss
    outgrad.patch(model)
    assert [type(m) for m in model.modules()] != [kind for _, _, kind in kinds]
    assert list(model.state_dict()) == list(state)
    outgrad.unpatch(model)
    assert [(key, id(module), type(module)) for key, module in model.named_modules()] == kinds
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert torch.equal(before, model(**example).loss)


@models
def test_the_report_counts_what_the_model_keeps(name):
    model, example = model_of(name, dropout=0.1).train(), example_of(name)

    def kept():
        own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
        found, alive = {}, []

        def pack(tensor):
            if tensor.untyped_storage().data_ptr() not in own:
                found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
                alive.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = model(**example)
        return sum(found.values()), result

    state = torch.get_rng_state()
    before, _ = kept()
    torch.set_rng_state(state)
    report = outgrad.patch(model, example)
    assert torch.equal(torch.get_rng_state(), state) and model.training
    after, _ = kept()
    assert report.total_before == before and report.total_after == after < before
    assert len(report.swapped) >= 5 and str(report).startswith(f"{len(report.swapped)} modules patched")
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_bytes_of_modules_are_what_each_alone_keeps():
    """A layer of BERT, in bytes that can be told by hand. What its GELU and norms give is kept by the
    Linears after them too; what the embeddings' norm gives by nobody else, for dropout comes next."""
    model, example = model_of("bert", dropout=0.1).train(), example_of("bert")
    rows = {row.name: (row.bytes_before, row.bytes_after) for row in outgrad.patch(model, example).swapped}
    tokens, columns, wide = 3 * 40, 64, 128
    norm = 4 * tokens * columns + 8 * tokens, 4 * tokens
    layer = "bert.encoder.layer.0"
    assert rows[f"{layer}.intermediate.intermediate_act_fn"] == (4 * tokens * wide, tokens * wide // 8)
    assert rows[f"{layer}.attention.output.LayerNorm"] == norm
    assert rows[f"{layer}.output.LayerNorm"] == norm
    assert rows[f"{layer}.output.dropout"] == (4 * tokens * columns, 8)
    assert rows["bert.embeddings.LayerNorm"] == (norm[0], norm[1] + 4 * tokens * columns)
    # never called: the fused attention drops by itself
    assert rows[f"{layer}.attention.self.dropout"] == (0, 0)


def test_a_patched_model_that_is_copied_or_saved_is_patched_and_can_be_unpatched(tmp_path):
    model, example = model_of("bert").eval(), example_of("bert")
    kinds, plain = {name: type(m) for name, m in model.named_modules()}, model(**example).logits
    outgrad.patch(model)
    patched = model(**example).logits
    torch.save(model, tmp_path / "model")
    for other in (copy.deepcopy(model), torch.load(tmp_path / "model", weights_only=False)):
        assert torch.equal(other(**example).logits, patched)
        outgrad.unpatch(other)
        assert {name: type(m) for name, m in other.named_modules()} == kinds
        assert torch.equal(other(**example).logits, plain)
    assert isinstance(model.bert.embeddings.LayerNorm, outgrad.LayerNorm)


def test_activations_of_hugging_face_are_told_by_name():
    report = outgrad.patch(model_of("gpt2"))
    assert [one.kind for one in report.swapped].count("NewGELUActivation") == 2 and not report.left_alone
    from transformers.activations import ACT2CLS

    x = torch.linspace(-6, 6, 1001, requires_grad=True)
    patched = {}
    for name, kind in ACT2CLS.items():
        kind, options = kind if isinstance(kind, tuple) else (kind, {})
        before = kind(**options)
        if before(x).dtype != x.dtype or list(before.parameters()):
            continue
        want = before(x)
        (slope,) = torch.autograd.grad(want.sum(), x)
        report = outgrad.patch(before)
        if report.swapped:
            patched[name] = type(before).__name__
            y = before(x)
            assert (y - want).abs().max() <= 2.0**-20, name
            assert (torch.autograd.grad(y.sum(), x)[0] - slope).abs().max() <= 1e-4, name
    expected = {"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_accurate", "quick_gelu", "silu",
        "swish", "mish"}
    assert expected <= patched.keys(), patched
    assert not {"relu", "tanh", "sigmoid", "gelu_10"} & patched.keys(), patched


def test_activations_with_parameters_that_have_no_fit_are_left_alone():
    for module, why in (
        (nn.Softplus(beta=2), "beta=2"),
        (nn.ELU(alpha=0.5), "alpha=0.5"),
        (nn.SiLU(inplace=True), "overwrites its input"),
    ):
        report = outgrad.patch(nn.Sequential(module))
        assert not report.swapped and why in report.left_alone[0].why
    for module in (nn.Softplus(), nn.ELU(), nn.SiLU(), nn.Mish(), nn.GELU("tanh")):
        model = nn.Sequential(module)
        assert len(outgrad.patch(model).swapped) == 1 and type(model[0]).__module__ == "outgrad.modules"
        assert type(outgrad.unpatch(model)[0]).__module__.startswith("torch.nn")


def test_llama_keeps_fewer_bytes_and_its_gradients():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(vocab_size=199, hidden_size=64, intermediate_size=176, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64)
    model = LlamaForCausalLM(config)
    tokens = torch.randint(0, 199, (2, 32))
    example = {"input_ids": tokens, "labels": tokens}

    def gradient():
        return torch.cat(
            [g.flatten() for g in torch.autograd.grad(model(**example).loss, [*model.parameters()])])

    before = gradient()
    report = outgrad.patch(model, example)
    kinds = [one.kind for one in report.swapped]
    assert (kinds.count("LlamaRMSNorm"), kinds.count("SiLUActivation") + kinds.count("SiLU")) == (5,
        2), report
    assert report.total_after < 0.75 * report.total_before
    after = gradient()
    assert ((after - before).norm() / before.norm()).item() <= 1e-6
    outgrad.unpatch(model)
    assert torch.equal(gradient(), before)


def test_layers_of_pytorchs_decoder_hide_their_activation():
    """Copies, as nn.TransformerDecoder makes them, have it as a module, and F.relu as the attribute."""
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0, nn.GELU()), 2)
    assert not isinstance(model.layers[0].activation, nn.Module)
    x = torch.randn(3, 2, 8)
    expected = torch.autograd.grad(model(x, x).square().sum(), model.parameters())
    for example in (None, (x, x)):
        report = outgrad.patch(model, example)
        assert "layers.1.norm3" in [one.name for one in report.swapped]
        found = torch.autograd.grad(model(x, x).square().sum(), model.parameters())
        torch.testing.assert_close(found, expected)


class ChangesInPlace(nn.Module):
    """As XLM does with what padding has; here the norm is one node with the sum before it."""

    def __init__(self):
        super().__init__()
        self.norm, self.other, self.linear = nn.LayerNorm(8), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.norm(x + x.sin())
        y *= 2
        return self.linear(self.other(y))


def test_a_module_whose_output_is_changed_in_place_is_left_alone():
    model, x = nn.Sequential(ChangesInPlace(), nn.LayerNorm(8)), torch.randn(4, 8)
    expected = torch.autograd.grad(model(x).square().sum(), model.parameters())
    for store in ("y+bit", "auto"):
        report = outgrad.patch(model, x, store=store)
        assert ("0.norm", "its output is changed in place afterwards") in [(one.name, one.why)
            for one in report.left_alone] and "1" in [one.name for one in report.swapped]
        torch.testing.assert_close(torch.autograd.grad(model(x).square().sum(), model.parameters()), expected)


@pytest.mark.filterwarnings("ignore")  # that torch.ao.quantization moves to a package of its own
def test_a_model_that_is_prepared_for_8_bits_is_patched_until_it_is_converted():
    from torch.ao import quantization

    torch.manual_seed(1)
    model = nn.Sequential(quantization.QuantStub(), nn.Linear(8, 32), nn.LayerNorm(32), nn.ELU(),
        nn.Linear(32, 8), quantization.DeQuantStub())
    model.qconfig = quantization.get_default_qat_qconfig("x86")
    parts, x = quantization.prepare_qat(model), torch.randn(64, 8)
    whole = copy.deepcopy(parts)
    report = outgrad.patch(whole)
    assert [one.name for one in report.swapped] == ["2", "3"]
    for _ in range(2):
        expected, found = (torch.autograd.grad(one(x).square().sum(), one.parameters())
            for one in (parts, whole))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    outgrad.unpatch(whole)
    parts, whole = (quantization.convert(one.eval()) for one in (parts, whole))
    assert [*map(type, whole)] == [*map(type, parts)] and "quantized" in type(whole[2]).__module__
    assert (whole(x) - parts(x)).abs().max() <= whole[4].scale


class _Graphed(nn.Module):
    """What torch.fx can trace, and a Linear of each kind of node."""

    def __init__(self):
        super().__init__()
        self.first, self.act, self.second = nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)
        self.soft = nn.Sequential(nn.Linear(16, 16), nn.Softplus(), nn.Dropout(0.5))
        self.drop = nn.Dropout(0.5)
        self.norm, self.rms, self.squared = nn.LayerNorm(16), LlamaRMSNorm(16), ReLUSquaredActivation()

    def forward(self, x):
        y = self.soft(self.second(self.act(self.first(x))))
        return self.squared(self.rms(self.norm(x + self.drop(y))))


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_a_patched_model_is_traced(has_run, train):
    """By torch.fx, with modules as PyTorch's own are, and by torch.jit.trace."""
    x = torch.randn(4, 16, requires_grad=True)

    def first_gradient(model):
        torch.manual_seed(1)
        return torch.autograd.grad(model(x).square().sum(), x)[0]

    for trace in (torch.fx.symbolic_trace, lambda model: torch.jit.trace(model, (x,), check_trace=not train)):
        model = _Graphed().train(train)
        with torch.no_grad():
            model.norm.weight[3] = 0.0  # has a side buffer
        outgrad.patch(model)
        if has_run:
            model(x)
        traced = trace(model)
        torch.testing.assert_close(first_gradient(traced), first_gradient(model))
    assert not [node for node in torch.fx.symbolic_trace(model).graph.nodes
        if node.op == "call_function" and "outgrad" in str(node.target)]


@pytest.mark.parametrize("function", [
    lambda x, w: outgrad.linear(outgrad.layer_norm(x, 32, store="e4m3"), w),
    lambda x, w: outgrad.linear(outgrad.silu(x, store="e4m3+bit"), w),
    lambda x, w: outgrad.linear(x, w, store="rows:50+e4m3"),
    lambda x, w: outgrad.gated(x, x * 2, store="mxfp8") @ w.t(),
    lambda x, w: outgrad.gated_linear(x, x * 2, w, store="e4m3"),
])
def test_stores_in_8_bits_are_traced(function):
    """PyTorch traces a second time, without gradients, and compares the two graphs."""
    given = [torch.randn(*shape, requires_grad=True) for shape in ((4, 32), (3, 32))]

    def found(function):
        torch.manual_seed(1)
        return torch.autograd.grad(function(*given).square().sum(), given)

    traced = torch.jit.trace(function, tuple(given))
    assert all(map(torch.equal, found(traced), found(function)))


TRACED = {
    "gelu": lambda x: outgrad.gelu(x, "tanh"),
    "silu": lambda x: outgrad.silu(x, store="e4m3"),
    "layer_norm": lambda x: outgrad.layer_norm(x, 32, x[0]),
    "add_rms_norm": lambda x: outgrad.add_rms_norm(torch.ones(4, 32), x, 32)[1],
    "gated": lambda x: outgrad.gated(x),
    "gated_linear": lambda x: outgrad.gated_linear(x, x, torch.ones(3, 32)),
    "linear": lambda x: outgrad.linear(x, torch.ones(3, 32)),
    "softmax": lambda x: outgrad.softmax(x, 0),
    "attention": lambda x: outgrad.attention(x, x, x),
    "dropout": lambda x: outgrad.dropout(x, 0.5, training=True),
}


@pytest.mark.parametrize("name", TRACED)
def test_torch_fx_traces_functions(name):
    """As nodes, like PyTorch's own functions."""
    called, x = TRACED[name], torch.randn(4, 32, requires_grad=True)
    traced = torch.fx.symbolic_trace(called)
    assert name in [node.target.__name__ for node in traced.graph.nodes if node.op == "call_function"]
    for one in (traced, copy.deepcopy(traced), pickle.loads(pickle.dumps(traced))):
        found = []
        for function in (one, called):
            torch.manual_seed(1)
            found.append(torch.autograd.grad(function(x).square().sum(), x)[0])
        assert torch.equal(*found)


def test_torch_fx_is_told_of_a_function_under_another_name():
    gelu = outgrad.gelu
    with pytest.raises(TypeError, match=r"^outgrad\.gelu: x is a symbol of torch\.fx, which traces calls of "
            r"outgrad\.gelu by this name, and behind torch\.fx\.wrap\('gelu'\) those by another$"):
        torch.fx.symbolic_trace(lambda x: gelu(x))


@pytest.mark.parametrize("make", [_Graphed, lambda: outgrad.Dropout(0.5), lambda: nn.Sequential(nn.GELU()),
    lambda: outgrad.Softmax(-1), lambda: outgrad.ReLUSquared()])
def test_torch_jit_script_is_refused_in_one_line(make):
    model = make()
    outgrad.patch(model)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^outgrad: torch.jit.script compiles no .*; call "
                r"outgrad.unpatch\(model\) first, or take torch.jit.trace$"):
            torch.jit.script(model)
    if isinstance(model, nn.Sequential):
        outgrad.unpatch(model)
        torch.jit.script(model)


def test_the_report_names_fits_digests_and_channels_with_side_buffers():
    model, example = model_of("bert").bfloat16(), example_of("bert")
    norm = model.bert.encoder.layer[1].output.LayerNorm
    with torch.no_grad():
        norm.weight[[3, 60]] = torch.tensor([0.0, 1e-3]).bfloat16()
        norm.bias[60] = 1.0
    for given in (None, example):
        report = outgrad.patch(model, given)
        of_gelu = outgrad.bounds("gelu", torch.bfloat16)
        kinds = {one.kind: one for one in report.swapped}
        assert (kinds["GELUActivation"].fit, kinds["GELUActivation"].sha256) == (of_gelu.fit, of_gelu.sha256)
        assert f"coefficients {of_gelu.fit}: SHA-256 {of_gelu.sha256}" in str(report)
        found = {one.name: one.side_channels for one in report.swapped if one.side_channels}
        assert found == {"bert.encoder.layer.1.output.LayerNorm": [3, 60]}
        assert (
            "bert.encoder.layer.1.output.LayerNorm: 2 channels have a side buffer, 4 bytes an element: 3, "
            "60" in str(report))
        outgrad.unpatch(model)
        assert type(norm) is nn.LayerNorm and not any("outgrad" in key for key in vars(norm))


def test_eager_attention_is_pointed_out():
    model = model_of("bert")
    model.set_attn_implementation("eager")
    assert any("switch to sdpa" in one.why for one in outgrad.patch(model).left_alone)


def test_classes_of_ones_own_are_left_alone():
    class MyNorm(nn.LayerNorm):
        pass

    model = nn.Sequential(MyNorm(8), nn.LayerNorm(8))
    report = outgrad.patch(model)
    assert type(model[0]) is MyNorm and type(model[1]) is outgrad.LayerNorm
    assert "class of its own" in report.left_alone[0].why


def test_patching_twice_and_undoing_nothing_are_harmless():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    assert len(outgrad.patch(model).swapped) == 1
    assert outgrad.patch(model).swapped == []
    assert type(outgrad.unpatch(model)[1]) is nn.GELU
    assert type(outgrad.unpatch(model)[1]) is nn.GELU
    single = nn.GELU()
    outgrad.patch(single)
    assert type(single) is outgrad.GELU


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def test_unpatch_leaves_what_others_have_derived_of_a_class():
    """A parametrization derives a class from that of its module; in a block the class has no other parent."""
    model = model_of("bert").eval()
    want = copy.deepcopy(model)
    outgrad.patch(model)
    layers = [m.get_submodule("bert.encoder.layer.0") for m in (want, model)]
    for layer in layers:
        layer.blocks_own = nn.Parameter(torch.ones(2))
        for module, name in ((layer.output.LayerNorm, "weight"), (layer, "blocks_own"),
                (layer.output.LayerNorm, "bias")):
            parametrize.register_parametrization(module, name, Doubled())
    example = example_of("bert")
    model(**example)
    outgrad.unpatch(model)
    assert torch.equal(model(**example).logits, want(**example).logits)
    for module, of_want in zip(model.modules(), want.modules(), strict=True):
        assert type(module).__name__ == type(of_want).__name__ and not patching._is_patched(module)
        assert [kind for kind in type(module).__mro__ if "outgrad" in kind.__module__] == []
    for layer in layers:
        assert torch.equal(layer.blocks_own, torch.full((2,), 2.0))
        for module, name in ((layer.output.LayerNorm, "weight"), (layer.output.LayerNorm, "bias")):
            parametrize.remove_parametrizations(module, name)
    assert type(layers[1].output.LayerNorm) is nn.LayerNorm
    assert torch.equal(copy.deepcopy(model)(**example).logits, want(**example).logits)


def test_unpatch_leaves_hooks_in_place_of_a_forward():
    """As accelerate's add_hook_to_module sets them, and as its remove_hook_from_module leaves them."""
    x = torch.randn(4, 8)
    for removed in (False, True):
        model = nn.Sequential(nn.LayerNorm(8), nn.GELU())
        want, calls = model(x), []
        outgrad.patch(model)
        for module in model:

            def with_hook(module, *args):
                calls.append(type(module).__module__)
                return module._old_forward(*args)

            module._old_forward = module.forward
            module.forward = functools.update_wrapper(functools.partial(with_hook, module), module.forward)
            if removed:
                module.forward = module.__dict__.pop("_old_forward")
        model(x)
        outgrad.unpatch(model)
        assert torch.equal(model(x), want) and [type(m) for m in model] == [nn.LayerNorm, nn.GELU]
        of_torch = [nn.LayerNorm.__module__, nn.GELU.__module__]
        assert calls == ([] if removed else ["outgrad.modules"] * 2 + of_torch)


def test_what_unpatch_cannot_free_stays_patched_with_a_warning():
    x = torch.randn(4, 8)
    model = nn.Sequential(nn.LayerNorm(8), nn.GELU(), nn.SiLU(), nn.Mish())
    outgrad.patch(model)
    before = model[0].forward
    model[0].forward = lambda x: 2 * before(x)

    class Named(type(model[1])):
        def forward(self, x):
            return super().forward(x) + 1

    class Own(nn.Module):
        def forward(self, x):
            return x

    model[1].__class__, model[2].__class__ = Named, Own
    want = model[:3](x)
    with pytest.warns(UserWarning) as said:
        assert outgrad.unpatch(model) is model
    assert [str(one.message) for one in said] == [
        "outgrad.unpatch: 0 stays patched: its forward was replaced since, by a function that may call ours",
        f"outgrad.unpatch: 1 stays patched: another library has made its class {Named.__qualname__} of ours",
    ]
    assert [type(m) for m in model] == [outgrad.LayerNorm, Named, Own, nn.Mish]
    assert torch.equal(model[:3](x), want) and not patching._is_patched(model[2])


def test_bad_arguments_are_named_and_nothing_is_patched():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    with pytest.raises(TypeError, match="a module is needed, not int"):
        outgrad.patch(3)
    with pytest.raises(ValueError, match="norms is 'half'"):
        outgrad.patch(model, norms="half")
    with pytest.raises(TypeError, match="example is int"):
        outgrad.patch(model, example=3)
    with pytest.raises(RuntimeError):
        outgrad.patch(model, example=torch.randn(4, 7))
    assert type(model[1]) is nn.GELU
    double = nn.Sequential(nn.LayerNorm(8)).double()
    assert "torch.float64" in outgrad.patch(double).left_alone[0].why and type(double[0]) is nn.LayerNorm


# --- The forward pass -----------------------------------------------------------------------------

FORMATS = [torch.float32, torch.float16, torch.bfloat16]
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
WIDTH = 64


def of_norm(x, module, rms, eps):
    centred = x if rms else x - x.mean(-1, keepdim=True)
    y = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    weight, bias = (getattr(module, name, None) for name in ("weight", "bias"))
    y = y if weight is None else y * weight.double()
    return y if bias is None else y + bias.double()


def tanh_gelu(x, _):
    return x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))


def gelu(x, _):
    return x * torch.special.ndtr(x)


# Every class that patch replaces, with the module as its defaults make it, and what it computes in float64 by
# formulas of this file. Their defaults, among them an eps, are numbers here, as PyTorch and transformers
# document them.
EPS_OF_RMS = 2.0**-23  # float32's, also for 16 bits: so in 2.10 and in 2.15
REPLACED = {
    nn.LayerNorm: (lambda: nn.LayerNorm(WIDTH), lambda x, m: of_norm(x, m, False, 1e-5)),
    nn.RMSNorm: (lambda: nn.RMSNorm(WIDTH), lambda x, m: of_norm(x, m, True, EPS_OF_RMS)),
    nn.Dropout: (lambda: nn.Dropout(), lambda x, m: x),
    nn.GELU: (lambda: nn.GELU(), gelu),
    nn.SiLU: (lambda: nn.SiLU(), lambda x, m: x * torch.sigmoid(x)),
    nn.Mish: (lambda: nn.Mish(), lambda x, m: x * torch.tanh(torch.logaddexp(x, torch.zeros(())))),
    nn.Softplus: (lambda: nn.Softplus(), lambda x, m: torch.logaddexp(x, torch.zeros(()))),
    nn.ELU: (lambda: nn.ELU(), lambda x, m: torch.where(x > 0, x, torch.expm1(x))),
    nn.Linear: (lambda: nn.Linear(WIDTH, WIDTH), lambda x, m: x @ m.weight.double().T + m.bias.double()),
    nn.Softmax: (lambda: nn.Softmax(-1), lambda x, m: (x - x.logsumexp(-1, keepdim=True)).exp()),
    activations.GELUActivation: (activations.GELUActivation, gelu),
    activations.NewGELUActivation: (activations.NewGELUActivation, tanh_gelu),
    activations.FastGELUActivation: (activations.FastGELUActivation, tanh_gelu),
    activations.AccurateGELUActivation: (activations.AccurateGELUActivation, tanh_gelu),
    activations.GELUTanh: (activations.GELUTanh, tanh_gelu),
    activations.QuickGELUActivation: (activations.QuickGELUActivation,
    lambda x, m: x * torch.sigmoid(1.702 * x)),
    activations.SiLUActivation: (activations.SiLUActivation, lambda x, m: x * torch.sigmoid(x)),
    activations.MishActivation: (activations.MishActivation,
    lambda x, m: x * torch.tanh(torch.logaddexp(x, torch.zeros(())))),
    activations.ReLUSquaredActivation: (activations.ReLUSquaredActivation,
    lambda x, m: x.clamp(min=0).square()),
    BloomGelu: (BloomGelu, tanh_gelu),
    LlamaRMSNorm: (lambda: LlamaRMSNorm(WIDTH), lambda x, m: of_norm(x, m, True, 1e-6)),
}
WITH_STORES = {"linear": "e4m3", "softmax": "log2:8"}  # without which patch leaves these alone
replaced = pytest.mark.parametrize("kind", REPLACED,
    ids=lambda kind: f"{kind.__module__.split('.')[0]}-{kind.__name__}")


def made_by_default(kind, dtype, training):
    module = REPLACED[kind][0]().to(dtype).train(training)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.rand(p.shape, generator=generator) + 0.5)
    return module


def test_the_table_of_replaced_classes_is_whole():
    ours = {*patching._OURS, *(theirs for theirs, _ in patching._OURS_WITH_STORE.values()), LlamaRMSNorm}
    named = originals._BY_NAME["transformers.activations"]
    known = {getattr(activations, name) for name in named if hasattr(activations, name)}
    assert set(REPLACED) == {*ours, *known, BloomGelu}


@replaced
@pytest.mark.parametrize("norms", [None, "fp32", "autocast"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_patch_does_not_change_the_forward_beyond_rounding(kind, dtype, norms):
    """Before and after, in each type, small and large x, in training and evaluation; norms: under autocast to
    bf16, None: without. The distance from float64 is at most what the roundings of the coarsest type that
    takes part can be."""
    exact = REPLACED[kind][1]
    u = max(UNIT_ROUNDOFF[t] for t in ((dtype,) if norms is None else (dtype, torch.bfloat16)))
    for size in (2.0**-11, 1.0, 8.0):
        for training in (False, True):
            if kind is nn.Dropout and training:
                continue  # which elements are dropped is not PyTorch's choice: see below
            x = size * torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(4)).to(dtype)
            module = made_by_default(kind, dtype, training)
            want = exact(x.double(), module)
            with torch.autocast("cpu", torch.bfloat16, enabled=norms is not None):
                theirs = module(x)
                assert outgrad.patch(module, norms=norms or "fp32",
                    store=WITH_STORES).swapped, "it is replaced"
                ours = module(x)
            if norms is None:
                assert ours.dtype == theirs.dtype
            # A Linear rounds its sum once, whose terms are larger than it; a norm its x^, weight and y, and
            # under autocast its x.
            scale = ((x.double().abs() @ module.weight.double().abs().T + module.bias.double().abs())
                if kind is nn.Linear else want.abs().amax(-1, keepdim=True))
            for y in (theirs, ours):
                assert ((y.double() - want).abs() - 8 * u * scale).max() <= 2.0**-24, (size, training)
            outgrad.unpatch(module)
            assert type(module) is kind


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_patched_dropout_drops_as_pytorchs_does(dtype):
    for p, module in ((0.5, nn.Dropout()), (0.25, nn.Dropout(0.25)), (1.0, nn.Dropout(1.0))):
        outgrad.patch(module)
        x = torch.rand(2**16).to(dtype) + 0.5
        y = module(x)
        kept = y != 0
        assert abs(kept.double().mean().item() - (1 - p)) < 0.02
        assert (
            (y[kept].double() - x[kept].double() / max(1 - p, 1e-9)).abs().le(
            2 * UNIT_ROUNDOFF[dtype] * y[kept].double()).all())


def parameters_of(function):
    return {name: p.default for name, p in inspect.signature(function).parameters.items()
        if p.kind is not p.VAR_KEYWORD and name != "self"}


@pytest.mark.parametrize("kind",
    [*patching._OURS, *(theirs for theirs, _ in patching._OURS_WITH_STORE.values())],
    ids=lambda kind: kind.__name__)
def test_every_default_is_pytorchs(kind):
    """The attributes that the defaults leave in an object, and what each argument of the constructor does to
    them."""
    ours = getattr(outgrad, kind.__name__)
    takes = {"LayerNorm": (WIDTH,), "RMSNorm": (WIDTH,), "Linear": (WIDTH, 8)}.get(kind.__name__, ())

    def seen(of, *arguments, **options):
        module = of(*arguments, **options)
        public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        return public, [(name, p.shape, p.dtype) for name, p in module.named_parameters()]

    assert seen(ours, *takes) == seen(kind, *takes)
    others = {bool: lambda v: not v, float: lambda v: v + 0.25, int: lambda v: v + 3, str: lambda v: "tanh",
        type(None): lambda v: -1}
    for name, default in list(parameters_of(kind.__init__).items())[len(takes) :]:
        if name not in ("device", "dtype"):
            changed = {name: others[type(default)](default)}
            assert seen(ours, *takes, **changed) == seen(kind, *takes, **changed) != seen(kind, *takes)
    assert list(parameters_of(ours.forward))[:1] == list(parameters_of(kind.forward))  # by name, too


def test_every_default_of_a_function_is_pytorchs():
    for name in ("gelu", "silu", "mish", "softplus", "elu", "layer_norm", "rms_norm", "dropout", "linear"):
        ours, theirs = parameters_of(getattr(outgrad, name)), getattr(nn.functional, name)
        # Those that are written in C++ have their signature in their documentation.
        text = None if inspect.isfunction(theirs) else theirs.__doc__.replace(" ", "")
        for argument, default in ours.items():
            if (argument in ("side_channels", "store", "row_weights", "x")
                    or default is inspect.Parameter.empty):
                continue
            if text is None:
                assert parameters_of(theirs)[argument] == default, (name, argument)
            else:
                assert f"{argument}={default!r}" in text, (name, argument)


def test_a_softplus_with_a_lower_threshold_is_pytorchs():
    """For x = 4, log(1 + exp(x)) is 4.018, and PyTorch gives 4 if its threshold is 3."""
    low, high = nn.Softplus(threshold=3), nn.Softplus(threshold=40)
    model, x = nn.Sequential(low, high), torch.tensor([4.0, 30.0])
    before = low(x)
    report = outgrad.patch(model)
    assert ([one.name for one in report.swapped] == ["1"]
        and "threshold=3: outgrad has its gradient for a threshold of 20 or more" in str(report))
    assert torch.equal(low(x), before) and before[0] == 4
    assert torch.equal(outgrad.Softplus(threshold=3)(x), before) and torch.equal(high(x),
        nn.Softplus(threshold=40)(x))


def test_results_under_a_gpus_autocast_have_pytorchs_types():
    """On fake tensors, whose device need not exist. Norms are apart: patch is told their type. So are Hugging
    Face's classes: of those whose formula has a torch.pow, autocast makes float32, which the next product
    rounds to bf16 again."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        with FakeTensorMode():
            for kind, (make, _) in REPLACED.items():
                if kind.__module__.startswith("torch") and "Norm" not in kind.__name__:
                    with torch.device("cuda"):
                        module, x = make(), torch.empty(8, WIDTH, dtype=torch.bfloat16)
                    want = module(x).dtype
                    assert outgrad.patch(module, store=WITH_STORES).swapped and module(x).dtype == want, kind
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


# --- Training -------------------------------------------------------------------------------------


def lessons(name, steps):
    """Batches of a task that is learnt steadily: each word is to be replaced by another; bright images are to
    be told from others. On a plateau any difference grows with each step, and drifts would be as large as the
    plateau is long."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        if name == "vit":
            labels = torch.randint(0, 2, (4,), generator=generator)
            yield {"pixel_values": torch.randn(4, 3, 16, 16, generator=generator) + labels.view(4, 1, 1, 1),
                "labels": labels}
            continue
        words = torch.randint(3, 24, (4, 8), generator=generator)
        others = 3 + 5 * words % 21
        if name == "gpt2":  # foretells the next word: each is followed by the other
            words = others = torch.stack([words, others], -1).flatten(1)
        yield {"input_ids": words, "labels": others}


def losses(name, steps, seed, autocast, ours=False, ulp=False):
    """The losses of each step. The model that ours stands beside has our dropout too, so that both drop the
    same elements; with ulp, its first gamma began larger by 2^-23, under autocast by 2^-8."""
    model = model_of(name, dropout=0.1, seed=seed).train()
    outgrad.patch(model, norms="autocast")
    norms = [m for m in model.modules() if isinstance(m, outgrad.LayerNorm)]
    if not ours:
        for module in model.modules():
            if isinstance(module, (outgrad.LayerNorm, outgrad.GELU)):
                outgrad.unpatch(module)
    if ulp:
        with torch.no_grad():
            norms[0].weight[0] *= 1 + (2.0**-8 if autocast else 2.0**-23)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    torch.manual_seed(seed)
    found = []
    for lesson in lessons(name, steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(**lesson).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("steps", [40, pytest.param(300, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("name", "autocast"),
    [("bert", False), *(pytest.param(*case, marks=pytest.mark.nightly)
    for case in [("gpt2", False), ("roberta", False), ("vit", False), ("bert", True)])])
def test_the_loss_drifts_no_further_than_by_one_ulp_of_a_weight(name, autocast, steps):
    """|loss - loss of the plain model|, mean over the steps: the median over three seeds is at most twice
    what a change of one weight by one ulp gives. So patching changes training as a difference does that
    nobody would see."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        by_patch, by_ulp = [], []
        for seed in range(3):
            plain = losses(name, steps, seed, autocast)
            assert plain[-20:].mean() < 0.9 * plain[:5].mean(), "nothing was learnt"
            by_patch.append((losses(name, steps, seed, autocast, ours=True) - plain).abs().mean().item())
            by_ulp.append((losses(name, steps, seed, autocast, ulp=True) - plain).abs().mean().item())
    finally:
        torch.set_num_threads(threads)
    patch, ulp = statistics.median(by_patch), statistics.median(by_ulp)
    print(f"{name}{', bf16' if autocast else ''}: the loss drifts by {patch:.2g}, by one ulp of a weight "
        f"{ulp:.2g}: ratio {patch / ulp:.2f}")
    assert 0 < patch <= 2 * ulp


def test_the_page_train_with_it_runs():
    blocks = re.findall(r"^```python\n(.*?)^```$", (SOURCES / "docs/train_with_it.md").read_text(),
        re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    scope = {}
    for block in blocks:
        exec(compile(block, "docs/train_with_it.md", "exec"), scope)


def test_functions_that_are_no_modules_are_named():
    """With the module that calls them; a dropout that drops nothing is none, and a module that is left alone
    is named once."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True)
    report = outgrad.patch(layer, torch.randn(2, 3, 16))
    assert [(one.name, one.kind, one.why) for one in report.left_alone] == [("", "TransformerEncoderLayer",
        "it calls F.gelu, which is no module that could be swapped")]
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 99}
    for p in (0.1, 0.0):
        config = transformers.BartConfig(**sizes, dropout=p, attention_dropout=p, activation_dropout=p)
        report = outgrad.patch(transformers.BartModel(config).train(), torch.ones(1, 5, dtype=torch.int64))
        found = {one.kind for one in report.left_alone if "it calls F.dropout" in one.why}
        assert found == ({"BartEncoder", "BartEncoderLayer", "BartDecoder", "BartDecoderLayer"} if p
            else set())
    report = outgrad.patch(nn.Sequential(nn.Softplus(beta=2)), torch.randn(3))
    assert [one.why for one in report.left_alone] == ["beta=2: outgrad has its gradient for beta=1"]
