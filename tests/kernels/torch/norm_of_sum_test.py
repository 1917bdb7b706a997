"""Norms of dropout(x) + residual in one pass: the bits of the parts, gradients against float64, what is kept,
and what else autograd asks for."""

import copy

import pytest
import torch
import torch.nn.functional as F

import outgrad
from outgrad import functional, library

FORMATS = [torch.float32, torch.float16, torch.bfloat16]
SEED = torch.tensor([1234567890123456789])
N = 24


def values(dtype, *size, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(got, want):
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        integers = {4: torch.int32, 2: torch.int16}[a.element_size()]
        assert torch.equal(a.view(integers), b.view(integers))


def by_parts(x, residual, seed, p, columns, gamma, beta, rms, side):
    """(y, rstd, x^, z) by dropout, PyTorch's addition and the norm."""
    z = (x if seed is None else library.dropout(x, seed, p)) + residual
    return *library.norm_forward(z, columns, gamma, beta, 1e-5, rms, side), z


# One long row, and rows of whole octets and others.
@pytest.mark.parametrize("rows, columns",
    [(0, 8), (5, 8), (7, 24), (5, 100), (3, 1024), (3, 4096), (1, 40_001)])
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("dtype", FORMATS)
def test_operators_have_the_bits_of_the_parts(dtype, rms, rows, columns):
    x, residual, dy, dz_next = (values(dtype, rows, columns, seed=seed) for seed in range(4))
    side = torch.tensor(sorted({0, columns // 2, columns - 1}), dtype=torch.int32)
    for parameters, channels in ((torch.float32, None), (torch.float16, side), (torch.bfloat16, None)):
        gamma, beta = values(parameters, columns, seed=5).abs() + 0.5, None if rms else values(parameters,
            columns, seed=6)
        if channels is not None:
            gamma[side.long()] = 0.0
        for seed, p in ((None, 0.0), (SEED, 0.0), (SEED, 0.1), (SEED, 1.0)):
            want = by_parts(x, residual, seed, p, columns, gamma, beta, rms, channels)
            for with_z in (True, False):
                got = library.norm_forward_of_sum(x, residual, columns, gamma, beta, 1e-5, rms, channels,
                    seed, p, with_z)
                same(got[:3], want[:3])
                same(got[3:], want[3:] if with_z else [x.new_empty(0)])
            y, rstd, x_hat, _ = want
            common = (columns, gamma, beta, rstd, rms, channels, x_hat, True, not rms)
            for added in (None, dz_next):
                dz, dx, *sums = library.norm_backward_of_sum(dy, y, added, *common, seed, p)
                if added is None:
                    same([dz, *sums], library.norm_backward(dy, y, *common))
                same([dx], [x.new_empty(0) if seed is None else library.dropout(dz, seed, p)])
        # What is added to the gradient is rounded with it, once: in fp32 the sum of the two.
        if dtype == torch.float32:
            plain = library.norm_backward(dy, y, *common)[0]
            same([library.norm_backward_of_sum(dy, y, dz_next, *common, None, 0.0)[0]], [plain + dz_next])


def test_a_drift_is_seen_and_a_lost_channel_is_nan():
    """As in the norms alone: near is said, lost makes dz NaN, and of dx what is not dropped."""
    x, residual, dy = (values(torch.float32, 16, N, seed=seed) for seed in range(3))
    tau = functional.largest_storage_error(torch.float32)
    for b, want in ((0.0, [0, 0]), (80.0, [1, 0]), (1000.0, [1, 1])):
        gamma, beta, seen = torch.ones(N), torch.zeros(N), torch.zeros(2, dtype=torch.int32)
        beta[7] = b
        y, rstd, side, _ = library.norm_forward_of_sum(x, residual, N, gamma, beta, 1e-5, False, None, SEED,
            0.5, False, seen, tau)
        assert seen.tolist() == want
        dz, dx, dgamma, _ = library.norm_backward_of_sum(dy, y, None, N, gamma, beta, rstd, False, None, side,
            True, True, SEED, 0.5, tau)
        kept = library.dropout(torch.ones_like(x), SEED, 0.5) != 0
        assert dz.isnan().all() == (want[1] == 1) and torch.equal(dx.isnan(),
            kept if want[1] else torch.zeros_like(kept))
        assert dgamma.isnan().nonzero().flatten().tolist() == ([7] if want[1] else [])


def test_operators_refuse_what_does_not_fit():
    x = values(torch.float32, 4, 8)
    y, rstd, side, _ = library.norm_forward_of_sum(x, x, 8, None, None, 1e-5, False, None, None, 0.0, False)
    with pytest.raises(RuntimeError, match="residual is not of the type and number"):
        library.norm_forward_of_sum(x, x.half(), 8, None, None, 1e-5, False, None, None, 0.0, False)
    with pytest.raises(RuntimeError, match="seed has 2 elements"):
        library.norm_forward_of_sum(x, x, 8, None, None, 1e-5, False, None, torch.tensor([1, 2]), 0.5, False)
    with pytest.raises(RuntimeError, match="p must lie"):
        library.norm_forward_of_sum(x, x, 8, None, None, 1e-5, False, None, SEED, 1.5, False)
    with pytest.raises(RuntimeError, match="dz_next is not of the type and number"):
        library.norm_backward_of_sum(x, y, x[:2].contiguous(), 8, None, None, rstd, False, None, side, False,
            False, None, 0.0)
    with pytest.raises(RuntimeError, match="p must lie"):
        library.norm_backward_of_sum(x, y, None, 8, None, None, rstd, False, None, side, False, False, SEED,
            -0.5)


# --- add_layer_norm and add_rms_norm --------------------------------------------------------------

ADDS = {"layer_norm": outgrad.add_layer_norm, "rms_norm": outgrad.add_rms_norm}
REFERENCES = {
    "layer_norm": lambda x, r, gamma, beta: (F.layer_norm(x + r, (N,), gamma, beta), x + r),
    "rms_norm": lambda x, r, gamma: (F.rms_norm(x + r, (N,), gamma, functional.EPS_OF_RMS), x + r),
}
# y is stored in this precision, and x^ is what it tells; z is rounded, too.
TOLERANCE = {torch.float32: 4e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def inputs_of(norm, dtype, rows=6):
    parameters = [values(torch.float32, N, seed=3).abs() + 0.5, values(torch.float32, N, seed=4)][: 2
        if norm == "layer_norm" else 1]
    return [values(dtype, rows, N, seed=1), values(dtype, rows, N, seed=2), *parameters]


def results(function, inputs, loss_of):
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    y, z = function(*inputs)
    return [y.detach(), z.detach(), *torch.autograd.grad(loss_of(y, z), inputs)]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("norm", ADDS)
def test_add_norm_against_float64(norm, dtype):
    inputs = inputs_of(norm, dtype)
    dy, dz = (values(torch.float64, 6, N, seed=seed) for seed in (5, 6))
    got = results(lambda x, r, *of: ADDS[norm](x, r, N, *of), inputs,
        lambda y, z: (y.double() * dy + z.double() * dz).sum())
    want = results(REFERENCES[norm], [t.double() for t in inputs], lambda y, z: (y * dy + z * dz).sum())
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        assert (a.double() - b).norm() <= TOLERANCE[dtype] * b.norm()


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("norm", ADDS)
def test_add_norm_gives_the_bits_of_its_parts(norm, dtype):
    """Where only y or only z has a gradient; with both, dz is rounded once and not twice."""
    inputs = inputs_of(norm, dtype)
    dy = values(dtype, 6, N, seed=5)

    def parts(x, r, *of):
        z = x + r
        return getattr(outgrad, norm)(z, N, *of), z

    of_y = [results(f, inputs, lambda y, z: (y * dy).sum())
        for f in (lambda x, r, *of: ADDS[norm](x, r, N, *of), parts)]
    same(*of_y)
    x, r, *of = (t.clone().requires_grad_() for t in inputs)
    _, z = ADDS[norm](x, r, N, *of)
    (z * dy).sum().backward()
    same([x.grad, r.grad], [dy, dy])
    assert all(parameter.grad is None for parameter in of)


@pytest.mark.parametrize("norm", ADDS)
def test_add_norm_keeps_y_and_four_bytes_a_row(norm):
    inputs = [t.requires_grad_() for t in inputs_of(norm, torch.bfloat16)]
    known, found = {t.untyped_storage().data_ptr() for t in inputs}, {}

    def pack(tensor):
        found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y, z = ADDS[norm](inputs[0], inputs[1], N, *inputs[2:])
    assert z.untyped_storage().data_ptr() not in found and y.untyped_storage().data_ptr() in found
    assert (sum(size for at, size in found.items() if at not in known | {y.untyped_storage().data_ptr()}) == 6
        * 4)
    assert (type(y.grad_fn).__name__ == type(z.grad_fn).__name__ == f"add_{norm}_from_outputBackward"
        and y.grad_fn is z.grad_fn)


@pytest.mark.parametrize("norm", ADDS)
def test_add_norm_with_side_channels_and_any_strides(norm):
    x, residual, gamma, *beta = inputs_of(norm, torch.float32)
    gamma[3] = 0.0
    side = outgrad.side_channels(gamma, *beta, dtype=torch.float32)
    dy, dz = (values(torch.float32, 6, N, seed=seed) for seed in (5, 6))

    def loss(y, z):
        return (y * dy + z * dz).sum()

    def function(x, r, *of):
        return ADDS[norm](x, r, N, *of, side_channels=side)

    want = results(function, [x, residual, gamma, *beta], loss)
    reference = results(REFERENCES[norm], [t.double() for t in (x, residual, gamma, *beta)],
        lambda y, z: (y * dy + z * dz).sum())
    assert all((a.double() - b).norm() <= TOLERANCE[torch.float32] * b.norm()
        for a, b in zip(want, reference, strict=True))
    strided = [torch.stack([t, t], -1)[..., 0] for t in (x, residual)]
    inputs = [t.requires_grad_() for t in (*strided, gamma.clone(), *(b.clone() for b in beta))]
    y, z = function(*inputs)
    same([y.detach(), z.detach(), *torch.autograd.grad(loss(y, z), inputs)], want)


@pytest.mark.parametrize("norm", ADDS)
def test_what_add_norm_refuses(norm):
    function, name = ADDS[norm], f"add_{norm}"
    x = torch.randn(4, N, requires_grad=True)
    for other in (torch.randn(N), torch.randn(4, N, dtype=torch.bfloat16)):
        with pytest.raises(ValueError,
                match=rf"outgrad\.{name}: x is torch.float32 of shape .*; they must be alike"):
            function(x, other, N)
    with pytest.raises(TypeError, match=rf"outgrad\.{name}: x is torch.float64"):
        function(x.double(), x.double(), N)
    with pytest.raises(ValueError, match=rf"outgrad\.{name}: eps is -1"):
        function(x, x, N, eps=-1)
    with pytest.raises(NotImplementedError, match=rf"outgrad\.{name}: torch.vmap is not supported"):
        torch.vmap(lambda x: function(x, x, N)[0])(torch.randn(2, 4, N))
    with pytest.raises(NotImplementedError,
            match=rf"outgrad\.{name}: forward-mode derivatives are not supported"):
        torch.func.jvp(lambda x: function(x, x, N)[0], (torch.randn(4, N),), (torch.ones(4, N),))
    for loss in (lambda y, z: (y * y).sum(), lambda y, z: (y * z).sum()):
        (dx,) = torch.autograd.grad(loss(*function(x, x, N)), x, create_graph=True)
        with pytest.raises(RuntimeError, match=rf"outgrad\.{name}: the second derivative"):
            (dx * dx).sum().backward()


def test_add_norm_in_functional_transforms():
    x, residual, gamma, beta = inputs_of("layer_norm", torch.float32)

    def loss(x, residual):
        y, z = outgrad.add_layer_norm(x, residual, N, gamma, beta)
        return (y * y).sum() + z.sum()

    want = [x.clone().requires_grad_(), residual.clone().requires_grad_()]
    loss(*want).backward()
    same(torch.func.grad(loss, argnums=(0, 1))(x, residual), [t.grad for t in want])


class PreNorm(torch.nn.Module):
    """Two sub-layers of a pre-norm block, whose residual flows on."""

    def __init__(self, add):
        super().__init__()
        self.add, self.weight, self.linear = (add,
            torch.nn.Parameter(values(torch.float32, N, seed=7).abs() + 0.5), torch.nn.Linear(N, N))

    def forward(self, x, z):
        for _ in range(2):
            y, z = self.add(x, z, N, self.weight)
            x = self.linear(y)
        return x + z


@pytest.mark.parametrize("name", ["add_layer_norm", "add_rms_norm", "dropout_add_layer_norm"])
def test_a_compiled_block_has_the_bits_of_the_eager_one(name):
    add = getattr(outgrad, name)
    block = PreNorm(add if name.startswith("add") else lambda x, z, *of: (add(x, z, *of, p=0.0), x + z))
    compiled = torch.compile(copy.deepcopy(block), backend="aot_eager", fullgraph=True)
    gradients = []
    for of in (block, compiled):
        x, z = (values(torch.float32, 5, N, seed=1).requires_grad_(),
            values(torch.float32, 5, N, seed=2).requires_grad_())
        of(x, z).square().sum().backward()
        gradients.append([x.grad, z.grad, *(p.grad for p in of.parameters())])
    for a, b in zip(*gradients, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-5)
