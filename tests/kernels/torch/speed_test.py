"""Forward and backward of 2^24 elements beside PyTorch's own on the CPU: the ratio of times, round by round, with the
interval that holds its median with 99% confidence (order statistics). A neighbour on the machine may slow several rounds
in a row, and then the interval contains 1 and decides nothing: rounds are added until it does, up to a limit. ctest runs
this alone.

The C library keeps the memory that arrays had, and gives it to the next ones. By default it asks the system for every
array of 32 MiB anew. Then the system's first touch of pages is measured too, and on a virtual machine whose host takes
back free memory it can take several times as long as the computation, or not, from one round to the next."""

import ctypes
import math
import time

import pytest
import torch
import torch.nn.functional as F

import outgrad

ELEMENTS, COLUMNS, ROUNDS, LIMIT = 2**24, 1024, 15, 120
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h


@pytest.fixture(autouse=True, scope="module")
def memory_is_kept():
    mallopt = ctypes.CDLL(None).mallopt
    assert mallopt(M_MMAP_MAX, 0) == 1 and mallopt(M_TRIM_THRESHOLD, 2**31 - 1) == 1


def seconds(function, inputs, dy):
    start = time.perf_counter()
    torch.autograd.grad(function(*inputs), inputs, dy)
    return time.perf_counter() - start


def interval(ratios):
    """Median and its 99% confidence interval from order statistics of a binomial."""
    ordered = sorted(ratios)
    n = len(ordered)
    k = next(k for k in range(n) if sum(math.comb(n, i) for i in range(k + 1)) / 2**n > 0.005)
    return ordered[n // 2], ordered[k], ordered[n - 1 - k]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["gelu", "layer_norm"])
def test_faster_than_pytorchs_own(name, dtype):
    torch.manual_seed(1)
    x = torch.randn(ELEMENTS // COLUMNS, COLUMNS).to(dtype).requires_grad_()
    dy = torch.randn(ELEMENTS // COLUMNS, COLUMNS).to(dtype)
    gamma, beta = (torch.rand(COLUMNS) + 0.5).requires_grad_(), torch.randn(COLUMNS).requires_grad_()
    if name == "gelu":
        ours, theirs, inputs, their_inputs = outgrad.gelu, F.gelu, (x,), (x,)
    else:
        inputs = (x, gamma, beta)
        their_inputs = (x, *(p.detach().to(dtype).requires_grad_() for p in (gamma, beta)))
        ours = lambda x, g, b: outgrad.layer_norm(x, COLUMNS, g, b)  # noqa: E731
        theirs = lambda x, g, b: F.layer_norm(x, (COLUMNS,), g, b)  # noqa: E731
    for function, arguments in ((ours, inputs), (theirs, their_inputs)):
        seconds(function, arguments, dy)
    ratios, low, high = [], 0, math.inf
    while low <= 1 <= high and len(ratios) < LIMIT:
        ratios += [seconds(theirs, their_inputs, dy) / seconds(ours, inputs, dy) for _ in range(ROUNDS)]
        median, low, high = interval(ratios)
    print(f"{name} {str(dtype)[6:]}: {median:.2f} times as fast as PyTorch's, [{low:.2f}, {high:.2f}], {len(ratios)} rounds")
    assert low > 1
