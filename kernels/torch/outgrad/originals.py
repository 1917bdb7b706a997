"""Classes of other libraries that compute what a class of this package does, and that class.

transformers repeats a norm in each of its models under a new name, in the forms listed below. A class is
recognised by its code, which is compared with that of one class of the form, where this is installed. The
forms differ in what multiplies x^ (w or 1 + w) and in the type of y. Most of them round x^, its product and
y; y of ours is rounded once.
"""

import functools
import importlib
from typing import Any, NamedTuple

import torch
from torch import nn

from . import functional, graphs, modules
from .relu_squared import ReLUSquared


class _Original(modules._Norm, nn.Module):
    """A norm over the last dimension for an object that was made as a class of another library. It has a
    weight or none, perhaps a bias, and an eps under one of two names."""

    rms = True
    weight: torch.Tensor
    eps: float

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        if graphs.is_symbol(x):
            return graphs.as_node(self, x)
        return self._norm(self._input(x))

    def _arguments(self) -> tuple[Any, ...]:
        weight, bias = self._optional("weight"), self._optional("bias")
        return (None if weight is None else weight.shape), weight, bias, self._eps(), self.rms

    def _optional(self, name: str) -> Any:
        own = self._parameters
        return own[name] if name in own else getattr(self, name, None)

    def _eps(self) -> float:
        own = self.__dict__
        return own["variance_epsilon"] if "variance_epsilon" in own else self.eps

    def extra_repr(self) -> str:
        shape, _, _, eps, _ = self._arguments()
        width = "" if shape is None else f"{tuple(shape)}, "
        return f"{width}eps={eps}, {self._moved_in_every_type()}"


class WiderTypeRMSNorm(_Original):
    """RMSNorm whose y has the wider type of x and the weight: that of Llama."""

    def _input(self, x: torch.Tensor) -> torch.Tensor:
        x, weight = super()._input(x), self.weight
        if x.dtype == weight.dtype or (self.norms == "autocast" and functional.is_autocast(x)):
            return x
        return x.to(torch.promote_types(x.dtype, weight.dtype))

    def takes_as_it_is(self, x: torch.Tensor) -> bool:
        return x.dtype == self.weight.dtype


class WiderTypeLayerNorm(WiderTypeRMSNorm):
    """The same for LayerNorm: that of DeBERTa."""

    rms = False


class WeightTypeRMSNorm(WiderTypeRMSNorm):
    """RMSNorm whose y has the weight's type if that has 16 bits: that of T5."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        y, kind = super().forward(x), self.weight.dtype
        return y.to(kind) if kind in (torch.float16, torch.bfloat16) else y


class InputTypeRMSNorm(_Original):
    """RMSNorm whose y has the type of x, under autocast too: that of OLMo 2, GPT-OSS and Gemma 3n."""

    def _input(self, x: torch.Tensor) -> torch.Tensor:
        return super()._input(x) if self.norms == "autocast" else x


class InputTypeLayerNorm(InputTypeRMSNorm):
    """The same for LayerNorm: that of Cohere, and OLMo's, which has no weight."""

    rms = False
    eps = 1e-5  # OLMo's, which has it in its code


class UnweightedRMSNorm(InputTypeRMSNorm):
    """RMSNorm without a weight, whatever else an object has of this name: that of nanochat."""

    def _arguments(self) -> tuple[Any, ...]:
        return None, None, None, self._eps(), True


class OffsetRMSNorm(InputTypeRMSNorm):
    """RMSNorm with 1 + w, computed in fp32, in place of a weight w: that of Gemma, Gemma 2 and 3, Qwen3-Next.
    PyTorch gives the gradient of 1 + w to w."""

    def _affine(self, weight: Any, bias: torch.Tensor | None) -> tuple[Any, torch.Tensor | None]:
        return 1 + weight.float(), bias


class OffsetLayerNorm(modules.LayerNorm):
    """LayerNorm with 1 + w in place of a weight w, of autocast's type throughout where CUDA's is on:
    Nemotron's LayerNorm1P."""

    def _input(self, x: torch.Tensor) -> torch.Tensor:
        return super()._input(x) if self.norms == "autocast" else x.to(self._autocasts_to(x.dtype))

    def _affine(self, weight: Any, bias: torch.Tensor | None) -> tuple[Any, torch.Tensor | None]:
        weight = weight + 1
        kind = self._autocasts_to(weight.dtype)
        return weight.to(kind), None if bias is None else bias.to(kind)

    def _autocasts_to(self, dtype: torch.dtype) -> torch.dtype:
        # Without an argument it asks for CUDA's autocast, whatever the device is, as the original does.
        on = torch.is_autocast_enabled()
        return torch.get_autocast_dtype(self.weight.device.type) if on else dtype


class ChannelsLayerNorm(modules.LayerNorm):
    """LayerNorm over the channels of images: the last dimension for the data format channels_last, otherwise
    the second of four. That of ConvNeXt, and timm's LayerNorm2d."""

    data_format = "channels_first"  # of a class that has no other

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        if graphs.is_symbol(x):
            return graphs.as_node(self, x)
        if self.data_format == "channels_last":
            return super().forward(x)
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def takes_as_it_is(self, x: torch.Tensor) -> bool:
        return self.data_format == "channels_last" and super().takes_as_it_is(x)


class _Form(NamedTuple):
    model: str  # of transformers
    kind: str  # the class of the form that is compared with
    ours: type[nn.Module]


_FORMS = (
    _Form("llama", "LlamaRMSNorm", WiderTypeRMSNorm),
    _Form("gemma", "GemmaRMSNorm", OffsetRMSNorm),
    _Form("olmo2", "Olmo2RMSNorm", InputTypeRMSNorm),
    _Form("helium", "HeliumRMSNorm", InputTypeRMSNorm),
    _Form("moshi", "MoshiRMSNorm", InputTypeRMSNorm),
    _Form("gemma3n", "Gemma3nRMSNorm", InputTypeRMSNorm),
    _Form("nanochat", "NanoChatRMSNorm", UnweightedRMSNorm),
    _Form("t5", "T5LayerNorm", WeightTypeRMSNorm),
    _Form("cohere", "CohereLayerNorm", InputTypeLayerNorm),
    _Form("olmo", "OlmoLayerNorm", InputTypeLayerNorm),
    _Form("deberta", "DebertaLayerNorm", WiderTypeLayerNorm),
    _Form("nemotron", "NemotronLayerNorm1P", OffsetLayerNorm),
    _Form("convnext", "ConvNextLayerNorm", ChannelsLayerNorm),
    _Form("eomt", "EomtLayerNorm2d", ChannelsLayerNorm),
)

# By module and name, since their releases have different classes.
_BY_NAME: dict[str, dict[str, type[nn.Module]]] = {
    "transformers.activations": {
        "GELUActivation": modules.GELU,
        "NewGELUActivation": modules.TanhGELU,
        "FastGELUActivation": modules.TanhGELU,
        "AccurateGELUActivation": modules.TanhGELU,
        "PytorchGELUTanh": modules.TanhGELU,
        "GELUTanh": modules.TanhGELU,
        "QuickGELUActivation": modules.QuickGELU,
        "SiLUActivation": modules.SiLU,
        "MishActivation": modules.Mish,
        "ReLUSquaredActivation": ReLUSquared,
    },
    "transformers.models.bloom.modeling_bloom": {"BloomGelu": modules.TanhGELU},
    "timm.layers.activations": {
        "GELU": modules.GELU,
        "GELUTanh": modules.TanhGELU,
        "QuickGELU": modules.QuickGELU,
        "Swish": modules.SiLU,
        "Mish": modules.Mish,
    },
    "timm.layers.norm": {
        "LayerNorm": modules.LayerNorm,
        "LayerNorm2d": ChannelsLayerNorm,
        "LayerNormFp32": InputTypeLayerNorm,
        "RmsNorm": modules.RMSNorm,
        "RmsNormFp32": InputTypeRMSNorm,
    },
}
_NOT_COMPUTED = {"__init__", "extra_repr", "reset_parameters"}


def constants_of(function: Any) -> list[Any]:
    """The constants in a function's code without its docstring, in whose place Python up to 3.13 has None."""
    return [one for one in function.__code__.co_consts if one != function.__doc__]


@functools.cache
def _computed(kind: type) -> tuple[Any, ...] | None:
    """What a class computes, for comparison: its bases, and the code of its methods, by name. None if one of
    them is no Python function, or if it has properties."""
    found = {}
    for name, member in vars(kind).items():
        if (callable(member) or hasattr(member, "__get__")) and name not in _NOT_COMPUTED:
            code = getattr(member, "__code__", None)
            if code is None:
                return None
            found[name] = code.co_code, code.co_names, constants_of(member)
    return kind.__bases__, found


@functools.cache
def _of_form(form: _Form) -> tuple[Any, ...] | None:
    try:
        return _computed(getattr(importlib.import_module(
            f"transformers.models.{form.model}.modeling_{form.model}"), form.kind))
    except (ImportError, AttributeError):
        return None


@functools.cache
def class_for(kind: type[nn.Module]) -> type[nn.Module] | None:
    """The class of ours that does what a class of transformers or timm does; None if there is none."""
    if (ours := _BY_NAME.get(kind.__module__, {}).get(kind.__name__)) is not None:
        return ours
    if not kind.__module__.startswith("transformers.models.") or "Norm" not in kind.__name__:
        return None
    computed = _computed(kind)  # type: ignore[arg-type]  # a class is hashable
    return next((form.ours for form in _FORMS if computed is not None and computed == _of_form(form)), None)


def why_not(module: nn.Module) -> str | None:
    """Why an object of such a class must stay as it is, or None."""
    own, ours = module.__dict__, class_for(type(module))  # type: ignore[arg-type]  # a class is hashable
    if ours is None:
        return None
    if own.get("_fast_norm"):
        return "timm's fast norm, which has roundings of its own"
    if own.get("inplace"):
        return "inplace=True: it overwrites its input"
    weight = module._parameters.get("weight")
    if weight is not None and weight.dim() > 1 and issubclass(ours, _Original):
        return f"its weight has {weight.dim()} dimensions, and one of them is normalised"
    return None
