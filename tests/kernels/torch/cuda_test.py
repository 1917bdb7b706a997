"""The operators for CUDA, over a driver that stands in for a GPU: its memory is the host's, and what is
launched computes what the host computes, from the arguments that the launch was given. Real are the choice of
kernels, their programs, which NVRTC compiles for an sm_90, and every argument.

A program takes half a second to compile. By day each kernel meets some formats, activations and shapes, at
night all of them."""

import ctypes
import functools
import multiprocessing
import os
import pathlib
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from nights import at_night

import outgrad
from outgrad import functional, library

BINARY = pathlib.Path(os.environ["OUTGRAD_BINARY_DIR"])
FORMATS = [torch.float32, torch.float16, torch.bfloat16]
ours = torch.ops.outgrad


def numbers(*names):
    return [library.ACTIVATIONS.index(name) for name in names]


formats = pytest.mark.parametrize("dtype", [torch.bfloat16, *at_night(FORMATS[:2])])


def loaded(name):
    torch.ops.load_library(str(BINARY / f"tests/lib{name.replace('outgrad', 'outgrad_torch')}.so"))
    return getattr(torch.ops, name)


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    """The operators of the stand-in, which tests only names: it is opened by the first call, with this
    environment."""
    os.environ["OUTGRAD_LIBCUDA"] = str(BINARY / "tests/liboutgrad-stand-in-driver.so")
    os.environ["OUTGRAD_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    return loaded("outgrad_stand_in")


def values(dtype, *size, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(a, b):
    a, b = ((result,) if isinstance(result, torch.Tensor) else result for result in (a, b))
    for x, y in zip(a, b, strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        integers = {4: torch.int32, 2: torch.int16, 1: torch.uint8}[x.element_size()]
        assert torch.equal(x.view(integers), y.view(integers))


@pytest.mark.parametrize("n", [0, 1, 33, 70_001])
@pytest.mark.parametrize("activations",
    [numbers("gelu", "silu", "tanh"), *at_night([list(range(len(library.ACTIVATIONS)))])])
@formats
def test_activations(device, dtype, activations, n):
    x, dy = values(dtype, n, seed=1), values(dtype, n, seed=2)
    for activation in activations:
        y, mask = ours.activation_forward(x, activation)
        same(device.activation_forward(x, activation), (y, mask))
        same(device.activation_backward(dy, y, mask, activation),
            ours.activation_backward(dy, y, mask, activation))


# Rows of whole octets and others; one slot of sums and several; more than registers hold; a view that is not
# aligned to wide accesses.
@pytest.mark.parametrize("rows, columns",
    [(0, 8), (5, 33), (64, 1024), *at_night([(1, 1), (7, 768), (2, 40_000)])])
@formats
def test_bias_and_norms(device, dtype, rows, columns):
    x, dy = values(dtype, rows, columns, seed=3), values(dtype, rows, columns, seed=4)
    gamma, beta = values(torch.float32, columns, seed=5).abs() + 0.5, values(torch.float32, columns, seed=6)
    y, mask = ours.bias_gelu_forward(x, beta)
    same(device.bias_gelu_forward(x, beta), (y, mask))
    for like in (None, *(torch.empty(0, dtype=of) for of in FORMATS)):
        same(device.bias_gelu_backward(dy, y, mask, columns, like),
            ours.bias_gelu_backward(dy, y, mask, columns, like))
    side = torch.tensor(sorted({0, columns // 2, columns - 1}), dtype=torch.int32)
    hard = gamma.clone()
    hard[side.long()] = 0.0
    shifted = torch.cat([torch.ones(1), beta])[1:]
    for rms, g, b, channels in [(False, gamma, beta, None), (False, None, None, None),
            (True, gamma, None, None), (True, None, None, None), (False, hard, beta, side),
            (True, hard, None, side), (False, gamma, shifted, None)]:
        forward = ours.norm_forward(x, columns, g, b, 1e-5, rms, channels)
        same(device.norm_forward(x, columns, g, b, 1e-5, rms, channels), forward)
        for with_dgamma, with_dbeta in [(True, not rms), (False, False)]:
            arguments = (dy, forward[0], columns, g, b, forward[1], rms, channels, forward[2], with_dgamma,
                with_dbeta)
            same(device.norm_backward(*arguments), ours.norm_backward(*arguments))


# Each store with rows in registers and longer ones; e4m3 also with rows element by element and with no row.
# By day each store meets one norm, and side channels in turn.
@pytest.mark.parametrize("store, rows, columns", [("e4m3", 5, 33), ("mxfp8", 7, 96), ("int8", 64, 1024),
    *at_night([("e4m3", 64, 1024), ("e4m3", 0, 8), ("e4m3", 2, 40_000), ("mxfp8", 64, 1024),
    ("mxfp8", 2, 40_000), ("int8", 0, 64), ("int8", 2, 40_000)])])
@formats
def test_norms_from_8_bits(device, dtype, store, rows, columns):
    x, dy = values(dtype, rows, columns, seed=3), values(dtype, rows, columns, seed=4)
    of_store, parameters = library.STORES[store].number, FORMATS[columns % 3]
    rms = store == "mxfp8"
    gamma, beta = ((values(torch.float32, columns, seed=5).abs() + 0.5).to(parameters), None if rms
        else values(parameters, columns, seed=6))
    side = torch.tensor([0, columns - 1], dtype=torch.int32)
    hard = gamma.clone()
    hard[side.long()] = 0.0
    for g, channels in ((gamma, None), (hard, side)):
        arguments = (x, columns, g, beta, 1e-5, rms, channels, of_store)
        _, codes, scales, rstd, x_hat = kept = ours.norm_forward_8bit(*arguments)
        same(device.norm_forward_8bit(*arguments), kept)
        for wanted in [(True, not rms), (False, False)]:
            arguments = (dy, codes, scales, columns, g, beta, rstd, rms, channels, x_hat, *wanted, of_store)
            same(device.norm_backward_8bit(*arguments), ours.norm_backward_8bit(*arguments))


# A program reads gamma and beta in their own type, and writes their gradients in it: rows that a thread has
# whole, others, and longer ones.
@pytest.mark.parametrize("rows, columns", [(64, 1024), *at_night([(5, 33), (2, 40_000)])])
@pytest.mark.parametrize("parameters", [torch.bfloat16, *at_night([torch.float16])])
def test_norms_with_parameters_in_16_bits(device, parameters, rows, columns):
    dtype = FORMATS[(rows + (parameters == torch.bfloat16)) % 3]
    x, dy = values(dtype, rows, columns, seed=3), values(dtype, rows, columns, seed=4)
    gamma, beta = (values(torch.float32, columns, seed=5).abs() + 0.5).to(parameters), values(parameters,
        columns, seed=6)
    same(device.bias_gelu_forward(x, beta), ours.bias_gelu_forward(x, beta))
    side = torch.tensor(sorted({0, columns // 2, columns - 1}), dtype=torch.int32)
    hard = gamma.clone()
    hard[side.long()] = 0.0
    shifted = torch.cat([torch.ones(1, dtype=parameters), beta])[1:]
    for rms, g, b, channels in [(False, gamma, beta, None), (True, gamma, None, None),
            (False, hard, beta, side), (True, hard, None, side), (False, gamma, shifted, None)]:
        forward = ours.norm_forward(x, columns, g, b, 1e-5, rms, channels)
        same(device.norm_forward(x, columns, g, b, 1e-5, rms, channels), forward)
        for wanted in [(True, not rms), (False, False)]:
            arguments = (dy, forward[0], columns, g, b, forward[1], rms, channels, forward[2], *wanted)
            same(device.norm_backward(*arguments), ours.norm_backward(*arguments))


@pytest.mark.parametrize("parameters", [torch.bfloat16, *at_night(FORMATS[:2])])
def test_a_drift_is_seen_and_a_lost_channel_is_nan(device, parameters):
    """The kernels' tests of gamma and beta, in each type of parameters: near is said, lost makes dx and its
    own dgamma NaN."""
    rows, columns = 16, 1024
    x, dy = values(torch.float32, rows, columns, seed=1), values(torch.float32, rows, columns, seed=2)
    tau = functional.largest_storage_error(torch.float32)
    for b, want in ((0.0, [0, 0]), (80.0, [1, 0]), (1000.0, [1, 1])):
        gamma, beta = torch.ones(columns, dtype=parameters), torch.zeros(columns, dtype=parameters)
        beta[7] = b
        results = []
        for of in (device, ours):
            seen = torch.zeros(2, dtype=torch.int32)
            y, rstd, side = of.norm_forward(x, columns, gamma, beta, 1e-5, False, None, seen, tau)
            assert seen.tolist() == want, (parameters, b)
            results.append((y, rstd,
                *of.norm_backward(dy, y, columns, gamma, beta, rstd, False, None, side, True, True, tau)))
        dx, dgamma = results[0][2:4]
        assert dx.isnan().all() == (want[1] == 1) and dgamma.isnan().nonzero().flatten().tolist() == ([7]
            if want[1] else [])
        if not want[1]:
            same(*results)


# What dropout(x) + residual is tried for: every home of a row, z stored or not, what reaches z, side channels
# and parameters in each type.
SUMS = [(0, 8), (5, 8), (7, 24), (5, 100), (64, 1024), (3, 4096), (2, 40_000), (1, 120_001)]


@pytest.mark.parametrize("rows, columns", [*SUMS[:1], *SUMS[3:5], *at_night(SUMS[1:3] + SUMS[5:])])
@formats
def test_norms_of_a_sum(device, dtype, rows, columns):
    x, residual, dy, dz_next = (values(dtype, rows, columns, seed=seed) for seed in range(4))
    seed = torch.tensor([1234567890123456789])
    side = torch.tensor(sorted({0, columns // 2, columns - 1}), dtype=torch.int32)
    # Each shape and format meets two of the ways.
    first = SUMS.index((rows, columns)) + 2 * FORMATS.index(dtype)
    for turn in (first, first + 3):
        rms, with_z, added, key = (turn % 2 == 1, turn % 4 >= 2, dz_next if turn % 3 else None,
            None if turn % 5 == 0 else seed)
        parameters, channels = FORMATS[turn % 3], side if turn % 4 in (1, 2) else None
        gamma, beta = (values(torch.float32, columns, seed=5).abs().add(0.5).to(parameters),
            None if rms else values(parameters, columns, seed=6))
        if channels is not None:
            gamma[side.long()] = 0.0
        for p in (0.0, 0.1, 1.0):
            forward = (x, residual, columns, gamma, beta, 1e-5, rms, channels, key, p, with_z)
            y, rstd, x_hat, z = ours.norm_forward_of_sum(*forward)
            same(device.norm_forward_of_sum(*forward), (y, rstd, x_hat, z))
            backward = (dy, y, added, columns, gamma, beta, rstd, rms, channels, x_hat, True, not rms, key, p)
            same(device.norm_backward_of_sum(*backward), ours.norm_backward_of_sum(*backward))


def test_a_sum_that_is_not_aligned(device):
    """Each array by itself: wide accesses are not for such a row."""
    aligned, off = (values(torch.bfloat16, 8 * 1024 + 1)[at : at + 8 * 1024].view(8, 1024) for at in (0, 1))
    seed = torch.tensor([5])
    for x, residual in ((aligned, off), (off, aligned)):
        forward = ours.norm_forward_of_sum(x, residual, 1024, None, None, 1e-5, False, None, seed, 0.1, True)
        same(device.norm_forward_of_sum(x, residual, 1024, None, None, 1e-5, False, None, seed, 0.1, True),
            forward)
        arguments = (x, forward[0], residual, 1024, None, None, forward[1], False, None, forward[2], False,
            False, seed, 0.1)
        same(device.norm_backward_of_sum(*arguments), ours.norm_backward_of_sum(*arguments))


def test_arrays_that_are_not_aligned(device):
    """To their element alone: wide accesses are not for them."""
    x, dy, bias = (values(torch.bfloat16, 8 * 1024 + 1)[1:].view(8, 1024),
        values(torch.bfloat16, 8 * 1024 + 1, seed=1)[1:].view(8, 1024), values(torch.float32, 1025)[1:])
    y, mask = ours.bias_gelu_forward(x, bias)
    same(device.bias_gelu_forward(x, bias), (y, mask))
    same(device.bias_gelu_backward(dy, y, mask, 1024), ours.bias_gelu_backward(dy, y, mask, 1024))
    forward = ours.norm_forward(x, 1024, bias.abs() + 1, bias, 1e-5, False, None)
    same(device.norm_forward(x, 1024, bias.abs() + 1, bias, 1e-5, False, None), forward)


@pytest.mark.parametrize("p", [0.0, 0.1, 1.0])
@formats
def test_dropout(device, dtype, p):
    seed = torch.tensor([1234567890123456789])
    for n in (0, 1, 9, 70_001):
        x = values(dtype, n)
        same(device.dropout(x, seed, p), ours.dropout(x, seed, p))


def test_a_tuned_headers_choices_run(device):
    """GELU's gradient has one fit for few elements and another for many; where the header has nothing, the
    default runs."""
    tuned = loaded("outgrad_stand_in_tuned")
    for n, other in ((500, True), (2000, True), (50_000, False), (200_000, False)):
        dy = values(torch.bfloat16, n, seed=1)
        y, mask = ours.activation_forward(values(torch.bfloat16, n, seed=2), 0)
        default, found = ours.activation_backward(dy, y, mask, 0), tuned.activation_backward(dy, y, mask, 0)
        assert torch.equal(default, found) != other
        assert ((default.double() - found.double()).abs() <= 2.0**-5
            * dy.double().abs()).all(), "A + B of the faster fit is 2^-5.99"
        same(tuned.activation_backward(dy.half(), y.half(), mask, 0),
            ours.activation_backward(dy.half(), y.half(), mask, 0))
    x = values(torch.float32, 8, 512)
    same(tuned.norm_forward(x, 512, None, None, 1e-5, False, None),
        ours.norm_forward(x, 512, None, None, 1e-5, False, None))


# Kernels that a call launches; a norm with parameters in 16 bits as one in fp32. More than these would cost
# the host time in each layer of a model. A norm of dropout(x) + residual is one as the norm is: before, its
# parts took dropout's launch and an addition more in the forward, and dropout's again in the backward.
LAUNCHES = {
    "silu forward": 1,
    "silu backward": 1,
    "dropout": 1,
    **{f"{norm}{of} {direction}": count for norm in ("layernorm", "rmsnorm") for of in ("", " of a sum")
    for direction, count in (("forward", 1), ("backward", 2))},
    "layernorm in e4m3 forward": 2,
    "layernorm in e4m3 backward": 2,
    # the largest magnitude, and what is made of it
    "tensor in e4m3": 2,
    "tensor from e4m3": 1,
    "tensor in mxfp8": 1,
    "gated in e4m3 forward": 2,
    "gated in mxfp8 forward": 1,
    "gated in e4m3 backward": 1,
}


def test_a_launch_costs_the_host_a_launch(device):
    """From the second call on: no program is loaded, no attribute set, and no context changed where the
    device's is the current one."""
    driver = ctypes.CDLL(os.environ["OUTGRAD_LIBCUDA"])
    driver.outgrad_stand_in_calls.restype = ctypes.c_longlong
    watched = [b"cuLaunchKernel", b"cuModuleLoadData", b"cuFuncSetAttribute", b"cuCtxPushCurrent"]
    rows, columns, seed = 64, 1024, torch.tensor([1])
    x, dy = values(torch.bfloat16, rows, columns, seed=1), values(torch.bfloat16, rows, columns, seed=2)
    y, mask = ours.activation_forward(x, 3)
    gamma, beta = values(torch.bfloat16, columns, seed=3).abs() + 0.5, values(torch.bfloat16, columns, seed=4)
    cases = {
        "silu forward": lambda: device.activation_forward(x, 3),
        "silu backward": lambda: device.activation_backward(dy, y, mask, 3),
        "dropout": lambda: device.dropout(x, seed, 0.1),
    }
    of_tensors = {name: library.STORES[name].number for name in ("e4m3", "mxfp8")}
    for name, store in of_tensors.items():
        cases[f"tensor in {name}"] = functools.partial(device.encode_tensor, x, store, 1.0)
        cases[f"gated in {name} forward"] = functools.partial(device.gated_forward_8bit, x, dy, 3, store)
    e4m3 = of_tensors["e4m3"]
    codes = ours.encode_tensor(x, e4m3, 1.0)
    cases["tensor from e4m3"] = functools.partial(device.decode_tensor, *codes, e4m3, 2)
    cases["gated in e4m3 backward"] = functools.partial(device.gated_backward_8bit, dy, *codes, *codes, 3,
        e4m3, False, True)
    for name, rms in (("layernorm", False), ("rmsnorm", True)):
        parameters = (columns, gamma, None if rms else beta)
        normed, rstd, side = ours.norm_forward(x, *parameters, 1e-5, rms, None)
        cases[f"{name} forward"] = lambda p=parameters, rms=rms: device.norm_forward(x, *p, 1e-5, rms, None)
        of_sum = (None, None, 0.0) if rms else (None, seed, 0.1)
        cases[f"{name} of a sum forward"] = functools.partial(
            device.norm_forward_of_sum, x, dy, *parameters, 1e-5, rms, *of_sum, rms)
        kept = rstd, rms, None, side, True, not rms
        cases[f"{name} of a sum backward"] = functools.partial(
            device.norm_backward_of_sum, dy, normed, x if rms else None, *parameters, *kept, *of_sum[1:])
        cases[f"{name} backward"] = functools.partial(device.norm_backward, dy, normed, *parameters, *kept)
        if rms:
            continue
        _, codes, scales, *_ = ours.norm_forward_8bit(x, *parameters, 1e-5, rms, None, e4m3)
        cases[f"{name} in e4m3 forward"] = functools.partial(device.norm_forward_8bit, x, *parameters, 1e-5,
            rms, None, e4m3)
        cases[f"{name} in e4m3 backward"] = functools.partial(device.norm_backward_8bit, dy, codes, scales,
            *parameters, *kept, e4m3)
    context = ctypes.c_void_p()
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    for current in (True, False):
        driver.cuCtxSetCurrent(context if current else None)
        for name, call in cases.items():
            call()
            before = [driver.outgrad_stand_in_calls(function) for function in watched]
            call()
            spent = [driver.outgrad_stand_in_calls(function) - b
                for function, b in zip(watched, before, strict=True)]
            assert spent == [LAUNCHES[name], 0, 0, 0 if current else 1], name


def same_store(device, x, dy, activation, store, bits=0, seed=None, scale=None):
    """Both operators of a store, by its name."""
    has = library.STORES[store]
    of = activation, has.number, bits, seed, scale
    given = ours.store_forward(x, *of)
    same(device.store_forward(x, *of), given)
    kept = given[has.writes_y and not has.keeps_y :]
    same(device.store_backward(dy, kept, *of), ours.store_backward(dy, kept, *of))


@pytest.mark.parametrize("dtype", [torch.bfloat16, *at_night([torch.float16])])
@pytest.mark.parametrize("activations", [numbers("gelu", "silu"), *at_night([numbers(*library.MASKED)])])
@pytest.mark.parametrize("n", [0, 33, 7_001])
def test_a_y_that_carries_its_branch(device, n, activations, dtype):
    x, dy = values(dtype, n, seed=1), values(dtype, n, seed=2)
    for activation in activations:
        same_store(device, x, dy, activation, "y with its branch")


# Every number of bits, and every activation with one of them, for each format in turn.
@pytest.mark.parametrize("bits, activations", [(4, numbers("gelu", "silu", "tanh")),
    *at_night([(4, list(range(len(library.ACTIVATIONS)))),
    *((bits, numbers("gelu", "silu")) for bits in (1, 2, 3, 5, 6, 7, 8))])])
def test_codes(device, bits, activations):
    seed = torch.tensor([1234567890123456789])
    for key in (None, seed) if bits in (2, 3) else (None,):
        for activation in activations:
            dtype = FORMATS[(bits + activation) % 3]
            for n in (0, 1, 7_001):
                x, dy = values(dtype, n, seed=1), values(dtype, n, seed=2)
                same_store(device, x, dy, activation, "code", bits, key)
        for n in (0, 1, 7_001):
            g, dy = values(FORMATS[bits % 3], n, seed=1), values(FORMATS[(bits + 1) % 3], n, seed=2)
            codes = ours.encode_gradients(g, -0.125, 1.25, bits, key)
            same(device.encode_gradients(g, -0.125, 1.25, bits, key), codes)
            same(device.backward_encoded(dy, codes, -0.125, 1.25, bits, key),
                ours.backward_encoded(dy, codes, -0.125, 1.25, bits, key))


@pytest.mark.parametrize("n", [0, 1, 33, 7_001])
@formats
def test_mxfp8(device, dtype, n):
    x, dy = values(dtype, n, seed=1), values(dtype, n, seed=2)
    for store in ("mxfp8", "y"):
        same_store(device, x, dy, 0, store)


# Any tensor; of few elements, of more than a block's, and one whose largest number is far behind.
@pytest.mark.parametrize("store", ["e4m3", "mxfp8", *at_night(["e5m2"])])
@formats
def test_tensors_in_8_bits(device, dtype, store):
    of, blocks = library.STORES[store].number, store == "mxfp8"
    for n in (0, 1, 33, 70_001):
        x = values(dtype, n, seed=1)
        if n > 33:
            x[-3] = 1000.0
        codes, scales = ours.encode_tensor(x, of, 1.0)
        same(device.encode_tensor(x, of, 1.0), (codes, scales))
        for number, to in enumerate(FORMATS):
            if dtype in (to, torch.bfloat16):
                same(device.decode_tensor(codes, scales, of, number),
                    ours.decode_tensor(codes, scales, of, number))
        if not blocks:
            same(device.tensor_scale(x, of, 1.0), scales)


# Both layouts; rows of whole octets and blocks, and others; no rows. By day each store meets one gate.
@pytest.mark.parametrize("store, name", [("e4m3", "silu"), ("mxfp8", "gelu_tanh"),
    *at_night([("e5m2", "gelu"), ("e4m3", "sigmoid"), ("mxfp8", "silu")])])
@formats
def test_gated_pairs_in_8_bits(device, dtype, store, name):
    of, activation = library.STORES[store].number, library.ACTIVATIONS.index(name)
    for rows, n in ((0, 64), (3, 64), (2, 4096), (5, 7)):
        a, b, dz = (values(dtype, rows, n, seed=k) for k in range(3))
        for first, second in ((a, b), (torch.cat((a, 3 * b), 1), None)):
            if second is None and store == "mxfp8" and n % 32 != 0:
                continue
            z, *kept = ours.gated_forward_8bit(first, second, activation, of)
            same(device.gated_forward_8bit(first, second, activation, of), (z, *kept))
            for with_z in (True, False):
                arguments = (dz, *kept, activation, of, second is None, with_z)
                same(device.gated_backward_8bit(*arguments), ours.gated_backward_8bit(*arguments))


# Every activation with a minimum, every number of bits and every store, for each format of x in turn; scales
# that are no powers of two. By day each store meets one of the activations.
@pytest.mark.parametrize("bits, of_each", [(1, 1), *at_night((bits, 3) for bits in (0, 1, 2))])
def test_y_in_8_bits_at_a_scale(device, bits, of_each):
    stores = (("e4m3", 448.0 / 5), ("e5m2", 57344.0 / 3), ("int8", 127.0 / 5))
    for place, name in enumerate(library.MASKED if of_each == 3 else library.MASKED[:3]):
        activation = library.ACTIVATIONS.index(name)
        for k in range(place, place + of_each):
            store, scale = stores[k % 3]
            dtype = FORMATS[(bits + place + k) % 3]
            for n in (0, 1, 7_001):
                x, dy = values(dtype, n, seed=1), values(dtype, n, seed=2)
                same_store(device, x, dy, activation, store, bits, scale=torch.tensor([scale]))


@formats
def test_a_seed_on_the_host_drops_what_one_on_the_device_drops(device, dtype):
    """A seed without dimensions is passed by value."""
    x, residual, gamma, beta = (values(dtype, 5, 40, seed=1), values(dtype, 5, 40, seed=2), torch.ones(40),
        torch.zeros(40))
    for seed in (1, 2**62 - 1):
        there, here = torch.tensor([seed]), torch.tensor(seed)
        dropped = ours.dropout(x, there, 0.25)
        for library_of, each in ((device, there), (device, here), (ours, here)):
            same(library_of.dropout(x, each, 0.25), dropped)
            forward = (x, residual, 40, gamma, beta, 1e-5, False, None)
            y, rstd, side, z = result = library_of.norm_forward_of_sum(*forward, each, 0.25, True)
            same(result, ours.norm_forward_of_sum(*forward, there, 0.25, True))
            backward = (x, y, z, 40, gamma, beta, rstd, False, None, side, True, True)
            same(library_of.norm_backward_of_sum(*backward, each, 0.25),
                ours.norm_backward_of_sum(*backward, there, 0.25))



class Generator:
    """As a CUDA device's: a seed, and a place that moves on."""

    def __init__(self, seed):
        self.seed, self.offset = seed, 0

    def initial_seed(self):
        return self.seed

    def get_offset(self):
        return self.offset

    def set_offset(self, offset):
        assert offset % 4 == 0
        self.offset = offset


def test_the_seed_that_a_generator_would_draw(monkeypatch):
    """Random123's known answer for Philox4x32-10 of zeros begins 6627e8d5 e169c58d: PyTorch's torch.rand(1)
    after manual_seed(0) on a GPU is 0.3990, the first of these two."""
    assert library.seed_at(0, 0) == 0x6627E8D5E169C58D & (2**62 - 1)
    words = [library.seed_at(2**63 + 5, 4 * k) for k in range(1000)]
    assert len(set(words)) == 1000 and 0 <= min(words) and 2**61 < max(words) < 2**62

    class OnGpu:
        type, index = "cuda", 0

    generator = Generator(7)
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    x = values(torch.float32, 3)
    monkeypatch.setattr(torch.Tensor, "device", OnGpu())
    with torch.inference_mode(), torch.device("meta"):
        seeds = [functional.dropout_seed(x)]
    seeds += [functional.dropout_seed(x) for _ in range(199)]
    monkeypatch.undo()
    assert ([seed.item() for seed in seeds] == [library.seed_at(7, 4 * k) for k in range(200)]
        and generator.offset == 800)
    assert all(seed.dim() == 0 for seed in seeds), "which the operators take by value"
    assert not any(seed.is_inference() for seed in seeds), "which a backward pass may keep"



@pytest.mark.parametrize("rows, columns", [(1, 1), (5, 1000), (3, 4097), (2, 9000)])
@formats
def test_softmax(device, dtype, rows, columns):
    x, dy = (values(dtype, rows, columns, seed=seed).clamp(-30, 30) for seed in (1, 2))
    y, codes = ours.softmax_forward_code(x, columns)
    same(device.softmax_forward_code(x, columns), (y, codes))
    same(device.softmax_backward_code(dy, codes, columns), ours.softmax_backward_code(dy, codes, columns))


@pytest.mark.parametrize("rows, columns, gates", [(5, 999, ["gelu"]), (3, 4096, ["silu", "sigmoid"]),
    *at_night((*shape, library.GATES) for shape in ((1, 1), (5, 999), (3, 4096)))])
@formats
def test_gated_pairs(device, dtype, rows, columns, gates):
    a, b, dy = (values(dtype, rows, columns, seed=seed).clamp(-30, 30) for seed in (1, 2, 3))
    packed = torch.cat((a, b), 1)
    for gate in gates:
        index = library.ACTIVATIONS.index(gate)
        for given in ((a, b), (packed, None)):
            same(device.gated_forward(*given, index), ours.gated_forward(*given, index))
            for with_y in (False, True):
                same(device.gated_backward(dy, *given, index, with_y),
                    ours.gated_backward(dy, *given, index, with_y))
    for gate in set(gates) & set(library.PRODUCTS) if dtype != torch.float32 else ():
        index = library.ACTIVATIONS.index(gate)
        for given in ((a, b), (packed, None)):
            kept = ours.product_forward(*given, index)
            same(device.product_forward(*given, index), kept)
            of = dy, *kept, index, given[1] is None
            same(device.product_backward(*of), ours.product_backward(*of))
    with pytest.raises(RuntimeError, match="product_forward: the activation has no pair that keeps its prod"):
        device.product_forward(a, b, library.ACTIVATIONS.index("sigmoid"))
    if dtype == torch.float32:
        with pytest.raises(RuntimeError, match="product_forward: a pair keeps its product in 16 bits only"):
            device.product_forward(a, b, library.ACTIVATIONS.index("silu"))
    empty, index = a[:0], library.ACTIVATIONS.index("silu")
    same(device.gated_forward(empty, empty, index), ours.gated_forward(empty, empty, index))
    with pytest.raises(RuntimeError, match="gated_forward: the activation is no gate"):
        device.gated_forward(a, b, library.ACTIVATIONS.index("mish"))


def test_what_stores_refuse(device):
    x, codes, one = values(torch.float32, 4, 8), torch.zeros(16, dtype=torch.uint8), torch.ones(1)
    parity = library.STORES["y with its branch"].number

    def stored(x, activation, store, *of_store):
        return device.store_forward(x, activation, library.STORES[store].number, *(of_store or (0,)))

    for call, why in (
        (lambda: stored(x, 0, "y with its branch"), "y carries its branch in f16 and bf16, not in f32"),
        (lambda: device.store_backward(x.half(), [x.half()], 6, parity, 0),
        "tanh rises: there is no branch"),
        (lambda: stored(x.half(), 10, "y with its branch"), "activation 10 is unknown"),
        (lambda: stored(x, 10, "code", 4), "activation 10 is unknown"),
        (lambda: device.encode_gradients(x, 0.0, 2.5, 4, None),
        "this is no range of f' that codes are proven for"),
        (lambda: device.backward_encoded(x, codes, 0.5, 1.0, 4, None),
        "this is no range of f' that codes are proven for"),
        (lambda: stored(x, 6, "e4m3", 1, None, one), "tanh rises: y alone gives its derivative"),
        (lambda: stored(x, 3, "mxfp8"), "silu: y in mxfp8 is for gelu alone"),
        (lambda: stored(x, 0, "mxfp4", 1, None, one), "the store mxfp4 is for CPUs alone"),
        (lambda: device.store_backward(x, [codes.new_zeros(32), codes[:4]], 10, library.FP8["e4m3"], 1, None,
        one), "activation 10 is unknown"),
        (lambda: device.store_backward(x, [codes], 0, library.STORES["code"].number, 4, torch.tensor([7])),
        "bits = 4: a dithered code has 2 or 3"),
    ):
        with pytest.raises(RuntimeError, match=why):
            call()


def test_what_is_refused(device):
    x = values(torch.float32, 4, 8)
    y, mask = ours.activation_forward(x, 0)
    with pytest.raises(RuntimeError, match="activation 10 is unknown"):
        device.activation_forward(x, 10)
    with pytest.raises(RuntimeError, match="activation -1 is unknown"):
        device.activation_backward(x, y, mask, -1)
    with pytest.raises(RuntimeError, match="mask is null"):
        device.activation_backward(x, y, None, 0)
    with pytest.raises(RuntimeError, match="eps"):
        device.norm_forward(x, 8, None, None, float("nan"), False, None)
    with pytest.raises(RuntimeError, match="side channels"):
        device.norm_forward(x, 8, None, None, 1e-5, False, torch.arange(9, dtype=torch.int32))
    with pytest.raises(RuntimeError, match="p must lie"):
        device.dropout(x, torch.tensor([7]), 1.5)


# --- The folder of compiled programs --------------------------------------------------------------


def one_gelu(environment):
    """The first call of a process that launches."""
    os.environ.update(environment)
    x = torch.linspace(-5, 5, 1000)
    assert torch.equal(loaded("outgrad_stand_in").activation_forward(x, 0)[0],
        ours.activation_forward(x, 0)[0])


@pytest.fixture(scope="module")
def run(device):
    """one_gelu in a process of its own, forked from one that has imported PyTorch and has launched nothing;
    raises what it raises."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["outgrad", "pytest"])

    def in_a_process(**environment):
        with ProcessPoolExecutor(1, context) as process:
            process.submit(one_gelu, environment).result()

    return in_a_process


def test_a_program_is_compiled_once(run, tmp_path):
    """A second process finds the first one's; a damaged one is compiled again; where nothing can be written,
    nothing is kept."""
    folder = tmp_path / "made" / "here"
    run(OUTGRAD_CACHE=str(folder))
    (kept,) = folder.iterdir()

    def is_read():
        before = kept.stat().st_mtime_ns
        run(OUTGRAD_CACHE=str(folder))
        assert [kept] == list(folder.iterdir())
        return kept.stat().st_mtime_ns == before

    assert is_read(), "who compiles writes what came of it"
    content = kept.read_bytes()
    for damaged in (content[:-1], b"", b"x" * 64 + content[64:], content[:70] + b"y" + content[71:]):
        kept.write_bytes(damaged)
        assert not is_read() and kept.read_bytes() != damaged
    assert is_read()
    (tmp_path / "file").write_text("")
    run(OUTGRAD_CACHE=str(tmp_path / "file"))


def test_without_a_driver_it_says_so(run):
    with pytest.raises(RuntimeError,
            match="^/nowhere/libcuda.so.1 cannot be loaded: no NVIDIA driver on this machine"):
        run(OUTGRAD_LIBCUDA="/nowhere/libcuda.so.1")


def test_importing_loads_neither_driver_nor_compiler():
    code = ("import outgrad; maps = open('/proc/self/maps').read(); assert 'libcuda.so' not in maps and "
        "'stand-in-driver' not in maps, maps")
    subprocess.run([sys.executable, "-c", code], check=True)
    assert outgrad.__version__
