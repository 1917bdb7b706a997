"""originals.py: classes of transformers and timm, and what they become."""

import copy
import importlib
import inspect
import pathlib
import types

import pytest
import torch
import transformers
from torch import nn

import outgrad
from outgrad import modules, originals

WIDTH = 96
FORMATS = (torch.float32, torch.float16, torch.bfloat16)
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def of_transformers(model, kind):
    return getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), kind)


# Of each form two classes, where there are two: how they are made, whether 1 is added to the weight, whether
# a mean is subtracted.
NORMS = {
    ("llama", "LlamaRMSNorm"): ((WIDTH,), 0, False),
    ("qwen3", "Qwen3RMSNorm"): ((WIDTH,), 0, False),
    ("gemma", "GemmaRMSNorm"): ((WIDTH,), 1, False),
    ("gemma2", "Gemma2RMSNorm"): ((WIDTH,), 1, False),
    ("gemma3", "Gemma3RMSNorm"): ((WIDTH,), 1, False),
    ("qwen3_next", "Qwen3NextRMSNorm"): ((WIDTH,), 1, False),
    ("olmo2", "Olmo2RMSNorm"): ((WIDTH,), 0, False),
    ("gpt_oss", "GptOssRMSNorm"): ((WIDTH,), 0, False),
    ("helium", "HeliumRMSNorm"): ((WIDTH,), 0, False),
    ("moshi", "MoshiRMSNorm"): ((WIDTH,), 0, False),
    ("gemma3n", "Gemma3nRMSNorm"): ((WIDTH,), 0, False),
    ("gemma4", "Gemma4RMSNorm"): ((WIDTH, 1e-6, False), 0, False),
    ("nanochat", "NanoChatRMSNorm"): ((), 0, False),
    ("t5", "T5LayerNorm"): ((WIDTH,), 0, False),
    ("mt5", "MT5LayerNorm"): ((WIDTH,), 0, False),
    ("cohere", "CohereLayerNorm"): ((WIDTH,), 0, True),
    ("cohere2", "Cohere2LayerNorm"): ((WIDTH,), 0, True),
    ("olmo", "OlmoLayerNorm"): ((WIDTH,), 0, True),
    ("deberta", "DebertaLayerNorm"): ((WIDTH,), 0, True),
    ("nemotron", "NemotronLayerNorm1P"): ((WIDTH,), 1, True),
    ("convnext", "ConvNextLayerNorm"): ((WIDTH,), 0, True),
    ("convnextv2", "ConvNextV2LayerNorm"): ((WIDTH,), 0, True),
}


def made(name, dtype):
    """A norm whose gamma and beta are of no special values."""
    torch.manual_seed(6)
    arguments, offset, _ = NORMS[name]
    module = of_transformers(*name)(*arguments)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    if (weight := module._parameters.get("weight")) is not None:
        weight.data.add_(1.0 - offset)
    return module.to(dtype)


def exactly(name, module, x, dy):
    """(y, dx, dgamma, dbeta or None) in float64; where there is no weight, without the third."""
    _, offset, centred = NORMS[name]
    x, dy = x.double().requires_grad_(), dy.double()
    parameters = [p.detach().double().requires_grad_() for p in module.parameters()]
    z = x - x.mean(-1, keepdim=True) if centred else x
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", 1e-5))
    y = z * torch.rsqrt(z.square().mean(-1, keepdim=True) + eps)
    if parameters:
        y = y * (parameters[0] + offset)
    if len(parameters) > 1:
        y = y + parameters[1]
    return y, *torch.autograd.grad(y, (x, *parameters), dy)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("weights", FORMATS, ids=str)
@pytest.mark.parametrize("name", NORMS, ids=lambda name: name[1])
def test_it_computes_what_its_original_does(name, weights, dtype):
    """y in the same type, and within the roundings of both of the exact one; the gradients within those."""
    module, generator = made(name, weights), torch.Generator().manual_seed(7)
    x = (2 * torch.randn(7, WIDTH, generator=generator)).to(dtype)
    try:
        theirs = module(x)
    except RuntimeError:  # F.layer_norm takes no two types of which none is fp32
        pytest.skip("the original takes no such types together")
    kind = type(module)
    assert [one.kind for one in outgrad.patch(module).swapped] == [kind.__name__]
    given = x.clone().requires_grad_()
    y = module(given)
    assert y.dtype == theirs.dtype
    dy = torch.randn(7, WIDTH, generator=generator).to(y.dtype)
    exact = exactly(name, module, x, dy)
    u = max(map(UNIT_ROUNDOFF.get, (dtype, weights, y.dtype)))
    assert ((y.double() - exact[0]).abs() <= 4 * u * (exact[0].abs() + 1)).all()
    assert ((y.double() - theirs.double()).abs() <= 8 * u * (exact[0].abs() + 1)).all()
    found = torch.autograd.grad(y, (given, *module.parameters()), dy)
    for ours, want in zip(found, exact[1:], strict=True):
        assert (ours.double() - want).norm() <= 8 * u * want.norm()
    outgrad.unpatch(module)
    assert type(module) is kind and torch.equal(module(x), theirs)


@pytest.mark.parametrize("name", [name for name in NORMS if "convnext" not in name[0]],
    ids=lambda name: name[1])
def test_under_autocast(name):
    """Those that are PyTorch's own LayerNorm follow CUDA's autocast (modules_test.py)."""
    module, x = made(name, torch.float32), torch.randn(5, WIDTH)
    for given in (x, x.bfloat16()):
        with torch.autocast("cpu", torch.bfloat16):
            theirs = module(given)
            outgrad.patch(module)
            ours = module(given)
            outgrad.unpatch(module)
        assert ours.dtype == theirs.dtype
        assert (ours.float() - theirs.float()).abs().max() <= 0.06
        with torch.autocast("cpu", torch.bfloat16):
            outgrad.patch(module, norms="autocast")
            assert module(given).dtype == torch.bfloat16
            outgrad.unpatch(module)


def test_a_gamma_of_1_plus_w_that_is_0_has_a_side_buffer():
    for name in (("gemma", "GemmaRMSNorm"), ("nemotron", "NemotronLayerNorm1P")):
        module = of_transformers(*name)(WIDTH)
        nn.init.zeros_(module.weight)
        assert outgrad.patch(module).swapped[0].side_channels == [], "gamma is 1"
        outgrad.unpatch(module)
        with torch.no_grad():
            module.weight[5] = -1.0
        x, dy = torch.randn(4, WIDTH, dtype=torch.float32), torch.randn(4, WIDTH)
        module(x).backward(dy)
        want, module.weight.grad = module.weight.grad, None
        assert outgrad.patch(module).swapped[0].side_channels == [5]
        module(x).backward(dy)
        torch.testing.assert_close(module.weight.grad, want, atol=1e-4, rtol=1e-4)
        assert want[5] != 0
        with torch.no_grad():  # where 1 + w drifts to 0
            module.weight[5], module.weight[9] = 0.0, -1.0
        assert module.side_channels().tolist() == [9]


def test_images_keep_their_shape_and_strides():
    kind = of_transformers("convnext", "ConvNextLayerNorm")
    for given in (torch.randn(2, WIDTH, 3, 5), torch.randn(2, WIDTH, 3, 5).contiguous(
            memory_format=torch.channels_last)):
        module = kind(WIDTH, data_format="channels_first")
        theirs = module(given)
        outgrad.patch(module)
        assert type(module) is originals.ChannelsLayerNorm
        ours = module(given)
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    channels_last = kind(WIDTH)
    outgrad.patch(channels_last)
    assert channels_last(torch.randn(2, 3, 5, WIDTH)).shape == (2, 3, 5, WIDTH)
    eomt = of_transformers("eomt", "EomtLayerNorm2d")(WIDTH)
    theirs = eomt(given)
    outgrad.patch(eomt)
    torch.testing.assert_close(eomt(given), theirs, atol=1e-5, rtol=1e-5)


def test_a_weight_of_two_dimensions_is_left_alone():
    module = of_transformers("cohere", "CohereLayerNorm")((4, WIDTH))
    report = outgrad.patch(module)
    assert not report.swapped and "its weight has 2 dimensions" in str(report)


def test_a_class_with_other_code_is_left_alone():
    class OtherRMSNorm(of_transformers("gemma", "GemmaRMSNorm")):
        __module__ = "transformers.models.other.modeling_other"

        def forward(self, x):
            return super().forward(x)

    class TwiceRMSNorm(nn.Module):
        __module__ = "transformers.models.twice.modeling_twice"

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(WIDTH))
            self.eps = 1e-6

        def _norm(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 2 * self.eps)

        forward = of_transformers("gemma", "GemmaRMSNorm").forward

    class PropertyRMSNorm(nn.Module):
        __module__ = "transformers.models.property.modeling_property"
        weight = property(lambda self: torch.full((WIDTH,), 3.0))
        eps = 1e-6
        _norm = of_transformers("gemma", "GemmaRMSNorm")._norm
        forward = of_transformers("gemma", "GemmaRMSNorm").forward

    for module in (OtherRMSNorm(WIDTH), TwiceRMSNorm(), PropertyRMSNorm()):
        assert originals.class_for(type(module)) is None
        report = outgrad.patch(module)
        assert not report.swapped and "is a class of its own" in str(report)


@pytest.mark.nightly
def test_every_class_of_transformers():
    """What is recognised among all classes that can be made of a width or of nothing."""
    folder, found, run = pathlib.Path(transformers.__file__).parent, set(), 0
    for file in sorted(folder.glob("models/*/modeling_*.py")):
        name = f"transformers.models.{file.parent.name}.{file.stem}"
        try:
            module = importlib.import_module(name)
        except ImportError:  # of what is not installed
            continue
        for kind in vars(module).values():
            if (isinstance(kind, type) and kind.__module__ == name and "Norm" in kind.__name__
                    and originals.class_for(kind) is not None):
                found.add(kind)
                takes_a_width = next(iter(inspect.signature(kind).parameters), "eps") != "eps"
                norm = kind(WIDTH) if takes_a_width else kind()
                x = torch.randn(2, WIDTH, 3, WIDTH)
                theirs = norm(x)
                assert outgrad.patch(norm).swapped
                torch.testing.assert_close(norm(x), theirs, atol=1e-5, rtol=1e-5)
                run += 1
    assert len(found) == run == 222


def test_timms_classes():
    """y of their shape and type, and within roundings; a whole ViT keeps two thirds of its bytes."""
    layers = pytest.importorskip("timm.layers")
    acts = importlib.import_module("timm.layers.activations")
    image = torch.randn(2, WIDTH, 3, 5)
    rows = image.permute(0, 2, 3, 1)
    for module, x in ((layers.LayerNorm(WIDTH), rows), (layers.LayerNorm2d(WIDTH), image),
            (layers.LayerNormFp32(WIDTH), rows.bfloat16()), (layers.RmsNorm(WIDTH), rows),
            (layers.RmsNormFp32(WIDTH), rows.bfloat16()), (acts.GELU(), image), (acts.GELUTanh(), image),
            (acts.QuickGELU(), image), (acts.Swish(), image), (acts.Mish(), image)):
        theirs, kind = module(x), type(module)
        # PyTorch's own GELU in float32 is off by up to 18 u on some processors
        exact = theirs.double() if list(module.parameters()) else module(x.double())
        assert [one.kind for one in outgrad.patch(module).swapped] == [kind.__name__]
        ours = module(x)
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        u = UNIT_ROUNDOFF[x.dtype]
        assert ((ours.double() - exact).abs() <= 8 * u * (exact.abs() + 1)).all()
        assert type(outgrad.unpatch(module)) is kind
    for module in (acts.Swish(inplace=True), layers.LayerNorm(WIDTH)):
        module._fast_norm = True
        report = outgrad.patch(module)
        assert not report.swapped and len(report.left_alone) == 1
    dropout = nn.Dropout(inplace=True)
    assert outgrad.patch(dropout).swapped, "what is said of timm's classes holds for them alone"
    vit = importlib.import_module("timm").create_model("vit_small_patch16_224", depth=2).bfloat16()
    report = outgrad.patch(vit, torch.randn(2, 3, 224, 224).bfloat16())
    assert report.total_after <= 0.67 * report.total_before and not report.left_alone


def test_copies_and_words():
    module = made(("gemma", "GemmaRMSNorm"), torch.float32)
    x = torch.randn(3, WIDTH)
    outgrad.patch(module)
    again = copy.deepcopy(module)
    assert type(again) is originals.OffsetRMSNorm and torch.equal(again(x), module(x))
    assert "(96,), eps=1e-06, storing y moves" in repr(module)
    unweighted = made(("nanochat", "NanoChatRMSNorm"), torch.float32)
    outgrad.patch(unweighted, store={"norm": "e4m3"})
    given = x.clone().requires_grad_()
    unweighted(given).sum().backward()
    assert given.grad.isfinite().all()


def test_a_norm_is_told_from_others_by_its_first_constant_too():
    """Python has had None in place of a docstring that is not there, but has not since 3.14."""

    def forward(self, x):
        return x.pow(2.5).mean(-1)

    def computed(*constants):
        code = forward.__code__.replace(co_consts=constants)
        return originals._computed(type("Norm", (nn.Module,), {"forward": types.FunctionType(code, {})}))

    assert computed(2.5, -1) == computed(None, 2.5, -1) != computed(3.5, -1)
