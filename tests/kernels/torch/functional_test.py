"""Functions of the PyTorch package against exact derivatives, within the bounds that the coefficient headers
state; and the ways in which PyTorch's autograd is used on them."""

import copy
import functools
import hashlib
import io
import itertools
import json
import math
import os
import pathlib
import pickle
import re
import subprocess

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import outgrad
from outgrad import library

SOURCES = pathlib.Path(os.environ["OUTGRAD_SOURCE_DIR"])
FORMATS = [torch.float32, torch.float16, torch.bfloat16]
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
X_STAR = -0.7517915


def gradients(function, *inputs, dy=None):
    """The result, and the gradients by the inputs for one dy."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    y = function(*inputs)
    if dy is None:
        dy = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape).to(y.dtype)
    return (y.detach(), *torch.autograd.grad(y, inputs, dy))


def copies(module):
    """What becomes of a module that is copied, pickled, or saved and loaded."""
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(file, weights_only=False))


def assert_it_learns(patch):
    """A line of training as anyone writes it: the loss of a small task falls to a tenth. patch(model) comes
    before."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    patch(model)
    x = torch.randn(256, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = (model(x) - x.sin()).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


def gelu_slope(x):
    """f'(x) in float64: Phi(x) + x phi(x)."""
    return torch.special.ndtr(x) + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def slope_at(y, right):
    """f' at the x on the given side of x* with f(x) = y, in float64, by bisection: what y and the bit stand
    for."""
    y = y.double()
    low = torch.where(right, X_STAR, -40.0).double()
    high = torch.where(right, 12.0, X_STAR).double()
    high = torch.where(right & (y > 6), y.clamp(min=6) + 1, high)
    for _ in range(64):
        middle = (low + high) / 2
        value = middle * torch.special.ndtr(middle)
        below = torch.where(right, value < y, value > y)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return gelu_slope((low + high) / 2)


# --- GELU -----------------------------------------------------------------------------------------


def test_every_gradient_of_a_16_bit_gelu_is_within_the_proven_bound():
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
        x = x[torch.isfinite(x)]
        bound = outgrad.bounds("gelu", dtype).total
        assert math.isfinite(bound)
        for dy in (1.0, -0.75):
            _, dx = gradients(outgrad.gelu, x, dy=torch.full_like(x, dy))
            want = dy * gelu_slope(x.double())
            rounding = UNIT_ROUNDOFF[dtype] * (want.abs() + bound) + 2.0 ** (-24 if dtype == torch.float16
                else -133)
            assert (dx.double() - want).abs().sub(abs(dy) * bound + rounding).max() <= 0
        assert x.numel() > 60_000


def test_an_f32_gelu_keeps_the_bound_of_what_y_and_the_bit_stand_for():
    torch.manual_seed(1)
    x = torch.cat([torch.randn(20_000) * 3, torch.linspace(-12, 8, 20_000),
        X_STAR + torch.randn(5_000) * 1e-3])
    y, g = gradients(outgrad.gelu, x, dy=torch.ones_like(x))
    want = slope_at(y, x >= X_STAR)
    bound = outgrad.bounds("gelu", torch.float32).evaluation
    assert bound < 1e-4
    # Next to y* a rounding of y in float64 is an argument's change of its root: 2^-26 of f''.
    away = (x - X_STAR).abs() > 1e-6
    assert (g.double() - want).abs()[away].max() <= bound + 2.0**-24 + 1e-9


# f in float64 by PyTorch, whose autograd has f' to about 1e-15.
EXACT = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "swish": lambda x: x * torch.sigmoid(1.5 * x),
    "mish": F.mish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": lambda x: F.softplus(x, threshold=600),
    "elu": F.elu,
}


def minimum_of(f):
    """Where f, which falls and then rises on [-2, 0], is least: to 1e-6."""
    x_star = -1.0
    for reach in (1.0, 1e-3):
        grid = torch.linspace(x_star - reach, x_star + reach, 2_001, dtype=torch.float64)
        x_star = grid[f(grid).argmin()].item()
    return x_star


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", EXACT)
def test_every_gradient_of_16_bits_is_within_the_proven_bound(name, dtype):
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    x = x[torch.isfinite(x)]
    bound = outgrad.bounds(name, dtype).total
    assert math.isfinite(bound)
    y, dx = gradients(getattr(outgrad, name), x, dy=torch.ones_like(x))
    exact = x.double().requires_grad_()
    value = EXACT[name](exact)
    (want,) = torch.autograd.grad(value.sum(), exact)
    rounding = (UNIT_ROUNDOFF[dtype] * (want.abs() + bound) + 2.0 ** (-24 if dtype == torch.float16 else -133)
        + 1e-14)
    assert (dx.double() - want).abs().sub(bound + rounding).max() <= 0
    assert (
        (y.double() - value.detach()).abs().sub(UNIT_ROUNDOFF[dtype] * value.detach().abs() + 2.0**-25
        + 1e-14).max() <= 0)


@pytest.mark.parametrize("name", EXACT)
def test_f32_activations_keep_the_bound_of_what_y_and_the_bit_stand_for(name):
    """As GELU's test above: f' at the x that y and the bit stand for, by bisection in float64."""
    f = EXACT[name]
    x = torch.cat([torch.linspace(-20, 20, 10_001),
        torch.randn(4_000, generator=torch.Generator().manual_seed(1))])
    y, g = gradients(getattr(outgrad, name), x, dy=torch.ones_like(x))
    exact = f(x.double())
    assert (y.double() - exact).abs().sub(2.0**-23 * exact.abs() + 2.0**-149).max() <= 1e-15
    low, high = torch.full_like(exact, -120.0), torch.full_like(exact, 120.0)
    right = torch.ones_like(x, dtype=torch.bool)
    if name in outgrad.library.MASKED:
        x_star = minimum_of(f)
        right = x >= x_star
        low, high = torch.where(right, x_star, low), torch.where(right, high, x_star)
    for _ in range(64):
        middle = (low + high) / 2
        below = torch.where(right, f(middle) < y, f(middle) > y)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    at = ((low + high) / 2).requires_grad_()
    (want,) = torch.autograd.grad(f(at).sum(), at)
    bound = outgrad.bounds(name, torch.float32).evaluation
    assert bound < 1e-4
    # Next to y* what float64 leaves of y - y* says little of the root; where f ends, y is as near to the end
    # as x is far.
    away = torch.ones_like(right) if name not in outgrad.library.MASKED else (x - x_star).abs() > 1e-5
    assert away.sum() > 13_500
    assert (g.double() - want).abs()[away].max() <= bound + 2.0**-24 + 1e-9


def test_gelus_two_forms():
    x = torch.randn(100)
    assert torch.equal(outgrad.gelu(x, approximate="tanh"), outgrad.gelu_tanh(x)) and not torch.equal(
        outgrad.gelu(x), outgrad.gelu_tanh(x))
    with pytest.raises(ValueError, match="approximate is 'fast'"):
        outgrad.gelu(x, approximate="fast")


def test_bounds_are_those_of_the_coefficient_header():
    header = (SOURCES / "kernels/generated/gelu_bf16.h").read_text()
    stated = {name: float.fromhex(header.split(f"double {name} = ")[1].split(";")[0])
        for name in ("kT", "kR")}
    bounds = outgrad.bounds("gelu", torch.bfloat16)
    assert (bounds.total, bounds.regret) == (stated["kT"], stated["kR"])
    assert bounds.sha256 == hashlib.sha256(
        (SOURCES / f"kernels/generated/{bounds.fit}.h").read_bytes()).hexdigest()


# --- Norms ----------------------------------------------------------------------------------------


def exact_layer_norm(x, gamma, beta, dy, eps, rms):
    x, gamma, dy = (t.double().requires_grad_(t is not dy)
        for t in (x.detach().double(), gamma.detach().double(), dy.double()))
    parameters = [x, gamma]
    if rms:
        y = F.rms_norm(x, gamma.shape, gamma, eps)
    else:
        beta = beta.detach().double().requires_grad_()
        parameters.append(beta)
        y = F.layer_norm(x, gamma.shape, gamma, beta, eps)
    return torch.autograd.grad(y, parameters, dy)


def certified(gamma, beta, format, rms, eps, rows, dy_max, x_hat_max, mean_ratio):
    """What `outgrad stability` certifies for a norm of these parameters: {bounds of dx over rstd, dgamma and
    dbeta per row}, with the side channels of its policy, which come with them."""
    program = pathlib.Path(os.environ["OUTGRAD_BINARY_DIR"]) / "outgrad-check"
    if not program.exists():
        pytest.skip(f"{program}: the validator was not built")
    options = {"format": format, "norm": "rmsnorm" if rms else "layernorm"}
    options |= {"eps": eps, "rows": rows, "dy-max": dy_max, "x-hat-max": x_hat_max, "mean-ratio": mean_ratio}
    command = [program, "stability", "--json", *(f"--{name}={value}" for name, value in options.items())]
    for name, parameter in (("--gamma", gamma), ("--beta", beta)):
        if parameter is not None:
            command += [name, *map(repr, parameter.tolist())]
    (norm,) = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["norms"]
    return norm["bounds"]["recommended"], torch.tensor(norm["policy"]["channels"], dtype=torch.int32)


def gammas(kind, n):
    """Parameters of a norm, as a generator gives them or such that the output does not tell some of their
    x^."""
    gamma, beta = torch.rand(n) + 0.5, torch.randn(n)
    if kind == "hard":
        gamma[:5] = torch.tensor([0.0, -0.0, 1e-30, -1e-39, 1e-3])
        gamma[5:20] *= -1
        beta[20] = 1e5
    return gamma, beta


@pytest.mark.parametrize("kind", ["usual", "hard"])
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("gamma_dtype", FORMATS)
def test_gradients_of_norms_are_within_the_certified_bounds(dtype, gamma_dtype, rms, kind):
    torch.manual_seed(2)
    n, rows, eps = 96, 40, 2.0**-17
    x, dy = (torch.randn(rows, n) + 0.3).to(dtype), torch.randn(rows, n).to(dtype)
    gamma, beta = gammas(kind, n)
    if torch.float16 in (dtype, gamma_dtype):
        beta = beta.clamp(-6e4, 6e4)  # f16 ends at 65504
    gamma, beta = gamma.to(gamma_dtype), beta.to(gamma_dtype)
    wide = x.double()
    mean = torch.zeros(rows, 1) if rms else wide.mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt(((wide - mean) ** 2).mean(-1, keepdim=True) + eps)
    x_hat_max, mean_ratio = (((wide - mean) * rstd).abs().max().item() * 1.01,
        (mean * rstd).abs().max().item() * 1.01)
    format = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    bounds, side = certified(gamma, None if rms else beta, format, rms, eps, rows, dy.abs().max().item(),
        x_hat_max, max(mean_ratio, 1e-3))
    assert (side.numel() > 0) == (kind == "hard")
    found = outgrad.side_channels(gamma, None if rms else beta, dtype)
    found = set() if found is None else set(found.tolist())
    assert found >= set(side.tolist()) if dtype == torch.float32 else found == set(side.tolist())
    if rms:
        got = gradients(lambda x, g: outgrad.rms_norm(x, n, g, eps, side_channels=side), x, gamma, dy=dy)[1:]
    else:
        got = gradients(lambda x, g, b: outgrad.layer_norm(x, n, g, b, eps, side_channels=side), x, gamma,
            beta, dy=dy)[1:]
    want = exact_layer_norm(x, gamma, None if rms else beta, dy, eps, rms)
    dx = min(bounds["dx_max_over_rstd"].values()) * rstd + bounds["dx_absolute"]
    assert torch.isfinite(dx).all()
    share = ((got[0].double() - want[0]).abs() / dx).max().item()
    assert share <= 1
    per_row = (min(bounds["dgamma_max_per_row"].values()), bounds["dbeta_per_row"])
    for a, b, of_one in zip(got[1:], want[1:], per_row, strict=False):
        assert a.dtype == gamma_dtype
        # Handed over in the parameter's type, they are rounded once more.
        assert (
            ((a.double() - b).abs() <= rows * of_one + UNIT_ROUNDOFF[gamma_dtype] * b.abs() * 1.01 + 2.0**-24
            * (gamma_dtype == torch.float16)).all())
    print(f"dx is off by {share:.3f} of its bound")


@pytest.mark.parametrize("kind", ["usual", "hard"])
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("store", ["e4m3", "mxfp8", "int8"])
def test_gradients_of_norms_from_8_bits_are_within_the_certified_bounds(store, rms, kind):
    """In float32, for whose dx the bounds are; and the side channels of a module are those of the
    certificate."""
    torch.manual_seed(2)
    n, rows, eps = 192, 40, 2.0**-17
    x, dy = torch.randn(rows, n) + 0.3, torch.randn(rows, n)
    gamma, beta = gammas(kind, n)
    if kind == "hard":
        gamma[30:60] *= 1e-3
        beta[100:130] *= 20
        beta[20] = 50
    else:
        beta *= 0.1
    mean = torch.zeros(rows, 1) if rms else x.double().mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt(((x.double() - mean) ** 2).mean(-1, keepdim=True) + eps)
    x_hat_max, mean_ratio = 6, (mean * rstd).abs().max().item() * 1.01
    assert ((x.double() - mean) * rstd).abs().max() < x_hat_max
    bounds, side = certified(gamma, None if rms else beta, store, rms, eps, rows, dy.abs().max().item(),
        x_hat_max, max(mean_ratio, 1e-3))
    module = (outgrad.RMSNorm if rms else outgrad.LayerNorm)(n, eps=eps, store=store)
    with torch.no_grad():
        module.weight.copy_(gamma)
        if not rms:
            module.bias.copy_(beta)
    found = module.side_channels(torch.float32)
    assert ([] if found is None else found.tolist()) == side.tolist() and (side.numel() > 0) == (
        kind == "hard")
    y = outgrad.rms_norm(x, n, gamma, eps) if rms else outgrad.layer_norm(x, n, gamma, beta, eps)
    x.requires_grad_()
    result = module(x)
    assert torch.equal(result, y), "y itself is as ever"
    result.backward(dy)
    got = [x.grad, module.weight.grad, *([] if rms else [module.bias.grad])]
    want = exact_layer_norm(x, gamma, None if rms else beta, dy, eps, rms)
    dx = min(bounds["dx_max_over_rstd"].values()) * rstd + bounds["dx_absolute"]
    assert torch.isfinite(dx).all()
    assert ((got[0].double() - want[0]).abs() <= dx).all()
    for a, b, of_one in zip(got[1:], want[1:],
            (min(bounds["dgamma_max_per_row"].values()), bounds["dbeta_per_row"]), strict=False):
        assert ((a.double() - b).abs() <= rows * of_one).all()
    off = ((got[1].double() - want[1]).norm() / want[1].norm()).item()
    assert kind == "hard" or 0.001 < off < 0.05, "y was rounded to 8 bits"


def test_gammas_that_the_output_does_not_determine():
    """0, -0, 1e-30 and beta far above gamma: their channels are found, and without them the backward pass is
    an error."""
    torch.manual_seed(3)
    n = 32
    gamma, beta = gammas("hard", n)
    side = outgrad.side_channels(gamma, beta)
    # 1 + |beta / gamma| and three roundings of the forward pass are at most 128.
    assert side.tolist() == [k for k in range(n) if gamma[k].abs() * 124 < beta[k].abs()
        or gamma[k].abs() < 1e-36]
    x, dy = torch.randn(16, n), torch.randn(16, n)
    with pytest.raises(RuntimeError, match="gamma"):
        gradients(lambda x, g, b: outgrad.layer_norm(x, n, g, b), x, gamma, beta, dy=dy)


def test_no_parameters_no_side_channels():
    x = torch.randn(4, 8)
    got = gradients(lambda x: outgrad.layer_norm(x, 8), x)
    want = gradients(lambda x: F.layer_norm(x, (8,)), x)
    assert all(torch.allclose(a, b, rtol=0, atol=2e-6) for a, b in zip(got, want, strict=True))
    assert outgrad.side_channels(None) is None
    assert outgrad.side_channels(torch.ones(3), torch.zeros(3)) is None
    assert outgrad.side_channels(None, torch.tensor([0.0, 1e6, -1.0, -1e6])).tolist() == [1, 3]
    with pytest.raises(TypeError, match="side_channels: torch.float64 is none of"):
        outgrad.side_channels(torch.ones(3).double())
    with pytest.raises(ValueError, match="bias has 4 elements, weight 3"):
        outgrad.side_channels(torch.ones(3), torch.ones(4))


@pytest.mark.parametrize("store", outgrad.stores.OF_NORMS)
def test_a_bias_without_a_weight_has_side_channels(store):
    torch.manual_seed(4)
    norm = outgrad.LayerNorm(64, store=store)
    norm.weight, norm.bias = None, torch.nn.Parameter(torch.tensor([1e6, 0.0]).repeat(32))
    x, dy = torch.randn(16, 64), torch.randn(16, 64)
    found = gradients(norm, x, dy=dy)[1]
    want = gradients(lambda x: F.layer_norm(x, (64,)), x.double(), dy=dy.double())[1]
    off = {"y": 1e-4, "int8": 0.3}.get(store, 0.1)
    assert (found - want).norm() <= off * want.norm()


@pytest.mark.parametrize("store", outgrad.stores.OF_NORMS)
def test_side_channels_do_not_depend_on_the_default_type(store):
    """In mxfp8 half a step is 2^-36, which no float16 is, and more than 2^-2 of the last gammas."""
    gamma = torch.tensor([2.0**-20, 2.0**-35]).repeat_interleave(32).repeat(2)[16:80]
    want = outgrad.side_channels(gamma, store=store)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        found = outgrad.side_channels(gamma, store=store)
    finally:
        torch.set_default_dtype(before)
    assert found is want is None or torch.equal(found, want)
    assert (want is not None) == (store != "y")


def test_normalized_shape_of_two_dimensions():
    x, gamma = torch.randn(3, 4, 5), torch.rand(4, 5) + 0.5
    got = gradients(lambda x, g: outgrad.layer_norm(x, (4, 5), g), x, gamma)
    want = gradients(lambda x, g: F.layer_norm(x, (4, 5), g), x, gamma)
    assert got[2].shape == (4, 5)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-5) for a, b in zip(got, want, strict=True))


# --- Dropout --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FORMATS)
def test_dropout_drops_a_share_p_and_its_gradient_the_same_elements(dtype):
    torch.manual_seed(4)
    n, p = 100_000, 0.1
    x = torch.ones(n, dtype=dtype)
    y, dx = gradients(lambda x: outgrad.dropout(x, p), x, dy=torch.ones(n, dtype=dtype))
    assert torch.equal(y, dx)
    assert set(y.tolist()) == {0.0, float(torch.tensor(1 / (1 - p), dtype=torch.float32).to(dtype))}
    assert abs((y == 0).sum().item() - n * p) < 6 * math.sqrt(n * p * (1 - p))
    assert not torch.equal(y, outgrad.dropout(x, p))
    torch.manual_seed(4)
    assert torch.equal(y, outgrad.dropout(x, p))


def test_dropout_keeps_eight_bytes():
    kept = []
    x = torch.ones(1000, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        outgrad.dropout(x, 0.5)
    assert sum(t.untyped_storage().nbytes() for t in kept) == 8


def test_dropout_at_its_ends():
    x = torch.tensor([1.0, math.inf, math.nan])
    assert outgrad.dropout(x, 0.0) is x
    assert outgrad.dropout(x, 0.5, training=False) is x
    assert torch.equal(outgrad.dropout(x, 1.0), torch.zeros(3))
    y = outgrad.dropout(x.repeat(40), 0.5)
    assert set(y.nan_to_num(5.0).tolist()) == {0.0, 2.0, 5.0, torch.finfo().max}
    assert not y.signbit().any() and (y[2::3] == 0).any(), "a dropped NaN is +0"


# --- The order in which elements lie --------------------------------------------------------------


def layouts(dtype=torch.float32):
    """Tensors whose elements lie in any order: dense ones, channels_last among them, some with dimensions of
    one element, and such as are parts of others."""
    generator = torch.Generator().manual_seed(7)
    random = lambda *size: torch.randn(size, generator=generator).to(dtype)  # noqa: E731
    for size in ((2, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1), (1, 3, 4, 5)):
        yield random(*size).to(memory_format=torch.channels_last)
    yield random(2, 3, 2, 4, 5).to(memory_format=torch.channels_last_3d)
    for order in itertools.permutations(range(3)):
        yield random(3, 4, 5).permute(order)
        yield random(3, 4, 5, 2)[..., 0].permute(order)
        yield random(3, 8, 5).permute(order)[:, 1::2]
    yield random(0, 3, 4, 5).to(memory_format=torch.channels_last)


def strides(x):
    """Of the dimensions in which a second element lies somewhere."""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1 and x.numel() > 0]


def orders_of(dy):
    """A gradient's elements in other orders."""
    yield dy
    yield dy.contiguous()
    yield dy.permute(*reversed(range(dy.dim()))).contiguous().permute(*reversed(range(dy.dim())))


def copies_in(call):
    """How often a call brings a tensor into another order, in operators too."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    return [event.name for event in profile.events()].count("aten::clone")


@pytest.mark.parametrize("store", ["y+bit", "parity", "code:4", "e4m3+bit"])
@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_a_result_lies_as_pytorchs_and_has_the_bits_of_a_contiguous_one(name, store):
    operation = functools.partial(getattr(outgrad, name), store=store)
    for x in layouts(torch.bfloat16):
        dy = torch.linspace(-1, 1, x.numel()).to(x.dtype).view(x.shape)
        want = gradients(operation, x.contiguous(), dy=dy)
        for each in orders_of(dy):
            leaf = x.detach().requires_grad_()
            y = operation(leaf)
            assert strides(y) == strides(EXACT.get(name, F.gelu)(x))
            (dx,) = torch.autograd.grad(y, leaf, each)
            assert strides(dx) == strides(y) and torch.equal(y, want[0]) and torch.equal(dx, want[1])


@pytest.mark.parametrize("name", outgrad.ACTIVATIONS)
def test_gradients_of_permuted_and_expanded_tensors_are_pytorchs(name):
    """An expanded tensor is copied, and its result is contiguous."""
    expanded = torch.randn(3, 1, 5, generator=torch.Generator().manual_seed(1)).expand(3, 4, 5)
    for x in (*layouts(), expanded):
        dy = torch.linspace(-1, 1, x.numel()).view(x.shape)
        found = gradients(lambda x: getattr(outgrad, name)(x.expand(3, 4, 5) if x is expanded else x), x,
            dy=dy)
        want = gradients(EXACT.get(name, F.gelu), x.double(), dy=dy.double())
        for a, b in zip(found, want, strict=True):
            assert (a - b).abs().max() < 1e-4 if a.numel() else a.shape == b.shape
    assert getattr(outgrad, name)(expanded).is_contiguous()


@pytest.mark.parametrize("store", ["y+bit", "code:4", "dither:2", "e4m3+bit", "mxfp8+bit"])
def test_of_a_dense_tensor_nothing_is_copied(store):
    x = torch.randn(2, 8, 6, 4).to(memory_format=torch.channels_last).requires_grad_()
    assert x.permute(0, 2, 3, 1).is_contiguous()
    ways = {"activation": functools.partial(outgrad.gelu, store=store), "dropout": outgrad.dropout,
        "gate": lambda x: outgrad.gated(x, x), "norm": lambda x: outgrad.layer_norm(x.permute(0, 2, 3, 1), 8)}
    for way, operation in ways.items():
        y = operation(x)
        other = torch.ones(y.shape[::-1]).permute(3, 2, 1, 0)
        for dy, copies in ((torch.ones_like(y), 0), (other, 1)):
            assert copies_in(lambda: operation(x)) == 0, way
            assert copies_in(lambda y=operation(x), dy=dy: torch.autograd.grad(y, x, dy)) == copies, way


def test_a_gated_pair_lies_as_its_first_factor():
    for a, b in zip(layouts(), layouts(), strict=True):
        for other in orders_of(b + 1):
            found = gradients(lambda a, b: outgrad.gated(a, b), a, other)
            want = gradients(lambda a, b: outgrad.gated(a, b), a.contiguous(), other.contiguous())
            assert all(map(torch.equal, found, want)) and strides(found[0]) == strides(F.silu(a))


def test_dropout_counts_elements_as_they_lie():
    """And so both passes drop the same ones, in whatever order the gradient lies."""
    for x in layouts():
        leaf = torch.ones_like(x).requires_grad_()
        torch.manual_seed(3)
        y = outgrad.dropout(leaf, 0.5)
        assert strides(y) == strides(leaf)
        for dy in orders_of(torch.ones(x.shape)):
            assert torch.equal(torch.autograd.grad(y, leaf, dy, retain_graph=True)[0], y)
        torch.manual_seed(3)
        flat = outgrad.dropout(torch.ones(x.numel()), 0.5)
        assert torch.equal(y.detach().as_strided((y.numel(),), (1,)), flat)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_results_lie_as_those_of_eager_mode(dynamic):
    def both(x):
        return outgrad.dropout(outgrad.gelu(x, store="code:4") + outgrad.silu(x), 0.5)

    torch._dynamo.reset()
    compiled = torch.compile(both, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for shape in ((2, 3, 4, 5), (3, 3, 6, 5)):
        x = torch.randn(shape).to(memory_format=torch.channels_last)
        torch.manual_seed(5)
        want = gradients(both, x)
        torch.manual_seed(5)
        for a, b in zip(gradients(compiled, x), want, strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride() == x.stride()


# --- How autograd is used -------------------------------------------------------------------------

GAMMA, BETA = torch.rand(64) + 0.5, torch.randn(64)
OPERATIONS = {
    "gelu": outgrad.gelu,
    "silu": outgrad.silu,
    "tanh": outgrad.tanh,
    "layer_norm": lambda x: outgrad.layer_norm(x, 64, GAMMA, BETA),
    "rms_norm": lambda x: outgrad.rms_norm(x, 64, GAMMA),
}
every = pytest.mark.parametrize("name", list(OPERATIONS))


@every
def test_a_gradient_penalty_is_refused_not_dropped(name):
    x = torch.randn(8, 64)
    weight = torch.ones(64, requires_grad=True)
    y = OPERATIONS[name](x * weight)
    (dx,) = torch.autograd.grad(y.pow(2).sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        dx.pow(2).sum().backward()


def test_dropout_has_its_second_derivative():
    x = torch.randn(64, requires_grad=True)
    y = outgrad.dropout(x, 0.25)
    kept = (y != 0).float() / 0.75
    (dx,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
    (ddx,) = torch.autograd.grad(dx.sum(), x)
    assert torch.allclose(ddx, 2 * kept * kept)


@every
def test_strided_and_expanded_arrays(name):
    operation = OPERATIONS[name]
    wide = torch.randn(8, 128)
    strided = gradients(lambda x: operation(x[:, ::2]), wide)
    dense = gradients(lambda x: operation(x[:, ::2].contiguous()), wide)
    assert all(torch.equal(a, b) for a, b in zip(strided, dense, strict=True))
    x = torch.randn(8, 64)
    expanded = gradients(operation, x, dy=torch.tensor(2.0).expand(8, 64))
    assert torch.equal(expanded[1], gradients(operation, x, dy=torch.full((8, 64), 2.0))[1])


@every
def test_a_result_changed_in_place_is_an_error(name):
    x = torch.randn(8, 64, requires_grad=True)
    y = OPERATIONS[name](x)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_gamma_changed_before_the_backward_pass_is_an_error():
    x, gamma = torch.randn(8, 64, requires_grad=True), GAMMA.clone().requires_grad_()
    y = outgrad.layer_norm(x, 64, gamma, BETA)
    with torch.no_grad():
        gamma.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@every
def test_what_cannot_be_used_is_named(name):
    operation = OPERATIONS[name]
    with pytest.raises(TypeError, match=rf"outgrad\.{name}: x is torch.float64"):
        operation(torch.randn(8, 64, dtype=torch.float64))
    with pytest.raises(TypeError, match=rf"outgrad\.{name}: x is torch.sparse_coo"):
        operation(torch.randn(8, 64).to_sparse())
    with pytest.raises(TypeError, match=rf"outgrad\.{name}: x is nested"):
        operation(torch.nested.nested_tensor([torch.randn(8, 64), torch.randn(4, 64)]))
    with pytest.raises(TypeError, match=rf"outgrad\.{name}: x is no tensor but list"):
        operation([1.0])
    with pytest.raises(TypeError, match=rf"outgrad\.{name}: x is no tensor but NoneType"):
        operation(None)


@pytest.mark.parametrize(("call", "name"), (
    (lambda x: outgrad.linear(x, None), "linear: weight"),
    (lambda x: outgrad.linear_gelu(x, None), "linear_gelu: weight"),
    (lambda x: outgrad.linear_activation(x, None), "linear_activation: weight"),
    (lambda x: outgrad.gated(None, x), "gated: a"),
    (lambda x: outgrad.gated_linear(x, x, None), "gated_linear: weight"),
    (lambda x: outgrad.activation_dropout(None), "activation_dropout: x"),
    (lambda x: outgrad.relu_squared(None), "relu_squared: x"),
    (lambda x: outgrad.softmax(None), "softmax: x"),
    (lambda x: outgrad.softmax_dropout(None), "softmax_dropout: x"),
    (lambda x: outgrad.attention(x, None, x), "attention: k"),
    (lambda x: outgrad.add_rms_norm(x, None, 8), "add_rms_norm: residual"),
    (lambda x: outgrad.dropout_add_layer_norm(None, x, 8), "dropout_add_layer_norm: x"),
))
def test_what_is_missing_is_named(call, name):
    with pytest.raises(TypeError, match=f"outgrad.{name} is no tensor but NoneType"):
        call(torch.randn(4, 8))


@pytest.mark.parametrize(("call", "words"), (
    (lambda x, w: outgrad.layer_norm(x, w, w), ".layer_norm: normalized_shape is a tensor of shape (8,); it "
        "takes the sizes of the last dimensions of x, such as 8"),
    (lambda x, w: outgrad.layer_norm(x, w, store="mxfp8"), ".layer_norm: normalized_shape is a tensor"),
    (lambda x, w: outgrad.rms_norm(x, [w]), ".rms_norm: normalized_shape is a list"),
    (lambda x, w: outgrad.rms_norm(x, None, w), ".rms_norm: normalized_shape is None"),
    (lambda x, w: outgrad.add_layer_norm(x, x, w, w), ".add_layer_norm: normalized_shape is a tensor"),
    (lambda x, w: outgrad.dropout_add_rms_norm(x, x, 0.5), ".dropout_add_rms_norm: normalized_shape is 0.5"),
    (lambda x, w: outgrad.layer_norm(x, 8, w, w, w), ".layer_norm: eps is a tensor of shape (8,), which "
        "must be at least 0"),
    (lambda x, w: outgrad.layer_norm(x, 8, eps=None), ".layer_norm: eps is None"),
    (lambda x, w: outgrad.layer_norm(x, 8, eps=-1), ".layer_norm: eps is -1"),
    (lambda x, w: outgrad.layer_norm(x, 8, side_channels=[1]), ".layer_norm: side_channels is no tensor"),
    (lambda x, w: outgrad.dropout(x, w), ".dropout: p is a tensor of shape (8,), a probability is needed"),
    (lambda x, w: outgrad.attention(x, x, x, p="0.5"), ".attention: p is '0.5'"),
    (lambda x, w: outgrad.softmax(x, w), ".softmax: dim is a tensor of shape (8,), the number of a "
        "dimension is needed"),
    (lambda x, w: outgrad.softmax_bound(8, w, 1, 1), ".softmax_bound: total, spread and largest are a "
        "tensor"),
    (lambda x, w: outgrad.side_channels(8), ".side_channels: weight is no tensor but int"),
    (lambda x, w: outgrad.side_channels(w, 8), ".side_channels: bias is no tensor but int"),
    (lambda x, w: outgrad.side_channels(w.to("meta")), ".side_channels: weight is on meta"),
    (lambda x, w: outgrad.side_channels(w, tau=w), ": tau is a tensor of shape (8,), which takes"),
    (lambda x, w: outgrad.bounds(store="e4m3", largest=w), ".bounds: largest is a tensor of shape (8,)"),
    (lambda x, w: outgrad.gelu(x, w), ".gelu: approximate is a tensor of shape (8,), neither"),
))
def test_an_argument_in_anothers_place_is_named_in_one_line(call, words):
    with pytest.raises((TypeError, ValueError, IndexError)) as error:
        call(torch.randn(4, 8), torch.ones(8))
    assert str(error.value).startswith(f"outgrad{words}"), str(error.value)
    assert "\n" not in str(error.value)


def test_bad_shapes_devices_and_values_are_named():
    x = torch.randn(8, 64)
    with pytest.raises(ValueError,
            match=r"x has shape \(8, 64\), which does not end in normalized_shape \(32,\)"):
        outgrad.layer_norm(x, 32)
    with pytest.raises(ValueError, match=r"weight has shape \(32,\), normalized_shape is \(64,\)"):
        outgrad.layer_norm(x, 64, torch.ones(32))
    with pytest.raises(ValueError, match="bias is on meta, x on cpu"):
        outgrad.layer_norm(x, 64, GAMMA, torch.ones(64, device="meta"))
    with pytest.raises(TypeError, match="weight is torch.float64"):
        outgrad.layer_norm(x, 64, GAMMA.double())
    with pytest.raises(ValueError, match="p is 1.5"):
        outgrad.dropout(x, 1.5)
    with pytest.raises(ValueError, match="'relu' is none of"):
        outgrad.bounds("relu")
    with pytest.raises(TypeError, match="torch.float64 is none of"):
        outgrad.bounds("gelu", torch.float64)


@every
def test_meta_tensors_have_shapes(name):
    x = torch.empty(8, 64, device="meta", requires_grad=True)
    without_parameters = {"layer_norm": lambda x: outgrad.layer_norm(x, 64),
        "rms_norm": lambda x: outgrad.rms_norm(x, 64)}
    y = without_parameters.get(name, OPERATIONS[name])(x)
    assert y.is_meta and y.shape == x.shape
    assert torch.autograd.grad(y.sum(), x)[0].shape == x.shape


@every
def test_func_grad_equals_autograd(name):
    operation = OPERATIONS[name]
    x = torch.randn(8, 64)
    got = torch.func.grad(lambda x: operation(x).pow(2).sum())(x)
    leaf = x.clone().requires_grad_()
    operation(leaf).pow(2).sum().backward()
    assert torch.equal(got, leaf.grad)


def refusals(name):
    """Each transform that an operation has no rule for, called, and what it says."""
    operation, x = OPERATIONS[name], torch.randn(8, 64)

    def dual():
        with forward_ad.dual_level():
            operation(forward_ad.make_dual(x, x))

    forward_mode = f"outgrad.{name}: forward-mode derivatives are not supported"
    return (
        (lambda: torch.func.vmap(operation)(x),
        f"outgrad.{name}: torch.vmap is not supported; call it on the whole batch"),
        (lambda: torch.func.jvp(operation, (x,), (x,)), forward_mode),
        (lambda: torch.func.jacfwd(operation)(x), forward_mode),
        (dual, forward_mode),
        (
            lambda: torch.func.jacrev(operation)(x),
            f"outgrad.{name}: torch.vmap over its gradient, as in torch.func.jacrev, is not supported; "
            f"torch.autograd.functional.jacobian computes the same",
        ),
    )


@every
def test_transforms_are_refused_in_words_that_name_the_operation(name):
    for call, why in refusals(name):
        with pytest.raises(NotImplementedError) as error:
            call()
        assert str(error.value) == why


@every
def test_what_a_refusal_names_instead_is_there(name):
    x = torch.randn(2, 64)
    jacobian = torch.autograd.functional.jacobian(OPERATIONS[name], x)
    assert torch.equal(jacobian[1, 5], gradients(OPERATIONS[name], x, dy=torch.eye(128)[69].view(2, 64))[1])


@every
def test_gradients_of_a_batch_are_those_of_its_parts(name, capfd):
    """In PyTorch 2.10 it is PyTorch that writes to the standard error what it refuses a caller in C++."""
    x = torch.randn(2, 64, requires_grad=True)
    y, dys = OPERATIONS[name](x), torch.randn(5, 2, 64)
    (found,) = torch.autograd.grad(y, x, dys, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(y, x, dy, retain_graph=True)[0] for dy in dys]
    assert torch.equal(found, torch.stack(one_by_one))
    jacobian = torch.autograd.functional.jacobian
    assert torch.equal(*(jacobian(OPERATIONS[name], x, vectorize=vectorize) for vectorize in (True, False)))
    if hasattr(library._c, "torch_tensor_from_pyobject"):
        assert not capfd.readouterr().err


@pytest.mark.parametrize("parameters", [torch.float32, torch.bfloat16])
def test_norms_over_no_columns_are_empty_as_pytorchs(parameters):
    for shape, of in (((3, 0), (0,)), ((2, 0, 4), (0, 4)), ((2, 3, 0), (3, 0))):
        x, weight, bias = torch.randn(shape).bfloat16(), *torch.randn(2, *of).to(parameters)
        for function in (lambda x, w, b, of=of: outgrad.layer_norm(x, of, w, b),
                lambda x, w, b, of=of: outgrad.rms_norm(x, of, w) + b.to(x.dtype),
                lambda x, w, b, of=of: outgrad.dropout_add_layer_norm(x, x, of, w, b),
                lambda x, w, b, of=of: sum(outgrad.add_layer_norm(x, x, of, w, b))):
            y, *found = gradients(function, x, weight, bias)
            assert y.dtype == x.dtype and y.shape == shape
            assert [(g.shape, g.dtype) for g in found] == [(t.shape, t.dtype) for t in (x, weight, bias)]
        assert F.layer_norm(x, of, weight.to(x.dtype), bias.to(x.dtype)).shape == shape


def test_errors_are_the_callers_and_name_no_place_in_the_sources():
    """So it is with the operators, whose messages once began with a function of C++ and the path of its
    file."""
    x, side = torch.randn(2, 64, requires_grad=True), torch.tensor([3, 1], dtype=torch.int32)
    zero, eights = torch.ones(64).index_fill_(0, torch.tensor(5), 0.0), torch.zeros(16, dtype=torch.uint8)
    refused = (
        "outgrad: channel 5: gamma = 0 has no finite reciprocal, so the output does not hold its x^: keep "
        "the channel in the side buffer: "
        "side_channels=outgrad.side_channels(weight, bias, x.dtype) names all such channels")
    needed = "int32 numbers of columns in one dimension are needed"
    for kind, call, why in (
        (RuntimeError, lambda: outgrad.layer_norm(x, 64, zero).sum().backward(), refused),
        (RuntimeError, lambda: outgrad.rms_norm(x, 64, zero).sum().backward(), refused),
        (RuntimeError, lambda: outgrad.layer_norm(x, 64, zero, store="int8").sum().backward(), refused),
        (RuntimeError, lambda: outgrad.layer_norm(x, 64, zero, side_channels=side),
        "outgrad: side_channels[1] = 1: channels ascend within [0, 64)"),
        (TypeError, lambda: outgrad.layer_norm(x, 64, zero, side_channels=[1]),
        "outgrad.layer_norm: side_channels is no tensor but list"),
        (TypeError, lambda: outgrad.rms_norm(x, 64, zero, side_channels=side.long()),
        f"outgrad.rms_norm: side_channels is torch.int64 of shape (2,); {needed}"),
        (ValueError, lambda: outgrad.layer_norm(x, 64, eps=-1.0),
        "outgrad.layer_norm: eps is -1.0, which must be at least 0"),
        (ValueError, lambda: outgrad.rms_norm(x, 64, eps=math.nan),
        "outgrad.rms_norm: eps is nan, which must be at least 0"),
        (RuntimeError, lambda: library.norm_forward(torch.ones(2, 0), 0, None, None, 1e-5, False, None),
        "outgrad: a norm needs at least one column, x has 0"),
        (RuntimeError, lambda: library.activation_forward(x.detach(), 10),
        "outgrad: activation 10 is unknown"),
        (RuntimeError, lambda: library.activation_forward(x.detach().double(), 0),
        "outgrad: a tensor is not of float32, float16 or bfloat16"),
        (RuntimeError,
        lambda: library.store_backward(x.detach(), [eights], 0, library.STORES["code"].number, 4),
        "outgrad: codes has 16 elements, where 64 are needed"),
        (RuntimeError, lambda: library.dropout(x.detach(), torch.ones(1), 0.5),
        "outgrad: seed is not of Long"),
    ):
        with pytest.raises(kind) as error:
            call()
        assert str(error.value) == why


@every
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_gives_the_same_bits(name, reentrant):
    def block(x):
        return outgrad.dropout(OPERATIONS[name](x), 0.5)

    x = torch.randn(8, 64)
    torch.manual_seed(5)
    plain = gradients(block, x)
    torch.manual_seed(5)
    again = gradients(lambda x: checkpoint(block, x, use_reentrant=reentrant), x) if not reentrant else None
    if reentrant:  # gives no gradients to autograd.grad
        leaf = x.clone().requires_grad_()
        y = checkpoint(block, leaf, use_reentrant=True)
        y.backward(torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape).float())
        again = y.detach(), leaf.grad
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


@every
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_gives_the_same_bits(name, dynamic):
    torch._dynamo.reset()
    operation = OPERATIONS[name]
    compiled = torch.compile(operation, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (8, 5):
        x = torch.randn(rows, 64)
        assert all(torch.equal(a, b)
            for a, b in zip(gradients(operation, x), gradients(compiled, x), strict=True))


@pytest.mark.parametrize("operation", [
    lambda x, w: outgrad.attention(x, x @ w, x, form="softmax"), lambda x, w: outgrad.gated(x, x),
    lambda x, w: (lambda y: outgrad.gated(y, y))(x + 1), lambda x, w: outgrad.add_layer_norm(x, x, 16)[0],
    lambda x, w: (lambda g: outgrad.layer_norm(x, 16, g, g))(w[0]), lambda x, w: outgrad.linear_gelu(w, w)])
def test_a_tensor_that_is_given_twice_compiles(operation):
    torch._dynamo.reset()
    x, w = torch.randn(16, 16), torch.randn(16, 16)
    compiled = torch.compile(operation, fullgraph=True, backend="aot_eager")
    function, found = (lambda x, w, of=of: of(x, w) + 0 * (x + w) for of in (operation, compiled))
    torch.testing.assert_close(gradients(found, x, w), gradients(function, x, w))


def test_compiled_dropout_drops_the_same_in_both_passes():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: outgrad.dropout(x, 0.25), fullgraph=True, backend="aot_eager")
    x = torch.ones(1000)
    y, dx = gradients(compiled, x, dy=torch.ones(1000))
    assert torch.equal(y, dx)
    assert 0 < (y == 0).sum() < 500


@every
def test_empty_arrays(name):
    y, dx = gradients(OPERATIONS[name], torch.empty(0, 64))
    assert y.shape == dx.shape == (0, 64)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.float64])
def test_autocast_takes_no_type_that_is_refused_without_it(dtype):
    """It rounds what its Linears are given: of a complex number that would be half."""
    x, weight = torch.ones(3, 4), torch.ones(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for a, w in ((x.to(dtype), weight), (x, weight.to(dtype))):
            for function in (outgrad.linear_gelu, outgrad.linear_activation, outgrad.linear,
                    lambda a, w: outgrad.gated_linear(a, a, w)):
                with pytest.raises(TypeError, match=f"is {dtype}; float32, float16 and bfloat16 are"):
                    function(a, w)


@pytest.mark.parametrize(("rows", "n", "m"),
    [(0, 4, 5), (3, 0, 5), (3, 4, 0), (3, 0, 0), (0, 0, 5), (0, 4, 0)])
def test_linears_of_no_rows_or_no_features(rows, n, m):
    """Each way to compute one gives the gradients of PyTorch's, which are 0 but for those of a bias."""
    x, weight, bias = torch.randn(2, rows, n), torch.randn(m, n), torch.randn(m)
    both, of_sum = torch.randn(2, rows, 2 * n), (None, None, 1e-5, False, None, None, 0.0)

    def product(x):
        return F.silu(x[..., :n]) * x[..., n:]

    of_linear, of_pair, lost = (x, weight, bias), [one.bfloat16() for one in (both, weight, bias)], 0.1
    cases = [(of_linear, outgrad.linear_gelu, lambda *a: F.gelu(F.linear(*a)), None),
        *((of_linear, lambda *a, name=name: outgrad.linear_activation(*a, name),
        lambda *a, f=f: f(F.linear(*a)), None) for name, f in (("gelu", F.gelu), ("silu", F.silu))),
        *((of_linear, lambda *a, store=store: outgrad.linear(*a, store), F.linear, None)
        for store in ("e4m3", "rows:30", "rows:30+e4m3")),
        (of_linear, lambda x, *wb: sum(outgrad.functional.linears_of(x, 2 * wb)), lambda *a: 2 * F.linear(*a),
        None)]
    for store in outgrad.stores.OF_PAIRS:
        cases += [(of_pair, lambda a, *wb, store=store: outgrad.gated_linear(a, None, *wb, store=store),
            lambda a, *wb: F.linear(product(a), *wb), lost),
            (of_pair[:1], lambda a, store=store: outgrad.gated(a, store=store), product, lost)]
    if n > 0:
        cases.append(((torch.randn(2, rows, m), torch.randn(n, m), x),
            lambda h, w, x: outgrad.functional.norm_of_linear("layer_norm", h, w, None, x, 0.0, n, of_sum),
            lambda h, w, x: F.layer_norm(F.linear(h, w) + x, (n,)), None))
    for given, ours, its, by in cases:
        torch.testing.assert_close(gradients(ours, *given), gradients(its, *given), rtol=by, atol=by)


def test_gelus_result_is_what_the_next_layer_keeps():
    """One storage for GELU's y and the saved input of the Linear after it."""
    linear = torch.nn.Linear(64, 8)
    kept = []
    x = torch.randn(16, 64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        linear(outgrad.gelu(x))
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    storages.pop(linear.weight.untyped_storage().data_ptr(), None)
    assert sum(storages.values()) == 16 * 64 * 4 + 16 * 64 // 8


def test_every_activation_of_the_catalogue_is_a_function():
    header = (SOURCES / "kernels/activations.h").read_text()
    names = re.findall(r'"(\w+)"', re.search(r"kActivationNames\[\] = \{(.*?)\}", header, re.DOTALL)[1])
    assert list(outgrad.library.ACTIVATIONS) == names and set(names) <= set(outgrad.__all__)
    assert outgrad.ACTIVATIONS is outgrad.library.ACTIVATIONS
    for name in set(outgrad.__all__) - {"ACTIVATIONS"}:
        assert callable(getattr(outgrad, name)), name
    for name in names:
        assert getattr(outgrad, name).__name__ == name and "Keeps y" in getattr(outgrad, name).__doc__


def test_the_result_of_a_linear_may_be_changed_in_place():
    """As attentions scale their queries. In PyTorch 2.10 a Linear gives a view, which a node may not give."""
    x, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((2, 3, 4), (4, 4), 4))
    for function in (lambda: outgrad.functional.linears_of(x, [weight, bias, weight, bias])[0],
            lambda: outgrad.gated_linear(x, x, weight, bias), lambda: outgrad.linear(x, weight, bias)):
        found = [torch.autograd.grad(y, bias, torch.ones_like(y))[0]
            for y in (2 * function(), function().mul_(2))]
        assert torch.equal(*found)


def test_compiled_code_keeps_what_eager_mode_keeps():
    """Codes of x, of which the gradient of weight is: it is not the one that x itself gives."""
    x, weight = torch.randn(6, 16), torch.randn(8, 16, requires_grad=True)

    def gradient(function):
        return torch.autograd.grad(function(x, weight).square().sum(), weight)[0]

    torch._dynamo.reset()
    compiled = gradient(torch.compile(outgrad.linear, fullgraph=True, backend="aot_eager"))
    assert torch.equal(compiled, gradient(outgrad.linear)) and not torch.equal(compiled, gradient(F.linear))
