"""Graphs of torch.export that are trained: their gradients are those of eager mode, to the bit."""

import pytest
import torch
from nights import at_night
from torch import nn

import outgrad
from outgrad import library

FORWARDS = [name for name in library._OPERATORS if "forward" in name or name == "dropout"]


class Of(nn.Module):
    """A function of x and of a weight and a bias, as a module behind and before a Linear."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(2)
        self.function, self.before, self.behind = function, nn.Linear(64, 64), nn.Linear(64, 64)
        self.weight, self.bias = nn.Parameter(torch.rand(64) + 0.5), nn.Parameter(torch.randn(64))

    def forward(self, x):
        found = self.function(self.before(x), self.weight, self.bias)
        return self.behind(found) if isinstance(found, torch.Tensor) else self.behind(found[0]) * found[1]


def halves_of_40(x, w, store):
    return torch.cat((outgrad.gated(torch.cat((x[:, :40], (x * w)[:, :40]), 1), store=store), x[:, 40:]), 1)


# What such a graph keeps where it does not keep what eager mode does.
KEPT_BY_GRAPHS = {
    "e4m3+bit": lambda x, w, b: outgrad.silu(x),
    "parts of blocks": lambda x, w, b: halves_of_40(x, w, "recompute"),
    "gated_linear in 8 bits": lambda x, w, b: nn.functional.linear(outgrad.gated(x, x * w, store="e4m3"),
    w.diag(), b),
    "norm and linear": lambda x, w, b: nn.functional.linear(outgrad.layer_norm(x, 64, w, b, store="e4m3"),
    w.diag(), b),
}
OPERATIONS = {
    **{name: lambda x, w, b, name=name: getattr(outgrad, name)(x) for name in outgrad.ACTIVATIONS},
    **{store: lambda x, w, b, store=store: outgrad.silu(x, store=store)
    for store in ("code:4", "dither:2", "e4m3+bit")},
    "parity": lambda x, w, b: outgrad.silu(x.bfloat16(), store="parity").float(),
    "channels_last": lambda x, w, b: outgrad.gelu(x.view(2, 4, 8, 8).permute(0, 3, 1, 2), store="code:4")
    .reshape(8, 64),
    "layer_norm": lambda x, w, b: outgrad.layer_norm(x, 64, w, b),
    "rms_norm": lambda x, w, b: outgrad.rms_norm(x, 64, w.half()),
    "norm in 8 bits": lambda x, w, b: outgrad.layer_norm(x, 64, w, b, store="int8"),
    "dropout": lambda x, w, b: outgrad.dropout(x, 0.25),
    "activation_dropout": lambda x, w, b: outgrad.activation_dropout(x.half(), 0.25).float(),
    "gated": lambda x, w, b: outgrad.gated(x, x * w),
    "packed": lambda x, w, b: outgrad.gated(torch.cat((x, x * w), 1), activation="gelu"),
    "gated_linear": lambda x, w, b: outgrad.gated_linear(x, x * w, w.diag(), b),
    "output": lambda x, w, b: outgrad.gated(x.half(), (x * w).half(), store="output").float(),
    "packed output": lambda x, w, b: outgrad.gated(torch.cat((x, x * w), 1).half(), store="output").float(),
    "gated in 8 bits": lambda x, w, b: outgrad.gated(x, x * w, store="e4m3"),
    "packed in 8 bits": lambda x, w, b: outgrad.gated(torch.cat((x, x * w), 1), store="mxfp8"),
    "parts of blocks": lambda x, w, b: halves_of_40(x, w, "mxfp8"),
    "add_layer_norm": lambda x, w, b: outgrad.add_layer_norm(x, x * 2, 64, w, b),
    "dropout_add_rms_norm": lambda x, w, b: outgrad.dropout_add_rms_norm(x, x * 2, 64, w, 0.25),
    "linear_gelu": lambda x, w, b: outgrad.linear_gelu(x, w.diag(), b),
    "linear_activation": lambda x, w, b: outgrad.linear_activation(x, w.diag(), b, "mish"),
    "softmax": lambda x, w, b: outgrad.softmax(x, 0),
    "gated_linear in 8 bits": lambda x, w, b: outgrad.gated_linear(x, x * w, w.diag(), b, store="e4m3"),
    "norm and linear": lambda x, w, b: outgrad.linear(outgrad.layer_norm(x, 64, w, b, store="e4m3"),
    w.diag(), b, store="e4m3"),
}


def gradients(model, x):
    """The result, and the gradient of each parameter, where None is one that reaches nothing."""
    torch.manual_seed(5)
    y = model(x)
    dy = torch.linspace(-1, 1, y.numel()).view(y.shape)
    return y, *torch.autograd.grad(y, [*dict(model.named_parameters()).values()], dy, allow_unused=True)


def assert_equal(found, want):
    assert any(a is not None for a in want)
    for a, b in zip(found, want, strict=True):
        assert a is b is None or torch.equal(a, b)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_exported_graph_has_the_gradients_of_eager_mode(name):
    model, x = Of(OPERATIONS[name]), torch.randn(8, 64)
    graph = torch.export.export(model, (x,), strict=False)
    called = {node.target for node in graph.graph.nodes if node.op == "call_function"}
    assert called & {*library._EXPORTED.values()} and not called & library._EXPORTED.keys()
    kept = KEPT_BY_GRAPHS.get(name)
    assert_equal(gradients(graph.module(), x), gradients(model if kept is None else Of(kept), x))


@pytest.mark.parametrize("strict", [False, *at_night([True])])
def test_a_patched_model_is_trained_after_export_and_a_file(strict, tmp_path):
    model = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Dropout(0.25), nn.LayerNorm(64), nn.Linear(64, 8))
    with torch.no_grad():
        model[3].weight[5] = 0.0
    x = torch.randn(16, 8)
    outgrad.patch(model, x)
    want = gradients(model, x)
    batch = {0: torch.export.Dim("batch", min=2)}
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes=(batch,), strict=strict),
        tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    assert_equal(gradients(loaded, x), want)
    assert_equal(gradients(loaded, x[:5]), gradients(model, x[:5]))
    compiled = torch.compile(loaded, backend="aot_eager")
    assert_equal(gradients(compiled, x)[1:], want[1:])


def test_a_second_derivative_is_refused():
    x = torch.randn(8, 64)
    model = torch.export.export(Of(OPERATIONS["gelu"]), (x,)).module()
    weight = model.before.weight
    (dx,) = torch.autograd.grad(model(x).pow(2).sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        dx.sum().backward()


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "dropout"])
def test_a_second_derivative_is_refused_where_no_gradient_comes_from_behind(name):
    """What such a graph keeps may lead nowhere: codes have no gradient, and here dy has none."""

    class Alone(Of):
        def forward(self, x):
            return self.function(self.before(x), self.weight.detach(), self.bias.detach())

    x = torch.randn(8, 64)
    model = torch.export.export(Alone(OPERATIONS[name]), (x,)).module()
    with pytest.raises(RuntimeError, match="outgrad.*second derivative is not known"):
        found = model(x)
        first = found if isinstance(found, torch.Tensor) else found[0]
        (dweight,) = torch.autograd.grad(first.sum(), model.before.weight, create_graph=True)
        dweight.square().sum().backward()


@pytest.mark.parametrize("store", ["e4m3", "rows:30", "rows:30+e5m2"])
def test_a_linear_is_pytorchs(store):
    """No code is made that nothing would read, and no row is drawn."""
    x, module = torch.randn(8, 64), outgrad.Linear(64, 3, store=store)
    graph = torch.export.export(module, (x,), strict=False)
    assert "outgrad" not in str([node.target for node in graph.graph.nodes])
    plain = nn.Linear(64, 3)
    plain.load_state_dict(module.state_dict())
    assert_equal(gradients(graph.module(), x), gradients(plain, x))


def test_every_operator_of_a_forward_pass_has_a_derivative_there_and_none_in_eager_mode():
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    assert len(FORWARDS) > 8
    for name in FORWARDS:
        assert has(f"outgrad_exported::{name}", "Autograd") and not has(f"outgrad::{name}", "Autograd"), name


def test_pytorchs_checker_has_no_objection():
    x, weight = torch.randn(4, 64, requires_grad=True), torch.ones(64, requires_grad=True)
    ops = torch.ops.outgrad_exported
    code = library.STORES["code"].number
    for operator, values in (
        (ops.activation_forward.default, (x, 0)),
        (ops.store_forward.default, (x, 0, code, 4)),
        (ops.norm_forward.default, (x, 64, weight, None, 1e-5, True, None)),
        (ops.norm_forward_of_sum.default, (x, x * 2, 64, weight, weight * 2, 1e-5, False, None, None, 0.0,
        True)),
        (ops.gated_forward.default, (x, x * 2, 0)),
        (ops.product_forward.default, (x.detach().half().requires_grad_(), x.detach().half(), 0)),
    ):
        assert set(torch.library.opcheck(operator, values).values()) == {"SUCCESS"}, operator
