"""relu_squared.py, over every number of 16 bits."""

import re

import pytest
import torch
from torch import nn
from transformers.activations import ReLUSquaredActivation

import outgrad

BITS = {torch.float16: (2.0**-11, 2.0**-11.5), torch.bfloat16: (2.0**-8, 2.0**-66)}


@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_every_number(dtype):
    """y as PyTorch's, f' within the stated bound, also as stated by the module; NaN stays NaN."""
    u, least = BITS[dtype]
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).requires_grad_()
    y = outgrad.relu_squared(x)
    assert torch.equal(y.nan_to_num(1.5), torch.relu(x).square().nan_to_num(1.5))
    (found,) = torch.autograd.grad(y, x, torch.ones_like(y))
    fits = y.isfinite()
    exact = 2 * torch.relu(x.detach().double())[fits]
    off = (found.double()[fits] - exact).abs()
    words = re.compile(r"f' within (\S+) f' \+ (\S+) where y is finite")
    relative, absolute = map(float, words.fullmatch(outgrad.ReLUSquared().bound(dtype)).groups())
    assert 1.5 * u <= relative < 1.01 * 1.5 * u and least <= absolute < 1.01 * least, "rounded up"
    assert (off <= relative * exact + absolute).all()
    assert (off > 0.6 * (1.5 * u * exact + least)).any(), "the bound is no larger than it must be"
    assert found[x.isnan()].isnan().all() and found[y == torch.inf].isinf().all()


def test_a_model_keeps_y_alone():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 32), ReLUSquaredActivation(), nn.Linear(32, 4)), torch.randn(6, 8)
    model(x).sum().backward()
    want = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    report = outgrad.patch(model, x)
    assert [one.kind for one in report.swapped] == ["ReLUSquaredActivation"]
    assert report.total_before - report.total_after == 4 * 6 * 32, "relu(x) is kept no more"
    model(x).sum().backward()
    for p, w in zip(model.parameters(), want, strict=True):
        torch.testing.assert_close(p.grad, w, atol=1e-6, rtol=1e-5)


def test_gradients_of_a_batch_are_those_of_its_parts():
    x, dys = torch.randn(4, requires_grad=True), torch.randn(3, 4)
    y = outgrad.relu_squared(x)
    (found,) = torch.autograd.grad(y, x, dys, is_grads_batched=True, retain_graph=True)
    assert torch.equal(found, dys * torch.autograd.grad(y, x, torch.ones(4))[0])


def test_the_second_derivative_is_an_error():
    x = torch.randn(4, requires_grad=True)
    (dx,) = torch.autograd.grad(outgrad.relu_squared(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="outgrad.relu_squared: the second derivative"):
        torch.autograd.grad(dx.sum(), x)
    with pytest.raises(TypeError, match="outgrad.relu_squared: x is torch.float64"):
        outgrad.relu_squared(torch.randn(3, dtype=torch.float64))
