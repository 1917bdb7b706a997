"""What becomes of the norms' side channels while gamma and beta drift, without a read of the device in any
forward pass.

A norm chooses the channels that keep x^ beside y once, with a margin: for half of tau. From then on its
kernels test every channel in each pass (kernels/side_policy.h). Beyond the margin a forward pass says so in
two numbers on the device, and the gradients are still within their bounds. Beyond tau the gradients are NaN.
The numbers of all norms are copied together without waiting, and looked at in the next step of any optimizer,
or, where none steps, when a norm runs again. A norm that has drifted chooses its channels anew in its next
forward pass. Under torch.compile it is the same, and the graph is made anew.

A tensor on the CPU is there for free: in eager mode its values are compared in every forward pass instead,
and nothing is ever NaN.

The kernels of norms from 8 bits test nothing, because a channel's limit depends on all channels that share a
scale. Their values are compared after each step of an optimizer, before a pass meets them, and nothing is
ever NaN; on a GPU that is one wait for the device in a step, however many norms there are. Who changes gamma
or beta by hand there calls choose_again(). In a compiled pass a change by hand that loses a channel is an
error.
"""

import itertools
import threading
import warnings
import weakref
from typing import Any, Literal

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from . import stores
from .arguments import is_one_of, shown

# Devices whose values are compared in every forward pass of eager mode.
AT_ONCE = frozenset({"cpu"})

_watched: weakref.WeakSet[Any] = weakref.WeakSet()  # the norms that have numbers on a device
_lock = threading.Lock()  # of it: one thread may step while another makes norms
_on_lost = "raise"
# device: (the event behind a copy, the copy in pinned memory, the norms whose numbers it has)
_pending: dict[torch.device, Any] = {}
_hook = None
looks = 0  # how often the numbers were looked at
_recomputed = False  # whether a norm has run in a backward pass


def on_drift(what: Literal["raise", "warn"]) -> None:
    """What happens when a norm's gamma and beta have moved so far in one step that its gradients were NaN: an
    error (the default) in the optimizer's next step, before it changes a parameter, or a warning. Smaller
    drifts need neither: the channels are chosen again in time."""
    global _on_lost
    if not is_one_of(what, ("raise", "warn")):
        raise ValueError(f"outgrad.on_drift: {shown(what)} is neither 'raise' nor 'warn'")
    _on_lost = what


def look_for_drift() -> None:
    """Looks at what the norms' kernels have found so far, and waits for it. For a whole step in one CUDA
    graph, after which no optimizer's Python runs, and for updates without an optimizer under
    torch.compile."""
    if not _is_capturing():
        for device, norms in _by_device().items():
            _pending.pop(device, None)
            _act(norms, torch.stack([norm._outgrad_seen for norm in norms]).tolist())
        with torch.no_grad():
            _compare_norms_from_8_bits()


def watch(norm: Any) -> None:
    """From now on the numbers of this norm are looked at."""
    global _hook
    with _lock:
        _watched.add(norm)
    if _hook is None:
        _hook = register_optimizer_step_pre_hook(_before_step), register_optimizer_step_post_hook(_after_step)


def _before_step(*_: Any) -> None:
    with _disable_current_modes():  # an optimizer of fake tensors may step while there are real norms
        look()


def _after_step(*_: Any) -> None:
    if not _is_capturing():
        with _disable_current_modes(), torch.no_grad():
            _compare_norms_from_8_bits()


def _compare_norms_from_8_bits() -> None:
    """On a CPU each by itself, on a device all at once."""
    for device, norms in _by_device().items():
        of_8_bits = [norm for norm in norms if norm.store != stores.DEFAULT_OF_NORMS]
        if device.type in AT_ONCE:
            for norm in of_8_bits:
                norm.side_channels()
        elif of_8_bits:
            moved = torch.stack([norm.has_moved() for norm in of_8_bits]).tolist()
            for norm in itertools.compress(of_8_bits, moved):
                norm.choose_again()


def look(wait: bool = True) -> None:
    """Acts on the numbers that were copied last time, and copies those of now. wait: where that copy is not
    there yet, which was ordered a step ago."""
    global looks
    looks += 1
    if not _watched or _is_capturing():
        return
    for device, norms in _by_device().items():
        if device.type in AT_ONCE:
            _act(norms, torch.stack([norm._outgrad_seen for norm in norms]).tolist())
            continue
        if (ordered := _pending.pop(device, None)) is not None:
            event, copy, copied = ordered
            if not event.query():
                if not wait:
                    _pending[device] = ordered
                    continue
                event.synchronize()
            _act([norm() for norm in copied], copy.tolist())
        with torch.no_grad(), _accelerator(device).device(device):
            found = torch.stack([norm._outgrad_seen for norm in norms])
            copy = torch.empty(found.shape, dtype=found.dtype, device="cpu",
                pin_memory=device.type != "cpu")
            copy.copy_(found, non_blocking=True)
            event = _accelerator(device).Event()
            event.record()
        _pending[device] = event, copy, list(map(weakref.ref, norms))


def runs(norm: Any) -> None:
    """Looks without waiting if nothing has since this norm ran last: no optimizer has stepped. Where
    checkpoints recompute norms, optimizers alone look: a pass needs the channels of the one that it
    repeats."""
    global _recomputed
    if torch._C._current_graph_task_id() != -1:  # in a backward pass
        _recomputed = True
    elif norm._outgrad_looks == looks and not _recomputed:
        look(wait=False)
    norm.__dict__["_outgrad_looks"] = looks  # nn.Module takes a microsecond to set what is no parameter


def _accelerator(device: torch.device) -> Any:
    return torch.get_device_module(device)


def _is_capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _seen_by(norm: Any) -> torch.Tensor | None:
    return getattr(norm, "_outgrad_seen", None)  # a norm may be gone, or unpatched


def _by_device() -> dict[torch.device, list[Any]]:
    found: dict[torch.device, list[Any]] = {}
    with _lock:
        norms = [*_watched]
    for norm in norms:
        if (seen := _seen_by(norm)) is not None:
            found.setdefault(seen.device, []).append(norm)
    return found


def _act(norms: list[Any], rows: list[list[int]]) -> None:
    lost = []
    for norm, (near, beyond) in zip(norms, rows, strict=True):
        if not (near or beyond) or _seen_by(norm) is None:
            continue
        norm.choose_again()
        norm._outgrad_seen.zero_()
        if beyond:
            lost.append(norm)
    if not lost:
        return
    names = ", ".join(norm._outgrad_name
        or f"a {type(norm).__name__} of {norm._arguments()[1].numel()} channels" for norm in lost)
    text = (f"outgrad: gamma and beta of {names} moved so far at once that their output no longer gives the "
        f"gradient, which was NaN. The channels that keep "
        "x^ are chosen again in the next forward pass; a CUDA graph must be captured anew. After a change by "
        "hand, call choose_again() of the norm")
    if _on_lost == "raise":
        raise RuntimeError(text)
    warnings.warn(text, RuntimeWarning, stacklevel=2)
