"""Modules of the PyTorch package: in all that training code sees of them they are PyTorch's own, and what
they compute is what the functions compute; under autocast, while gamma drifts, compiled, and in several
processes."""

import contextlib
import copy
import functools
import math
import re
import weakref

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from functional_test import copies
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import outgrad
from outgrad import functional, library, patching

FORMATS = [torch.float32, torch.float16, torch.bfloat16]
N = 64
# The arguments that a module takes, and the shape of an x for it.
KINDS = {
    "GELU": ((), {}, (8, N)),
    "GELU tanh": ((), {"approximate": "tanh"}, (8, N)),
    "SiLU": ((), {}, (8, N)),
    "Mish": ((), {}, (8, N)),
    "Softplus": ((), {}, (8, N)),
    "Softplus with beta": ((2.0,), {}, (8, N)),
    "ELU": ((), {}, (8, N)),
    "ELU with alpha": ((0.5,), {}, (8, N)),
    "LayerNorm": ((N,), {}, (8, N)),
    "LayerNorm of a matrix": (((4, 16),), {"eps": 1e-3}, (8, 4, 16)),
    "LayerNorm without bias": ((N,), {"bias": False}, (8, N)),
    "LayerNorm without parameters": ((N,), {"elementwise_affine": False}, (8, N)),
    "RMSNorm": ((N,), {}, (8, N)),
    "RMSNorm with eps": ((N,), {"eps": 1e-6}, (8, N)),
    "RMSNorm without parameters": ((N,), {"elementwise_affine": False}, (8, N)),
    "Dropout": ((0.25,), {}, (8, N)),
}
every = pytest.mark.parametrize("name", KINDS)
norms_only = pytest.mark.parametrize("name", [name for name in KINDS if "Norm" in name])


def made(namespace, name, seed=0):
    """A module of torch.nn or of outgrad, with parameters that are neither 1 nor 0."""
    arguments, options, _ = KINDS[name]
    module = getattr(namespace, name.split()[0])(*arguments, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.rand(p.shape, generator=generator) + 0.5)
    return module


def passed(module, x, seed=0):
    """The result, and the gradients by x and by the parameters for one dy."""
    x = x.detach().clone().requires_grad_()
    torch.manual_seed(seed)
    y = module(x)
    dy = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape).to(y.dtype)
    return (y.detach(), *torch.autograd.grad(y, [x, *module.parameters()], dy))


def input_for(name, dtype=torch.float32):
    return torch.randn(KINDS[name][2], generator=torch.Generator().manual_seed(1)).to(dtype)


def equal_bits(a, b):
    return len(a) == len(b) and all(s.dtype == t.dtype and torch.equal(s, t)
        for s, t in zip(a, b, strict=True))


def exact(module, x, dy):
    """Gradients of a norm in float64, by x and by its parameters."""
    module, x = copy.deepcopy(module).double(), x.detach().double().requires_grad_()
    parameters = list(module.parameters())
    if isinstance(module, nn.RMSNorm):
        y = F.rms_norm(x, module.normalized_shape, module.weight, module.eps)
    else:
        y = F.layer_norm(x, module.normalized_shape, module.weight, module.bias, module.eps)
    return torch.autograd.grad(y, [x, *parameters], dy.double())


@contextlib.contextmanager
def tensors_kept(*modules):
    """The tensors that are kept for the backward pass meanwhile, apart from parameters of the modules:
    (tensor, its bytes)."""
    parameters = {p.untyped_storage()._cdata for module in modules for p in module.parameters()}
    kept = []

    def pack(tensor):
        if tensor.untyped_storage()._cdata not in parameters:
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def bytes_of(tensors):
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


# --- As PyTorch's own -----------------------------------------------------------------------------


@every
def test_names_parameters_and_state_dict_are_pytorchs(name):
    ours, theirs = made(outgrad, name, seed=1), made(nn, name, seed=2)
    assert isinstance(ours, type(theirs)) and type(ours).__name__ == type(theirs).__name__
    assert [(n, p.shape, p.dtype, p.requires_grad) for n, p in ours.named_parameters()] == [
        (n, p.shape, p.dtype, p.requires_grad) for n, p in theirs.named_parameters()
    ]
    assert list(ours.buffers()) == []
    for source, target in ((ours, theirs), (theirs, ours)):
        with torch.no_grad():
            for p in source.parameters():
                p.add_(1)
        result = target.load_state_dict(source.state_dict(), strict=True)
        assert not result.missing_keys and not result.unexpected_keys
        assert equal_bits(list(source.parameters()), list(target.parameters()))
    assert {k: v for k, v in vars(ours).items() if k[0] != "_"} == {k: v
        for k, v in vars(theirs).items() if k[0] != "_"}


# In training, which elements are dropped is not PyTorch's choice.
@pytest.mark.parametrize(("name", "training"), [(name, training) for name in KINDS
    for training in (True, False) if (name, training) != ("Dropout", True)])
def test_results_are_near_pytorchs(name, training):
    ours, theirs = made(outgrad, name).train(training), made(nn, name).train(training)
    for a, b in zip(passed(ours, input_for(name)), passed(theirs, input_for(name)), strict=True):
        assert a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=3e-5)


@pytest.mark.parametrize("store", outgrad.stores.OF_NORMS)
@pytest.mark.parametrize("kind", [outgrad.LayerNorm, outgrad.RMSNorm])
def test_norms_over_no_columns(kind, store):
    module, x = kind((2, 0), store=store), torch.randn(3, 2, 0, requires_grad=True)
    for y in (module(x), module(x, x, p=0.5), module.of_sum(x, x)[0]):
        y.sum().backward()
        assert y.shape == x.grad.shape == (3, 2, 0)
        assert all(p.grad.shape == p.shape for p in module.parameters())


@every
@pytest.mark.parametrize("dtype", FORMATS)
def test_results_are_those_of_the_functions(name, dtype):
    module = made(outgrad, name)
    functions = {
        "GELU": lambda x: outgrad.gelu(x, module.approximate),
        "SiLU": outgrad.silu,
        "Mish": outgrad.mish,
        "Softplus": lambda x: outgrad.softplus(x) if module.beta == 1
        else F.softplus(x, module.beta, module.threshold),
        "ELU": lambda x: outgrad.elu(x) if module.alpha == 1 else F.elu(x, module.alpha),
        "LayerNorm": lambda x: outgrad.layer_norm(x, module.normalized_shape, module.weight, module.bias,
        module.eps),
        "RMSNorm": lambda x: outgrad.rms_norm(x, module.normalized_shape, module.weight, module.eps),
        "Dropout": lambda x: outgrad.dropout(x, module.p),
    }
    as_function = made(outgrad, name)
    as_function.forward = functions[name.split()[0]]
    as_function._parameters = module._parameters
    assert equal_bits(passed(module, input_for(name, dtype)), passed(as_function, input_for(name, dtype)))


@every
def test_evaluation_gives_the_bits_of_training_and_keeps_nothing(name):
    module, x = made(outgrad, name), input_for(name)
    if "weight" in module._parameters and module.weight is not None:
        with torch.no_grad():
            module.weight.view(-1)[2] = 0  # has a side buffer, in training
    trained = x if name == "Dropout" else passed(module, x)[0]
    module.eval()
    assert torch.equal(module(x), trained)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), tensors_kept(module) as kept:
            assert torch.equal(module(x), trained)
        assert not kept
    if name == "Dropout":
        assert module(x) is x


def test_representations_show_bounds():
    """The numbers of a repr are those of outgrad.bounds, and PyTorch's own words stand before them."""
    text = repr(outgrad.GELU())
    assert text.startswith("GELU(approximate='none', ")
    for name, dtype in (("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)):
        bounds = outgrad.bounds("gelu", dtype)
        every = f"every {str(dtype).removeprefix('torch.')} x"
        assert f"{name}: {bounds}" in text and re.search(
            rf"{name}: \|g - f'\(x\)\| <= [0-9.e-]+ for {every}, fit {bounds.fit}\b", text)
    assert (repr(outgrad.GELU("tanh")).startswith("GELU(approximate='tanh', f32: |g - f'(x)| <= ")
        and "fit gelu_tanh_bf16" in repr(outgrad.GELU("tanh")))
    assert repr(outgrad.SiLU()).startswith("SiLU(f32: |g - f'(x)| <= ") and "fit silu_f16" in repr(
        outgrad.SiLU())
    for made_so in (lambda of: of.ELU(0.5), lambda of: of.Softplus(2.0),
            lambda of: of.Softplus(threshold=10.0)):
        assert repr(made_so(outgrad)) == repr(made_so(nn))  # PyTorch's computation: no bound of ours
    for name in KINDS:
        if "Norm" in name:
            assert (repr(made(outgrad, name)) == repr(made(nn, name))[:-1]
                + ", storing y moves x^ by at most min(2^-4, 128 u) + u |x^|)")
    norm = outgrad.LayerNorm(N)
    norm.tau = 2.0**-9
    assert ("at most 2^-9 + u |x^|" in repr(norm)
        and norm.bound(torch.bfloat16) == "storing y moves x^ by at most 2^-9 + 2^-8 |x^|")
    norm.tau = 0.6 * 2.0**-9
    assert "at most 2^-9 + u |x^|" in repr(norm), "never less than tau"
    for norm.tau in (math.inf, math.nan, -1.0):
        for use in (lambda: repr(norm), lambda: norm.bound(torch.bfloat16), lambda: norm(torch.ones(2, N))):
            with pytest.raises(ValueError, match="^outgrad: tau is .*, which takes a positive number$"):
                use()
    with pytest.raises(RuntimeError, match="approximate"):
        outgrad.GELU("fast")(torch.ones(2))
    assert (repr(outgrad.Dropout(0.25))
        == "Dropout(p=0.25, inplace=False, the same elements are dropped in both passes)")


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_the_representation_says_of_norms_is_so(dtype):
    """x^ read from the stored y differs from the real one by at most tau + u |x^| in each channel without a
    side buffer, and by more in one that has a side buffer. 4 roundings of fp32 are those of the forward pass
    itself."""
    torch.manual_seed(1)
    norm, x = outgrad.LayerNorm(256), torch.randn(200, 256).to(dtype)
    with torch.no_grad():
        norm.bias.copy_(torch.randn(256).sign())
        norm.weight.copy_(2.0 ** torch.linspace(-12, 2, 256))
    side = norm.side_channels(dtype).long()
    u = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    tau = 2.0**-17 if dtype == torch.float32 else 2.0**-4
    assert (norm.bound(dtype)
        == f"storing y moves x^ by at most 2^{round(math.log2(tau))} + 2^{round(math.log2(u))} |x^|")
    x_hat = F.layer_norm(x.double(), (256,), eps=norm.eps)
    moved = ((norm(x).double() - norm.bias.double()) / norm.weight.double() - x_hat).abs()
    excess = moved / ((tau / u + x_hat.abs())
        * (u + 4 * 2.0**-24 * (dtype != torch.float32) + 2 * u * (dtype == torch.float32)))
    plain = torch.ones(256, dtype=torch.bool)
    plain[side] = False
    assert 20 < len(side) < 200 and excess[:, plain].max() <= 1
    if dtype != torch.float32:
        assert excess[:, ~plain].max() > 1


@every
def test_copies_and_pickles(name):
    module, x = made(outgrad, name), input_for(name)
    if "Norm" in name and module.weight is not None:
        with torch.no_grad():
            module.weight.view(-1)[3] = 0
    before = passed(module, x)
    for other in copies(module):
        assert type(other) is type(module) and repr(other) == repr(module)
        assert not any("outgrad" in key
            for key in vars(other)), "what was found for one module is no part of another"
        assert equal_bits(passed(other, x), before)
        with torch.no_grad():
            for p in other.parameters():
                p.mul_(2)
    assert equal_bits(passed(module, x), before)


# --- What is kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GELU", "LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_a_linear_keeps_the_storage_that_the_module_keeps(name, dtype):
    module, linear, x = (made(outgrad, name), nn.Linear(N, 8).to(dtype),
        input_for(name, dtype).requires_grad_())
    with tensors_kept(module, linear) as kept:
        y = module(x)
        of_module = len(kept)
        z = linear(y)
    mine, linears = ({t.untyped_storage()._cdata for t in part}
        for part in (kept[:of_module], kept[of_module:]))
    assert linears == {y.untyped_storage()._cdata} and linears <= mine
    beside = {"GELU": 8 * N // 8, "LayerNorm": 8 * 4, "RMSNorm": 8 * 4}[name]
    assert bytes_of(kept) == 8 * N * dtype.itemsize + beside
    z.sum().backward()


def test_dropout_keeps_eight_bytes():
    x = torch.randn(100, N, requires_grad=True)
    with tensors_kept() as kept:
        y = outgrad.Dropout(0.5)(x)
    assert bytes_of(kept) == 8
    del y


class _Dropped(nn.Module):
    """Where it is seen that dropout is in place: a sum with what it dropped from, and a result not taken."""

    def __init__(self):
        super().__init__()
        self.linear, self.drop = nn.Linear(N, N), nn.Dropout(0.5, inplace=True)

    def forward(self, x):
        y = self.linear(x)
        y = y + self.drop(y)
        z = self.linear(y)
        self.drop(z[:50])
        return z


    def out_of_place(self, x):
        y = 2 * outgrad.dropout(self.linear(x), 0.5)
        z = self.linear(y)
        return torch.cat((outgrad.dropout(z[:50], 0.5), z[50:]))


@pytest.mark.parametrize("compiled", [False, True])
def test_dropout_in_place_is_in_its_input(compiled):
    model, x = _Dropped(), torch.randn(100, N, requires_grad=True)
    outgrad.patch(model)
    torch._dynamo.reset()
    found = []
    for function in (torch.compile(model, backend="aot_eager") if compiled else model, model.out_of_place):
        torch.manual_seed(1)
        y = function(x)
        found.append((y, *torch.autograd.grad(y.square().sum(), (x, *model.parameters()))))
    for ours, wanted in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted)
    torch.testing.assert_close(model.eval()(x), model.linear(2 * model.linear(x)))


def test_dropout_in_place_leaves_what_is_kept():
    x = torch.ones(1000, requires_grad=True)
    y = outgrad.Dropout(0.5, inplace=True)(outgrad.GELU()(x))
    y.sum().backward()
    assert torch.equal(x.grad == 0, y == 0) and 0 < (y == 0).sum() < 1000


# --- Autocast -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("norms, dtype", [("fp32", torch.float32), ("autocast", torch.bfloat16)])
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16])
def test_norms_under_autocast(name, norms, dtype, x_dtype):
    """Types of the result, of gradients and of what is kept, and its bytes; then what a Linear adds: in fp32
    its own bf16 copy of y, in bf16 nothing."""
    module, linear, rows = made(outgrad, name), nn.Linear(N, 8), 8
    module.norms = norms
    x = input_for(name, x_dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16), tensors_kept(module, linear) as kept:
        y = module(x)
        of_norm = list(kept)
        linear(y)
    assert y.dtype == dtype
    arrays = [t for t in of_norm if t.numel() >= rows * N]
    assert ([t.dtype for t in arrays] == [dtype]
        and arrays[0].untyped_storage()._cdata == y.untyped_storage()._cdata)
    assert bytes_of(of_norm) == rows * N * dtype.itemsize + rows * 4
    copied = [t for t in kept[len(of_norm) :] if t.shape == y.shape]  # the weight's copy apart
    assert bytes_of([*of_norm, *copied]) - bytes_of(of_norm) == (rows * N * 2 if norms == "fp32" else 0)
    dy = torch.randn_like(y)
    got = torch.autograd.grad(y, [x, *module.parameters()], dy)
    assert [t.dtype for t in got] == [x_dtype] + [torch.float32] * (len(got) - 1)
    u = 2.0**-8 if torch.bfloat16 in (dtype, x_dtype) else 2.0**-24
    for a, b in zip(got, exact(module, x, dy), strict=True):
        assert (a.double() - b).norm() <= 4 * u * b.norm()


@pytest.mark.parametrize("norms", ["fp32", "autocast"])
def test_autocast_does_not_narrow_float64(norms):
    module = outgrad.LayerNorm(N)
    module.norms = norms
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TypeError, match="x is torch.float64"):
        module(torch.randn(2, N, dtype=torch.float64))


def test_activations_and_dropout_under_autocast_keep_the_type_of_their_input():
    block = nn.Sequential(nn.Linear(N, N), outgrad.GELU(), outgrad.Dropout(0.5), nn.Linear(N, N))
    with torch.autocast("cpu", torch.bfloat16), tensors_kept(block) as kept:
        y = block(torch.randn(8, N))
    assert y.dtype == torch.bfloat16
    mask = [t for t in kept if t.dtype == torch.int32]
    assert len(mask) == 1 and mask[0].numel() == 8 * N // 32


# --- Gamma drifts ---------------------------------------------------------------------------------


def step_to(parameter, values):
    """One step of an optimizer after which a parameter has these values (of a few bits, so that the step is
    exact)."""
    parameter.grad = parameter.detach() - values
    torch.optim.SGD([parameter], lr=1.0).step()
    parameter.grad = None
    assert torch.equal(parameter.detach(), values)


def drifting(name):
    """A norm with gammas and betas of a few bits, and the channels whose gamma a step makes 0, -0 or small
    beside beta."""
    module = getattr(outgrad, name)(N)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randint(1, 8, (N,), generator=torch.Generator().manual_seed(3)) / 4)
    after = module.weight.detach().clone()
    after[3], after[7] = 0.0, -0.0
    unstable = [3, 7]
    if name == "LayerNorm":
        after[11] = 2.0**-10
        unstable.append(11)
    return module, after, unstable


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_a_gamma_that_drifts_to_zero_gets_a_side_buffer(name):
    module, after, unstable = drifting(name)
    x, dy = torch.randn(16, N, requires_grad=True), torch.randn(16, N)
    with tensors_kept(module) as kept:
        module(x).backward(dy)
    assert module.side_channels() is None and bytes_of(kept) == 16 * N * 4 + 16 * 4
    step_to(module.weight, after)
    with tensors_kept(module) as kept:
        y = module(x)
    assert module.side_channels().tolist() == unstable and module.side_channels().dtype == torch.int32
    assert bytes_of(kept) == 16 * N * 4 + 16 * 4 + 16 * len(unstable) * 4 + len(unstable) * 4
    got = torch.autograd.grad(y, [x, *module.parameters()], dy)
    for a, b in zip(got, exact(module, x, dy), strict=True):
        assert (a.double() - b).norm() <= 1e-5 * b.norm()
    bias = getattr(module, "bias", None)
    of_norm = module.weight, bias, 1e-5, name == "RMSNorm", None, None, 0.0
    without = functional.norm("rms_norm" if name == "RMSNorm" else "layer_norm", x, N, of_norm)
    with pytest.raises(RuntimeError, match="gamma"):
        without.backward(dy)


def test_a_beta_far_above_gamma_gets_a_side_buffer_and_needs_it():
    """In bf16, beta / gamma = 2000 leaves nothing of x^ in y: without the side buffer dgamma of that channel
    would be wrong."""
    torch.manual_seed(4)
    module, x, dy = outgrad.LayerNorm(N), torch.randn(64, N).bfloat16(), torch.randn(64, N).bfloat16()
    bias = torch.zeros(N)
    bias[5], bias[6] = 2000.0, 59.0  # the second is next to what half of tau allows, 60, not beyond it
    step_to(module.bias, bias)
    assert module.side_channels().tolist() == [5]
    want = exact(module, x, dy)[1]
    dgamma = []
    for side in (module.side_channels(), None):
        y = outgrad.layer_norm(x.clone().requires_grad_(), N, module.weight, module.bias, side_channels=side)
        dgamma.append(torch.autograd.grad(y, module.weight, dy)[0].double())
    with_side, without = (abs(d[5] - want[5]) / want.norm() for d in dgamma)
    assert with_side < 1e-4 and without > 0.05
    module.tau = 2.0**-18
    assert module.side_channels().tolist() == [5, 6]


def _set(name, value):
    return lambda module: setattr(module, name, value)


CHANGES = {
    "eps": _set("eps", 0.5),
    "tau": _set("tau", 2.0**-18),
    "store": lambda module: module.set_store("int8", "a test"),
    "another weight": lambda module: setattr(module, "weight", nn.Parameter(torch.full((N,), 2.0))),
    "other numbers": lambda module: module.weight.data.mul_(2.0**-9),
    "another array": lambda module: setattr(module.weight, "data", torch.full((N,), 2.0**-9)),
    "parameters in bf16": lambda module: module.bfloat16(),
    "no gradients": lambda module: module.requires_grad_(False),
    "no weight": _set("weight", None),
    "no weight and no bias": lambda module: (_set("weight", None)(module), _set("bias", None)(module)),
    "nothing": lambda module: None,
}


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_what_has_changed_since_the_last_pass_counts(name, change, dtype):
    """A norm remembers what its last pass asked for. A copy remembers nothing: the two give the same."""
    module = made(outgrad, name)
    x = torch.randn(4, N, dtype=dtype)

    def of(one, x):
        x = x.clone().requires_grad_()
        y = one(x)
        y.backward(torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape))
        gradients = [x.grad, *(p.grad for p in one.parameters() if p.grad is not None)]
        one.zero_grad()
        return [y, *gradients, one.side_channels(dtype)]

    for _ in range(2):
        of(module, x)
        with torch.no_grad():
            module(x)
    CHANGES[change](module)
    for x_now in (x, x[:2], x.to(torch.float32), torch.randn(2, 3, N)):
        for mine, fresh in zip(of(module, x_now), of(copy.deepcopy(module), x_now), strict=True):
            assert mine is fresh is None or torch.equal(mine, fresh)
    for wrong, error in ((x[:, 1:], ValueError), (x.double(), TypeError), (x.to_sparse(), TypeError)):
        with pytest.raises(error, match="outgrad"):
            module(wrong)


def test_a_norm_keeps_no_parameters_that_it_no_longer_has():
    """As where they are offloaded between passes."""
    module = outgrad.LayerNorm(N)
    module(torch.randn(4, N))
    former = weakref.ref(module.weight)
    module.weight = nn.Parameter(torch.ones(N))
    assert former() is None


@pytest.mark.parametrize("change", [lambda module: module.to(torch.bfloat16),
    lambda module: module.load_state_dict(copy.deepcopy(module.state_dict()))], ids=["to", "load"])
def test_parameters_that_are_swapped(change):
    module, x = outgrad.LayerNorm(N), torch.randn(4, N)
    module(x).sum().backward()
    module.zero_grad()
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        change(module)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    for parameter in module.parameters():
        assert parameter.dtype == module.weight.dtype
    module(x.to(module.weight.dtype)).sum().backward()


def test_channels_are_looked_for_only_when_values_change(monkeypatch):
    searches = []
    search = functional.chosen_channels
    monkeypatch.setattr(functional, "chosen_channels",
        lambda *arguments, **margin: searches.append(1) or search(*arguments, **margin))
    module, x = outgrad.LayerNorm(N), torch.randn(4, N)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)

    def count(change=lambda: None):
        change()
        before = len(searches)
        for _ in range(3):
            module(x)
        module.side_channels()
        return len(searches) - before

    assert count() == 1
    assert count() == 0
    module(x).pow(3).sum().backward()
    assert count(optimizer.step) == 1
    version = module.weight._version
    optimizer.param_groups[0]["lr"] = 0.0
    assert count(optimizer.step) == 0 and module.weight._version > version  # written, not changed
    assert count(lambda: module.bias.data.add_(1)) == 1  # changed, without a new version
    assert count(lambda: module.load_state_dict(nn.LayerNorm(N).state_dict())) == 1
    assert count(module.bfloat16) == 1
    assert count(module.eval) == 0
    with torch.no_grad():
        # by the explicit call alone: nothing is kept without gradients
        assert count(lambda: module.weight.data.zero_()) == 1


def test_what_evaluation_found_serves_training():
    """A tensor that is made in inference_mode may not be saved for a backward pass."""
    module, after, unstable = drifting("LayerNorm")
    step_to(module.weight, after)
    with torch.inference_mode():
        assert module.side_channels().tolist() == unstable
        module(torch.randn(2, N))
    module(torch.randn(2, N, requires_grad=True)).sum().backward()


def test_what_a_transform_found_does_not_outlive_it():
    module, after, _ = drifting("LayerNorm")
    step_to(module.weight, after)
    x = torch.randn(4, N)
    parameters = {name: p.detach().clone() for name, p in module.named_parameters()}
    by_transform = torch.func.grad(lambda p: torch.func.functional_call(module, p, (x,)).pow(2).sum())(
        parameters)
    module(x).pow(2).sum().backward()
    assert all(torch.equal(by_transform[name], p.grad) for name, p in module.named_parameters())


@pytest.mark.parametrize("training", [True, False])
def test_parameters_that_went_away_are_no_memory_that_nothing_was_written_to(training):
    """As when the parameters of a module that has run were offloaded."""
    x = torch.randn(4, N)
    for module in (outgrad.LayerNorm(N), outgrad.RMSNorm(N)):
        with torch.set_grad_enabled(training):
            module(x)
            parameters = [p.detach() for p in module.to("meta").parameters()] + [None]
            with pytest.raises(ValueError, match="weight is on meta, x on cpu"):
                module(x)
            with pytest.raises(RuntimeError, match="on one device, and these are on cpu and meta"):
                library.norm_forward(x, N, *parameters[:2], 1e-5, len(parameters) == 2, None)


@pytest.mark.parametrize("module", [outgrad.LayerNorm, outgrad.RMSNorm])
@pytest.mark.parametrize("warm", [False, True])
def test_real_parameters_under_a_fake_tensor_mode(module, warm):
    norm, x = module(16), torch.randn(4, 16)
    if warm:
        norm(x)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = mode.from_tensor(x)
    with mode:
        y = norm(fake)
    assert (y.shape, y.dtype, y.requires_grad) == (x.shape, x.dtype, True)
    assert torch.isfinite(norm(x)).all()


@pytest.mark.parametrize("module", [outgrad.LayerNorm, outgrad.RMSNorm])
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_norm_says_what_its_input_is_not(module, warm, autocast):
    norm, x = module(16), torch.randn(4, 16)
    if warm:
        norm(x)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        for bad, why in ((None, "x is no tensor but NoneType"), ([1.0], "x is no tensor but list"),
                (torch.nested.nested_tensor([x, x]), "x is nested, a dense tensor is needed")):
            with pytest.raises(TypeError, match=rf"outgrad\.(layer|rms)_norm: {why}"):
                norm(bad)


def test_fake_parameters_have_no_side_channels():
    module = outgrad.LayerNorm(N, device="meta")
    assert module.side_channels() is None
    assert module(torch.empty(4, N, device="meta")).is_meta
    with FakeTensorMode():
        module = outgrad.RMSNorm(N)
        assert module.side_channels() is None
        module(torch.empty(4, N, requires_grad=True)).sum().backward()
        assert module.weight.grad.shape == (N,)


# --- Compiled -------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, p=0.25):
        super().__init__()
        self.norm1, self.norm2 = outgrad.LayerNorm(N), outgrad.RMSNorm(N)
        self.up, self.down = nn.Linear(N, 2 * N), nn.Linear(2 * N, N)
        self.gelu, self.drop = outgrad.GELU(), outgrad.Dropout(p)

    def forward(self, x):
        return self.norm2(x + self.drop(self.down(self.gelu(self.up(self.norm1(x))))))


def compiled(module):
    torch._dynamo.reset()
    return torch.compile(module, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_a_compiled_block_gives_the_bits_of_eager(dtype, training):
    torch.manual_seed(5)
    block = Block().to(dtype).train(training)
    x = torch.randn(8, N).to(dtype)
    assert equal_bits(passed(compiled(block), x), passed(block, x))


@pytest.mark.parametrize("norms", ["fp32", "autocast"])
def test_a_compiled_block_under_autocast_gives_the_bits_of_eager(norms):
    torch.manual_seed(5)
    block, x = Block(), torch.randn(8, N)
    block.norm1.norms = block.norm2.norms = norms
    graph = compiled(block)
    with torch.autocast("cpu", torch.bfloat16):
        got, want = passed(graph, x), passed(block, x)
    assert equal_bits(got, want)
    assert got[0].dtype == (torch.float32 if norms == "fp32" else torch.bfloat16)


def test_a_graph_has_the_side_channels_of_when_it_was_compiled():
    """A compiled graph finds them itself, and is made anew after a call of side_channels() that finds others;
    until then the gradients of a gamma that has become 0 are NaN."""
    module, after, _ = drifting("LayerNorm")
    with torch.no_grad():
        module.weight[9] = 0
    graph, x = compiled(module), torch.randn(8, N)
    assert equal_bits(passed(graph, x), passed(module, x))
    with torch._dynamo.config.patch(error_on_recompile=True):
        step_to(module.weight, after)
        _, dx, dgamma, dbeta = passed(graph, x)
        assert (dx.isnan().all() and dgamma.isnan().nonzero().flatten().tolist() == [3, 7, 11]
            and dbeta.isfinite().all())
        with pytest.raises(RuntimeError, match="a LayerNorm of 64 channels moved so far at once"):
            step_to(module.bias, module.bias.detach() + 0.5)
    assert module.side_channels().tolist() == [3, 7, 11]
    assert equal_bits(passed(graph, x), passed(module, x))
    got, want = passed(graph, x), exact(module, x,
        torch.linspace(-1, 1, x.numel(), dtype=torch.float64).view(x.shape))
    assert all((a.double() - b).norm() <= 1e-5 * b.norm() for a, b in zip(got[1:], want, strict=True))
    with torch._dynamo.config.patch(error_on_recompile=True):
        step_to(module.bias, module.bias.detach() + 0.25)
        module.side_channels()  # finds the same ones
        assert equal_bits(passed(graph, x), passed(module, x))


# --- Several processes ----------------------------------------------------------------------------

WORLD = 2


def network():
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(N, N), outgrad.GELU(), outgrad.LayerNorm(N), nn.Linear(N, N),
        outgrad.RMSNorm(N), nn.Linear(N, 4))
    with torch.no_grad():
        for norm in (model[2], model[4]):
            norm.weight.copy_(torch.rand(N) + 0.5)  # not bf16 values
    return model


def plain_network():
    """PyTorch's own, for patch."""
    torch.manual_seed(6)
    return nn.Sequential(nn.Linear(N, N), nn.GELU(), nn.LayerNorm(N), nn.Linear(N, N), nn.LayerNorm(N),
        nn.Linear(N, 4))


def batches():
    return torch.randn(WORLD, 8, N, generator=torch.Generator().manual_seed(7))


def loss_of(y):
    return (y.float() - 1).square().mean()


def zeroed(model):
    """Parameters of the network's norms after the change that makes side buffers necessary."""
    weights = [model[k].weight.detach().clone() for k in (2, 4)]
    weights[0][5], weights[1][[0, 63]] = 0.0, 0.0
    return weights


def worker(rank, folder):
    """Gradients of one rank's batch by DistributedDataParallel and by FSDP2, each before and after gammas
    become 0."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    x, results = batches()[rank], {}

    model = nn.parallel.DistributedDataParallel(network())
    for name in ("ddp", "ddp zeroed"):
        loss_of(model(x)).backward()
        results[name] = [p.grad.clone() for p in model.parameters()]
        results[f"{name} side"] = [norm.side_channels() for norm in (model.module[2], model.module[4])]
        model.zero_grad()
        with torch.no_grad():
            for norm, weight in zip((model.module[2], model.module[4]), zeroed(network()), strict=True):
                norm.weight.copy_(weight)

    model, seen = network(), []
    for norm in (model[2], model[4]):
        norm.register_forward_pre_hook(lambda norm, _: seen.append((norm.weight.dtype, norm.side_channels())))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model[3], mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    for name in ("fsdp", "fsdp zeroed"):
        loss_of(model(x)).backward()
        results[name] = [p.grad.full_tensor() for p in model.parameters()]
        results[f"{name} side"] = [side for _, side in seen]
        results[f"{name} types"] = [dtype for dtype, _ in seen]
        seen.clear()
        model.zero_grad()
        with torch.no_grad():
            for norm, weight in zip((model[2], model[4]), zeroed(network()), strict=True):
                norm.weight.copy_(distribute_tensor(weight, norm.weight.device_mesh, norm.weight.placements))
    torch.save(results, f"{folder}/{rank}")
    dist.destroy_process_group()


def patched_after_it_was_sharded(rank, folder):
    """The gradients of a model that patch is given when FSDP2 has it already, and of one that is patched
    before; and what of it stays where patch fails."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    x, results = batches()[rank], {}
    for order in ("before", "after"):
        model = plain_network()
        with torch.no_grad():
            model[2].weight[5] = 0.0
        steps = [lambda m: fully_shard(m[3]) and fully_shard(m), outgrad.patch]
        found = [each(model) for each in (steps if order == "after" else reversed(steps))]
        report = next(one for one in found if isinstance(one, patching.Report))
        results[f"{order} side"] = [one.side_channels for one in report.swapped if one.kind == "LayerNorm"]
        loss_of(model(x)).backward()
        results[order] = [p.grad.full_tensor() for p in model.parameters()]
    model = plain_network()
    fully_shard(model)
    kinds = [type(m) for m in model.modules()]
    with pytest.MonkeyPatch.context() as m:
        m.setattr(patching, "_describe", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            outgrad.patch(model)
    results["restored"] = kinds == [type(m) for m in model.modules()]
    torch.save(results, f"{folder}/{rank}")
    dist.destroy_process_group()


@pytest.mark.nightly
def test_a_model_that_fsdp2_has_already_is_patched(tmp_path):
    torch.multiprocessing.spawn(patched_after_it_was_sharded, (str(tmp_path),), nprocs=WORLD)
    for rank in range(WORLD):
        results = torch.load(tmp_path / str(rank), weights_only=False)
        assert results["before side"] == results["after side"] == [[5], []] and results["restored"]
        for a, b in zip(results["before"], results["after"], strict=True):
            # Hooks of FSDP2 keep a Linear and a GELU apart, whose one pass has a bias's sums in another
            # order.
            assert torch.equal(a, b) or (a.dim() == 1 and torch.allclose(a, b, rtol=1e-5, atol=1e-6))


@pytest.fixture(scope="module")
def by_processes(tmp_path_factory):
    """What each rank has of worker()."""
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(worker, (str(folder),), nprocs=WORLD)
    return [torch.load(folder / str(rank), weights_only=False) for rank in range(WORLD)]


def in_one_process(zeroed_gammas, dtype):
    """Mean over the batches of the gradients that one process has for each, with parameters in dtype."""
    model = network()
    if zeroed_gammas:
        with torch.no_grad():
            for norm, weight in zip((model[2], model[4]), zeroed(network()), strict=True):
                norm.weight.copy_(weight)
    model.to(dtype)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        every = [torch.autograd.grad(loss_of(model(x.to(dtype))), list(model.parameters()))
            for x in batches()]
    finally:
        torch.set_num_threads(threads)
    return [sum(g.float() for g in gradients) / WORLD for gradients in zip(*every, strict=True)]


def listed(side):
    return [None if channels is None else channels.tolist() for channels in side]


@pytest.mark.nightly
@pytest.mark.parametrize("which, dtype", [("ddp", torch.float32), ("fsdp", torch.bfloat16)])
@pytest.mark.parametrize("drifted", [False, True])
def test_gradients_in_two_processes_are_those_of_one(by_processes, which, dtype, drifted):
    """Within the roundings of the mean, which is taken in fp32 on both sides. FSDP2 hands the norms bf16
    copies of gamma and beta, in arrays that it fills anew for each step without a new version: side channels
    are found by values."""
    name = f"{which} zeroed" if drifted else which
    want = in_one_process(drifted, dtype)
    for results in by_processes:
        assert len(results[name]) == len(want)
        for got, exact_mean in zip(results[name], want, strict=True):
            assert got.dtype == torch.float32 and got.shape == exact_mean.shape
            assert (got - exact_mean).norm() <= 1e-6 * exact_mean.norm()
        assert listed(results[f"{name} side"]) == ([[5], [0, 63]] if drifted else [None, None])
        if which == "fsdp":
            assert results[f"{name} types"] == [torch.bfloat16, torch.bfloat16]


def test_bf16_gammas_are_not_those_of_fp32():
    """So that the test above would see a gamma that is misread."""
    norms = [k for k, (name, _) in enumerate(network().named_parameters())
        if name in ("2.weight", "4.weight")]
    for k in norms:
        a, b = (in_one_process(False, dtype)[k] for dtype in (torch.float32, torch.bfloat16))
        assert (a - b).norm() > 1e-3 * a.norm()


@pytest.mark.parametrize("kind", [outgrad.LayerNorm, outgrad.RMSNorm])
def test_what_a_norm_searches_for_is_no_part_of_a_selective_checkpoint(kind):
    """Which keeps the results of an operation by their order, and would take one of the search for one of the
    model, or look for one of a comparison that the forward pass did not make."""

    def keeps(ctx, operator, *args, **kwargs):
        return (CheckpointPolicy.MUST_SAVE if operator is torch.ops.aten.div.Tensor
            else CheckpointPolicy.PREFER_RECOMPUTE)

    torch.manual_seed(1)
    norm, x = kind(64), torch.randn(8, 64, requires_grad=True)

    def block(x):
        return norm(x) / (1 + x.square())

    for _ in range(2):
        with torch.no_grad():
            norm.weight.mul_(1.5)  # hence a search
        y = checkpoint(block, x, use_reentrant=False,
            context_fn=functools.partial(create_selective_checkpoint_contexts, keeps))
        found = torch.autograd.grad(y.square().sum(), [x, *norm.parameters()])
        expected = torch.autograd.grad(block(x).square().sum(), [x, *norm.parameters()])
        assert all(map(torch.equal, found, expected))
