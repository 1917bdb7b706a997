"""What public functions say of arguments that they cannot use (outgrad/arguments.py): one line that names the
function, never Python's or PyTorch's own words for what failed within."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import outgrad

X, WEIGHT, BIAS = torch.randn(4, 32), torch.randn(16, 32), torch.randn(16)
GAMMA, BETA = torch.rand(32) + 0.5, torch.randn(32)
NORM = {"normalized_shape": 32, "weight": GAMMA, "eps": 1e-5, "side_channels": None}
DROPS = {"p": 0.1, "training": True}
# Arguments that fit each function: all of those that it has.
FITTING = {
    **{name: {"x": X, "store": "y+bit"} for name in outgrad.ACTIVATIONS},
    "gelu": {"x": X, "approximate": "none", "store": "y+bit"},
    "layer_norm": {"x": X, **NORM, "bias": BETA, "store": "y"},
    "rms_norm": {"x": X, **NORM, "store": "y"},
    "add_layer_norm": {"x": X, "residual": X, **NORM, "bias": BETA},
    "add_rms_norm": {"x": X, "residual": X, **NORM},
    "dropout_add_layer_norm": {"x": X, "residual": X, **NORM, "bias": BETA, **DROPS},
    "dropout_add_rms_norm": {"x": X, "residual": X, **NORM, **DROPS},
    "dropout": {"x": X, **DROPS},
    "activation_dropout": {"x": X.bfloat16(), "activation": "gelu", **DROPS},
    "softmax_dropout": {"x": X, **DROPS},
    "softmax": {"x": X, "dim": -1},
    "relu_squared": {"x": X},
    "attention": {"q": X, "k": X, "v": X, "attn_mask": None, "scale": None, "form": "softmax", "store": "p",
        **DROPS},
    "gated": {"a": X, "b": X, "activation": "silu", "store": "recompute"},
    "gated_linear": {"a": X, "b": X, "weight": WEIGHT, "bias": BIAS, "activation": "silu",
        "store": "recompute"},
    "linear": {"x": X, "weight": WEIGHT, "bias": BIAS, "store": "e4m3", "row_weights": None},
    "linear_gelu": {"x": X, "weight": WEIGHT, "bias": BIAS},
    "linear_activation": {"x": X, "weight": WEIGHT, "bias": BIAS, "activation": "silu"},
    "side_channels": {"weight": GAMMA, "bias": BETA, "dtype": torch.bfloat16, "tau": None, "store": "y"},
    "softmax_bound": {"n": 32, "total": 1.0, "spread": 1.0, "largest": 1.0},
    "bounds": {"activation": "gelu", "dtype": torch.float32, "store": "y+bit", "largest": None},
    "on_drift": {"what": "raise"},
}
ODD = (None, 3, -1, 2**70, 0.5, math.nan, "no", "", b"e4m3", [1], [], (1, 2), ("y", "z"), {}, {1}, object(),
    1j, True, torch.float64, torch.device("cpu"), torch.randn(3), torch.tensor(0.5),
    torch.tensor([True, False]), X.double(), X.long(), X.cfloat(), X.to_sparse(),
    X.to(torch.float8_e4m3fn), torch.empty(0), torch.empty(4, 32, device="meta"), np.float64(0.5),
    np.int64(1), np.ones((4, 32), np.float32), len,
    nn.Module, nn.ReLU())


@pytest.mark.parametrize("name", FITTING)
def test_what_does_not_fit_is_named_in_one_line(name):
    function = getattr(outgrad, name)
    for argument in FITTING[name]:
        for odd in ODD:
            try:
                function(**{**FITTING[name], argument: odd})
            except (TypeError, ValueError, IndexError) as error:
                said = str(error)
                assert said.startswith((f"outgrad.{name}: ", "outgrad: tau")), (argument, odd)
                assert "\n" not in said and "object at 0x" not in said, said


def test_every_public_function_is_looked_at():
    functions = {name for name in outgrad.__all__ if name[0].islower() and callable(getattr(outgrad, name))}
    assert functions - set(FITTING) == {"look_for_drift", "patch", "unpatch"}


@pytest.mark.parametrize("name, arguments, words", [
    ("bounds", {"dtype": [torch.float32]}, "outgrad.bounds: a list is none of float32, float16, bfloat16"),
    ("side_channels", {"dtype": {}}, "outgrad.side_channels: a dict is none of float32, float16, bfloat16"),
    ("dropout", {"training": X}, "training is a tensor of shape (4, 32), which takes True or False"),
    ("dropout", {"training": "False"}, "training is 'False', which takes True or False"),
    ("softmax", {"dim": 0.5}, "outgrad.softmax: dim is 0.5, the number of a dimension is needed"),
    ("softmax_bound", {"n": X}, "n is a tensor of shape (4, 32), the number of a row's elements is needed"),
    ("attention", {"scale": "1"}, "outgrad.attention: scale is '1', a number is needed"),
    ("attention", {"attn_mask": X}, "attn_mask has shape (4, 32), the scores have (4, 4)"),
    ("attention", {"q": torch.randn(2, 4, 32), "k": torch.randn(3, 4, 32), "v": torch.randn(3, 4, 32)},
        "q of shape (2, 4, 32), k (3, 4, 32) and v (3, 4, 32) do not fit together"),
    ("silu", {"store": X.double()}, "outgrad.silu: store: a tensor of shape (4, 32) is no store"),
    ("layer_norm", {"normalized_shape": np.ones(2)}, "normalized_shape is a ndarray"),
    ("layer_norm", {"eps": np.ones(2)}, "eps is a ndarray, which must be at least 0"),
])
def test_the_words(name, arguments, words):
    with pytest.raises((TypeError, ValueError), match=".") as caught:
        getattr(outgrad, name)(**{**FITTING[name], **arguments})
    assert words in str(caught.value)


@pytest.mark.parametrize("training", [False, 0, np.bool_(False), torch.tensor(False)])
def test_what_counts_as_false(training):
    assert outgrad.dropout(X, 0.9, training) is X


def test_masks_of_attention_may_be_repeated():
    q = torch.randn(2, 3, 4, 8)
    for shape in ((4, 4), (1, 4), (4, 1), (3, 1, 4), (2, 1, 4, 4), ()):
        mask = torch.randn(shape).double()
        wanted = nn.functional.scaled_dot_product_attention(q, q, q, mask.float().expand(2, 3, 4, 4))
        torch.testing.assert_close(outgrad.attention(q, q, q, mask, form="softmax"), wanted)


def test_what_modules_and_patch_are_given():
    """What a constructor of PyTorch's takes is refused by PyTorch, when it runs; patch leaves it alone."""
    for odd in ([1], X, np.ones(3), None):
        given = nn.Softplus(threshold=odd), nn.Softplus(beta=odd), nn.ELU(alpha=odd), nn.GELU(odd)
        for one in (*given[:3], outgrad.GELU(odd), outgrad.ELU(alpha=odd), outgrad.Softplus(odd)):
            assert getattr(one, "activation", None) is None
        report = outgrad.patch(nn.Sequential(*given[:3]))
        assert [one.kind for one in report.left_alone] == ["Softplus", "Softplus", "ELU"]
    model = nn.Sequential(nn.GELU(), nn.LayerNorm(32))
    for arguments in ({"norms": X.double()}, {"store": np.ones(2)}, {"store": {"norm": X.double()}},
            {"store": X.double()}, {"error": X.double()}):
        with pytest.raises(ValueError, match=r"^outgrad\.patch: [^\n]*$"):
            outgrad.patch(model, **arguments)
    with pytest.raises(TypeError, match=r"^outgrad\.CodeHeader: path is None, the path of a header is "):
        outgrad.CodeHeader(None)
