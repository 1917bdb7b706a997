"""Modules of the PyTorch package: what they share with PyTorch's own, autocast, and channels that drift in training."""

import copy
import io

import pytest
import torch
from torch import nn

import outgrad

PAIRS = [
    (nn.GELU(), outgrad.GELU()),
    (nn.LayerNorm(32), outgrad.LayerNorm(32)),
    (nn.RMSNorm(32), outgrad.RMSNorm(32)),
    (nn.Dropout(0.3), outgrad.Dropout(0.3)),
]


@pytest.mark.parametrize("theirs, ours", PAIRS, ids=lambda module: type(module).__name__)
def test_names_parameters_and_state_are_pytorchs(theirs, ours):
    assert isinstance(ours, type(theirs))
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    ours.load_state_dict(theirs.state_dict(), strict=True)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    twin = copy.deepcopy(ours)
    assert type(twin) is type(ours)
    stream = io.BytesIO()
    torch.save(ours, stream)
    stream.seek(0)
    assert type(torch.load(stream, weights_only=False)) is type(ours)


def test_repr_shows_the_bound():
    bound = outgrad.bounds("gelu", torch.bfloat16)
    assert f"{bound.total:.2g}" in repr(outgrad.GELU()) and bound.fit in repr(outgrad.GELU())
    assert "storing y moves x^" in repr(outgrad.LayerNorm(8))


@pytest.mark.parametrize("norms, dtype", [("fp32", torch.float32), ("autocast", torch.bfloat16)])
def test_norms_under_autocast(norms, dtype):
    norm = outgrad.LayerNorm(32)
    norm.norms = norms
    with torch.autocast("cpu", torch.bfloat16):
        y = norm(torch.randn(4, 32, requires_grad=True))
    assert y.dtype == dtype
    y.float().sum().backward()
    assert norm.weight.grad.dtype == torch.float32


def test_a_gamma_that_drifts_to_zero_takes_a_side_channel():
    norm = outgrad.LayerNorm(32)
    x = torch.randn(8, 32)
    assert norm.side_channels() is None
    norm(x).sum().backward()
    with torch.no_grad():
        norm.weight[5] = 0.0
        norm.bias[7] = 1000.0
    assert norm.side_channels().tolist() == [5, 7]
    norm.zero_grad()
    leaf = x.clone().requires_grad_()
    dy = torch.randn(8, 32)
    norm(leaf).backward(dy)
    exact = nn.LayerNorm(32)
    exact.load_state_dict(norm.state_dict())
    exact = exact.double()
    other = x.double().requires_grad_()
    exact(other).backward(dy.double())
    for got, want in ((leaf.grad, other.grad), (norm.weight.grad, exact.weight.grad), (norm.bias.grad, exact.bias.grad)):
        assert (got.double() - want).norm() <= 2e-6 * want.norm()


def test_parameters_in_bf16_are_read_as_bf16():
    """FSDP2 with mixed precision hands parameters on as bf16."""
    norm = outgrad.LayerNorm(32).bfloat16()
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, 32))
    x = torch.randn(8, 32)
    want = nn.functional.layer_norm(x, (32,), norm.weight.float(), norm.bias.float())
    assert torch.allclose(norm(x), want, rtol=0, atol=2e-6)
    norm(x.requires_grad_()).sum().backward()
    assert norm.weight.grad.dtype == torch.bfloat16


def test_a_compiled_block_gives_the_same_bits():
    torch._dynamo.reset()
    block = nn.Sequential(nn.Linear(32, 64), outgrad.GELU(), nn.Linear(64, 32), outgrad.LayerNorm(32))
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    x = torch.randn(8, 32)
    results = []
    for model in (block, compiled):
        block.zero_grad()
        leaf = x.clone().requires_grad_()
        y = model(leaf)
        y.pow(2).sum().backward()
        results.append([y.detach(), leaf.grad, *(p.grad.clone() for p in block.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_evaluation_drops_nothing():
    x = torch.randn(8, 32)
    assert outgrad.Dropout(0.5).eval()(x) is x
