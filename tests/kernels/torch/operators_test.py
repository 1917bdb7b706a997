"""The operators: what PyTorch's own checker says of each, in every format and shape; what they refuse; their
bits, which are the same on every machine and under every release of PyTorch; and the study that measures what
a call costs."""

import collections
import hashlib
import json
import math
import os
import pathlib

import package_speed
import pytest
import torch

import outgrad
from outgrad import library

FORMATS = [torch.float32, torch.float16, torch.bfloat16]
LENGTHS = [0, 1, 31, 33, 100_000]
SEED, SCALE = torch.tensor([7]), torch.tensor([100.0])
PARITY, CODE, MXFP8, E4M3, E5M2, INT8 = (library.STORES[name].number
    for name in ("y with its branch", "code", "mxfp8", "e4m3", "e5m2", "int8"))
SILU, TANH = (library.ACTIVATIONS.index(name) for name in ("silu", "tanh"))


def beside(given, store):
    """What a backward pass takes of what store_forward gave."""
    of = next(of for of in library.STORES.values() if of.number == store)
    return given[of.writes_y and not of.keeps_y :]


def both(x, dy, activation, store, bits=0, seed=None, scale=None):
    """A store's two operators and their arguments."""
    of = activation, store, bits, seed, scale
    return [(library.store_forward, (x, *of)),
        (library.store_backward, (dy, beside(library.store_forward(x, *of), store), *of))]


def of_products(dtype, a, b):
    """A gated pair that keeps its product, apart and packed: forward and backward."""
    if dtype == torch.float32:
        return []
    apart, packed = (a, b, SILU), (torch.cat((a, b), 1), None, SILU)
    return [one for given in (apart, packed) for one in ((library.product_forward, given),
        (library.product_backward, (b, *library.product_forward(*given), SILU, given[1] is None)))]


def arguments(dtype, n):
    """(operator, arguments) of every operator, for arrays of about n elements."""
    generator = torch.Generator().manual_seed(n + 1)
    x, dy = (torch.randn(n, generator=generator).to(dtype) for _ in range(2))
    y, mask = library.activation_forward(x, 0)
    columns = 33 if n >= 33 else max(n, 1)
    rows = n // columns
    matrix, dm = x[: rows * columns].view(rows, columns), dy[: rows * columns].view(rows, columns)
    gamma, beta = torch.rand(columns, generator=generator) + 0.5, torch.randn(columns, generator=generator)
    side = torch.tensor([0, columns - 1] if columns > 1 else [0], dtype=torch.int32)
    forward = library.norm_forward(matrix, columns, gamma, beta, 1e-5, False, side)
    rms = library.norm_forward(matrix, columns, gamma, None, 1e-6, True, None)
    groups = max(x.numel() // 192, 1)
    wide, dw = (torch.randn(groups, 192, generator=generator).to(dtype) for _ in range(2))
    ones, pair = torch.ones(192), torch.tensor([2, 190], dtype=torch.int32)
    in_8_bits = []
    for store in (E4M3, MXFP8, INT8):
        kept = library.norm_forward_8bit(wide, 192, ones, ones, 1e-5, False, pair, store)
        in_8_bits.append((library.norm_forward_8bit, (wide, 192, ones, ones, 1e-5, False, pair, store)))
        in_8_bits.append((library.norm_backward_8bit,
            (dw, *kept[1:3], 192, ones, ones, kept[3], False, pair, kept[4], True, True, store)))
    biased = library.bias_gelu_forward(matrix, beta)
    heads = x[: n // 8 // 31 * 8 * 31].view(-1, 31, 8)[:64] if n > 1000 else x.view(1, n, 1)
    probabilities = torch.ops.outgrad.attention_forward.default(heads, heads, heads, None, 0.5, 0.25, SEED,
        False)[1]
    coded = torch.ops.outgrad.attention_forward.default(heads, heads, heads, None, 0.5, 0.25, SEED, True)[1]
    bias = torch.zeros_like(probabilities[0])
    return [
        *((library.activation_forward, (x, activation)) for activation in range(len(library.ACTIVATIONS))),
        (library.activation_backward, (dy, y, mask, 0)),
        (library.activation_backward, (dy, *library.activation_forward(x, library.ACTIVATIONS.index("tanh")),
        library.ACTIVATIONS.index("tanh"))),
        (library.activation_backward, (dy, torch.tanh(x), None, library.ACTIVATIONS.index("tanh"))),
        *both(x, dy, SILU, library.STORES["y"].number),
        *both(x, dy, SILU, CODE, 5),
        *both(x, dy, TANH, CODE, 3, seed=SEED),
        *both(x, dy, 0, MXFP8),
        *(one for store, bits in ((E4M3, 0), (E4M3, 2), (E5M2, 1), (INT8, 2))
        for one in both(x, dy, SILU, store, bits, scale=SCALE)),
        *both(x, dy, SILU, library.STORES["mxfp4"].number, 1, scale=torch.ones(1)),
        *both(x, dy, SILU, library.STORES["nvfp4"].number, 2, scale=SCALE),
        *([] if dtype == torch.float32 else both(x, dy, 0, PARITY)),
        (library.encode_gradients, (x, -0.125, 1.25, 5, None)),
        (library.backward_encoded,
        (dy, library.encode_gradients(x, -0.125, 1.25, 3, SEED), -0.125, 1.25, 3, SEED)),
        (library.tensor_scale, (x, E4M3, 1.0)),
        (library.softmax_forward_code, (matrix, columns)),
        (library.softmax_backward_code, (dm, library.softmax_forward_code(matrix, columns)[1], columns)),
        (library.norm_forward, (matrix, columns, gamma, beta, 1e-5, False, side)),
        (library.norm_forward, (matrix, columns, gamma, None, 1e-6, True, None)),
        (library.norm_backward,
        (dm, forward[0], columns, gamma, beta, forward[1], False, side, forward[2], True, True)),
        (library.norm_backward, (dm, rms[0], columns, gamma, None, rms[1], True, None, rms[2], True, False)),
        (library.norm_backward, (dm, rms[0], columns, gamma, None, rms[1], True, None, rms[2], False, False)),
        (library.norm_forward_of_sum,
        (matrix, dm, columns, gamma, beta, 1e-5, False, side, SEED, 0.25, True)),
        (library.norm_forward_of_sum, (matrix, dm, columns, gamma, None, 1e-6, True, None, None, 0.0, False)),
        (library.norm_backward_of_sum, (dm, forward[0], matrix, columns, gamma, beta, forward[1], False, side,
        forward[2], True, True, SEED, 0.25)),
        (library.norm_backward_of_sum,
        (dm, rms[0], None, columns, gamma, None, rms[1], True, None, rms[2], True, False, None, 0.0)),
        *in_8_bits,
        (library.bias_gelu_forward, (matrix, beta)),
        (library.bias_gelu_backward, (dm, *biased, columns)),
        (library.dropout, (x, SEED, 0.25)),
        (library.gated_forward, (x, dy, SILU)),
        (library.gated_backward, (y, x, dy, SILU, True)),
        *(one for store in (E4M3, MXFP8) for one in in_8_bits_of(wide, dw, store)),
        (library.gated_forward, (torch.cat((matrix, dm), 1), None, 0)),
        (library.gated_backward, (dm, torch.cat((matrix, dm), 1), None, 0, False)),
        *of_products(dtype, matrix, dm),
        (torch.ops.outgrad.attention_forward.default, (heads, heads, heads, bias, 0.5, 0.25, SEED, False)),
        (torch.ops.outgrad.attention_forward.default, (heads, heads, heads, bias, 0.5, 0.25, SEED, True)),
        (torch.ops.outgrad.attention_backward.default,
        (heads, heads, heads, heads, probabilities, 0.5, 0.25, SEED, False)),
        (torch.ops.outgrad.attention_backward.default,
        (heads, heads, heads, heads, coded, 0.5, 0.25, SEED, True)),
        *(one for store in (E4M3, E5M2, MXFP8) for one in ((library.encode_tensor, (x, store, 2.0**-100)),
        (library.decode_tensor,
        (*library.encode_tensor(x, store, 1.0), store, library.FORMATS[dtype])))),
    ]


def in_8_bits_of(a, b, store):
    """Both operators of a gated pair whose factors are kept so, of two matrices and of one."""
    for first, second in ((a, b), (torch.cat((a, b), 1), None)):
        kept = library.gated_forward_8bit(first, second, SILU, store)[1:]
        yield library.gated_forward_8bit, (first, second, SILU, store)
        yield library.gated_backward_8bit, (b, *kept, SILU, store, second is None, second is None)


def behind(call):
    """The operator that a call of the package leads to."""
    return getattr(call, "__wrapped__", call)


# What an operator claims of itself depends on its format in a few places: all formats and lengths at night.
@pytest.mark.parametrize("dtype, n",
    [(dtype, n) if (dtype, n) == (torch.bfloat16, 33) else pytest.param(dtype, n, marks=pytest.mark.nightly)
    for dtype in FORMATS for n in LENGTHS])
def test_pytorchs_checker_has_no_objection(dtype, n):
    for call, values in arguments(dtype, n):
        operator = behind(call)
        result = torch.library.opcheck(operator, values)
        assert set(result.values()) == {"SUCCESS"}, (operator, result)
        assert len(result) == 4


def strided(value):
    """The same elements, every other one of an array."""
    if isinstance(value, list):
        return [strided(each) for each in value]
    return (torch.stack((value, torch.zeros_like(value)), -1)[..., 0] if isinstance(value, torch.Tensor)
        else value)


@pytest.mark.parametrize("dtype", FORMATS)
def test_elements_that_lie_apart(dtype):
    """Every operator takes its arrays as they lie, as PyTorch's own do."""
    for operator, values in arguments(dtype, 33):
        apart = tuple(map(strided, values))
        assert not any(a.is_contiguous() for a in apart if isinstance(a, torch.Tensor) and a.numel() > 1)
        dense, found = operator(*values), operator(*apart)
        for a, b in zip(*((r,) if isinstance(r, torch.Tensor) else r for r in (dense, found)), strict=True):
            assert b.is_contiguous()
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), operator
    one = torch.tensor(1.0).to(dtype)
    assert torch.equal(library.activation_forward(one.expand(8, 33), 0)[0],
        library.activation_forward(one.repeat(8, 33), 0)[0])
    with pytest.raises(RuntimeError, match="seen is no array"):
        library.norm_forward(one.repeat(8, 33), 33, None, None, 1e-5, False, None,
            strided(torch.zeros(2, dtype=torch.int32)), 1.0)


def test_operators_refuse_what_they_cannot_do():
    x = torch.randn(4, 8)
    y, mask = library.activation_forward(x, 0)
    with pytest.raises(RuntimeError, match="float32, float16 or bfloat16"):
        library.activation_forward(x.double(), 0)
    with pytest.raises(RuntimeError, match="dy is not of the type and number"):
        library.activation_backward(x[:2].contiguous(), y, mask, 0)
    with pytest.raises(RuntimeError, match="mask has"):
        library.activation_backward(x, y, mask[:0], 0)
    with pytest.raises(RuntimeError, match="activation 10 is unknown"):
        library.activation_forward(x, 10)
    with pytest.raises(RuntimeError, match="activation -1 is unknown"):
        library.activation_forward(x, -1)
    with pytest.raises(RuntimeError, match="activation 10 is unknown"):
        library.activation_backward(x, y, mask, 10)
    with pytest.raises(RuntimeError, match="mask is null"):
        library.activation_backward(x, y, None, 0)
    _, codes = library.store_forward(x, 0, CODE, 4)
    with pytest.raises(RuntimeError, match="bits = 9: a code without a seed has 1 to 8"):
        library.store_forward(x, 0, CODE, 9)
    with pytest.raises(RuntimeError, match="bits = 0: a code without a seed has 1 to 8"):
        library.store_backward(x, [codes], 0, CODE, 0)
    with pytest.raises(RuntimeError, match="bits = 2147483647: a code"):
        library.store_forward(x, 0, CODE, 2**32 + 4)
    with pytest.raises(RuntimeError, match="a dithered code has 2 or 3"):
        library.store_forward(x, 0, CODE, 4, SEED)
    with pytest.raises(RuntimeError, match="seed has 2 elements"):
        library.store_forward(x, 0, CODE, 2, torch.tensor([1, 2]))
    with pytest.raises(RuntimeError, match="codes has 15 elements, where 16"):
        library.store_backward(x, [codes[1:]], 0, CODE, 4)
    with pytest.raises(RuntimeError, match="codes is not of Byte"):
        library.store_backward(x, [codes.char()], 0, CODE, 4)
    with pytest.raises(RuntimeError, match="codes is missing"):
        library.store_backward(x, [], 0, CODE, 4)
    with pytest.raises(RuntimeError, match="there are 2 arrays, where 1 are kept"):
        library.store_backward(x, [codes, y], 0, CODE, 4)
    with pytest.raises(RuntimeError, match="activation 10 is unknown"):
        library.store_forward(x, 10, CODE, 4)
    for store in (-1, len(library.STORES), 2**32):
        with pytest.raises(RuntimeError, match="store .* is unknown"):
            library.store_forward(x, 0, store, 0)
    for store in (-1, INT8, 2**32):
        with pytest.raises(RuntimeError, match="no tensor is stored as"):
            library.encode_tensor(x, store, 1.0)
    for least in (0.0, math.nan, 2.0**-101, 2.0**127.5):
        with pytest.raises(RuntimeError, match="least must lie in"):
            library.tensor_scale(x, E4M3, least)
    with pytest.raises(RuntimeError, match="mxfp8 has no scale of its own"):
        library.tensor_scale(x, MXFP8, 1.0)
    with pytest.raises(RuntimeError, match="not of float32, float16 or bfloat16"):
        library.encode_tensor(x.double(), E4M3, 1.0)
    with pytest.raises(RuntimeError, match="scales has 2 elements, where 1"):
        library.decode_tensor(codes, torch.ones(2), E4M3, 0)
    with pytest.raises(RuntimeError, match="scales is not of Byte"):
        library.decode_tensor(codes, torch.ones(1), MXFP8, 0)
    with pytest.raises(RuntimeError, match="codes is not of Byte"):
        library.decode_tensor(codes.char(), torch.ones(1), E4M3, 0)
    with pytest.raises(RuntimeError, match="format 3 is unknown"):
        library.decode_tensor(codes, torch.ones(1), E4M3, 3)
    with pytest.raises(RuntimeError, match="a scale is positive, finite and normal"):
        library.decode_tensor(codes, torch.zeros(1), E4M3, 0)
    with pytest.raises(RuntimeError, match="packed rows of 8 are no blocks of 32"):
        library.gated_forward_8bit(torch.zeros(2, 16), None, SILU, MXFP8)
    with pytest.raises(RuntimeError, match="activation 6 is no gate"):
        library.gated_forward_8bit(x, x, TANH, E4M3)
    with pytest.raises(RuntimeError, match="no tensor is stored as"):
        library.gated_forward_8bit(x, x, SILU, INT8)
    octets, one = torch.zeros(32, dtype=torch.uint8), torch.ones(1)
    with pytest.raises(RuntimeError, match="codes_of_b has 31 elements, where 32"):
        library.gated_backward_8bit(x, octets, one, octets[1:], one, SILU, E4M3, False, True)
    with pytest.raises(RuntimeError, match="scales_of_a is not of Float"):
        library.gated_backward_8bit(x, octets, octets[:1], octets, one, SILU, E4M3, False, True)
    with pytest.raises(RuntimeError, match="is no range of f' that codes are proven for"):
        library.encode_gradients(x, 0.0, 2.5, 4, None)
    with pytest.raises(RuntimeError, match="is no range of f' that codes are proven for"):
        library.backward_encoded(x, codes, math.nan, 1.0, 4, None)
    with pytest.raises(RuntimeError, match="codes has 15 elements, where 16"):
        library.backward_encoded(x, codes[1:], 0.0, 1.0, 4, None)
    with pytest.raises(RuntimeError, match="in f16 and bf16, not in f32"):
        library.store_forward(x, 0, PARITY, 0)
    with pytest.raises(RuntimeError, match="tanh rises: there is no branch"):
        library.store_forward(x.half(), TANH, PARITY, 0)
    with pytest.raises(RuntimeError, match="y is missing"):
        library.store_backward(x.half(), [], 0, PARITY, 0)
    with pytest.raises(RuntimeError, match="y is not of Half"):
        library.store_backward(x.half(), [x], 0, PARITY, 0)
    with pytest.raises(RuntimeError, match="y in mxfp8 is for gelu alone"):
        library.store_forward(x, SILU, MXFP8, 0)
    blocks = library.store_forward(x, 0, MXFP8, 0)
    for count, name in enumerate(("mask", "codes", "scales")):
        with pytest.raises(RuntimeError, match=f"{name} is missing"):
            library.store_backward(x, blocks[:count], 0, MXFP8, 0)
    with pytest.raises(RuntimeError, match="scales has"):
        library.store_backward(x, [*blocks[:2], codes], 0, MXFP8, 0)
    with pytest.raises(RuntimeError, match="bits = 3: beside y in 8 bits are 0, 1 or 2"):
        library.store_forward(x, 0, E4M3, 3, scale=SCALE)
    with pytest.raises(RuntimeError, match="scale is null"):
        library.store_forward(x, 0, E4M3, 1)
    for scale in (0.0, -1.0, float("inf"), float("nan"), 1e-39):
        with pytest.raises(RuntimeError, match="scale"):
            library.store_forward(x, 0, E4M3, 1, scale=torch.tensor([scale]))
    with pytest.raises(RuntimeError, match="scale has 2 elements"):
        library.store_forward(x, 0, E4M3, 1, scale=torch.ones(2))
    with pytest.raises(RuntimeError, match="tanh rises: y in 8 bits"):
        library.store_forward(x, TANH, E4M3, 1, scale=SCALE)
    eight, part = library.store_forward(x, 0, E4M3, 1, scale=SCALE)
    with pytest.raises(RuntimeError, match="parts has"):
        library.store_backward(x, [eight, part], 0, E4M3, 2, scale=SCALE)
    with pytest.raises(RuntimeError, match="codes has"):
        library.store_backward(x, [eight[1:], part], 0, E4M3, 1, scale=SCALE)
    with pytest.raises(RuntimeError, match="codes has"):
        library.softmax_backward_code(x, eight[1:], 8)
    with pytest.raises(RuntimeError, match="no rows of 7"):
        library.softmax_forward_code(x, 7)
    with pytest.raises(RuntimeError, match="no rows of 7"):
        library.norm_forward(x, 7, None, None, 1e-5, False, None)
    with pytest.raises(RuntimeError, match="gamma has 7 elements"):
        library.norm_forward(x, 8, torch.ones(7), None, 1e-5, False, None)
    with pytest.raises(RuntimeError, match="gamma and beta are of two types"):
        library.norm_forward(x, 8, torch.ones(8, dtype=torch.bfloat16), torch.ones(8), 1e-5, False, None)
    with pytest.raises(RuntimeError, match="side_channels"):
        library.norm_forward(x, 8, None, None, 1e-5, False, torch.tensor([3, 1], dtype=torch.int32))
    y, rstd, x_hat = library.norm_forward(x, 8, None, None, 1e-5, False,
        torch.tensor([1, 3], dtype=torch.int32))
    # without the advice that belongs to a gamma without a finite reciprocal
    with pytest.raises(RuntimeError) as refused:
        library.norm_backward(x, y, 8, None, None, rstd, False, torch.tensor([3, 1], dtype=torch.int32),
            x_hat, False, False)
    assert (str(refused.value).splitlines()[0]
        == "outgrad: side_channels[1] = 1: channels ascend within [0, 8)")
    with pytest.raises(RuntimeError, match="eps"):
        library.norm_forward(x, 8, None, None, -1.0, False, None)
    with pytest.raises(RuntimeError,
            match="n = 8 is no whole number of groups of 64, which share a scale in int8"):
        library.norm_forward_8bit(x, 8, None, None, 1e-5, False, None, INT8)
    with pytest.raises(RuntimeError, match="e5m2 is no store of a norm"):
        library.norm_forward_8bit(x, 8, None, None, 1e-5, False, None, E5M2)
    _, codes, scales, rstd, x_hat = library.norm_forward_8bit(x, 8, None, None, 1e-5, False, None, E4M3)
    with pytest.raises(RuntimeError, match="codes has 31 elements, where 32"):
        library.norm_backward_8bit(x, codes[1:], scales, 8, None, None, rstd, False, None, x_hat, False,
            False, E4M3)
    with pytest.raises(RuntimeError, match="scales has 3 elements, where 4"):
        library.norm_backward_8bit(x, codes, scales[1:], 8, None, None, rstd, False, None, x_hat, False,
            False, E4M3)
    with pytest.raises(RuntimeError, match="scale 0 is zero, negative, subnormal, infinite or NaN"):
        library.norm_backward_8bit(x, codes, torch.zeros_like(scales), 8, None, None, rstd, False, None,
            x_hat, False, False, E4M3)
    with pytest.raises(RuntimeError, match="seed"):
        library.dropout(x, torch.tensor([1, 2]), 0.5)
    with pytest.raises(RuntimeError, match="dropout"):
        library.dropout(x, SEED, 1.5)


# --- Bits -----------------------------------------------------------------------------------------


def digests():
    """SHA-256 of each operator's results. Inputs are integers through exact operations, hence the same
    everywhere."""
    found = {}
    for dtype in FORMATS:
        k = torch.arange(99 * 1024, dtype=torch.int64)
        x = (((k * 2654435761) % 65536 - 32768).double() / 8192).to(dtype).view(1024, 99)
        dy = (((k * 40503 + 77) % 65536 - 32768).double() / 16384).to(dtype).view(1024, 99)
        gamma = ((torch.arange(99) * 37 % 64 + 32) / 64).float()
        beta = ((torch.arange(99) * 53 % 64 - 32) / 32).float()
        y, mask = library.activation_forward(x, 0)
        forward = library.norm_forward(x, 99, gamma, beta, 1e-5, False, None)
        rms = library.norm_forward(x, 99, gamma, None, 1e-6, True, None)
        results = {
            "gelu_forward": (y, mask),
            "gelu_backward": (library.activation_backward(dy, y, mask, 0),),
            "layer_norm_forward": forward,
            "layer_norm_backward": library.norm_backward(dy, forward[0], 99, gamma, beta, forward[1], False,
            None, forward[2], True, True),
            "rms_norm_forward": rms,
            "rms_norm_backward": library.norm_backward(dy, rms[0], 99, gamma, None, rms[1], True, None,
            rms[2], True, False),
            "dropout": (library.dropout(x, SEED, 0.25),),
        }
        for activation, name in enumerate(library.ACTIVATIONS[1:], 1):
            of_activation = library.activation_forward(x, activation)
            results[f"{name}_forward"] = of_activation
            results[f"{name}_backward"] = (library.activation_backward(dy, *of_activation, activation),)
        for activation, name in enumerate(library.ACTIVATIONS):
            if dtype != torch.float32 and name in library.MASKED:
                carrier = library.store_forward(x, activation, PARITY, 0)
                results[f"{name}_parity"] = *carrier, library.store_backward(dy, carrier, activation, PARITY,
                    0)
            for store, bits, seed in (("code", 4, None), ("dither", 2, SEED)):
                _, codes = library.store_forward(x, activation, CODE, bits, seed)
                results[f"{name}_{store}"] = codes, library.store_backward(dy, [codes], activation, CODE,
                    bits, seed)
        for name, index in ((name, library.ACTIVATIONS.index(name)) for name in library.MASKED):
            for of, store in library.FP8.items():
                kept = library.store_forward(x, index, store, 2, scale=SCALE)
                results[f"{name}_{of}"] = *kept, library.store_backward(dy, kept, index, store, 2,
                    scale=SCALE)
        own = library.encode_gradients(x, -0.125, 1.25, 4, None)
        results["own_code"] = own, library.backward_encoded(dy, own, -0.125, 1.25, 4, None)
        coded = library.softmax_forward_code(x, 99)
        results["softmax_code"] = *coded, library.softmax_backward_code(dy, coded[1], 99)
        mask, *blocks = library.store_forward(x, 0, MXFP8, 0)
        results["gelu_mxfp8"] = *blocks, mask, library.store_backward(dy, [mask, *blocks], 0, MXFP8, 0)
        for name, tensors in results.items():
            content = b"".join(t.contiguous().view(torch.uint8).numpy().tobytes()
                for t in tensors if t.numel() > 0)
            found[f"{name} {str(dtype)[6:]}"] = hashlib.sha256(content).hexdigest()
    return found


def test_bits_are_the_committed_ones_on_one_thread_and_on_three():
    """Under this release of PyTorch and on this machine as where digests.json was written: equal bits
    everywhere.

    OUTGRAD_WRITE_DIGESTS=1 writes the file anew, after a change of coefficients."""
    path, before, found = pathlib.Path(__file__).with_name("digests.json"), torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(digests())
    finally:
        torch.set_num_threads(before)
    if os.environ.get("OUTGRAD_WRITE_DIGESTS"):
        path.write_text(json.dumps(found[0], indent=2) + "\n")
    assert found == 2 * [json.loads(path.read_text())]


# --- The study of speed ---------------------------------------------------------------------------


def test_the_study_of_speed_runs_and_shows_what_it_wrote(monkeypatch, capsys, tmp_path):
    """Its times are no matter here; notebooks_data/studies/README.md has them."""
    file = tmp_path / "speed.json"

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["package_speed.py", "--out", str(file), *arguments])
        assert package_speed.main() == 0
        return capsys.readouterr().out

    few = "--write", "--elements", "2048", "--rounds", "1", "--repeats", "1"
    printed = run(*few, "--own-time", "--kind", "gated silu")
    assert {row["kind"] for row in json.loads(file.read_text())["rows"]} == {"gated silu"}
    assert "1 threads" in printed and "time the thread's own" in printed

    printed = run(*few, "--system")
    found = json.loads(file.read_text())
    assert found["schema"] == package_speed.SCHEMA and len(found["load"]) == 2
    ways = {"gelu": 3, "layer_norm": 4}
    for elements, kinds in ((2048, package_speed.KINDS), (64, package_speed.KINDS_OF_FEW)):
        rows = [row["kind"] for row in found["rows"] if row["elements"] == elements]
        wanted = {kind: len(FORMATS) * ways.get(kind, 1) for kind in kinds}
        wanted["gated silu, output"] = 2  # in 16 bits alone
        assert wanted == dict(collections.Counter(rows))
    assert {row["elements"] for row in found["rows"]} == {2048, 64}
    assert run("--show") == printed and [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize(("n", "k"), [(1, 0), (7, 0), (8, 0), (15, 2), (25, 5), (120, 45)])
def test_an_interval_holds_the_median_with_99_percent(n, k):
    """The median of n values lies between those of ranks k + 1 and n - k with probability 1 - 2 P(Binomial(n,
    1/2) <= k)."""
    assert package_speed.interval([*range(n, 0, -1)]) == [n // 2 + 1, k + 1, n - k]
