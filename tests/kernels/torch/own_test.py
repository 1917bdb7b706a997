"""An activation of one's own that keeps codes (outgrad/own.py). SiLU stands for it, with its header's range
and bounds, while y and f'(x) come from PyTorch's operations."""

import pathlib
import re

import pytest
import torch
import torch.nn.functional as F
from functional_test import UNIT_ROUNDOFF, copies, gradients
from stores_test import FORMATS, LEAST_SUBNORMAL, inputs, slope
from torch.utils.checkpoint import checkpoint

import outgrad
HEADER = pathlib.Path(__file__).parents[3] / "kernels" / "generated" / "silu_code.h"
STORES = [f"code:{bits}" for bits in range(1, 9)] + ["dither:2", "dither:3"]
PROMISED = 2.0**-20  # of the formula below in float32, where the header has 2^-23.9


def silu_slope(x):
    s = torch.sigmoid(x)
    # 1 - s would cancel: x times its error is above the promise near x = 16.6
    return s + x * s * torch.sigmoid(-x)


def own(store="code:4"):
    return outgrad.CodedActivation(HEADER, F.silu, silu_slope, store)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("store", STORES)
def test_every_gradient_is_within_the_headers_bound(store, dtype):
    module, x = own(store), inputs(dtype)
    x = x[x.abs() < 64]
    y, dx = gradients(module, x, dy=torch.ones_like(x))
    want, bound = slope("silu", x), module.bounds.total + PROMISED
    assert (silu_slope(x.float()).double() - want).abs().max() < PROMISED
    off = (dx.double() - want).abs()
    assert (off - bound - UNIT_ROUNDOFF[dtype] * (want.abs() + bound) - LEAST_SUBNORMAL[dtype]).max() <= 0
    assert off.max() > 0.5 * module.bounds.total and torch.equal(y, F.silu(x))


def test_its_codes_and_bounds_are_those_of_the_librarys_own():
    for store in STORES:
        ours, theirs = own(store).bounds, outgrad.bounds("silu", torch.float32, store)
        assert (ours.fit, ours.total, ours.bias, ours.sha256) == (theirs.fit, theirs.total, theirs.bias,
            theirs.sha256)
    assert own().bounds.evaluation == float.fromhex(own().header._constants["G"]) and "fit silu_code" in repr(
        own())
    x = torch.randn(100_000)
    a, b = (gradients(f, x, dy=torch.ones_like(x))[1]
        for f in (own("code:5"), lambda x: outgrad.silu(x, store="code:5")))
    assert (a != b).sum() < 10, "where f'(x) is rounded to the other side of a cell"


@pytest.mark.parametrize(("store", "bytes_kept"),
    [("code:4", 2**19), ("code:5", 5 * 2**17), ("dither:2", 2**18 + 8)])
def test_exactly_these_bytes_are_kept(store, bytes_kept):
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        own(store)(torch.randn(1024, 1024).bfloat16().requires_grad_())
    assert sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in kept}.values()) == bytes_kept


@pytest.mark.parametrize("store", ["code:4", "dither:3"])
def test_copies_checkpoints_graphs_and_transforms(store):
    module, x = own(store), torch.randn(8, 64)

    def once(function):
        torch.manual_seed(4)
        return gradients(function, x)

    want = once(module)
    for other in (*copies(module), lambda x: checkpoint(module, x, use_reentrant=False)):
        assert all(torch.equal(a, b) for a, b in zip(once(other), want, strict=True))
    if store.startswith("code"):
        assert all(torch.equal(a, b)
            for a, b in zip(once(torch.compile(module, fullgraph=True)), want, strict=True))
        assert torch.equal(torch.func.grad(lambda x: module(x).sum())(x),
            gradients(module, x, dy=torch.ones_like(x))[1])
    direct = x.clone().requires_grad_()
    (of_sum,) = torch.autograd.grad(module(direct).sum(), direct, create_graph=True)
    with pytest.raises(RuntimeError, match="outgrad.CodedActivation of silu_code: the second derivative"):
        of_sum.sum().backward()
    dx = gradients(module, x.t())[1]  # not contiguous
    assert dx.shape == x.t().shape


def test_the_program_of_the_page_runs(capsys):
    """That of docs/your_own_activation.md, with SiLU, whose header is here, in place of the page's
    function."""
    page = (HEADER.parents[2] / "docs" / "your_own_activation.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    changed = block.replace('"mine/smooth_code.h"', repr(str(HEADER))).replace("1.3", "1.0")
    assert changed.count(str(HEADER)) == 1 and changed.count("1.0") == 4
    exec(compile(changed, "docs/your_own_activation.md", "exec"), {})
    assert "|g - f'(x)| <= 0.038 for every x, fit silu_code" in capsys.readouterr().out


def test_a_number_in_decimals_is_what_it_is_in_cpp(tmp_path):
    file = tmp_path / "own.h"
    file.write_text(re.sub(r"(kHi = )[^;]+", r"\g<1>1.25f", HEADER.read_text()))
    assert outgrad.CodeHeader(file).hi == 1.25


@pytest.mark.parametrize("path", sorted(HEADER.parent.glob("*_code.h")), ids=lambda path: path.stem)
def test_every_header_of_the_library_is_read(path):
    header = outgrad.CodeHeader(path)
    of_codes = [header.bounds("code", bits).total for bits in range(1, 9)]
    assert of_codes == sorted(of_codes, reverse=True) and header.bounds("dither", 2).total > of_codes[1]


@pytest.mark.parametrize("store", ["code:4", "dither:2"])
def test_strides_are_those_of_x(store):
    x = torch.randn(2, 8, 5, 3).to(memory_format=torch.channels_last).requires_grad_()
    y = own(store)(x)
    dx, = torch.autograd.grad(y, x, torch.ones_like(y))
    assert y.stride() == dx.stride() == x.stride() and torch.equal(y, F.silu(x))


def test_what_cannot_be_used_is_named(tmp_path):
    text = HEADER.read_text()

    def header(name, content):
        (tmp_path / name).write_bytes(content)
        return lambda: outgrad.CodedActivation(tmp_path / name, F.silu, silu_slope)

    x = torch.randn(4)
    for call, why in (
        (lambda: own("y+bit"), "store: 'y[+]bit' is none of code:1 to code:8, dither:2 and dither:3"),
        (lambda: own("dither:4"), "store: 'dither:4' is none"),
        (lambda: own(4), "store: 4 is none"),
        (lambda: outgrad.CodedActivation(tmp_path / "none.h", F.silu, silu_slope),
        "none.h: no header of codes: No such file"),
        (header("fit.h", HEADER.with_name("silu_bf16.h").read_bytes()),
        "fit.h: no header of codes: it has no kLo"),
        (header("cut.h", text[: text.index("kBias")].encode()), "cut.h: no header of codes: it has no kBias"),
        (header("nan.h", text.replace("kG = 0x", "kG = nanx").encode()),
        "nan.h: no header of codes: kG is nanx"),
        (header("hex.h", re.sub(r"kHi = [^;]+", "kHi = 0x2f", text).encode()),
        "hex.h: no header of codes: kHi is 0x2f"),  # 47 in C++
        (header("twice.h", re.sub(r"(  static constexpr float kHi = [^;]+;)", r"\1\n\1", text).encode()),
        "twice.h: no header of codes: a constant stands there twice"),
        (header("tight.h", re.sub(r"kT4 = [^;]+", "kT4 = 0x1p-6", text).encode()),
        "tight.h: no header of codes: kT4 is 0x1p-6, and no code of 4 bits is nearer than 0.03"),
        (header("bytes.h", b"\xff" + text.encode()), "bytes.h: no header of codes: "),
        (lambda: outgrad.CodedActivation(HEADER, lambda x: x.double(), silu_slope)(x),
        r"silu_code: value gave torch.float64 of \(4,\)"),
        (lambda: outgrad.CodedActivation(HEADER, F.silu, lambda x: x[:3])(x),
        r"silu_code: gradient gave torch.float32 of \(3,\)"),
        (lambda: outgrad.CodedActivation(HEADER, F.silu, lambda x: 1.0)(x), "silu_code: gradient gave float"),
    ):
        with pytest.raises(ValueError, match=why):
            call()
    with pytest.raises(TypeError, match="outgrad.CodedActivation of silu_code: x is torch.float64"):
        own()(x.double())
