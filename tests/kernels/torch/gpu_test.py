"""The package on a GPU: the CPU's bits, streams, graphs, checkpoints, compiled code; that no pass waits, that
a captured step is the eager one, and that a drift of gamma is found. Skipped where PyTorch has no CUDA
device."""

import copy
import warnings

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("PyTorch has no CUDA device here", allow_module_level=True)

import outgrad
import outgrad_peers
from drift_test import N, exact, fresh, gradients as gradients_of_norm, one_step, put  # noqa: F401
from eager_test import given as of_linear
from operators_test import FORMATS, LENGTHS, arguments, behind
from outgrad import functional, library
from patching_test import example_of, model_of
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint


def on_gpu(values):
    return tuple(v.cuda() if isinstance(v, torch.Tensor) else v for v in values)


def same(on_cpu, there):
    on_cpu, there = (results if isinstance(results, (tuple, list)) else (results,)
        for results in (on_cpu, there))
    for x, y in zip(on_cpu, there, strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype and y.is_cuda
        numbers = x.is_floating_point()
        integers = {4: torch.int32, 2: torch.int16}[x.element_size()] if numbers else x.dtype
        equal = x.contiguous().view(integers) == y.cpu().contiguous().view(integers)
        # the payloads of NaNs are each machine's own
        assert torch.all(equal | (x.isnan() & y.cpu().isnan()) if numbers else equal)


# Lengths that are no multiple of 8 have programs of their own, which take most of this test's time to compile
# and no model runs: in one type.
@pytest.mark.parametrize("dtype, n",
    [(dtype, n) for dtype in FORMATS for n in LENGTHS if n % 8 == 0 or dtype == torch.bfloat16])
def test_every_operator_has_the_cpus_bits(dtype, n):
    for call, values in arguments(dtype, n):
        operator, given = behind(call), on_gpu(values)
        if "attention" in operator.name():  # its products are PyTorch's
            continue
        same(operator(*values), operator(*given))
        with torch.no_grad():  # past the dispatcher
            same(operator(*values), call(*given))


@pytest.mark.parametrize("onto", [False, True])
@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8), (4, 16, 64), (0, 8)])
@pytest.mark.parametrize("dtype", FORMATS)
def test_gradients_of_a_linear_are_pytorchs(dtype, shape, onto):
    own, python = functional.linear_gradients, behind(functional.linear_gradients)
    with torch.no_grad():
        found, expected = (function(*of[:3], True, True, True, of[3]) for function, of in (
            (own, on_gpu(of_linear(dtype, shape, onto))), (python, on_gpu(of_linear(dtype, shape, onto)))))
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape and torch.equal(one, other)


@pytest.mark.parametrize("activation", range(len(library.ACTIVATIONS)))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_pattern_of_16_bits(dtype, activation):
    patterns = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
    y, mask = library.activation_forward(patterns, activation)
    same((y, mask), library.activation_forward(patterns.cuda(), activation))
    dy = torch.linspace(-3, 3, len(patterns)).to(dtype)
    for bits in (mask, ~mask):  # every y with both bits
        same(library.activation_backward(dy, y, bits, activation),
            library.activation_backward(*on_gpu((dy, y, bits)), activation))


@pytest.mark.parametrize("rows, columns", [(0, 8), (3, 33), (64, 768), (513, 1024), (16, 4096), (5, 40_000)])
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("dtype", FORMATS)
def test_norms_have_the_cpus_bits(dtype, rms, rows, columns):
    generator = torch.Generator().manual_seed(rows + columns)
    x, dy = (torch.randn(rows, columns, generator=generator).to(dtype) for _ in range(2))
    gamma, beta = torch.rand(columns, generator=generator) + 0.5, None if rms else torch.randn(columns,
        generator=generator)
    side = torch.tensor([0, columns // 2], dtype=torch.int32)
    zeros = gamma.clone()
    zeros[side.long()] = 0
    for g, channels in ((gamma, None), (zeros, side)):
        values = (x, columns, g, beta, 1e-5, rms, channels)
        y, rstd, x_hat = library.norm_forward(*values)
        same((y, rstd, x_hat), library.norm_forward(*on_gpu(values)))
        values = (dy, y, columns, g, beta, rstd, rms, channels, x_hat, True, not rms)
        same(library.norm_backward(*values), library.norm_backward(*on_gpu(values)))


# Of 4097 columns e4m3 alone, element by element.
@pytest.mark.parametrize("store, rows, columns", [*((store, *shape) for store in library.NORM_STORES
    for shape in ((0, 64), (3, 192), (513, 1024), (64, 4096), (5, 40_000))), ("e4m3", 7, 4097)])
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("dtype", FORMATS)
def test_norms_from_8_bits_have_the_cpus_bits(dtype, rms, store, rows, columns):
    generator = torch.Generator().manual_seed(rows + columns)
    x, dy = (torch.randn(rows, columns, generator=generator).to(dtype) for _ in range(2))
    gamma, beta = torch.rand(columns, generator=generator) + 0.5, None if rms else torch.randn(columns,
        generator=generator)
    side, store = torch.tensor([0, columns // 2], dtype=torch.int32), library.STORES[store].number
    zeros = gamma.clone()
    zeros[side.long()] = 0
    for g, channels in ((gamma, None), (zeros, side)):
        values = (x, columns, g, beta, 1e-5, rms, channels, store)
        _, codes, scales, rstd, x_hat = kept = library.norm_forward_8bit(*values)
        same(kept, library.norm_forward_8bit(*on_gpu(values)))
        values = (dy, codes, scales, columns, g, beta, rstd, rms, channels, x_hat, True, not rms, store)
        same(library.norm_backward_8bit(*values), library.norm_backward_8bit(*on_gpu(values)))


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("of", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_with_parameters_in_16_bits_have_the_cpus_bits(dtype, of, rms):
    generator = torch.Generator().manual_seed(4)
    x, dy, residual = (torch.randn(40, 768, generator=generator).to(dtype) for _ in range(3))
    gamma, beta = (torch.rand(768, generator=generator).add(0.5).to(of) for _ in range(2))
    beta, seed, side = None if rms else beta, torch.tensor([7]), torch.tensor([0, 700], dtype=torch.int32)
    values = (x, 768, gamma, beta, 1e-5, rms, side)
    y, rstd, x_hat = library.norm_forward(*values)
    same((y, rstd, x_hat), library.norm_forward(*on_gpu(values)))
    values = (dy, y, 768, gamma, beta, rstd, rms, side, x_hat, True, not rms)
    same(library.norm_backward(*values), library.norm_backward(*on_gpu(values)))
    values = (x, residual, 768, gamma, beta, 1e-5, rms, side, seed, 0.25, True)
    y, rstd, x_hat, total = library.norm_forward_of_sum(*values)
    same((y, rstd, x_hat, total), library.norm_forward_of_sum(*on_gpu(values)))
    values = (dy, y, residual, 768, gamma, beta, rstd, rms, side, x_hat, True, not rms, seed, 0.25)
    same(library.norm_backward_of_sum(*values), library.norm_backward_of_sum(*on_gpu(values)))


@pytest.mark.parametrize("store", outgrad_peers.OF_X)
@pytest.mark.parametrize("dtype", FORMATS)
def test_an_x_in_few_bits_moves_by_less_than_a_step(dtype, store):
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(1)).clamp(-4, 4).to(dtype)
    leaf, exact = x.cuda().requires_grad_(), x.double().requires_grad_()
    y = outgrad_peers.GELU(store=store)(leaf)
    same(outgrad.gelu(x), y)
    y.backward(torch.ones_like(y))
    torch.nn.functional.gelu(exact).sum().backward()
    steps = 1 if "auto" in store else {"mesa": 255, "actnn:2": 3, "actnn:4": 15, "actnn:8": 255}[store]
    # |f''| <= sqrt(2 / pi)
    assert (leaf.grad.cpu().double() - exact.grad).abs().max() < 0.798 * 8 / steps * 1.02 + 0.005


class Block(torch.nn.Module):
    def __init__(self, p):
        super().__init__()
        self.norm, self.gelu, self.drop = outgrad.LayerNorm(256), outgrad.GELU(), outgrad.Dropout(p)

    def forward(self, x):
        return self.drop(self.gelu(self.norm(x)))


def gradients(block, x, call=None):
    x = x.detach().requires_grad_(True)
    # a compiled module is asked for its length where it is asked whether it is true
    y = (block if call is None else call)(x)
    block.zero_grad()
    y.backward(torch.ones_like(y))
    # a module that is moved takes its gradients along
    return [y.detach(), x.grad, *(p.grad.clone() for p in block.parameters())]


@pytest.mark.parametrize("dtype", FORMATS)
def test_gradients_are_the_cpus(dtype):
    x = torch.randn(128, 256, generator=torch.Generator().manual_seed(1)).to(dtype)
    block = Block(0.0).to(dtype)
    on_cpu = gradients(block, x)
    same(on_cpu, gradients(block.cuda(), x.cuda()))


def test_a_stream_of_ones_own():
    block, x = Block(0.0).cuda(), torch.randn(4096, 256, device="cuda")
    expected = gradients(block, x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = gradients(block, x)
    stream.synchronize()
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a, b)


def test_a_graph_replays_with_new_seeds():
    """Captured before any kernel of this shape was compiled: loading code is no error in a capture."""
    torch.manual_seed(3)
    x = torch.randn(64, 1000, device="cuda", dtype=torch.float16)
    graph = torch.cuda.CUDAGraph()
    warm = outgrad.dropout(x, 0.5)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        with torch.cuda.graph(graph, stream=stream):
            y = outgrad.dropout(outgrad.silu(x), 0.5)
    graph.replay()
    first = y.clone()
    graph.replay()
    kept = (first != 0) & (y != 0)
    assert torch.equal(first[kept], y[kept]) and torch.equal(first[kept], (outgrad.silu(x) * 2)[kept])
    assert not torch.equal(first == 0, y == 0), "two replays drop different elements"
    assert 0.45 < (y == 0).float().mean() < 0.55 and warm.is_cuda


def test_a_seed_that_the_host_knows_repeats():
    """torch.manual_seed, and a generator's state that is put back, as checkpoints and fork_rng do; each
    dropout has a seed of its own."""
    x = torch.ones(4096, device="cuda")
    torch.manual_seed(5)
    first, second = outgrad.dropout(x, 0.5), outgrad.dropout(x, 0.5)
    state = torch.cuda.get_rng_state()
    third = outgrad.dropout(x, 0.5)
    torch.cuda.set_rng_state(state)
    assert torch.equal(outgrad.dropout(x, 0.5), third) and not torch.equal(first, second) and not torch.equal(
        second, third)
    torch.manual_seed(5)
    assert torch.equal(outgrad.dropout(x, 0.5), first)
    torch.manual_seed(6)
    assert not torch.equal(outgrad.dropout(x, 0.5), first)
    # It is what the device would draw, and a captured step does.
    for k in range(3):
        torch.manual_seed(2**40 + k)
        torch.rand(1000 * k, device="cuda")
        state = torch.cuda.get_rng_state()
        drawn, after = outgrad.functional.new_seed(x.device).item(), torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(state)
        assert outgrad.functional.dropout_seed(x).item() == drawn and torch.equal(torch.cuda.get_rng_state(),
            after)


def test_checkpoints_drop_the_same_elements():
    block, x = Block(0.3).cuda(), torch.randn(512, 256, device="cuda")
    for reentrant in (False, True):
        torch.manual_seed(11)
        expected = gradients(block, x)
        torch.manual_seed(11)
        found = gradients(block, x, lambda t: checkpoint(block, t, use_reentrant=reentrant))
        for a, b in zip(expected, found, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", FORMATS)
def test_compiled_code_has_the_same_bits(dtype):
    block, x = Block(0.0).cuda().to(dtype), torch.randn(96, 256, device="cuda", dtype=dtype)
    expected = gradients(block, x)
    found = gradients(block, x, torch.compile(block, fullgraph=True, dynamic=True))
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a, b)


def test_a_gamma_without_reciprocal_shows():
    x = torch.randn(8, 256, device="cuda", requires_grad=True)
    weight = torch.ones(256, device="cuda")
    weight[7] = 0
    outgrad.layer_norm(x, 256, weight).sum().backward()
    assert not x.grad.isfinite().all(), "never a number that looks right"


def test_every_device_has_its_own_code():
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device")
    x = torch.randn(1000)
    for index in range(torch.cuda.device_count()):
        assert torch.equal(outgrad.gelu(x.to(index)).cpu(), outgrad.gelu(x))
    with pytest.raises(ValueError, match="weight is on cuda:1"):
        outgrad.layer_norm(torch.randn(8, 8, device=0), 8, torch.ones(8, device=1))


def test_bytes_are_what_is_counted():
    """The memory that GELU of 2^24 elements keeps: y, which is the result, and a bit an element."""
    x = torch.randn(1 << 24, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    outgrad.gelu(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = outgrad.gelu(x)
    assert torch.cuda.memory_allocated() - before == y.numel() * 2 + y.numel() // 8


# --- Whole models ---------------------------------------------------------------------------------

models = pytest.mark.parametrize("name", ["bert", "gpt2", "roberta", "vit"])


def training_of(name, patched):
    """A model in bf16 with dropout, what it learns from, and an optimizer that may be captured."""
    model = model_of(name, dropout=0.1).train().to("cuda", torch.bfloat16)
    example = {key: t.to("cuda", torch.bfloat16 if t.is_floating_point() else t.dtype)
        for key, t in example_of(name).items()}
    if patched:
        outgrad.patch(model)
    return model, example, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, capturable=True)


def waits(model, example, optimizer):
    """What makes the host wait for the device in forward and backward of the second step."""
    for passes in range(2):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn" if passes == 1 else "default")
            try:
                model(**example).loss.backward()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        optimizer.step()
        optimizer.zero_grad()
    return [str(w.message) for w in told if "called a synchronizing" in str(w.message)]


@models
def test_no_pass_waits(name):
    """But where the model's own code does."""
    assert len(waits(*training_of(name, patched=True))) <= len(waits(*training_of(name, patched=False)))


def test_the_debug_mode_sees_a_wait():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        torch.ones(1, device="cuda").item()
        torch.cuda.set_sync_debug_mode("default")
    assert any("called a synchronizing" in str(w.message) for w in told)


def whole_step(model, example, optimizer):
    with sdpa_kernel(SDPBackend.MATH):  # the sums of the others have no fixed order
        loss = model(**example).loss
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def captured(training):
    """The graph of a whole step and its loss, after steps outside of it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            whole_step(*training)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = whole_step(*training)
    return graph, loss


def after_steps(name, patched, in_graph):
    """The losses of three steps, which come after three, and what the parameters are then."""
    torch.manual_seed(11)
    training = training_of(name, patched)
    if in_graph:
        graph, result = captured(training)
    else:
        for _ in range(3):
            whole_step(*training)
    losses = []
    for seed in (1, 2, 3):
        torch.manual_seed(seed)
        if in_graph:
            graph.replay()
        else:
            result = whole_step(*training)
        losses.append(result.clone())
    outgrad.look_for_drift()
    return [*losses, *(p.detach().clone() for p in training[0].parameters())]


@models
def test_a_captured_step_is_the_eager_one(name):
    """Forward, backward and AdamW, bit for bit, with dropout."""
    eager = after_steps(name, patched=True, in_graph=False)
    again = after_steps(name, patched=True, in_graph=False)
    assert all(map(torch.equal, eager, again)), "two eager runs differ: nothing can be compared with them"
    try:
        replayed = after_steps(name, patched=True, in_graph=True)
    except RuntimeError as ours:
        try:
            after_steps(name, patched=False, in_graph=True)
        except RuntimeError as theirs:
            pytest.skip(f"the model's own code cannot be captured: {theirs}")
        raise AssertionError("the model can be captured, and patched it cannot") from ours
    assert all(map(torch.equal, eager, replayed)) and not torch.equal(eager[0], eager[1])


# --- Drift ----------------------------------------------------------------------------------------


class InGraph:
    """A norm whose forward and backward passes are one graph, captured anew by `capture`."""

    def __init__(self, module, x, dy):
        self.module, self.x, self.dy = module, x, dy
        self.capture()

    def capture(self):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            gradients_of_norm(self.module, self.module, self.x, self.dy)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.results = gradients_of_norm(self.module, self.module, self.x, self.dy)

    def gradients(self):
        self.graph.replay()
        return [t.clone() for t in self.results]


def ways_of_running(way, module, x, dy):
    """What gives the gradients of a step, and what is to be done when a drift was found."""
    if way == "graph":
        graph = InGraph(module, x, dy)
        return graph.gradients, graph.capture
    torch._dynamo.reset()
    function = torch.compile(module, fullgraph=True) if way == "compiled" else module
    return lambda: gradients_of_norm(function, module, x, dy), lambda: None


ways = pytest.mark.parametrize("way", ["eager", "compiled", "graph"])


def near(got, want, tolerance):
    return all((a.cpu().double() - b).norm() <= tolerance * b.norm() for a, b in zip(got, want, strict=True))


def norm_and_arrays(dtype=torch.float32):
    module = outgrad.LayerNorm(N, device="cuda", dtype=dtype)
    x, dy = (torch.randn(256, N, generator=torch.Generator().manual_seed(seed)).to("cuda", dtype)
        for seed in (1, 2))
    return module, x, dy


@ways
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gamma_that_jumps_gives_nan_and_is_named(way, dtype):
    module, x, dy = norm_and_arrays(dtype)
    put(module, 1.0, 4.0)
    run, again = ways_of_running(way, module, x, dy)
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    assert near(run(), exact(module, x, dy), tolerance)
    outgrad.look_for_drift() if way == "graph" else one_step(module)
    put(module, 0.01, 4.0)
    dx, dgamma, dbeta = run()
    assert dx.isnan().all() and dgamma.isnan().nonzero().flatten().tolist() == [5] and dbeta.isfinite().all()
    with pytest.raises(RuntimeError,
            match="a LayerNorm of 64 channels moved so far at once that their output no longer gives the "
                "gradient, which was NaN"):
        if way == "graph":
            outgrad.look_for_drift()
        for _ in range(2):  # the first step only orders a copy
            one_step(module)
    again()
    assert near(run(), exact(module, x, dy), tolerance)
    outgrad.look_for_drift()


@ways
def test_a_gamma_that_drifts_slowly_never_gives_a_wrong_gradient(way):
    module, x, dy = norm_and_arrays()
    run, again = ways_of_running(way, module, x, dy)
    gamma = 1.0
    while gamma > 0.01:
        put(module, gamma, 4.0)
        assert near(run(), exact(module, x, dy), 1e-4)
        outgrad.look_for_drift() if way == "graph" else one_step(module)
        if module._outgrad_stale:
            again()
        gamma *= 0.85
    run()
    assert module._outgrad_found.channels.tolist() == [5]
