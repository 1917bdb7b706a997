"""Blocks of models as one node: recognised by their code, with the bits of their parts, and left as they are
where a part is not alone."""

import contextlib
import copy
import functools
import linecache
import pickle

import pytest
import torch
import transformers
from functional_test import copies
from torch import nn
from torch.nn.utils import prune
from torch.overrides import TorchFunctionMode

import outgrad
from outgrad import blocks, functional, patching
from patching_test import SMALL, example_of, model_of


def step(model, example, seed=3):
    """The loss, and the gradient of every parameter."""
    torch.manual_seed(seed)
    model.zero_grad()
    loss = model(**example).loss
    loss.backward()
    return {"loss": loss.detach(),
        **{name: p.grad for name, p in model.named_parameters() if p.grad is not None}}


def same(a, b):
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def near(a, b):
    """The bits of a forward pass, and gradients that differ by what a few roundings and another order of sums
    may."""
    tolerance = 3e-6 if a["loss"].dtype == torch.float32 else 2.0**-6
    # whose gradient is 0, but for roundings: a softmax does not see it
    told = [name for name in a if not name.endswith("key.bias")]
    alike = all((a[name].double() - b[name].double()).norm() <= tolerance * b[name].double().norm()
        for name in told)
    return list(a) == list(b) and torch.equal(a["loss"], b["loss"]) and alike


def unfused(model, monkeypatch):
    """A copy that is patched without blocks."""
    other = copy.deepcopy(model)
    with monkeypatch.context() as m:
        m.setattr(patching, "block_of", lambda *_: None)
        outgrad.patch(other)
    return other


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_block_is_its_parts(name, dropout, dtype, monkeypatch):
    model, example = model_of(name, dropout=dropout).train().to(dtype), example_of(name)
    parts = unfused(model, monkeypatch)
    before = copy.deepcopy({key: type(module) for key, module in model.named_modules()})
    report = outgrad.patch(model)
    names = [key for key, _, what in report.fused if what == "dropout, add and norm"]
    assert len(names) == 2 * model.config.num_hidden_layers and all(key.endswith(".output") for key in names)
    intermediates = [key for key, _, what in report.fused if what == "Linear and activation"]
    assert intermediates == [key for key in before if key.endswith(".intermediate")]
    layers = [key
        for key, _, what in report.fused if what == "Linear, activation, Linear, dropout, add and norm"]
    assert (len(layers) == model.config.num_hidden_layers
        and {f"{layer}.intermediate" for layer in layers} == set(intermediates))
    assert f"dropout, add and norm as one node: {names[0]} and" in str(report)
    trained = step(model, example)
    assert near(trained, step(parts, example))
    model.eval(), parts.eval()
    assert near(step(model, example), step(parts, example))
    for loaded in copies(model):
        assert same(step(loaded.train(), example), trained)
    assert list(model.state_dict()) == list(parts.state_dict())
    outgrad.unpatch(model)
    assert {key: type(module) for key, module in model.named_modules()} == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_whole_mlp_is_as_near_as_its_parts(dtype, monkeypatch):
    """From float64's, the gradients of a layer's MLP are no further than those of its parts, whose sums are
    rounded once more."""
    model = model_of("bert").to(dtype)
    parts = unfused(model, monkeypatch)
    outgrad.patch(model)
    exact = copy.deepcopy(parts.bert.encoder.layer[0])
    outgrad.unpatch(exact.double())
    x, dy = (torch.randn(40, 3, 64, generator=torch.Generator().manual_seed(seed)).to(dtype)
        for seed in (1, 2))

    def gradients(layer):
        parameters = [*layer.intermediate.parameters(), *layer.output.parameters()]
        leaf = x.to(parameters[0].dtype).requires_grad_()
        return torch.autograd.grad(layer.feed_forward_chunk(leaf), (leaf, *parameters), dy.to(leaf.dtype))

    for ours, apart, want in zip(
            *(gradients(of) for of in (model.bert.encoder.layer[0], parts.bert.encoder.layer[0], exact)),
            strict=True):
        assert ours.dtype == dtype and (ours - want).norm() <= max(1.25 * (apart - want).norm(),
            3e-7 * want.norm())


def test_a_linear_that_is_not_trained_keeps_no_input():
    """As PyTorch's does: under LoRA most are of this kind."""
    x, dy = torch.randn(5, 64), torch.randn(5, 64)
    w1, w2, bias = torch.randn(128, 64), torch.randn(64, 128), torch.randn(128)
    square = torch.randn(64, 64)
    norm = functional.checked("layer_norm", x, 64, (None, None, 1e-5, False, None, None, 0.0))
    for function, weights in (
        (lambda h, w: functional.linear_activation(h, w, bias)[:, :64], (w1,)),
        (lambda h, w: functional.linear_gelu(h, w)[:, :64], (w1,)),
        (lambda h, v, w: functional.linears_of(h, (v, None, w, None))[1], (square, square.clone())),
        (lambda h, w: functional.norm_of_linear("layer_norm", h, w, None, x, 0.0, *norm), (square,)),
        (lambda h, v, w: functional.norm_of_mlp("layer_norm", h, (v, bias, "gelu", w, None), 0.0, *norm),
        (w1, w2)),
    ):
        gradients = []
        for trained in (False, True):
            leaf = x.clone().requires_grad_()
            given, kept = leaf * 1, []
            weights = [weight.requires_grad_(trained) for weight in weights]
            with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t,
                    lambda t: t):
                y = function(given, *weights)
            assert (given.data_ptr() in kept) == trained
            gradients.append(torch.autograd.grad(y, leaf, dy)[0])
        assert torch.equal(*gradients)


@pytest.mark.parametrize("trained", ["weight", "bias", "x", "LayerNorm", "intermediate", "second"])
def test_what_needs_no_gradient_gets_none(trained, monkeypatch):
    """Each part of a layer's MLP alone, without bias too."""
    model = model_of("bert", dropout=0.1).train()
    for layer in model.bert.encoder.layer:
        layer.intermediate.dense.bias = None
    parts = unfused(model, monkeypatch)
    outgrad.patch(model)
    chosen = (
        {"x": [], "LayerNorm": ["output.LayerNorm"], "intermediate": ["intermediate"],
        "second": ["output.dense"]}.get(trained, [trained]))

    def gradients(layer):
        leaf = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(1)).requires_grad_(
            trained == "x")
        for name, p in layer.named_parameters():
            p.requires_grad_(any(part in name for part in chosen))
        torch.manual_seed(4)
        layer.feed_forward_chunk(leaf).square().sum().backward()
        return [leaf.grad, *(p.grad for p in layer.parameters())]

    ours, want = gradients(model.bert.encoder.layer[0]), gradients(parts.bert.encoder.layer[0])
    assert any(g is not None for g in ours)
    for a, b in zip(ours, want, strict=True):
        assert (a is None) == (b is None) and (a is None
            or torch.allclose(a, b, rtol=1e-5, atol=1e-6 * b.abs().max().item()))


def test_a_step_of_bert_has_a_node_for_each_block(monkeypatch):
    """What autograd goes through: a Function's node where a Linear, dropout, add and norm were four, and one
    for a whole MLP."""

    def nodes(model):
        found, queue = [], [model(**example_of("bert")).loss.grad_fn]
        seen = set()
        while queue:
            node = queue.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            found.append(node.name())
            queue += [following for following, _ in node.next_functions]
        return found

    model = model_of("bert", dropout=0.1).train()
    parts = nodes(unfused(model, monkeypatch))
    outgrad.patch(model)
    whole, count = nodes(model), 2 * model.config.num_hidden_layers
    assert sum("linear_dropout_add_layer_norm" in name
        for name in whole) == sum("mlp_dropout_add_layer_norm" in name for name in whole) == count // 2
    assert sum("linears_of" in name for name in whole) == count // 2
    # Each lacks dropout and add, and the Linear: addmm, its transposed weight, and the views to rows and
    # back. Each MLP also lacks its first Linear and activation, and each attention the Linears of query, key
    # and value, less the one node that they are.
    assert len(parts) - len(whole) == 6 * count + (5 + 3 * 4 - 1) * (count // 2)


def test_parts_that_are_not_alone_run_one_by_one(monkeypatch):
    model, example = model_of("bert", dropout=0.1).train(), example_of("bert")
    parts, seen = unfused(model, monkeypatch), []
    outgrad.patch(model)
    block = model.bert.encoder.layer[0].output
    for part, register in ((block.dropout, "register_forward_hook"),
            (block.LayerNorm, "register_forward_pre_hook"), (block.LayerNorm, "register_full_backward_hook")):
        hook = getattr(part, register)(lambda module, *_: seen.append(type(module).__name__))
        assert near(step(model, example), step(parts, example)) and seen
        hook.remove()
        seen.clear()
    block.dropout = nn.Dropout(0.1)  # a part that is PyTorch's own
    step(model, example)
    block.dropout = outgrad.Dropout(0.1)
    for autocast in (True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            assert near(step(model, example), step(parts, example))
    with torch.no_grad():
        torch.manual_seed(1)
        expected = parts(**example).loss
        torch.manual_seed(1)
        assert torch.equal(model(**example).loss, expected)


def test_checkpoints_and_compiled_code(monkeypatch):
    model, example = model_of("bert", dropout=0.1).train(), example_of("bert")
    parts = unfused(model, monkeypatch)
    outgrad.patch(model)
    wanted = step(model, example)
    assert near(wanted, step(parts, example))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert same(step(model, example), wanted)
    model.gradient_checkpointing_disable()
    block, of_parts = model.bert.encoder.layer[0].output, parts.bert.encoder.layer[0].output
    x, residual = torch.randn(2, 5, block.dense.in_features), torch.randn(2, 5, block.dense.out_features)
    torch._dynamo.reset()
    graph = torch.compile(block, fullgraph=True, backend="aot_eager")
    block.eval(), of_parts.eval()
    assert torch.equal(graph(x, residual), of_parts(x, residual))
    layer = model.bert.encoder.layer[0].eval()
    torch._dynamo.reset()
    graph = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for x in (residual.clone().requires_grad_() for _ in range(2)):
        compiled = torch.autograd.grad(graph(x).square().sum(), (x, *layer.parameters()))
        assert all(map(torch.equal, compiled,
            torch.autograd.grad(layer(x).square().sum(), (x, *layer.parameters()))))


def test_query_and_key_of_one_weight_compile():
    model = model_of("bert").eval()
    attention = model.bert.encoder.layer[0].attention
    attention.self.query.weight = attention.self.key.weight
    outgrad.patch(model)
    x = torch.randn(2, 5, 64, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    found, want = (torch.autograd.grad(one(x)[0].square().sum(), (x, *attention.parameters()))
        for one in (compiled, attention))
    torch.testing.assert_close(found, want)


def test_autocast_around_a_backward_pass_alone_changes_no_node():
    """A node's gradients have the bits that they have without it; PyTorch's own Linears, as the first two of
    Llama's MLP are, round to autocast's type."""
    for model, largest in ((model_of("bert").bert.encoder.layer[0], 0),
            (pre_norm("llama")[2][0].mlp, 2.0**-7)):
        outgrad.patch(model)
        x, found = torch.randn(2, 5, 64, requires_grad=True), []
        for autocast in (False, True):
            loss = model(x).square().sum()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                found.append(torch.autograd.grad(loss, (x, *model.parameters())))
        for without, around in zip(*found, strict=True):
            assert (around - without).norm() <= largest * without.norm()


@pytest.mark.parametrize("of", ["gated_linear", "linears_of", "norm_of_mlp", "add_layer_norm"])
def test_autocast_around_a_compiled_backward_pass_alone_changes_no_node(of):
    """Of nodes that are compiled, and of compiled autograd. By the backend aot_eager, which runs a graph's
    products one by one, autocast would meet these, as it does PyTorch's own."""
    x, weight, bias = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True), torch.randn(8)
    of_norm = bias, bias, 1e-5, False, None, None, 0.0
    node = {
        "gated_linear": lambda x: outgrad.gated_linear(x, x, weight, bias),
        "linears_of": lambda x: sum(functional.linears_of(x, (weight, bias, weight, bias))),
        "norm_of_mlp": lambda x: functional.norm_of_mlp("layer_norm", x, (weight, bias, "gelu", weight, bias),
            0.0, 8, of_norm),
        "add_layer_norm": lambda x: outgrad.add_layer_norm(x, x, 8)[1]}[of]

    def gradient(x, context=contextlib.nullcontext(), autocast=True):
        y = node(x)
        with context, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            return torch.autograd.grad(y.square().sum(), x)[0]

    def x_again():
        return x.clone().requires_grad_()

    want = gradient(x_again(), autocast=False)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(gradient)(x_again()), want)
    compiler = functools.partial(torch.compile, backend="aot_eager")
    torch.testing.assert_close(gradient(x_again(), torch._dynamo.compiled_autograd._enable(compiler)), want)


class Subtracts(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.LayerNorm, self.dropout = nn.Linear(8, 8), nn.LayerNorm(8), nn.Dropout(0.1)

    def forward(self, hidden_states, input_tensor):
        hidden_states = self.dense(hidden_states)
        hidden_states = self.dropout(hidden_states)
        hidden_states = self.LayerNorm(hidden_states - input_tensor)
        return hidden_states


class Adds(Subtracts):
    def forward(self, hidden_states, input_tensor):
        hidden_states = self.dense(hidden_states)
        hidden_states = self.dropout(hidden_states)
        hidden_states = self.LayerNorm(hidden_states + input_tensor)
        return hidden_states


def test_only_this_code_is_recognised():
    assert blocks.block_of(Subtracts()) is None
    ours = blocks.block_of(Adds()).ours
    assert not issubclass(ours, blocks.DropoutAddNorm), "what a class inherits is not looked at"
    from transformers.models.bert.modeling_bert import BertOutput

    config = transformers.BertConfig(hidden_size=8, intermediate_size=16)
    assert issubclass(blocks.block_of(BertOutput(config)).ours, blocks.DropoutAddNorm)
    more = BertOutput(config)
    more.adapter = nn.Linear(8, 8)
    replaced = BertOutput(config)
    replaced.forward = lambda *_: None
    assert not issubclass(blocks.block_of(more).ours, blocks.DropoutAddNorm)
    assert blocks.block_of(replaced) is None


def mlps():
    """Blocks with a Linear before an activation: (module, the name of what gets the node)."""
    from transformers.models.vit.modeling_vit import ViTConfig, ViTMLP

    yield ViTMLP(ViTConfig(hidden_size=24, intermediate_size=40)), "fc1"
    yield nn.Sequential(nn.Linear(24, 40), nn.SiLU(), nn.Linear(40, 40), nn.Linear(40, 24, bias=False),
        nn.Mish(), nn.Linear(24, 24)), "0"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("which", [0, 1])
def test_a_linear_with_its_activation_is_one_node(which, dtype, monkeypatch):
    model, linear = list(mlps())[which]
    model, x = model.to(dtype), torch.randn(3, 5, 24, dtype=dtype)
    parts = unfused(model, monkeypatch)
    kind = type(model)
    report = outgrad.patch(model, x)
    assert report.fused == [("", kind.__name__, "Linear and activation")]
    assert f"Linear and activation as one node: (the model) ({kind.__name__})" in str(report)

    def step(of):
        leaf = x.clone().requires_grad_()
        y = of(leaf)
        return y, *torch.autograd.grad(y.square().sum(), (leaf, *of.parameters()))

    def alike():
        close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2.0**-7, "atol": 2.0**-6}
        # GELU's pass has the bias's sums in another order.
        return all(torch.equal(a, b) or (a.dim() == 1 and torch.allclose(a, b, **close))
            for a, b in zip(step(model), step(parts), strict=True))

    def has_node():
        found, queue = False, [model(x).grad_fn]
        while queue:
            node = queue.pop()
            found |= "linear_activation" in node.name()
            queue += [following for following, _ in node.next_functions if following is not None]
        return found

    assert torch.equal(model(x), parts(x)) and alike() and has_node()
    assert alike() and list(model.state_dict()) == list(parts.state_dict())
    # The second node of nn.Sequential stays in its place; only the first has its hook.
    hook = model.get_submodule(linear).register_forward_hook(lambda *_: None)
    assert alike() and has_node() == (which == 1)
    hook.remove()
    outgrad.unpatch(model)
    assert type(model) is kind and not has_node()


def test_a_report_names_the_nodes_that_are_made():
    def fused(*parts, **settings):
        model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), *parts, nn.Linear(256, 64))
        return [what for *_, what in outgrad.patch(model, example=torch.randn(8, 64), **settings).fused]

    assert fused() == ["Linear and activation"]
    assert fused(store="code:4") == []
    assert fused(store={"linear": "rows:30"}) == []
    assert fused(nn.Dropout(0.1)) == [], "its GELU is left alone"
    assert fused(nn.Dropout(0.1), nn.LayerNorm(256), nn.GELU()) == [], "the other follows no Linear"


def test_a_linear_that_is_no_plain_one_runs_by_itself():
    class Counted(nn.Linear):
        calls = 0

        def forward(self, x):
            Counted.calls += 1
            return super().forward(x)

    model = nn.Sequential(Counted(8, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU())
    outgrad.patch(model)
    model(torch.randn(3, 8)).sum().backward()
    assert Counted.calls == 1
    given, own = [], model[2].forward
    model[2].forward = lambda x: given.append(x) or own(x)
    model(torch.randn(3, 8))
    assert len(given) == 1, "a forward that the object was given"
    del model[2].forward
    hook = nn.modules.module.register_module_forward_hook(lambda module, *_: given.append(module))
    model(torch.randn(3, 8))
    hook.remove()
    assert model[2] in given[1:] and model[3] in given[1:]
    assert model(torch.randn(8)).shape == (8,), "a vector has no rows"
    assert blocks.block_of(nn.Sequential(nn.Linear(8, 8), nn.ReLU())) is None
    assert blocks.block_of(nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.GELU())) is None


# --- Pre-norm blocks ------------------------------------------------------------------------------


def pre_norm(name):
    """(model, example, its layers)."""
    if name == "vit":
        model = model_of("vit")
        return model, example_of("vit"), [module
            for module in model.modules() if type(module).__name__ == "ViTLayer"]
    torch.manual_seed(1)
    if name == "gpt2":
        sizes = {"vocab_size": 97, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0))
        return model, example_of("bert"), list(model.transformer.h)
    sizes = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    return model, example_of("bert"), list(model.model.layers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "vit", "gpt2"])
def test_a_pre_norm_layer_normalises_its_sum_in_one_node(name, dtype, monkeypatch):
    model, example, layers = pre_norm(name)
    model = model.to(dtype)
    monkeypatch.setattr(blocks, "_takes_pair", lambda *_: None)  # a pair has bits of its own
    example = {key: value.to(dtype) if value.is_floating_point() else value for key, value in example.items()}
    parts, kind = unfused(model, monkeypatch), type(layers[0])
    report = outgrad.patch(model)
    assert [what for *_, what in report.fused].count("add and norm") == len(layers) == 2
    assert f"add and norm as one node: {report.fused[0][0]} and 1 more ({kind.__name__})" in str(report)
    assert all(isinstance(layer, kind) and type(layer) is not kind and type(layer).__name__ == kind.__name__
        for layer in layers)

    def near(a, b):
        """The same loss. In 16 bits a gradient that reaches the sum is rounded once where the parts round
        twice."""
        ours, theirs = (torch.cat([value.flatten().double() for value in each.values()]) for each in (a, b))
        return (torch.equal(a["loss"], b["loss"])
            and (ours - theirs).norm() <= 2 * torch.finfo(dtype).eps * theirs.norm())

    expected = step(parts, example)
    assert near(step(model, example), expected)
    for copied in copies(model):
        assert near(step(copied, example), expected) and list(copied.state_dict()) == list(parts.state_dict())
        outgrad.unpatch(copied)
    if name != "vit":
        model.gradient_checkpointing_enable({"use_reentrant": False})
        assert near(step(model, example), expected)
        model.gradient_checkpointing_disable()
    norm, seen = next(module for key, module in layers[0].named_modules() if key.endswith("after")
        or key.startswith("post") or key == "ln_2"), []
    hook = norm.register_forward_hook(lambda module, *_: seen.append(module))
    assert near(step(model, example), expected) and seen == [norm]
    hook.remove()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert near(step(model, example), step(parts, example))
    outgrad.unpatch(model)
    assert all(type(layer) is kind for layer in layers)


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.act, self.gate, self.drop = nn.ReLU(), nn.SiLU(), nn.Dropout(0.0)


class ReadsItInTheSameLine(Parts):
    def forward(self, x):
        z = self.first(x)
        z = self.act(z)
        y = self.drop(z); w = z * 2  # noqa: E702
        return y + w


class ReadsThePairInTheSameLine(Parts):
    def forward(self, x):
        z = self.gate(self.first(x)) * x
        y = self.second(z); w = z * 2  # noqa: E702
        return y + w


class ChangesItInPlace(Parts):
    def forward(self, x):
        z = self.act(self.first(x))
        y = self.drop(z)
        z *= 2
        return y


@pytest.mark.parametrize("kind", [ReadsItInTheSameLine, ReadsThePairInTheSameLine, ChangesItInPlace])
def test_whoever_reads_what_stood_between_is_seen(kind):
    model, x = kind(), torch.randn(5, 8)
    want = model(x)
    outgrad.patch(model)
    torch.testing.assert_close(model(x), want)


class Twice(outgrad.LayerNorm):
    def forward(self, x):
        return 2 * super().forward(x)


def test_a_norm_with_a_forward_of_its_own_runs_it():
    """What a block would compute in its place is the forward of this package's class."""
    x = torch.randn(3, 8)
    for kind in (PreNorm, PostNorm):
        for before in (False, True):
            model = kind()
            if before:
                model.second = Twice(8)
            report = outgrad.patch(model)
            if not before:
                model.second.__class__ = Twice
            found = model(x)
            outgrad.unpatch(model)
            model.second.register_forward_hook(lambda _, __, y: y if type(_) is Twice else 2 * y)
            torch.testing.assert_close(found, model(x))
        assert kind is PostNorm or report.fused == [], "the other norm stands behind no sum"


def test_channels_are_normalised_where_they_are():
    from transformers.models.convnext.modeling_convnext import ConvNextLayerNorm

    class Convolved(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Conv2d(8, 8, 1)
            self.norm = ConvNextLayerNorm(8, data_format="channels_first")

        def forward(self, x):
            return self.norm(self.part(x) + x)

    model, x = Convolved(), torch.randn(2, 8, 8, 8)
    want = model(x)
    outgrad.patch(model)
    torch.testing.assert_close(model(x), want)


class PreNorm(nn.Module):
    def __init__(self, norm=nn.LayerNorm):
        super().__init__()
        self.first, self.second, self.linear = norm(8), norm(8), nn.Linear(8, 8)

    def forward(self, x, scale=2.0, *, twice=True):
        """Adds and normalises in a branch of its own."""
        kept = x
        y = self.linear(self.first(x))
        if twice:
            y = kept + y
            kept = y
            y = self.second(y)
        return kept + scale * y


class Other(PreNorm):
    def forward(self, x):
        y = self.linear(x)
        y = x + y
        kept = x  # not the sum
        y = self.second(y)
        return kept + y


class InheritsIt(PreNorm):
    pass


class PostNorm(nn.Module):
    """Sums that nothing else needs: as BART has them, as DistilBERT has them, and in a branch."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third, self.linear = (nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(8),
            nn.Linear(8, 8))

    def forward(self, x, more=None, other=1):
        y = self.linear(x)
        y = x + y
        y = self.first(y)
        y = self.second(self.linear(y) + y if more is None else y + more)
        y = self.second(self.linear(y) + y)
        z = y + x
        if more is not None and other:
            z = z * self.linear(self.second(z + more))
            z = z - more
        kept = z
        z = self.third(z)
        return kept * self.linear(z + y), sum(self.linear(part + y).mean() for part in z)


class Reads(PreNorm):
    def forward(self, x):
        """What the branch asks is the sum itself."""
        y = x + self.linear(x)
        if y is not None:
            y = 2 * y
        kept = y
        y = self.second(y)
        return kept + y


def test_a_sum_is_found_by_the_source_alone(monkeypatch):
    model, x = PreNorm(), torch.randn(3, 8, requires_grad=True)
    parts = unfused(model, monkeypatch)
    outgrad.patch(model)
    assert type(model).__bases__ == (blocks.Rewritten, PreNorm)
    assert model.forward.__doc__ == PreNorm.forward.__doc__
    for arguments in ({}, {"scale": 0.5}, {"twice": False}):
        ours, theirs = model(x, **arguments), parts(x, **arguments)
        assert torch.equal(ours, theirs)
        assert all(map(torch.equal, *(torch.autograd.grad(y.sum(), (x, of.linear.weight))
            for y, of in ((ours, model), (theirs, parts)))))
    torch._dynamo.reset()
    assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(x), parts(x))
    # An error in a layer is shown at its own line.
    with pytest.raises(ValueError, match="layer_norm: x has shape") as error:
        model(torch.randn(3, 7))
    lines = [entry.lineno + 1 - PreNorm.forward.__code__.co_firstlineno
        for entry in error.traceback if entry.name == "forward" and entry.path.name == "blocks_test.py"]
    assert lines == [3]
    assert blocks.block_of(Other()) is None and blocks.block_of(PreNorm(nn.BatchNorm1d)) is None
    assert blocks.block_of(InheritsIt()) is None, "what a class inherits is not looked at"
    eight_bits = PreNorm()
    outgrad.patch(eight_bits, store={"norm": "e4m3"})
    eight_bits(x).sum().backward()


def test_sums_that_nothing_else_needs(monkeypatch):
    model, x, more = PostNorm(), torch.randn(3, 8, requires_grad=True), torch.randn(3, 8)
    parts = unfused(model, monkeypatch)
    report = outgrad.patch(model)
    assert [what for *_, what in report.fused] == ["add and norm"] and report.apart == []
    calls = []
    for name in ("of_sum", "of_lost_sum"):
        own = getattr(outgrad.LayerNorm, name)
        monkeypatch.setattr(outgrad.LayerNorm, name, lambda self, *a, own=own, name=name: calls.append(name)
            or own(self, *a))
    for arguments, made in (((), ["of_lost_sum"] * 2 + ["of_sum"]), ((more,), ["of_lost_sum"] * 3),
            ((more, 0), ["of_lost_sum"] * 2 + ["of_sum"])):
        (ours, rest), (theirs, their_rest) = model(x, *arguments), parts(x, *arguments)
        assert torch.equal(ours, theirs) and torch.equal(rest, their_rest) and calls == made
        calls.clear()
        for a, b in zip(
                *(torch.autograd.grad((y.sum() + r), (x, *of.parameters()))
                for y, r, of in ((ours, rest, model), (theirs, their_rest, parts))), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert blocks.block_of(Reads()) is None


@pytest.mark.parametrize("norm_first", [False, True])
def test_pytorchs_own_layer(norm_first, monkeypatch):
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=norm_first), 2,
        enable_nested_tensor=False)
    x = torch.randn(2, 3, 8)
    parts = unfused(model, monkeypatch)
    expected = [torch.autograd.grad(parts(x).square().sum(), parts.parameters())]
    report = outgrad.patch(model)
    assert [name for name, *_ in report.fused] == ["layers.0", "layers.1"]
    found = [torch.autograd.grad(model(x).square().sum(), model.parameters())]
    assert all(map(torch.equal, expected[0], found[0]))
    with torch.no_grad():
        assert torch.equal(model.eval()(x), parts.eval()(x))


def test_layers_of_bart_and_distilbert():
    from transformers.models.bart.modeling_bart import BartConfig, BartEncoderLayer
    from transformers.models.distilbert.modeling_distilbert import DistilBertConfig, TransformerBlock

    sizes = {"d_model": 16, "encoder_attention_heads": 2, "encoder_ffn_dim": 24, "dropout": 0.0}
    for layer in (BartEncoderLayer(BartConfig(**sizes, attn_implementation="eager")),
            TransformerBlock(DistilBertConfig(dim=16, n_heads=2, hidden_dim=24))):
        norms = {name for name, part in layer.named_children() if isinstance(part, nn.LayerNorm)}
        block = blocks.block_of(layer)
        assert len(norms) == 2 and block.parts == norms and block.what == "add and norm"


def test_what_is_in_no_block_is_said():
    model, _, _ = pre_norm("llama")
    report = outgrad.patch(model)
    said = {name: (kind, why) for name, kind, why in report.apart}
    assert said["model.layers.1.input_layernorm"] == ("LlamaDecoderLayer",
        "no sum of this module goes straight into it")
    assert "model.layers.0.mlp.act_fn" not in said, "it is the gate of a pair"
    assert ("model.layers.0.mlp", "LlamaMLP", "gated pair") in report.fused
    assert not any("post_attention" in name for name in said)
    line = (
        "a node of its own: model.layers.0.input_layernorm and 1 more (in LlamaDecoderLayer): no sum of this "
        "module goes straight into it")
    assert line in str(report).splitlines()
    shared = nn.GELU()
    report = outgrad.patch(nn.ModuleList([shared, nn.Sequential(nn.Linear(4, 4), shared)]))
    assert report.apart == [], "a module with two places is in the block of one of them"


def test_a_file_that_is_no_longer_what_runs_is_not_believed(tmp_path, monkeypatch):
    text = """from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        kept = x
        x = 2.0 * x
        x = kept + x
        kept = x
        x = self.norm(x)
        return kept - x
"""
    file = tmp_path / "edited_after_import.py"
    file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    from edited_after_import import Layer

    file.write_text(text.replace("2.0", "3.0"))
    assert blocks.block_of(Layer()) is None
    file.write_text(text)
    blocks._of_methods.cache_clear()
    linecache.clearcache()
    assert blocks.block_of(Layer()) is not None


def test_a_forward_that_was_replaced_between_two_patches_is_the_one_that_runs(monkeypatch):
    model, x = PreNorm(), torch.randn(3, 8)
    outgrad.patch(model)
    outgrad.unpatch(model)
    monkeypatch.setattr(PreNorm, "forward", Reads.forward)
    expected = model(x)
    outgrad.patch(model)
    torch.testing.assert_close(model(x), expected)


def test_blocks_stay_what_others_look_for():
    """Hugging Face's models initialise parts by their class, and read attributes of it."""
    model = model_of("bert")
    kinds = {name: type(module) for name, module in model.named_modules()}
    outgrad.patch(model)
    for name, module in model.named_modules():
        if module._modules:
            assert isinstance(module, kinds[name]) and type(module).__name__ == kinds[name].__name__
    outgrad.unpatch(model)
    assert {name: type(module) for name, module in model.named_modules()} == kinds


def test_a_block_whose_class_takes_no_subclass_is_left_as_it_is():
    from transformers.models.bert.modeling_bert import BertIntermediate

    class Final(nn.Module):
        forward = BertIntermediate.forward

        def __init__(self):
            super().__init__()
            self.dense, self.intermediate_act_fn = nn.Linear(8, 8), nn.GELU()

        def __init_subclass__(cls):
            raise TypeError("final")

    model, x = Final(), torch.randn(2, 5, 8)
    want = model(x)
    outgrad.patch(model)
    assert type(model) is Final and torch.allclose(model(x), want, atol=1e-6)


@pytest.mark.parametrize("after", [False, True])
def test_an_objects_own_part_of_a_block_is_the_one_that_runs(after):
    model, ids = model_of("bert").eval(), torch.arange(8).view(1, 8)
    layer = model.bert.encoder.layer[0]

    def thrice(attention_output):
        return 3 * attention_output

    if not after:
        layer.feed_forward_chunk = thrice
    outgrad.patch(model)
    layer.feed_forward_chunk = thrice
    found = model(ids).logits
    outgrad.unpatch(model)
    torch.testing.assert_close(found, model(ids).logits)


def test_what_replaces_the_forward_of_all_linears_is_the_one_that_runs(monkeypatch):
    """As tools that instrument models do."""
    model, ids = model_of("bert").eval(), torch.arange(8).view(1, 8)
    forward = nn.Linear.forward
    outgrad.patch(model)
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: 2 * forward(self, x))
    found = model(ids).logits
    outgrad.unpatch(model)
    torch.testing.assert_close(found, model(ids).logits)


class Adapters(TorchFunctionMode):
    """Adds to what each Linear gives, by a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.of = {}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        y = function(*args, **(kwargs or {}))
        if function is not nn.functional.linear:
            return y
        x, weight = args[:2]
        added = self.of.setdefault(tuple(weight.shape), torch.full(tuple(weight.shape)[::-1], 0.01,
            requires_grad=True))
        return y + x @ added


@contextlib.contextmanager
def clipped(monkeypatch):
    """Linears with weights that are rounded and clipped, whose derivative is not a Linear's."""
    function = nn.functional.linear

    def linear(x, weight, bias=None):
        clip = weight.clamp(-0.1, 0.1)
        return function(x, clip + ((clip * 16).round() / 16 - clip).detach(), bias)

    with monkeypatch.context() as m:
        m.setattr(nn.functional, "linear", linear)
        yield


def small_llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, hidden_size=32,
        intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64))


def changed_step(model, run, change):
    with change as adapters:
        y = run(model)
    model.zero_grad()
    y.sin().sum().backward()
    found = [p.grad for p in model.parameters() if p.grad is not None]
    return [y.detach(), *found, *(a.grad for a in getattr(adapters, "of", {}).values())]


@pytest.mark.parametrize("by_mode", [True, False], ids=["mode", "replaced"])
@pytest.mark.parametrize("what", ["sequential", "bert", "llama", "store"])
def test_what_changes_the_function_of_linears_keeps_its_derivative(what, by_mode, monkeypatch):
    """A node knows that of the plain product alone. A default device is no change."""
    torch.manual_seed(4)
    x, ids = torch.randn(4, 8), torch.arange(8).view(1, 8)
    if what in ("bert", "llama"):
        model = (model_of(what) if what == "bert" else small_llama()).eval()
    else:
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def run(model):
        return model(x) if isinstance(model, nn.Sequential) else model(ids).logits

    original = copy.deepcopy(model)
    outgrad.patch(model, store={"linear": "e4m3"} if what == "store" else {})
    with torch.device("cpu"):
        assert functional.linear_is_pytorchs()
    results = [changed_step(one, run, Adapters() if by_mode else clipped(monkeypatch))
        for one in (model, original)]
    assert len(results[0]) == len(results[1])
    for found, wanted in zip(*results, strict=True):
        assert (found - wanted).norm() <= 1e-5 * wanted.norm() + 1e-6


def test_a_slice_of_a_patched_sequence_is_pytorchs():
    """As it was before patch; unpatch gives the whole back, and would not know a part."""
    model, x = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), torch.randn(3, 8)
    wanted = model[:2](x)
    outgrad.patch(model)
    part = model[:2]
    assert type(model) is blocks.Sequence and type(part) is nn.Sequential
    assert list(part) == [model[0], model[1]]
    torch.testing.assert_close(part(x), wanted)
    outgrad.unpatch(model)
    assert type(model) is nn.Sequential and torch.equal(part(x), wanted)


def test_an_object_of_a_class_of_ours_is_copied_as_any():
    """As EMA makes them by type(model)(..), without patch."""
    layer = model_of("bert").bert.encoder.layer[0]
    for model, arguments, x in ((PreNorm(), (), torch.randn(3, 8)),
            (layer, (transformers.BertConfig(**SMALL),), torch.randn(2, 5, 64))):
        outgrad.patch(model)
        other = type(model)(*arguments).eval()
        for copied in copies(other):
            assert type(copied) is type(other) and torch.equal(copied(x), other(x))


def test_a_pickle_of_a_class_whose_source_has_changed_is_its_class(monkeypatch):
    """As in another release of Hugging Face's models: what was a block then runs its parts."""
    model, x = PreNorm(), torch.randn(3, 8)
    outgrad.patch(model)
    pickled = pickle.dumps(model)
    monkeypatch.setattr(PreNorm, "forward", Reads.forward)
    loaded = pickle.loads(pickled)
    assert type(loaded) is PreNorm
    expected = loaded(x)
    assert type(outgrad.unpatch(loaded).second) is nn.LayerNorm
    torch.testing.assert_close(loaded(x), expected)


class Listed(PreNorm):
    known = set()

    def __init_subclass__(cls):
        if cls.__name__ in Listed.known:
            raise ValueError(f"{cls.__name__} is there already")
        Listed.known.add(cls.__name__)


class Once(Listed):
    forward = PostNorm.forward


def test_a_class_that_takes_no_subclass_runs_its_parts():
    """As where a library lists its layers by name."""
    model, x = Once(), torch.randn(3, 8)
    model.third = nn.LayerNorm(8)
    expected = model(x)[0]
    report = outgrad.patch(model)
    assert report.fused == [] and len(report.swapped) == 3 and type(model) is Once
    torch.testing.assert_close(model(x)[0], expected)


def test_a_norm_takes_a_residual():
    x, residual, dy = (torch.randn(4, 8) for _ in range(3))
    for norm in (outgrad.LayerNorm(8), outgrad.RMSNorm(8), outgrad.LayerNorm(8, store="e4m3")):
        results = []
        for function in (lambda x: norm(x, residual, 0.25),
                lambda x: norm(outgrad.dropout(x, 0.25) + residual)):
            torch.manual_seed(5)
            leaf = x.clone().requires_grad_()
            y = function(leaf)
            results.append((y, *torch.autograd.grad(y, [leaf, norm.weight], dy)))
        assert all(map(torch.equal, *results))
    # Arguments that differ from those of the passes before are looked at all the same.
    norm = outgrad.LayerNorm(8)
    norm(x, residual)
    with pytest.raises(TypeError, match="residual is no tensor but list"):
        norm(x, [1.0])
    with pytest.raises(ValueError, match="must be alike"):
        norm(x, residual[:2])
    with pytest.raises(ValueError, match="does not end in normalized_shape"):
        norm(x[:, :4])


def test_a_block_may_normalise_several_dimensions(monkeypatch):
    model, x = model_of("bert").bert.encoder.layer[0].eval(), torch.randn(2, 5, 64, requires_grad=True)
    model.output.LayerNorm = nn.LayerNorm((5, 64))
    model.attention.output.LayerNorm = nn.LayerNorm((5, 64))
    parts = unfused(model, monkeypatch)
    outgrad.patch(model)
    for ours, theirs in zip(*(torch.autograd.grad(of(x).square().sum(), (x, *of.parameters()))
            for of in (model, parts)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_blocks_run_on_the_device_meta():
    """Which has no autocast, though it be on for others."""
    mlp = pre_norm("llama")[2][0].mlp
    for model in (mlp, model_of("bert").bert.encoder.layer[0], nn.Sequential(nn.Linear(64, 8), nn.GELU())):
        outgrad.patch(model)
        shape = model(torch.randn(2, 5, 64)).shape
        x = torch.randn(2, 5, 64, device="meta", requires_grad=True)
        model.to("meta")
        for autocast in (False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                y = model(x)
            y.sum().backward()
            assert y.shape == shape and all(p.grad.shape == p.shape for p in (x, *model.parameters()))


def test_blocks_that_others_have_changed():
    """A dropout that is no longer one, a Linear of another width or type: parts run one by one, or say what
    does not fit."""
    model = model_of("bert").train()
    outgrad.patch(model)
    layer, x = model.bert.encoder.layer[0], torch.randn(2, 5, 64)
    layer.output.dropout = nn.Identity()
    layer.feed_forward_chunk(x).sum().backward()
    layer.output.dropout = outgrad.Dropout(0.1)
    for p in (-0.1, float("nan"), 1.5):
        layer.output.dropout.p = layer.attention.output.dropout.p = p
        for call in (layer.feed_forward_chunk, lambda x: layer.attention.output(x, x)):
            with pytest.raises(ValueError, match=f"p is {p}, a probability is needed"):
                call(x)
    layer.output.dropout.p = 0.1
    layer.intermediate.dense = nn.Linear(64, 96)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        layer.feed_forward_chunk(x)
    layer.output.dense = nn.Linear(96, 64)
    assert layer.feed_forward_chunk(x).shape == x.shape
    layer.output.dense = nn.Linear(96, 64).double()
    with pytest.raises(RuntimeError, match="same dtype"):
        layer.feed_forward_chunk(x)


# --- Linears of one input -------------------------------------------------------------------------


class Attends(nn.Module):
    """As attentions begin: three Linears of one input, and what is none of them."""

    def __init__(self, bias=True):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(16, 24, bias=bias), nn.Linear(16, 8), nn.Linear(16, 8,
            bias=bias)
        self.out = nn.Linear(8, 16)

    def forward(self, x, reads=("q", "k", "v")):
        shape = (*x.shape[:-1], -1, 8)
        q = self.query(x).view(*shape).transpose(1, 2)
        k = self.key(x).view(*shape).transpose(1, 2)
        v = self.value(x)
        y = self.out(v)
        found = {"q": q, "k": k, "v": y}
        return sum(found[name].float().square().sum() for name in reads)


class Moves(Attends):
    def forward(self, x):
        """Each Linear reads something else."""
        q = self.query(x)
        x = self.out(self.key(x))
        v = self.value(x)
        k = self.key(x + 1)
        return q.sum() + k.sum() + v.sum()


def test_an_activation_may_become_a_function():
    """As by hand, after patch: the block then runs its parts."""
    config = transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                                     intermediate_size=64, vocab_size=99)
    model = transformers.BertModel(config).eval()
    words = torch.arange(6)[None]
    with torch.no_grad():
        before = model(input_ids=words).last_hidden_state
        outgrad.patch(model)
        intermediate = model.encoder.layer[0].intermediate
        del intermediate.intermediate_act_fn
        intermediate.intermediate_act_fn = torch.nn.functional.gelu
        torch.testing.assert_close(model(input_ids=words).last_hidden_state, before)
    mlp, x = pre_norm("llama")[2][0].mlp, torch.randn(3, 64)
    with torch.no_grad():
        before = mlp(x)
        outgrad.patch(mlp)
        del mlp.act_fn
        mlp.act_fn = torch.nn.functional.silu
        torch.testing.assert_close(mlp(x), before)


@pytest.mark.parametrize("where", ["attention.self.key", "intermediate.dense", "output.dense"])
def test_a_bias_may_be_no_parameter(where, monkeypatch):
    """As where PyTorch prunes it."""
    model, x = model_of("bert").bert.encoder.layer[0], torch.randn(2, 5, 64)
    parts = unfused(model, monkeypatch)
    outgrad.patch(model)
    for layer in (model, parts):
        prune.l1_unstructured(layer.get_submodule(where), "bias", 0.5)
    assert torch.equal(model(x), parts(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reads", ["qkv", "qk", "v", "k"])
def test_linears_of_one_input_are_one_node(reads, dtype, monkeypatch):
    """With all of their results, or some of them, before the loss."""
    torch.manual_seed(1)
    model, x = Attends().to(dtype), torch.randn(2, 5, 16).to(dtype).requires_grad_()
    parts = unfused(model, monkeypatch)
    report = outgrad.patch(model)
    assert report.fused == [("", "Attends", "Linears of one input")] and report.apart == []
    calls = []
    own = functional.linears_of
    monkeypatch.setattr(functional, "linears_of", lambda *a: calls.append(len(a[1]) // 2) or own(*a))

    def gradients(of):
        loss = of(x, reads)
        return loss, *torch.autograd.grad(loss, (x, *of.parameters()), allow_unused=True)

    ours, theirs = gradients(model), gradients(parts)
    assert calls == [3] and torch.equal(ours[0], theirs[0])
    for a, b in zip(ours[2:], theirs[2:], strict=True):
        assert (a is None) == (b is None) and (a is None or torch.equal(a, b))
    exact = copy.deepcopy(parts).double()
    want = torch.autograd.grad(exact(x.double(), reads), x)[0].double()
    assert (ours[1] - want).norm() <= max(1.25 * (theirs[1] - want).norm(), 3e-7 * want.norm())
    hook = model.key.register_forward_hook(lambda *_: None)
    assert (all(a is b or torch.equal(a, b) for a, b in zip(gradients(model), theirs, strict=True))
        and calls == [3])
    hook.remove()
    model.value.weight.requires_grad_(False)
    parts.value.weight.requires_grad_(False)
    model.query = nn.Linear(16, 24, dtype=torch.float64)  # which x does not fit
    with pytest.raises(RuntimeError, match="same dtype"):
        model(x)
    outgrad.unpatch(model)
    assert type(model) is Attends


class Two(nn.Module):
    def __init__(self, dtype=None):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, dtype=dtype), nn.Linear(4, 4, dtype=dtype)

    def forward(self, x):
        y = self.first(x)
        z = self.second(x)
        return (y * z).abs()


def test_what_reads_complex_sparse_or_nested_arrays_runs_one_by_one():
    """A Linear of PyTorch takes them, whatever comes behind it. The gradient of a complex one has a
    conjugate."""
    x = torch.randn(3, 4)
    nested = torch.nested.nested_tensor([x[:1], x[1:]], layout=torch.jagged)
    for model, given in ((Two(torch.complex64), x.to(torch.complex64) * 1j), (Two(), x.to_sparse()),
            (Two(), nested), (nn.Sequential(nn.Linear(4, 4), nn.GELU()), x.to_sparse())):
        parts = copy.deepcopy(model)
        assert outgrad.patch(model).fused
        ours, theirs = (torch.autograd.grad((y.values() if y.is_nested else y).sum(), list(of.parameters()))
            for of in (model, parts) for y in (of(given),))
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)


def test_linears_that_read_something_else_stay_apart():
    assert blocks.block_of(Moves()) is None
    model = Attends(bias=False)
    outgrad.patch(model)
    x = torch.randn(2, 5, 16, requires_grad=True)
    for p in (model.query.weight, model.key.bias):
        p.requires_grad_(False)
    model(x).backward()
    assert (model.query.weight.grad is None and model.key.bias.grad is None
        and model.key.weight.grad is not None and x.grad.isfinite().all())
    torch._dynamo.reset()
    assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(x), model(x))
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(x), model(x)) and type(again) is type(model)
    with pytest.raises(RuntimeError, match="outgrad.linears_of: the second derivative"):
        torch.autograd.grad(torch.autograd.grad(model(x), x, create_graph=True)[0].sum(), x)
