"""Attention, softmax and linear layers of the PyTorch package: gradients against float64 with the same
elements dropped, and the bytes that are kept, eager and compiled."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F

import outgrad
from outgrad import library

FORMATS = [torch.float32, torch.float16, torch.bfloat16]
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def drawn(seed, p, shape):
    """What the dropout of the next call with this state of the generator multiplies by, in float64."""
    torch.manual_seed(seed)
    counter = torch.randint(0, 2**62, (1,), dtype=torch.int64)
    torch.manual_seed(seed)
    return (library.dropout(torch.ones(shape), counter, p) != 0).double() / (1 - p) if p > 0 else torch.ones(
        shape, dtype=torch.float64)


def gradients(function, inputs, dy):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    y = function(*inputs)
    return (y.detach(), *torch.autograd.grad(y, inputs, dy.to(y.dtype)))


def assert_near(got, want, tolerance):
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        assert (a.double() - b).norm() <= tolerance * b.norm()


def kept_bytes(function, *inputs):
    """By storage, inputs apart."""
    known = {x.untyped_storage().data_ptr() for x in inputs}
    found = {}

    def pack(tensor):
        found.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function(*inputs)
    known.add(result.untyped_storage().data_ptr())
    return sum(size for at, size in found.items() if at not in known)


@pytest.mark.parametrize("p", [0.0, 0.25])
@pytest.mark.parametrize("masked", [None, "boolean", "added"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_attention_against_float64(dtype, masked, p):
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 3, n, d).to(dtype) for n, d in ((17, 16), (33, 16), (33, 8)))
    dy = torch.randn(2, 3, 17, 8).to(dtype)
    mask = {None: None, "boolean": torch.rand(17, 33) > 0.2, "added": torch.randn(17, 33).to(dtype)}[masked]
    factors = drawn(5, p, (2, 3, 17, 33))
    got = gradients(lambda q, k, v: outgrad.attention(q, k, v, mask, p, form="softmax"), (q, k, v), dy)

    def exact(q, k, v):
        scores = q @ k.transpose(-1, -2) / math.sqrt(16)
        if masked:
            scores = scores.masked_fill(~mask, -math.inf) if masked == "boolean" else scores + mask.double()
        return (torch.softmax(scores, -1) * factors) @ v

    want = gradients(exact, (q.double(), k.double(), v.double()), dy.double())
    assert_near(got, want, 6 * UNIT_ROUNDOFF[dtype])


@pytest.mark.parametrize("store", ["p", "log2:8"])
@pytest.mark.parametrize("p", [0.0, 1e-9])
def test_scores_are_scaled_before_they_are_rounded(p, store):
    """q k^T is beyond float16 here, and q k^T scale a number of it, by which nothing is rounded."""
    torch.manual_seed(4)
    q, k = ((32 + 8 * torch.randint(-1, 3, (2, 3, 9, 64))).half() for _ in range(2))
    v, dy = torch.randn(2, 3, 9, 64).half(), torch.randn(2, 3, 9, 64).half()
    assert (q @ k.transpose(-1, -2)).isinf().any()
    exact = [t.double() for t in (q, k, v)]
    for form in ["softmax"] + ["auto"] * (store == "p"):
        function = functools.partial(outgrad.attention, p=p, form=form, store=store)
        assert all(t.isfinite().all() for t in gradients(function, (q, k, v), dy))
        got = gradients(functools.partial(function, scale=2.0**-12), (q, k, v), dy)
        want = gradients(lambda *t: F.scaled_dot_product_attention(*t, scale=2.0**-12), exact, dy.double())
        assert_near(got, want, 6 * UNIT_ROUNDOFF[torch.float16] if store == "p" else 0.07)


@pytest.mark.parametrize("m, n, d, e", [(5, 3, 0, 4), (0, 3, 2, 4), (5, 0, 2, 4), (5, 3, 2, 0), (1, 1, 1, 1)])
def test_attention_of_any_sizes(m, n, d, e):
    """Memory that nothing was written to is NaN here."""
    filled = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        for batch in ((), (2,), (2, 0), (2, 3, 1)):
            q, k, v = torch.randn(*batch, m, d), torch.randn(*batch, n, d), torch.randn(*batch, n, e)
            dy = torch.randn(*batch, m, e)
            got = gradients(lambda *t: outgrad.attention(*t, form="softmax"), (q, k, v), dy)
            want = gradients(lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / max(d, 1)**0.5, -1) @ v,
                (q, k, v), dy)
            assert_near(got, want, 1e-5)
    finally:
        torch.use_deterministic_algorithms(filled)


@pytest.mark.parametrize("store", ["p", "log2:8"])
def test_a_row_of_which_nothing_takes_part_is_zero(store):
    """As PyTorch's attention has it; a NaN stays one."""
    q, k, v, dy = (torch.randn(2, 3, 5, 8) for _ in range(4))
    mask = torch.rand(5, 5) > 0.3
    mask[2], mask[:2, 0] = False, True
    added = torch.zeros(5, 5).masked_fill(~mask, -math.inf)

    def function(*qkv, mask=mask):
        return outgrad.attention(*qkv, mask, form="softmax", store=store)

    found = [gradients(f, (q, k, v), dy) for f in (function, functools.partial(function, mask=added))]
    want = gradients(lambda *qkv: F.scaled_dot_product_attention(*qkv, mask), (q, k, v), dy)
    for one in found:
        assert torch.equal(one[0][..., 2, :], torch.zeros(2, 3, 8)) and one[1][..., 2, :].abs().max() < 1e-9
        assert_near(one, want, 1e-5 if store == "p" else 0.05)
    q[0, 0, 1, 0] = math.nan
    y, dq, *_ = gradients(function, (q, k, v), dy)
    assert y[0, 0, 1].isnan().all() and dq[0, 0, 1].isnan().all() and dq[1].isfinite().all()


@pytest.mark.parametrize("store", ["p", "log2:8"])
def test_attention_under_autocast_computes_in_its_type(store):
    torch._dynamo.reset()
    qkv, dy = [torch.randn(2, 3, 5, 8) for _ in range(3)], torch.randn(2, 3, 5, 8).bfloat16()

    def function(*qkv):
        return outgrad.attention(*qkv, form="softmax", store=store)

    def under(function):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            leaves = [one.clone().requires_grad_() for one in qkv]
            y = function(*leaves)
        return y, *torch.autograd.grad(y, leaves, dy)

    found = under(function)
    assert [one.dtype for one in found] == [torch.bfloat16] + 3 * [torch.float32]
    want = gradients(function, [one.bfloat16() for one in qkv], dy)
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    compiled = under(torch.compile(function, fullgraph=True, backend="aot_eager"))
    assert all(map(torch.equal, found, compiled))


def test_attention_is_pytorchs_where_that_keeps_less():
    q, k, v = (torch.randn(2, 3, 64, 16) for _ in range(3))
    assert torch.equal(outgrad.attention(q, k, v), F.scaled_dot_product_attention(q, k, v))
    torch.manual_seed(2)
    ours = outgrad.attention(q, k, v, p=0.5)
    torch.manual_seed(2)
    assert torch.equal(ours, outgrad.attention(q, k, v, p=0.5, form="softmax"))
    torch.manual_seed(2)
    theirs = outgrad.attention(q, k, v, p=0.5, form="sdpa")
    torch.manual_seed(2)
    assert torch.equal(theirs, F.scaled_dot_product_attention(q, k, v, dropout_p=0.5))
    assert torch.equal(outgrad.attention(q, k, v, p=0.5, training=False),
        F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("compiled", [False, True])
def test_attention_keeps_the_probabilities_once(compiled):
    """Compiled too: no compiler may keep what dropout left of them in place of making it again."""
    torch._dynamo.reset()
    q, k, v = (torch.randn(2, 4, 128, 16, requires_grad=True) for _ in range(3))
    function = lambda q, k, v: outgrad.attention(q, k, v, p=0.1, form="softmax")  # noqa: E731
    if compiled:
        function = torch.compile(function, fullgraph=True, backend="aot_eager_decomp_partition")
    assert kept_bytes(function, q, k, v) == 2 * 4 * 128 * 128 * 4 + 8


def test_compiled_attention_gives_the_same_bits():
    torch._dynamo.reset()
    function = lambda q, k, v: outgrad.attention(q, k, v, p=0.1, form="softmax")  # noqa: E731
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (16, 24):
        q, k, v = (torch.randn(2, 3, n, 8) for _ in range(3))
        dy = torch.randn(2, 3, n, 8)
        torch.manual_seed(3)
        eager = gradients(function, (q, k, v), dy)
        torch.manual_seed(3)
        assert all(torch.equal(a, b) for a, b in zip(eager, gradients(compiled, (q, k, v), dy), strict=True))


@pytest.mark.parametrize("p", [0.0, 0.25])
@pytest.mark.parametrize("dtype", FORMATS)
def test_softmax_dropout_against_float64(dtype, p):
    torch.manual_seed(4)
    x, dy = torch.randn(5, 7, 33).to(dtype), torch.randn(5, 7, 33).to(dtype)
    factors = drawn(6, p, (5, 7, 33))
    got = gradients(lambda x: outgrad.softmax_dropout(x, p), (x,), dy)
    want = gradients(lambda x: torch.softmax(x, -1) * factors, (x.double(),), dy.double())
    assert_near(got, want, 4 * UNIT_ROUNDOFF[dtype])
    bytes_kept = kept_bytes(lambda x: outgrad.softmax_dropout(x, p), x.clone().requires_grad_())
    # without dropout it is the result itself
    assert bytes_kept == 8 + (x.numel() * x.element_size() if p > 0 else 0)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("function, theirs", [(outgrad.linear_gelu, F.gelu),
    (lambda *of: outgrad.linear_activation(*of, activation="silu"), F.silu)])
def test_a_linear_and_its_activation_of_one_dimension(function, theirs, bias):
    torch.manual_seed(7)
    inputs = [torch.randn(24), torch.randn(40, 24) / 5] + [torch.randn(40)] * bias
    dy = torch.randn(40)
    got = gradients(function, inputs, dy)
    want = gradients(lambda *t: theirs(F.linear(*t)), [t.double() for t in inputs], dy.double())
    assert got[0].shape == (40,)
    assert_near(got, want, 2e-4)


@pytest.mark.parametrize("bias", [None, torch.float32, "same"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_linear_gelu_against_float64(dtype, bias):
    torch.manual_seed(7)
    x, weight = torch.randn(3, 11, 24).to(dtype), (torch.randn(40, 24) / 5).to(dtype)
    inputs = [x, weight] + ([] if bias is None else [torch.randn(40).to(dtype if bias == "same" else bias)])
    dy = torch.randn(3, 11, 40).to(dtype)
    got = gradients(outgrad.linear_gelu, inputs, dy)
    assert [a.dtype for a in got[1:]] == [t.dtype for t in inputs]
    want = gradients(lambda *t: F.gelu(F.linear(*t)), [t.double() for t in inputs], dy.double())
    # Next to x* an f32 y tells f' only to 3.9e-5 (the sweep's T): here and there an element is off by so
    # much.
    assert_near(got, want, 6 * UNIT_ROUNDOFF[dtype] + (2e-6 if dtype == torch.float32 else 0))
    kept = kept_bytes(outgrad.linear_gelu, *(t.clone().requires_grad_() for t in inputs))
    assert kept == (3 * 11 * 40 + 31) // 32 * 4


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", outgrad.ACTIVATIONS)
def test_linear_activation_is_its_parts(name, dtype, bias):
    torch.manual_seed(7)
    inputs = [torch.randn(3, 11, 24).to(dtype), (torch.randn(40, 24) / 5).to(dtype)] + (
        [torch.randn(40).to(dtype)] if bias else [])
    dy = torch.randn(3, 11, 40).to(dtype)
    got = gradients(lambda *t: outgrad.linear_activation(*t, activation=name), inputs, dy)
    parts = gradients(lambda *t: getattr(outgrad, name)(F.linear(*t)), inputs, dy)
    # GELU's pass has the bias's sums in another order, and of what is not rounded yet.
    whole, u = len(got) - (name == "gelu" and bias), torch.finfo(dtype).eps
    assert (all(map(torch.equal, got[:whole], parts[:whole]))
        and (got[-1] - parts[-1]).abs().max() <= 4 * u * parts[-1].abs().max())
    leaves = [t.clone().requires_grad_() for t in inputs]
    kept = kept_bytes(lambda *t: outgrad.linear_activation(*t, activation=name), *leaves)
    assert kept == ((3 * 11 * 40 + 31) // 32 * 4 if name in outgrad.library.MASKED else 0)


def test_linear_activation_takes_any_strides_and_autocast():
    x, weight, bias = torch.randn(24, 8).T, torch.randn(24, 40).T, torch.randn(80)[::2]
    dy = torch.randn(40, 8).T
    got = gradients(lambda *t: outgrad.linear_activation(*t, activation="silu"), (x, weight, bias), dy)
    assert_near(got,
        gradients(lambda *t: F.silu(F.linear(*t)), (x.double(), weight.double(), bias.double()), dy.double()),
        2e-6)
    with torch.autocast("cpu", torch.bfloat16):
        y, dx, dweight, dbias = gradients(lambda *t: outgrad.linear_activation(*t, activation="mish"),
            (x, weight, bias), dy)
        assert torch.equal(y, outgrad.mish(F.linear(x, weight, bias)))
    assert y.dtype == torch.bfloat16 and dx.dtype == dweight.dtype == dbias.dtype == torch.float32


def test_linear_gelu_under_autocast():
    x, weight, bias = torch.randn(8, 24), torch.randn(40, 24), torch.randn(40)
    with torch.autocast("cpu", torch.bfloat16):
        y, dx, dweight, dbias = gradients(outgrad.linear_gelu, (x, weight, bias), torch.ones(8, 40))
    assert y.dtype == torch.bfloat16
    assert dx.dtype == dweight.dtype == dbias.dtype == torch.float32


def test_frozen_parameters_get_no_gradient():
    x, weight, bias = torch.randn(8, 24), torch.randn(40, 24), torch.randn(40, requires_grad=True)
    outgrad.linear_gelu(x, weight, bias).sum().backward()
    assert bias.grad is not None and weight.grad is None
    gamma = torch.ones(24)
    x.requires_grad_()
    outgrad.layer_norm(x, 24, gamma, torch.zeros(24, requires_grad=True)).sum().backward()
    assert gamma.grad is None and x.grad is not None


def test_dropout_add_layer_norm_is_its_parts():
    torch.manual_seed(8)
    x, residual, gamma, beta = torch.randn(6, 32), torch.randn(6, 32), torch.rand(32) + 0.5, torch.randn(32)
    dy = torch.randn(6, 32)
    torch.manual_seed(9)
    got = gradients(lambda *t: outgrad.dropout_add_layer_norm(t[0], t[1], 32, t[2], t[3], p=0.3),
        (x, residual, gamma, beta), dy)
    factors = drawn(9, 0.3, (6, 32))
    want = gradients(lambda *t: F.layer_norm(t[0] * factors + t[1], (32,), t[2], t[3]),
        [t.double() for t in (x, residual, gamma, beta)], dy.double())
    assert_near(got, want, 2e-6)
    inputs = [t.clone().requires_grad_() for t in (x, residual, gamma, beta)]
    assert (kept_bytes(lambda *t: outgrad.dropout_add_layer_norm(t[0], t[1], 32, t[2], t[3], p=0.3), *inputs)
        == 8 + 6 * 4)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_dropout_add_norm_has_the_bits_of_its_parts(norm, p, dtype):
    torch.manual_seed(8)
    x, residual, dy = (torch.randn(3, 5, 32).to(dtype) for _ in range(3))
    parameters = [torch.rand(32).add(0.5), torch.randn(32)][: 2 if norm == "layer_norm" else 1]
    fused, plain = getattr(outgrad, f"dropout_add_{norm}"), getattr(outgrad, norm)
    results = []
    for function in (lambda x, r, *of: fused(x, r, 32, *of, p=p),
            lambda x, r, *of: plain(outgrad.dropout(x, p) + r, 32, *of)):
        torch.manual_seed(9)
        inputs = [t.clone().requires_grad_() for t in (x, residual, *parameters)]
        y = function(*inputs)
        results.append([y, *torch.autograd.grad(y, inputs, dy)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    some = [x.clone().requires_grad_(), residual, *parameters]  # a gradient that nobody asks for is None
    assert (fused(some[0], some[1], 32, *some[2:], p=p).sum().backward() is None and some[0].grad is not None
        and some[1].grad is None)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_dropout_add_norm_takes_any_strides(p):
    x, residual, dy = (torch.randn(32, 6).T for _ in range(3))
    results = []
    for arrays in ((x, residual, dy), tuple(t.contiguous() for t in (x, residual, dy))):
        torch.manual_seed(9)
        inputs = [t.detach().requires_grad_() for t in arrays[:2]]
        y = outgrad.dropout_add_layer_norm(*inputs, 32, p=p)
        results.append([y, *torch.autograd.grad(y, inputs, arrays[2])])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_dropout_add_norm_takes_what_is_alike():
    x = torch.randn(4, 32)
    for other in (torch.randn(32), torch.randn(4, 32, dtype=torch.bfloat16)):
        with pytest.raises(ValueError,
                match=r"dropout_add_rms_norm: x is torch.float32 of shape \(4, 32\), residual .*; they must"):
            outgrad.dropout_add_rms_norm(x, other, 32)
    with pytest.raises(ValueError,
            match="dropout_add_layer_norm: x has shape .4, 32., which does not end in normalized_shape "
                ".16,."):
        outgrad.dropout_add_layer_norm(x, x, 16)
    with pytest.raises(ValueError, match="dropout_add_layer_norm: p is 1.5"):
        outgrad.dropout_add_layer_norm(x, x, 32, p=1.5)
    with pytest.raises(ValueError, match="dropout_add_layer_norm: eps is -1"):
        outgrad.dropout_add_layer_norm(x, x, 32, eps=-1)


@pytest.mark.parametrize("name", ["attention", "softmax_dropout", "linear_activation", "linear_gelu",
    "dropout_add_layer_norm", "dropout_add_rms_norm"])
def test_second_derivatives_are_refused(name):
    x = torch.randn(4, 16, 16, requires_grad=True)
    y = {
        "dropout_add_layer_norm": lambda: outgrad.dropout_add_layer_norm(x, x, 16, p=0.1),
        "dropout_add_rms_norm": lambda: outgrad.dropout_add_rms_norm(x, x, 16, p=0.1),
        "attention": lambda: outgrad.attention(x, x, x, p=0.1, form="softmax"),
        "softmax_dropout": lambda: outgrad.softmax_dropout(x, 0.1),
        "linear_activation": lambda: outgrad.linear_activation(x, torch.randn(8, 16), activation="tanh"),
        "linear_gelu": lambda: outgrad.linear_gelu(x, torch.randn(8, 16)),
    }[name]()
    (dx,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=rf"outgrad\.{name}: the second derivative"):
        dx.sum().backward()


def test_what_does_not_fit_is_named():
    q = torch.randn(2, 8, 16)
    with pytest.raises(ValueError, match="do not fit together"):
        outgrad.attention(q, torch.randn(2, 8, 15), q)
    with pytest.raises(TypeError, match="k torch.bfloat16"):
        outgrad.attention(q, q.bfloat16(), q)
    with pytest.raises(ValueError, match="attn_mask requires a gradient"):
        outgrad.attention(q, q, q, torch.zeros(8, 8, requires_grad=True))
    for mask, found in ((torch.ones(8, 8).long(), "torch.int64 on cpu"), ([[True] * 8] * 8, "list"),
            (torch.ones(8, 8, device="meta"), "torch.float32 on meta")):
        with pytest.raises(TypeError,
                match=f"attn_mask is {found}; a dense boolean or floating tensor on cpu is"):
            outgrad.attention(q, q, q, mask, form="softmax")
    with pytest.raises(ValueError, match="form is 'flash'"):
        outgrad.attention(q, q, q, form="flash")
    with pytest.raises(ValueError, match="attention: p is -1"):
        outgrad.attention(q, q, q, p=-1)
    with pytest.raises(ValueError, match="have no product"):
        outgrad.linear_gelu(q, torch.randn(8, 15))
    with pytest.raises(TypeError, match="x is torch.float32, weight torch.float16"):
        outgrad.linear_gelu(q, torch.randn(8, 16).half())
    with pytest.raises(ValueError, match="bias has shape"):
        outgrad.linear_gelu(q, torch.randn(8, 16), torch.randn(16))
    for activation in ("relu", None, ["gelu"]):
        with pytest.raises(ValueError, match="linear_activation: activation is .*, none of gelu, "):
            outgrad.linear_activation(q, torch.randn(8, 16), activation=activation)
    with pytest.raises(TypeError, match="linear_activation: x is torch.float32, bias torch.bfloat16"):
        outgrad.linear_activation(q, torch.randn(8, 16), torch.randn(8).bfloat16())
    with pytest.raises(TypeError, match="softmax_dropout: x is torch.float64"):
        outgrad.softmax_dropout(q.double())
