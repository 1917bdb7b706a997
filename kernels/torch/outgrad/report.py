"""What patching a model saves, without a GPU and without the model's memory. The model is made of fake
tensors on a CUDA device that need not exist. So the bytes are those that a GPU would keep, and nothing is
computed."""

import contextlib
import importlib
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.overrides import TorchFunctionMode

from . import patching

TYPES = {"fp32": (torch.float32, False), "autocast": (torch.float32, True), "bf16": (torch.bfloat16, False)}


@contextlib.contextmanager
def autocast_on(device: str, enabled: bool = True) -> Iterator[None]:
    """torch.autocast to bf16, which would turn itself off for CUDA without a GPU; fake tensors need none."""
    if not enabled:
        yield
        return
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, torch.bfloat16)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        torch.set_autocast_enabled(device, False)


@contextlib.contextmanager
def fake(device: str, dtype: torch.dtype) -> Iterator[None]:
    """A context for tensors on a device that need not exist; floating-point ones have this type."""
    with FakeTensorMode(allow_non_fake_inputs=True), warnings.catch_warnings(), torch.device(device):
        warnings.simplefilter("ignore")
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


class _FusedAttention(TorchFunctionMode):
    """scaled_dot_product_attention as on a GPU; on a fake device it would choose the form for the CPU."""

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if function is not F.scaled_dot_product_attention:
            return function(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        given = dict(zip(names, args, strict=False)) | kwargs
        q, k, v, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
        if torch.is_autocast_enabled("cuda"):
            q, k, v = (t.to(torch.get_autocast_dtype("cuda")) for t in (q, k, v))
        p, causal = given.get("dropout_p", 0.0), given.get("is_causal", False)
        if mask is None and q.dtype != torch.float32:  # which takes groups of heads as they are
            return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, p, causal, False)[0]
        if given.get("enable_gqa"):
            k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
        if mask is not None:
            mask = mask.to(q.dtype).expand(*q.shape[:-1], k.shape[-2])
        return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, mask, True, p, causal)[0]


# --- Which model ----------------------------------------------------------------------------------


def _of_hugging_face(name: str) -> tuple[Callable[[], torch.nn.Module], Callable[..., Any], int | None]:
    """A model of transformers, from the folder or file of its configuration or from the name of its kind, and
    a function that makes its example from a batch size and a length."""
    try:
        from transformers import (CONFIG_MAPPING, AutoConfig, AutoModel, AutoModelForCausalLM,
            AutoModelForImageClassification, AutoModelForMaskedLM, AutoModelForSeq2SeqLM,
            AutoModelForSpeechSeq2Seq)
        from transformers.initialization import no_init_weights
    except ImportError:
        raise ValueError(f"{name}: transformers is not installed, and this is not MODULE:FUNCTION") from None
    if pathlib.Path(name).exists():
        try:
            config = AutoConfig.from_pretrained(name, local_files_only=True)
        except Exception as error:
            raise ValueError(f"{name}: no configuration of a model: {str(error).splitlines()[0]}") from None
    elif name in CONFIG_MAPPING:
        config = CONFIG_MAPPING[name]()
    else:
        raise ValueError(
            f"{name}: neither a file or folder with a model's configuration, nor a kind of model that "
            f"transformers has, nor MODULE:FUNCTION")
    kinds = (AutoModelForSpeechSeq2Seq, AutoModelForMaskedLM, AutoModelForCausalLM, AutoModelForSeq2SeqLM,
        AutoModelForImageClassification, AutoModel)
    auto = next((a for a in kinds if type(config) in a._model_mapping), None)
    if auto is None:
        raise ValueError(f"{name}: transformers has no model for a {type(config).__name__}")

    def images(batch: int, of: Any) -> torch.Tensor:
        size = getattr(of, "image_size", None) or 224  # for which a model without a size of its own is made
        size = size if isinstance(size, (list, tuple)) else (size,) * 2
        return torch.empty(batch, getattr(of, "num_channels", 3), *size)

    def example(batch: int, length: int) -> dict[str, torch.Tensor]:
        if auto is AutoModelForImageClassification:
            return {"pixel_values": images(batch, config), "labels": torch.zeros(batch, dtype=torch.int64)}
        tokens = torch.zeros(batch, length, dtype=torch.int64)
        given = {"input_ids": tokens}
        if auto is AutoModel:
            pixels = getattr(config, "vision_config", None)
            return given | ({"pixel_values": images(batch, pixels)} if pixels else {})
        if auto is AutoModelForSpeechSeq2Seq:  # as Whisper has it: two frames a position
            frames = 2 * config.max_source_positions
            given = {"input_features": torch.empty(batch, config.num_mel_bins, frames)}
        behind = {"decoder_input_ids": tokens} if getattr(config, "is_encoder_decoder", False) else {}
        return given | behind | {"labels": tokens}

    def make() -> torch.nn.Module:
        # Constructors look at values, which fake tensors lack; nobody needs those of weights.
        with unset_fake_temporarily(), torch.device("meta"), no_init_weights():
            model = auto.from_config(config)
        return model.to_empty(device="cuda")

    return make, example, getattr(config, "max_position_embeddings", None)


def _of_function(name: str) -> tuple[Callable[[], torch.nn.Module], Callable[..., Any], int | None]:
    """MODULE:FUNCTION, which returns a model and an example in the form that patch takes."""
    module, _, function = name.partition(":")
    sys.path.insert(0, "")
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name}: {error}") from None
    finally:
        sys.path.pop(0)
    made: list[Any] = []

    def model() -> torch.nn.Module:
        given = make() if callable(make) else make
        if not (isinstance(given, (tuple, list)) and len(given) == 2
                and isinstance(given[0], torch.nn.Module)):
            raise ValueError(f"{name}: gives a {type(given).__name__}, where (model, example) is needed")
        made.extend(given)
        return made[0]

    return model, lambda batch, length: made[1], None


def of(name: str, batch: int = 1, length: int = 512, kind: str = "bf16", training: bool = True,
        **to_patch: Any) -> patching.Report:
    """The Report of a model that is made, patched (to_patch: norms, store) and forgotten: a kind of model of
    Hugging Face's transformers ("bert"), the file or folder of a configuration, or "module:function". Raises
    ValueError if there is no such model."""
    make, example, most = (_of_function if ":" in name else _of_hugging_face)(name)
    if most is not None and length > most:
        raise ValueError(f"{name}: a length of {length}, where the model has {most} positions")
    dtype, autocast = TYPES[kind]
    # which of their kernels experts take depends on the GPU's capability
    capability = mock.patch.object(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    with fake("cuda", dtype), capability:
        model = make().train(training)
        with _FusedAttention(), autocast_on("cuda", autocast):
            try:
                return patching.patch(model, example(batch, length), **to_patch)
            except Exception as error:
                if ":" in name or str(error).startswith("outgrad."):  # of a store that there is not
                    raise
                raise ValueError(
                    f"{name}: a {type(model).__name__} cannot be run on tokens, images or Whisper's sound: "
                    f"{(str(error) or type(error).__name__).splitlines()[0]}") from error


# --- How it is shown ------------------------------------------------------------------------------


def _rows(report: patching.Report) -> list[tuple[str, int, int]]:
    """(component, bytes before, bytes after), the largest first."""
    kinds = {*report.components_before, *report.components_after}
    rows = [(kind, report.components_before.get(kind, 0), report.components_after.get(kind, 0))
        for kind in kinds]
    return sorted(rows, key=lambda row: (-row[1], row[0]))


def bars(report: patching.Report, width: int = 40) -> str:
    """Bytes by component as a table with bars, for a terminal."""
    rows = _rows(report)
    scale = max((max(before, after) for _, before, after in rows), default=0) or 1
    names = max(len("component"), *(len(kind) for kind, _, _ in rows))
    lines = [f"{'component':{names}} {'MiB before':>12} {'after':>10}"]
    for kind, before, after in rows:
        bar = "#" * round(width * after / scale)
        lines.append(f"{kind:{names}} {before / 2**20:12.2f} {after / 2**20:10.2f}  "
            f"{bar}{'.' * (round(width * before / scale) - len(bar))}")
    return "\n".join(line.rstrip() for line in lines)


def plot(report: patching.Report, file: str | pathlib.Path, title: str = "") -> None:
    """The same as a picture, by matplotlib; the file's name gives its type."""
    from matplotlib.figure import Figure

    rows = _rows(report)[::-1]
    figure = Figure(figsize=(7, 1 + 0.4 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for offset, kept, label in ((0.2, [row[1] for row in rows], "before"),
            (-0.2, [row[2] for row in rows], "after")):
        axes.barh([y + offset for y in range(len(rows))], [one / 2**20 for one in kept], 0.4, label=label)
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.set_xlabel("MiB kept for the backward pass")
    axes.set_title(title)
    axes.legend()
    figure.savefig(file)
