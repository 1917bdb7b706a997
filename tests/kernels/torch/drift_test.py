"""Side channels while gamma and beta drift: nothing reads the device in a forward pass, and no gradient is
outside its bound without a word, in eager mode and compiled. Tensors on a CPU stand in for a device's:
drift.AT_ONCE without "cpu" makes the modules treat them as such."""

import collections
import contextlib
import copy
import threading

import pytest
import torch
from nights import at_night
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import outgrad
from outgrad import drift, functional, library

N = 64


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Each test has its own norms to watch."""
    monkeypatch.setattr(drift, "_watched", type(drift._watched)())
    monkeypatch.setattr(drift, "_pending", {})
    monkeypatch.setattr(drift, "_recomputed", False)
    yield
    outgrad.on_drift("raise")


@pytest.fixture
def as_on_a_device(monkeypatch):
    monkeypatch.setattr(drift, "AT_ONCE", frozenset())

    class Event:
        def record(self):
            pass

        def query(self):
            return True

    accelerator = collections.namedtuple("Accelerator", "Event device")(Event,
        lambda _: contextlib.nullcontext())
    monkeypatch.setattr(drift, "_accelerator", lambda _: accelerator)


def compiled(module):
    torch._dynamo.reset()
    return torch.compile(module, fullgraph=True, backend="aot_eager")


ways = pytest.mark.parametrize("way", ["compiled", "eager"])


def run_in(way, module, request):
    """The module, compiled or as on a device."""
    if way == "compiled":
        return compiled(module)
    request.getfixturevalue("as_on_a_device")
    return module


def exact(module, x, dy):
    """dx and the parameters' gradients in float64, on the CPU."""
    twin, x = nn.LayerNorm(N, module.eps).double(), x.detach().cpu().double().requires_grad_()
    twin.load_state_dict({name: p.double() for name, p in module.state_dict().items()})
    return torch.autograd.grad(twin(x), [x, twin.weight, twin.bias], dy.cpu().double())


def put(module, gamma, beta, channel=5):
    """Both of one channel, as an optimizer's step would."""
    with torch.no_grad():
        module.weight[channel], module.bias[channel] = gamma, beta


def gradients(function, module, x, dy):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(function(x), [x, module.weight, module.bias], dy)


def one_step(module):
    """An optimizer's step that changes nothing."""
    module.weight.grad = torch.zeros_like(module.weight)
    torch.optim.SGD([module.weight], lr=1.0).step()


@pytest.mark.parametrize("shared", [False, True])
def test_a_checkpoint_recomputes_with_the_channels_of_its_forward_pass(shared, as_on_a_device):
    """Several passes a step, and a norm that runs three times in a pass, so that no optimizer has looked
    since a norm ran last."""
    norms = [outgrad.LayerNorm(N)] * 3 if shared else [outgrad.LayerNorm(N) for _ in range(3)]
    x = torch.randn(32, N, generator=torch.Generator().manual_seed(1), requires_grad=True)
    gamma = 0.08
    while gamma > 0.04:
        for norm in norms:
            put(norm, gamma, 4.0)
        for _ in range(3):
            y = x
            for norm in norms:
                y = checkpoint(lambda y, norm=norm: norm(y).sin(), y, use_reentrant=False)
            y.square().sum().backward()
        one_step(norms[0])
        gamma *= 0.85
    assert norms[0]._outgrad_found.channels.tolist() == [5]


def test_channels_are_looked_for_whatever_the_default_device_is(as_on_a_device):
    norm = outgrad.LayerNorm(N)
    x = torch.randn(32, N, requires_grad=True)
    with torch.device("meta"):
        for gamma in (0.06, 0.05, 0.04):
            put(norm, gamma, 4.0)
            norm(x).sum().backward()
            one_step(norm)
    assert norm._outgrad_found.channels.tolist() == [5]


@ways
def test_a_gamma_that_drifts_slowly_never_gives_a_wrong_gradient(way, request):
    """beta = 4 and gamma down to 0.01 in steps of 15%: beyond half of tau the next step's gradients have a
    side buffer, and none was ever NaN."""
    module, x, dy = (outgrad.LayerNorm(N), torch.randn(256, N, generator=torch.Generator().manual_seed(1)),
        torch.linspace(-1, 1, 256 * N).view(256, N).sin())
    function, gamma, searched = run_in(way, module, request), 1.0, []
    while gamma > 0.01:
        put(module, gamma, 4.0)
        got = gradients(function, module, x, dy)
        for a, b in zip(got, exact(module, x, dy), strict=True):
            assert (a.double() - b).abs().max() <= 1e-4 * b.abs().max()
        channels = module._outgrad_found.channels
        searched.append(None if channels is None else channels.tolist())
        one_step(module)
        gamma *= 0.85
    assert searched[0] is None and searched[-1] == [5]


@ways
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gamma_that_jumps_gives_nan_and_an_error_in_the_next_step(way, dtype, request):
    module = outgrad.LayerNorm(N).to(dtype)
    x, dy = (torch.randn(256, N, generator=torch.Generator().manual_seed(1)).to(dtype),
        torch.randn(256, N, generator=torch.Generator().manual_seed(2)).to(dtype))
    put(module, 1.0, 4.0)
    function = run_in(way, module, request)
    gradients(function, module, x, dy)
    one_step(module)
    put(module, 0.01, 4.0)
    dx, dgamma, dbeta = gradients(function, module, x, dy)
    assert dx.isnan().all() and dgamma.isnan().nonzero().flatten().tolist() == [5] and dbeta.isfinite().all()
    before = module.weight.detach().clone()
    with pytest.raises(RuntimeError,
            match="a LayerNorm of 64 channels moved so far at once that their output no longer gives the "
                "gradient, which was NaN"):
        for _ in range(2):  # on a device the first step only orders a copy
            one_step(module)
    assert torch.equal(module.weight, before)
    got, want = gradients(function, module, x, dy), exact(module, x, dy)
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    assert all((a.double() - b).norm() <= tolerance * b.norm() for a, b in zip(got, want, strict=True))
    one_step(module)
    one_step(module)


@ways
def test_a_warning_names_the_norm_of_a_patched_model(way, request):
    model = nn.ModuleDict({"first": nn.LayerNorm(N)})
    norm, x = model["first"], torch.randn(8, N)
    function = run_in(way, norm, request)
    outgrad.patch(model)
    function(x).sum().backward()
    put(norm, 0.0, 1.0)
    function(x).sum().backward()
    outgrad.on_drift("warn")
    with pytest.warns(RuntimeWarning, match="gamma and beta of first moved so far"):
        for _ in range(2):
            one_step(norm)
    with pytest.raises(ValueError, match="on_drift: 'ignore' is neither"):
        outgrad.on_drift("ignore")
    outgrad.unpatch(model)
    assert not [name for name in norm.__dict__ if name.startswith("_outgrad")]
    one_step(norm)  # it is PyTorch's own now, and nothing of it is looked at
    outgrad.look_for_drift()


def test_without_an_optimizer_the_next_passes_look(as_on_a_device):
    """Updates by hand through .data, or an optimizer that a scaler skips because of the NaN."""
    module, x = outgrad.LayerNorm(N), torch.randn(8, N)
    module(x).sum().backward()
    module.weight.data[3] = 0.0
    with pytest.raises(RuntimeError, match="moved so far"):
        for _ in range(4):
            module(x).sum().backward()
    module.zero_grad()
    module(x).sum().backward()
    assert module.weight.grad.isfinite().all() and module.side_channels().tolist() == [3]


def test_a_step_while_another_thread_makes_a_norm():
    """The other thread runs wherever the step asks a norm for what it has seen."""
    made = []

    class Norm(outgrad.LayerNorm):
        @property
        def _outgrad_seen(self):
            def run():
                made.append(outgrad.LayerNorm(N))
                made[-1](torch.randn(8, N))

            if len(made) < 8:
                thread = threading.Thread(target=run)
                thread.start()
                thread.join()
            return self.__dict__.get("_outgrad_seen")

        @_outgrad_seen.setter
        def _outgrad_seen(self, seen):
            self.__dict__["_outgrad_seen"] = seen

    norms = [Norm(N) for _ in range(4)]
    for norm in norms:
        norm(torch.randn(8, N)).sum().backward()
    torch.optim.SGD(norms[0].parameters(), lr=0.1).step()
    assert len(drift._watched) == len(norms) + len(made) and len(made) == 8


def test_what_was_loaded_or_moved_is_searched_again(as_on_a_device):
    module, x = outgrad.LayerNorm(N), torch.randn(8, N)
    module(x).sum().backward()
    state = copy.deepcopy(module.state_dict())
    state["weight"][7] = 0.0
    module.load_state_dict(state)
    module(x).sum().backward()
    assert module.side_channels().tolist() == [7] and module.weight.grad.isfinite().all()
    module.to(torch.bfloat16)
    with torch.no_grad():
        module.weight[8] = 0.0
    module.choose_again()
    assert module.side_channels().tolist() == [7, 8]
    outgrad.look_for_drift()


def test_a_parameter_that_becomes_nan_is_named(as_on_a_device):
    module, x = outgrad.RMSNorm(N), torch.randn(8, N)
    module(x).sum().backward()
    with torch.no_grad():
        module.weight[2] = float("nan")
    module(x).sum().backward()
    with pytest.raises(RuntimeError, match="a RMSNorm of 64 channels moved so far"):
        outgrad.look_for_drift()
    module(x).sum().backward()  # now it has a side buffer, and the NaN is where PyTorch has it
    outgrad.look_for_drift()


@pytest.mark.parametrize("store", ["e4m3", *at_night(["mxfp8", "int8"])])
def test_norms_from_8_bits_compiled(store):
    module, x, dy = (outgrad.LayerNorm(N, store=store),
        torch.randn(32, N, generator=torch.Generator().manual_seed(1)), torch.ones(32, N))
    graph = compiled(module)
    gradients(graph, module, x, dy)
    put(module, 1e-4, 1.0)  # by hand
    with pytest.raises(RuntimeError, match="gamma and beta moved so far at once"):
        gradients(graph, module, x, dy)
    one_step(module)
    gradients(graph, module, x, dy)
    assert module._outgrad_found.channels.tolist() == [5]
    # As an optimizer does it.
    module.weight.grad = torch.zeros(N).index_fill(0, torch.tensor(9), 1 - 1e-4)
    module.bias.grad = torch.zeros(N).index_fill(0, torch.tensor(9), -1.0)
    torch.optim.SGD(module.parameters(), lr=1.0).step()
    gradients(graph, module, x, dy)
    assert module._outgrad_found.channels.tolist() == [5, 9]


@pytest.mark.parametrize("store", ["e4m3", "mxfp8", "int8"])
def test_norms_from_8_bits_on_a_device_are_compared_after_a_step(store, as_on_a_device):
    """And their passes read nothing of the device, but where channels are chosen anew."""
    model = nn.Sequential(*(outgrad.LayerNorm(N, store=store) for _ in range(3)))
    x = torch.randn(32, N, generator=torch.Generator().manual_seed(1))
    model(x).sum().backward()
    steps = torch.optim.SGD(model.parameters(), lr=1.0)
    steps.zero_grad()
    model[1].weight.grad = torch.zeros(N).index_fill(0, torch.tensor(9), 1 - 1e-4)
    model[1].bias.grad = torch.zeros(N).index_fill(0, torch.tensor(9), -1.0)
    steps.step()
    model(x).sum().backward()
    assert [norm._outgrad_found.channels is not None for norm in model] == [False, True, False]
    assert model[1]._outgrad_found.channels.tolist() == [9]
    with Calls() as calls:
        model(x).sum().backward()
    assert not calls.reads and calls.all["norm_forward_8bit"] == 3


# --- What a forward and a backward pass call ------------------------------------------------------


class Calls(TorchDispatchMode):
    """Counts operations, and notes those that would read a device or copy to the host."""

    READS = {"equal", "_local_scalar_dense", "nonzero", "item", "is_nonzero", "_assert_async"}

    def __init__(self):
        super().__init__()
        self.reads, self.all = collections.Counter(), collections.Counter()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        name = function._schema.name.split("::")[1]
        self.all[name] += 1
        if name in self.READS or (name == "_to_copy"
                and (keywords or {}).get("device") == torch.device("cpu")):
            self.reads[name] += 1
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("name", ["bert", "gpt2", "roberta", "vit"])
def test_no_pass_of_a_patched_model_reads_the_device(as_on_a_device, name):
    """From the second step on. The first one searches for the channels, which a mode that sees nothing of it
    would not show."""
    from patching_test import example_of, model_of

    model, example = model_of(name, dropout=0.1).train().bfloat16(), example_of(name)
    if name == "vit":
        example["pixel_values"] = example["pixel_values"].bfloat16()
    with torch.no_grad():
        for norm in (m for m in model.modules() if isinstance(m, nn.LayerNorm)):
            norm.weight.uniform_(0.5, 1.5)
    own, _, own_calls = reads_in_second_step(model, example)
    outgrad.patch(model)
    norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm)]
    for norm in norms:
        norm.choose_again()
    reads, first, calls = reads_in_second_step(model, example)
    assert reads == own, "none but those of the model's own code"
    assert first["nonzero"] >= len(norms)
    assert all(calls[f"norm_{direction}"] + calls[f"norm_{direction}_of_sum"] == len(norms)
        for direction in ("forward", "backward"))
    assert calls["_to_copy"] <= own_calls["_to_copy"], "parameters in bf16 are read as they are"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pass_calls_the_operators_and_nothing_else(dtype):
    """What the host does in a step shows in no number that a busy machine can move: here each operation that
    it calls is counted."""
    x, residual, dy = (torch.randn(4, N, dtype=dtype, requires_grad=True),
        torch.randn(4, N, dtype=dtype, requires_grad=True), torch.randn(4, N, dtype=dtype))
    layer, rms = outgrad.LayerNorm(N, dtype=dtype), outgrad.RMSNorm(N, dtype=dtype)
    norm, of_sum, drop = ({"norm_forward": 1, "norm_backward": 1},
        {"norm_forward_of_sum": 1, "norm_backward_of_sum": 1}, {"randint": 1, "dropout": 2})
    for function, inputs, want in (
        (outgrad.silu, (x,), {"activation_forward": 1, "activation_backward": 1}),
        (lambda x: outgrad.dropout(x, 0.1), (x,), drop),
        (layer, (x, *layer.parameters()), {"equal": 2, **norm}),  # of the parameters, on a CPU
        (rms, (x, *rms.parameters()), {"equal": 1, **norm}),
        (lambda x, r, *of: outgrad.dropout_add_layer_norm(x, r, N, *of, p=0.1),
        (x, residual, *layer.parameters()), {"randint": 1, **of_sum}),
        (lambda x, r, *of: outgrad.add_rms_norm(x, r, N, *of)[0], (x, residual, *rms.parameters()), of_sum),
    ):
        for _ in range(2):
            with Calls() as calls:
                y = function(*(inputs if function not in (layer, rms) else inputs[:1]))
                torch.autograd.grad(y, inputs, dy)
        del calls.all["detach"]  # of what autograd keeps
        assert dict(calls.all) == want


def reads_in_second_step(model, example):
    """The reads in forward and backward, by the calls of the first step and of the second."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    every = []
    for _ in range(2):
        model.zero_grad()
        with Calls() as calls:
            model(**example).loss.backward()
        optimizer.step()
        every.append(calls)
    return every[1].reads, every[0].all, every[1].all


# What an operator launches on a GPU: ours as cuda_test.py counts it with a driver that stands in for one,
# PyTorch's at least. Views and arrays without values launch nothing, any other operator one kernel.
LAUNCHES = (
    {"bias_gelu_backward": 2, "norm_backward": 2, "norm_backward_of_sum": 2, "native_layer_norm_backward": 2}
    | dict.fromkeys(("detach", "empty", "empty_like", "empty_strided", "expand", "new_empty", "select",
    "slice", "split", "squeeze", "t", "transpose", "unbind", "unsqueeze", "view", "_unsafe_view"), 0))


def test_a_step_of_bert_launches_fewer_kernels_than_pytorchs(as_on_a_device, monkeypatch):
    from patching_test import example_of, model_of

    def launched(model):
        _, _, calls = reads_in_second_step(model, example_of("bert"))
        return collections.Counter({name: LAUNCHES.get(name, 1) * count for name, count in calls.items()})

    def as_on_a_gpu(x, p=0.5, training=True, inplace=False):
        return torch.native_dropout(x, p, training)[0] if training and p > 0 else x

    model = model_of("bert", dropout=0.1).train().to(torch.bfloat16)
    with monkeypatch.context() as patched:
        patched.setattr(nn.functional, "dropout", as_on_a_gpu)
        theirs = launched(model)
    outgrad.patch(model)
    ours = launched(model)
    # A layer's two blocks of dropout, addition and norm launch three kernels each way before, and two after,
    # the seed's among them. The dropouts behind the embeddings and before the classifier have a seed, too.
    # The optimizer's step, which is not counted, looks at all norms' numbers with two more.
    alone, looks = 2, 2
    fewer = theirs.total() - ours.total()
    assert fewer >= 4 * model.config.num_hidden_layers - alone and fewer > looks, (theirs - ours,
        ours - theirs)


# --- Parameters in 16 bits ------------------------------------------------------------------------


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows, columns", [(1, 16), (5, 33), (40, 768)])
def test_parameters_in_16_bits_are_read_as_they_are(rms, x_dtype, dtype, rows, columns):
    """The bits of a copy in fp32, and gradients rounded once, from the same sums."""
    generator = torch.Generator().manual_seed(3)
    x, dy = (torch.randn(rows, columns, generator=generator).to(x_dtype) for _ in range(2))
    gamma, beta = (torch.rand(columns, generator=generator).add(0.5).to(dtype) for _ in range(2))
    beta = None if rms else beta
    in_fp32 = gamma.float(), None if rms else beta.float()
    y, rstd, side = library.norm_forward(x, columns, *in_fp32, 1e-5, rms, None)
    got = library.norm_forward(x, columns, gamma, beta, 1e-5, rms, None)
    assert all(torch.equal(a, b) for a, b in zip(got, (y, rstd, side), strict=True))
    want = library.norm_backward(dy, y, columns, *in_fp32, rstd, rms, None, side, True, not rms)
    got = library.norm_backward(dy, y, columns, gamma, beta, rstd, rms, None, side, True, not rms)
    assert [g.dtype for g in got] == [x_dtype, dtype, dtype] and torch.equal(got[0], want[0])
    assert all(torch.equal(a, b.to(dtype)) for a, b in zip(got[1:], want[1:], strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_bias_in_16_bits_is_read_as_it_is(dtype):
    x, bias = torch.randn(5, 33), torch.randn(33).to(dtype)
    assert all(torch.equal(a, b) for a, b in zip(library.bias_gelu_forward(x, bias),
        library.bias_gelu_forward(x, bias.float()), strict=True))


def test_parameters_of_two_types_are_taken():
    x, weight, bias = torch.randn(4, N), torch.ones(N, requires_grad=True), torch.zeros(N,
        dtype=torch.bfloat16, requires_grad=True)
    outgrad.layer_norm(x, N, weight, bias).sum().backward()
    assert (weight.grad.dtype, bias.grad.dtype) == (torch.float32, torch.bfloat16)


def test_the_limits_of_the_kernels_are_those_of_the_search():
    """No channel that the search leaves without a side buffer is ever near, and every channel beyond the
    documented tau is lost: over the ratios and magnitudes around each limit."""
    for dtype in library.FORMATS:
        tau = functional.largest_storage_error(dtype)
        gamma = torch.cat([10.0 ** torch.linspace(-38, 37, 400), 2.0 ** torch.arange(-130.0, 128.0)])
        for ratio in [0.0, 1.0, 29.0, 30.0, 31.0, 59.0, 60.0, 61.0, 123.0, 124.0, 125.0, 1e6]:
            beta = gamma * ratio
            keep = beta.isfinite()
            g, b = gamma[keep], beta[keep]
            x, count = torch.zeros(1, len(g), dtype=dtype), len(g)
            for margin, place in ((2, 0), (1, 1)):
                told = functional.told_channels(g, b, dtype, None, "y", margin)
                seen = torch.zeros(2, dtype=torch.int32)
                if place == 0:  # all told channels together raise no hand
                    if told.any():
                        kept = told.nonzero().flatten()
                        library.norm_forward(x[:, kept].contiguous(), len(kept), g[kept].contiguous(),
                            b[kept].contiguous(), 1e-5, False, None, seen, tau)
                        assert seen.tolist() == [0, 0], (dtype, ratio)
                else:
                    library.norm_forward(x, count, g, b, 1e-5, False,
                        told.nonzero().flatten().to(torch.int32), seen, tau)
                    assert seen.tolist() == ([0, 0] if told.all() else [1, 1]), (dtype, ratio)
