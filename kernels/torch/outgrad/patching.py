"""patch(model): gives modules of PyTorch and Hugging Face classes of this package, and says what that
saves."""

import collections
import contextlib
import dataclasses
import functools
import sys
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch._subclasses.fake_tensor import is_fake
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import auto, blocks, gates, library, modules, originals, stores
from .arguments import is_one_of, is_within, shown
from .blocks import block_of, why_apart

_Module = TypeVar("_Module", bound=nn.Module)

# A module only gets another class; it keeps its identity, parameters, hooks and places in the model.
_OURS = {
    nn.LayerNorm: modules.LayerNorm,
    nn.RMSNorm: modules.RMSNorm,
    nn.Dropout: modules.Dropout,
    nn.GELU: modules.GELU,
    nn.SiLU: modules.SiLU,
    nn.Mish: modules.Mish,
    nn.Softplus: modules.Softplus,
    nn.ELU: modules.ELU,
}
# These get a class of ours only where patch is given a store for their kind that is not PyTorch's own.
_OURS_WITH_STORE = {"linear": (nn.Linear, modules.Linear), "softmax": (nn.Softmax, modules.Softmax)}


@dataclasses.dataclass
class Swapped:
    name: str  # of the module within the model
    kind: str  # its class before
    bound: str
    # kept for the backward pass by this module alone; None if no example was given
    bytes_before: int | None = None
    bytes_after: int | None = None
    fit: str | None = None  # for an activation: the name of its coefficients,
    sha256: str | None = None  # and the digest of their header
    # for a norm: the columns that now keep their x^ beside y
    side_channels: list[int] = dataclasses.field(default_factory=list)
    # of an activation, Linear, Softmax or norm: what it keeps (stores.py); in float32 parity falls back to
    # y+bit
    store: str | None = None
    chosen: bool = False  # whether patch chose it, store="auto"


@dataclasses.dataclass
class LeftAlone:
    name: str
    kind: str
    why: str


@dataclasses.dataclass
class Report:
    """What patch did. str() gives a table.

    The bytes of a module are those that it alone keeps. What several modules keep belongs to none of them and
    is counted once in the totals. An example is the output of a GELU that the next Linear also keeps.
    """

    swapped: list[Swapped]
    left_alone: list[LeftAlone]
    total_before: int | None = None  # for the whole model on the example
    total_after: int | None = None
    # By the former class of the module that keeps them; what several modules keep has its own entry. Sums to
    # the totals.
    components_before: dict[str, int] = dataclasses.field(default_factory=dict)
    components_after: dict[str, int] = dataclasses.field(default_factory=dict)
    # (name, class before, what runs as one node) of the blocks of blocks.py, and (name, class of the module
    # that it is in, why) of what is in none.
    fused: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    apart: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{len(self.swapped)} modules patched, {len(self.left_alone)} left alone"]
        if self.total_before is not None:
            lines[0] += (
                f"; kept for the backward pass: {self.total_before:,} bytes before, {self.total_after:,} "
                f"after")
        if self.swapped:
            rows = [("module", "kind", "alone before", "alone after", "bound")]
            for s in self.swapped:
                before, after = ("" if b is None else f"{b:,}" for b in (s.bytes_before, s.bytes_after))
                rows.append((_shown(s.name), s.kind, before, after, s.bound))
            widths = [max(len(row[k]) for row in rows) for k in range(5)]
            for row in rows:
                cells = (cell.rjust(w) if k in (2, 3) else cell.ljust(w)
                    for k, (cell, w) in enumerate(zip(row, widths, strict=True)))
                lines.append("  ".join(cells).rstrip())
        for fit, sha256 in sorted({(s.fit, s.sha256) for s in self.swapped if s.fit is not None}):
            lines.append(f"coefficients {fit}: SHA-256 {sha256}")
        for s in self.swapped:
            if s.side_channels:
                shown = ", ".join(map(str, s.side_channels[:8])) + (", ..." if len(s.side_channels) > 8
                    else "")
                lines.append(
                    f"{_shown(s.name)}: {len(s.side_channels)} channels have a side buffer, 4 bytes an "
                    f"element: {shown}")
        for (what, kind), names in _by(((what, kind), name) for name, kind, what in self.fused):
            lines.append(f"{what} as one node: {names} ({kind})")
        for (kind, why), names in _by(((kind, why), name) for name, kind, why in self.apart):
            lines.append(f"a node of its own: {names} (in {kind}): {why}")
        for (store, chosen), names in _by(((s.store, s.chosen), s.name) for s in self.swapped
                if s.store is not None and (s.chosen or s.store != stores.DEFAULT)):
            fallback = (f"; {stores.DEFAULT} wherever x is float32"
                if stores.for_type(store, torch.float32) != store else "")
            lines.append(f"store {store}{', chosen' if chosen else ''}: {names}{fallback}")
        for (kind, why), names in _by(((one.kind, one.why), one.name) for one in self.left_alone):
            lines.append(f"left alone: {names} ({kind}): {why}")
        return "\n".join(lines)


def _shown(name: str) -> str:
    return name or "(the model)"


def _by(pairs: Iterable[tuple[Any, str]]) -> list[tuple[Any, str]]:
    """For pairs (what, module): each what, and the first of its modules with the number of the others."""
    together = collections.defaultdict(list)
    for what, name in pairs:
        together[what].append(_shown(name))
    return [(what, names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else ""))
        for what, names in together.items()]


class _Progress:
    """Shows on a terminal how far a pass of a large model has come, after two seconds."""

    def __init__(self, what: str, modules: int) -> None:
        self.what, self.modules, self.done, self.start, self.shown = what, modules, 0, time.monotonic(), False

    def step(self) -> None:
        self.done += 1
        if sys.stderr.isatty() and time.monotonic() - self.start > 2:
            self.shown = True
            print(f"\r{self.what}: {self.done} of {self.modules} modules", end="", file=sys.stderr,
                flush=True)

    def end(self) -> None:
        if self.shown:
            print(file=sys.stderr)


# --- What is kept for the backward pass -----------------------------------------------------------


class _Saved:
    """A tensor that a graph keeps. Only the graph holds this object, which so dies with the node that saved
    it."""

    def __init__(self, tensor: torch.Tensor, owner: str) -> None:
        self.tensor, self.owner = tensor, owner
        self.version = None if tensor.is_inference() else tensor._version

    def has_changed(self) -> bool:
        return self.version is not None and self.tensor._version != self.version


def _storages(tensor: Any) -> Iterator[torch.UntypedStorage]:
    """The storages of a tensor, or of the tensors that a subclass or a sparse one is made of."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _storages(getattr(tensor, name))
    elif tensor.layout is torch.strided:
        yield tensor.untyped_storage()
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices().untyped_storage(), tensor._values().untyped_storage())


class _Watch:
    """Watches a forward pass of a model: which module saves what, and what the modules get and give."""

    def __init__(self, model: nn.Module, what: str) -> None:
        self.model = model
        self.inside: list[tuple[nn.Module, int | None]] = []
        self.saved: list[weakref.ref[_Saved]] = []
        self.types: dict[str, torch.dtype] = {}
        # by its address, which no other storage gets as long as there is a reference to it
        self.known: dict[int, StorageWeakRef] = {}
        self.sizes: dict[int, int] = {}
        self.calls: dict[str, list[auto.Call]] = collections.defaultdict(list)
        self.names = {id(module): name for name, module in model.named_modules()}
        self.progress, self.functions = _Progress(what, len(self.names)), _Functions(self)

    def __enter__(self) -> "_Watch":
        with contextlib.ExitStack() as stack:
            for module in self.model.modules():
                stack.callback(module.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(self._leave, always_call=True).remove)
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack,
                lambda saved: saved.tensor))
            stack.enter_context(self.functions)
            stack.callback(self.progress.end)
            self.undo = stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> bool | None:
        return self.undo.__exit__(*exception)

    def _enter(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        tensors = (x for x in (*arguments, *named.values()) if isinstance(x, torch.Tensor))
        self.inside.append((module, self._key(next(tensors, None))))

    def _leave(self, module: nn.Module, _: Any, result: Any) -> None:
        x = None
        if any(one is module for one, _ in self.inside):
            while (last := self.inside.pop())[0] is not module:
                pass  # it belongs to a module that an exception left
            x = last[1]
        self.progress.step()
        name = self.names[id(module)]
        of: tuple[int, torch.dtype | None, bool] = 0, None, False
        if isinstance(result, torch.Tensor):
            self.types[name] = result.dtype
            of = result.numel(), result.dtype, result.requires_grad
        self.calls[name].append(auto.Call(x, self._key(result), *of))

    def _key(self, tensor: Any) -> int | None:
        """The storage of a dense tensor."""
        if (not isinstance(tensor, torch.Tensor) or is_traceable_wrapper_subclass(tensor)
                or tensor.layout is not torch.strided):
            return None
        storage = tensor.untyped_storage()
        self.known.setdefault(storage._cdata, StorageWeakRef(storage))
        self.sizes[storage._cdata] = storage.nbytes()
        return storage._cdata

    # by which blocks.py tells them from hooks of others
    setattr(_enter, "outgrad_watches", True)
    setattr(_leave, "outgrad_watches", True)

    def name_inside(self) -> str:
        return self.names[id(self.inside[-1][0])] if self.inside else ""

    def _pack(self, tensor: Any) -> _Saved:
        saved = _Saved(tensor, self.name_inside())
        self.saved.append(weakref.ref(saved))
        return saved

    def kept(self) -> auto.Kept:
        """What live graphs keep: auto.Kept."""
        own = {s._cdata for tensor in (*self.model.parameters(), *self.model.buffers())
            for s in _storages(tensor)}
        sizes: dict[int, int] = {}
        owners: dict[int, set[str]] = collections.defaultdict(set)
        alive = [*filter(None, (reference() for reference in self.saved))]
        for saved in alive:
            for storage in _storages(saved.tensor):
                if storage._cdata not in own:
                    sizes[storage._cdata] = storage.nbytes()
                    owners[storage._cdata].add(saved.owner)
        kinds = {name: _kind_before(module) for name, module in self.model.named_modules()}
        alone: collections.Counter[str] = collections.Counter()
        components: collections.Counter[str] = collections.Counter()
        for key, names in owners.items():
            if len(names) == 1:
                alone[min(names)] += sizes[key]
            components[kinds[min(names)] if len(names) == 1 else "(several modules)"] += sizes[key]
        known = self.sizes | sizes | dict.fromkeys(own, 0)
        return auto.Kept(sum(sizes.values()), alone, dict(components), self.types, dict(owners), known,
            dict(self.calls), self.functions.called, {one.owner for one in alive if one.has_changed()})


# What a module may call in place of having a module for it.
_FUNCTIONS = {getattr(nn.functional, name): name for name in ("gelu", "silu", "mish", "softplus", "elu",
    "layer_norm", "rms_norm", "dropout")}


class _Functions(TorchFunctionMode):
    """Which modules call PyTorch's own functions where this package has modules: {(name of the module, of the
    function)}. A dropout that drops nothing does not count."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self.watch = watch
        self.called: set[tuple[str, str]] = set()

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None) -> Any:
        named = kwargs or {}
        if (name := _FUNCTIONS.get(function)) is not None:
            options = {**dict(zip(("input", "p", "training"), args, strict=False)), **named}
            if name != "dropout" or (options.get("training", True) and options.get("p", 0.5) > 0):
                self.called.add((self.watch.name_inside(), name))
        return function(*args, **named)


@contextlib.contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Puts back PyTorch's generators and the model's buffers, such as the statistics of batches."""
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda" and not is_fake(p)}
    with torch.random.fork_rng(devices=devices):
        before = [(m, name, b, _version(b), b.clone()) for m in model.modules()
            for name, b in m._buffers.items() if b is not None]
        try:
            yield
        finally:
            with torch.no_grad():
                for module, name, buffer, version, value in before:
                    module._buffers[name] = buffer
                    if version is None or buffer._version != version:
                        buffer.copy_(value)


def _version(tensor: Any) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _run(model: nn.Module, example: Any, what: str) -> auto.Kept:
    """One forward pass on the example: a tuple of arguments, a mapping of keyword arguments, or one tensor.
    Gives _Watch.kept. Compiled parts run as they were before they were compiled: hooks see into them."""
    with (_unchanged(model), torch.inference_mode(False), torch.enable_grad(),
            torch.compiler.set_stance("force_eager"), _Watch(model, f"outgrad.patch, {what}") as watch):
        if isinstance(example, torch.Tensor):
            result = model(example)
        elif isinstance(example, Mapping):
            result = model(**example)
        else:
            result = model(*example)
        kept = watch.kept()
        del result  # it has held the graph until here
    return kept


# --- What takes another class ---------------------------------------------------------------------


def _has_kernels(parameter: torch.Tensor) -> bool:
    if parameter.is_meta or is_fake(parameter):
        return True
    return torch._C._dispatch_has_kernel_for_dispatch_key("outgrad::activation_forward",
        torch._C._dispatch_key_for_device(parameter.device.type))


def _ours(by_kind: Mapping[str, str]) -> dict[type, type]:
    """The classes of PyTorch that get a class of ours, and which."""
    return _OURS | dict(classes
        for kind, classes in _OURS_WITH_STORE.items() if by_kind[kind] != stores.OTHERS[kind][0])


def _class_of_ours(kind: type, ours: dict[type, type]) -> type | None:
    return ours.get(kind) or originals.class_for(kind)


def _class_of_its_own(kind: type, ours: dict[type, type]) -> bool:
    """For a class neither ours nor swapped: whether it descends from one that is, or has the name of one."""
    names = ("LayerNorm", "RMSNorm", "GELU", "SiLU", "Mish")
    return (any(_class_of_ours(base, ours) is not None for base in kind.__mro__)
        or kind.__name__.removesuffix("Activation").endswith(names))


def _parameter_without_fit(module: nn.Module) -> str | None:
    """For an activation with a parameter: why no fit applies to it, or None."""
    for kind, name in ((nn.Softplus, "beta"), (nn.ELU, "alpha")):
        if type(module) is kind and not is_within(value := getattr(module, name), 1, 1):
            return f"{name}={shown(value)}: outgrad has its gradient for {name}=1"
    if type(module) is nn.Softplus and not is_within(module.threshold, modules.Softplus.LEAST_THRESHOLD):
        return (f"threshold={shown(module.threshold)}: outgrad has its gradient for a threshold of "
            f"{modules.Softplus.LEAST_THRESHOLD} or more")
    if type(module) in (nn.SiLU, nn.Mish, nn.ELU) and module.inplace:
        return "inplace=True: it overwrites its input"
    return None


def _replacement(module: nn.Module, parameter: torch.Tensor | None, known: dict[type, type],
        alone: dict[nn.Module, str]) -> tuple[type | None, str | None]:
    """The class that a module gets, or None, and the reason why it is left alone, or None. parameter: the
    model's first, which gives type and device for modules that have no parameter. known: of _ours. alone:
    {module that is to be left alone: why}."""
    kind = type(module)
    if _is_patched(module):
        return None, None
    ours = _class_of_ours(kind, known)
    if ours is None:
        if kind.__module__ != modules.__name__ and _class_of_its_own(kind, known):
            return None, f"{kind.__module__}.{kind.__qualname__} is a class of its own"
        return None, None
    if module in alone:
        return None, alone[module]
    if "forward" in module.__dict__:
        return None, "its forward was replaced on the object itself"
    if (why := _parameter_without_fit(module) or originals.why_not(module)) is not None:
        return None, why
    own: list[torch.Tensor | None] = [*module.parameters(recurse=False)]
    for p in own or [parameter]:
        if p is not None and p.dtype not in library.FORMATS:
            return (None, f"its parameters are {p.dtype}" if p is not parameter
                else f"the model's parameters are {p.dtype}")
        if p is not None and not _has_kernels(p):
            return None, f"it is on {p.device}, for which this package has no operators"
    return ours, None


def _eager_attention(model: nn.Module) -> Iterator[LeftAlone]:
    """Hugging Face's attention that keeps all probabilities, if the model also has a fused one."""
    with_fused = (m for m in model.modules() if getattr(m, "_supports_sdpa", False))
    fused = {id(m.config) for m in with_fused if hasattr(m, "config")}
    for name, module in model.named_modules():
        config = getattr(module, "config", None)
        if "Attention" in type(module).__name__ and getattr(config, "_attn_implementation", None) == "eager":
            yield LeftAlone(name, type(module).__name__,
                "attention is eager" + (": switch to sdpa" if id(config) in fused else ""))


def patch(model: nn.Module, example: torch.Tensor | tuple[Any, ...] | list[Any]
        | Mapping[str, Any] | None = None, norms: Literal["fp32", "autocast"] = "fp32",
        store: str | Mapping[str, str] = stores.DEFAULT,
        error: float | None = None) -> Report:
    """Gives the GELU, LayerNorm, RMSNorm and Dropout modules of a model the classes of this package, and
    returns a Report.

    A model that is already patched stays patched; its norms follow the new `norms`, and its activations the
    new `store`. If the example cannot be run, or an activation cannot have its store, nothing is patched.

    example: arguments of one forward pass (a tensor, a tuple or list of arguments, a mapping of keyword
    arguments), to count the bytes kept before and after, in the mode that the model is in. The model then
    never keeps more than with PyTorch's classes: modules by which it would are left alone, and so are those
    whose output it changes in place. That takes two passes, and one more where modules are left alone or
    stores are chosen. PyTorch's generators and the model's buffers are afterwards as they were before. norms:
    the type of norms under autocast, "fp32", or "autocast" for autocast's type.

    store: what activations keep, one of outgrad.stores for all, or {activation: store}, where those that are
    not named keep y+bit. The mapping may also name "linear", whose Linear modules then get a class of ours
    that keeps x in 8 bits or some of its rows, "softmax" likewise, and "norm", whose y is then kept in 8
    bits. "auto" gives each activation and norm the store with the fewest bytes beside what the rest of the
    model keeps. error: what auto may choose at most, beside the defaults: |g - f'(x)| of an activation, whose
    default is y+bit, and the amount by which storing y moves an x^ of magnitude 1 in a norm. Call patch
    before a model is wrapped for several processes.
    """
    _expect(model, example, norms)
    by_kind = stores.by_kind(store)
    auto.expect(by_kind, error, example)
    as_before = [(module, type(module), {one: value for one, value in vars(module).items() if one in _ADDED})
        for module in model.modules() if _is_patched(module)]
    try:
        if example is None:
            report, dtypes = _patched(model, norms, by_kind, {})
        else:
            unpatch(model)
            taus = {module: added["tau"] for module, _, added in as_before if "tau" in added}
            report, dtypes = _measured(model, example, norms, by_kind, error, taus)
        for one in report.swapped:
            _describe(one, _module_of(model, one.name), dtypes[one.name])
    except BaseException:
        unpatch(model)
        for module, kind, added in as_before:
            module.__class__ = kind
            module.__dict__.update(added)
        raise
    return report


def _patched(model: nn.Module, norms: Literal["fp32", "autocast"], by_kind: Mapping[str, str],
        decided: dict[nn.Module, auto.Decision]) -> tuple[Report, dict[str, torch.dtype]]:
    """A Report, and what _swap gives, of a model that it patches. decided: {module: auto.Decision} of those
    that do not follow by_kind."""
    report = Report([], list(_eager_attention(model)))
    dtypes = _swap(model, _ours(by_kind), report,
        {module: one.why for module, one in decided.items() if one.store is auto.PYTORCHS},
        by_kind["gated"] == stores.OUTPUT)
    for name, module in model.named_modules():
        if _is_patched(module):
            of_all = by_kind if module not in decided else dict.fromkeys(by_kind, decided[module].store)
            _set(name, module, norms, of_all)
    report.fused = [(name, kind, _with_store(what, _module_of(model, name)))
        for name, kind, what in report.fused if blocks.makes_a_node(_module_of(model, name), what)]
    return report, dtypes


def _may_have_pairs(report: Report) -> bool:
    """Whether there are pairs, or dropouts that may stand behind an activation."""
    return (any(blocks.PAIR in what for _, _, what in report.fused)
        or any(one.kind == nn.Dropout.__name__ for one in report.swapped))


def _with_store(what: str, block: nn.Module) -> str:
    """What a block has as one node, with what its gated pairs keep, and by how much that is off, if it is not
    the default."""
    kept = getattr(block, "_outgrad_pairs", stores.DEFAULT_OF_PAIRS)
    if kept == stores.DEFAULT_OF_PAIRS:
        return what
    of = [part.activation for part in block.children()
        if isinstance(part, modules._Activation) and part.activation is not None]
    for one, said in ((blocks.PAIR, gates.bound), (blocks.DROPPED, gates.bound_of_dropped)):
        what = what.replace(one, f"{one} ({kept}: {said(kept, of)})")
    return what


# Of patched models. The second is that of what was decided after the first; the others are for those whose
# modules keep something else than they did before when their neighbours change.
_MOST_PASSES = 4


def _measured(model: nn.Module, example: Any, norms: Literal["fp32", "autocast"],
        by_kind: Mapping[str, str], error: float | None,
        taus: dict[Any, float | None]) -> tuple[Report, dict[str, torch.dtype]]:
    """_patched so that the model keeps the fewest bytes and never more than before, as measured. taus: of
    norms that had one."""
    before = _run(model, example, "forward pass before")
    plain = auto.before_any_choice(by_kind)
    tried: list[tuple[Any, dict[nn.Module, auto.Decision], str]] = []

    def patched(decided: dict[nn.Module, auto.Decision],
            pairs: str) -> tuple[Report, dict[str, torch.dtype]]:
        unpatch(model)
        found = _patched(model, norms, {**plain, "gated": pairs}, decided)
        for module, tau in taus.items():
            if _is_patched(module):
                module.tau = tau
        return found

    def settle(pairs: str) -> Report:
        """Tries what its neighbours make best for each module, while that saves bytes."""
        decided: dict[nn.Module, auto.Decision] = {}
        totals: list[int] = []
        while True:
            report, _ = patched(decided, pairs)
            what = "after" if pairs == plain["gated"] else f"with pairs in {pairs}"
            after = _run(model, example, f"forward pass {what}")
            tried.append((after, decided, pairs))
            totals.append(after.total)
            changed = after.changed - before.changed
            if len(totals) == _MOST_PASSES or (len(totals) > 1 and totals[-1] >= totals[-2] and not changed):
                return report
            found = auto.decide(report.swapped, functools.partial(_module_of, model),
                lambda module: by_kind.get(_kind_of_store(module)), before, after, error)
            found |= {one.name: auto.Decision(auto.PYTORCHS, "its output is changed in place afterwards")
                for one in report.swapped if changed & {one.name, one.name.rpartition(".")[0]}}
            if not found:
                return report
            decided = decided | {_module_of(model, name): one for name, one in found.items()}

    report = settle(plain["gated"])
    for pairs in auto.stores_of_pairs(by_kind, error) if _may_have_pairs(report) else ():
        settle(pairs)
    after, decided, pairs = min(tried, key=lambda one: (bool(one[0].changed - before.changed), one[0].total))
    report, dtypes = patched(decided, pairs)
    if after.total > before.total:
        unpatch(model)
        why = f"with ours the model keeps {after.total:,} bytes, with PyTorch's classes {before.total:,}"
        left = [LeftAlone(one.name, one.kind, why) for one in report.swapped]
        report, after = Report([], report.left_alone + left), before
    report.total_before, report.components_before = before.total, before.components
    report.total_after, report.components_after = after.total, after.components
    for one in report.swapped:
        one.bytes_before, one.bytes_after = before.alone[one.name], after.alone[one.name]
        one.chosen = by_kind.get(_kind_of_store(_module_of(model, one.name))) == stores.AUTO
    named = {one.name for one in report.swapped} | {one.name for one in report.left_alone}
    report.left_alone += [
        LeftAlone(name, _kind_before(_module_of(model, name)),
            f"it calls F.{function}, which is no module that could be swapped")
        for name, function in sorted(after.functions) if name not in named]
    types = before.types | after.types
    return report, {name: types.get(name, dtype) for name, dtype in dtypes.items()}


def _kind_of_store(module: nn.Module) -> Any:
    """What a mapping of stores calls a module of ours; None if it has no store."""
    if isinstance(module, modules._Norm):
        return "norm"
    return getattr(module, "activation" if isinstance(module, modules._Activation) else "kind", None)


def _expect(model: object, example: object, norms: object) -> None:
    """Raises an error that says which argument of patch cannot be used, and why."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"outgrad.patch: a module is needed, not {type(model).__name__}")
    if not is_one_of(norms, ("fp32", "autocast")):
        raise ValueError(f"outgrad.patch: norms is {shown(norms)}, neither 'fp32' nor 'autocast'")
    if example is not None and not isinstance(example, (torch.Tensor, tuple, list, Mapping)):
        raise TypeError(
            f"outgrad.patch: example is {type(example).__name__}, neither a tensor nor a tuple, list or "
            f"mapping of arguments")


def _swap(model: nn.Module, known: dict[type, type], report: Report, alone: dict[nn.Module, str],
        with_dropouts: bool) -> dict[str, torch.dtype]:
    """Gives modules and blocks their classes, but those that are left alone, and says so in the report. The
    result has for each swapped module's name the type of its parameters, or of the model's. with_dropouts:
    whether an activation and the dropout behind it are a block."""
    parameter = next((p for p in model.parameters() if p.is_floating_point()), None)
    dtypes: dict[str, torch.dtype] = {}
    in_blocks: set[int] = set()

    def becomes(kind: type) -> Callable[[nn.Module | None], bool]:
        def holds(child: nn.Module | None) -> bool:
            ours = None if child is None else _replacement(child, parameter, known, alone)[0]
            return isinstance(child, kind) or (ours is not None and issubclass(ours, kind))

        return holds

    becomes_norm, becomes_activation = becomes(modules._Norm), becomes(modules._Activation)
    becomes_dropout = becomes(modules.Dropout)

    for name, module in model.named_modules():
        kind = type(module)
        ours, why = _replacement(module, parameter, known, alone)
        if why is not None:
            report.left_alone.append(LeftAlone(name, kind.__name__, why))
        block = None if ours is not None else block_of(module, becomes_norm, becomes_activation,
            becomes_dropout, with_dropouts)
        becomes_kind = ours if block is None else block.ours
        if becomes_kind is None:
            continue
        module.__dict__["_outgrad_was"] = kind
        module.__class__ = becomes_kind
        if block is not None:
            in_blocks.update(id(module._modules[part]) for part in block.parts)
            report.fused.append((name, kind.__name__, block.what))
            continue
        if isinstance(module, modules._Norm):
            module.__dict__["_outgrad_name"] = name
        dtypes[name] = next(
            (p.dtype for p in (*module.parameters(recurse=False), parameter) if p is not None), torch.float32)
        report.swapped.append(Swapped(name, kind.__name__, ""))
    for one in report.swapped:
        module = _module_of(model, one.name)
        if (one.name and isinstance(module, (modules._Norm, modules._Activation))
                and id(module) not in in_blocks):
            outer = _module_of(model, one.name.rpartition(".")[0])
            report.apart.append((one.name, _kind_before(outer), why_apart(module)))
    return dtypes


# What patch, and what runs then, sets of a module.
_ADDED = ("_outgrad_was", "norms", "store", "_outgrad_pairs", "tau", "_outgrad_name",
    *modules._Norm.OF_THE_SEARCH)


def _give(module: nn.Module, setting: str, values: dict[str, Any]) -> None:
    """Gives a module a setting of a mapping, or none if the mapping has none."""
    if setting in values:
        module.__dict__[setting] = values[setting]
    else:
        module.__dict__.pop(setting, None)


def _set(name: str, module: nn.Module, norms: Literal["fp32", "autocast"],
        by_kind: Mapping[str, Any]) -> None:
    """Gives a patched module its settings."""
    if isinstance(module, modules._Norm):
        module.norms = norms
        module.set_store(by_kind["norm"], f"outgrad.patch: {_shown(name)}")
    elif isinstance(module, modules._Activation) and module.activation is not None:
        store = by_kind[module.activation]
        why = stores.why_not(module.activation, store)
        if why is not None:
            raise ValueError(f"outgrad.patch: {_shown(name)} cannot have the store {store!r}: {why}")
        _give(module, "store", {} if store == stores.DEFAULT else {"store": store})
    elif isinstance(module, (blocks.Rewritten, blocks.Sequence)):
        of_pairs = by_kind["gated"]
        _give(module, "_outgrad_pairs",
            {} if of_pairs == stores.DEFAULT_OF_PAIRS else {"_outgrad_pairs": of_pairs})
    for kind, (_, ours) in _OURS_WITH_STORE.items():
        if isinstance(module, ours):
            module.store = by_kind[kind]


def _describe(one: Swapped, module: Any, dtype: torch.dtype) -> None:
    """What the report says about a module whose output is of this type."""
    one.bound = module.bound(dtype)
    if isinstance(module, modules._Activation):
        one.store = module.store
        found = module._bounds(dtype)
        one.fit, one.sha256 = found.fit, found.sha256
    elif isinstance(module, modules._WithStore):
        one.store = module.store
    elif isinstance(module, modules._Norm):
        channels = module.side_channels(dtype)
        one.side_channels = [] if channels is None else channels.tolist()
        one.store = None if module.store == stores.DEFAULT_OF_NORMS else module.store


def _is_patched(module: nn.Module) -> bool:
    return "_outgrad_was" in module.__dict__


def _module_of(model: Any, name: str) -> Any:
    """The module of this name, also where an attribute hides it, which get_submodule would take: as in
    nn.TransformerDecoder, whose layers are copies."""
    return functools.reduce(lambda module, part: module._modules[part], filter(None, name.split(".")), model)


def _kind_before(module: nn.Module) -> str:
    """The name of the class that a module has without patch."""
    return module.__dict__.get("_outgrad_was", type(module)).__name__


def _is_of_ours(kind: type) -> bool:
    """Whether patch gives this class to modules; not one that another library has derived from it since."""
    return (kind.__module__.rpartition(".")[0] == __package__
        or any(issubclass(base, (blocks.OfKind, blocks.Rewritten)) and base.__module__ == blocks.__name__
        for base in kind.__bases__))


def _without_ours(kind: type, was: type) -> type | None:
    """A module's class with `was` in place of the class of ours that it is or descends from: parametrizations
    and FSDP2 derive a class from that of each module. None if a method in between names its class, as super()
    does: it would not take objects of another."""
    if _is_of_ours(kind):
        return was
    if not any(map(_is_of_ours, kind.__mro__)):
        return kind
    own = {name: one for name, one in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    bases: list[Any] = [_without_ours(base, was) for base in kind.__bases__]
    if None in bases or any("__class__" in one.__code__.co_freevars for one in own.values()
            if isinstance(one, types.FunctionType)):
        return None
    name = kind.__name__
    for before, base in zip(kind.__bases__, bases, strict=True):
        name = name.replace(before.__name__, base.__name__)
    return type(kind)(name, tuple(bases), own)


def _restore(module: nn.Module) -> str | None:
    """Gives a module its own class again, and leaves what others have made of the module since. The result is
    why that cannot be, or None."""
    own, now = module.__dict__, type(module)
    kind = _without_ours(now, own["_outgrad_was"])
    if kind is None:
        return f"another library has made its class {now.__qualname__} of ours"
    # accelerate's hooks keep the method that was there in the module, and so do others
    held = {name: one.__name__ for name, one in own.items() if isinstance(one, types.MethodType)
        and one.__self__ is module and one.__func__ is getattr(now, one.__name__, None)}
    if "forward" in own and kind is not now and not held:
        return "its forward was replaced since, by a function that may call ours"
    has_settings = isinstance(module, (modules._Norm, modules._Activation, modules._WithStore))
    module.__class__ = kind
    own.update({name: getattr(kind, method).__get__(module) for name, method in held.items()})
    for added in _ADDED if has_settings else ("_outgrad_was", "_outgrad_pairs"):
        own.pop(added, None)
    return None


def unpatch(model: _Module) -> _Module:
    """Undoes patch in a whole model or in one of its modules, and returns it. Every module has its own class
    again.

    Parameters and buffers were never touched. Modules that were created as this package's own stay so. What
    others have done since stays, too: parametrizations, FSDP2's classes, accelerate's hooks, another class. A
    module that cannot be freed of ours without breaking that stays patched, and a warning names it.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"outgrad.unpatch: a module is needed, not {type(model).__name__}")
    for name, module in model.named_modules():
        if _is_patched(module) and (why := _restore(module)) is not None:
            warnings.warn(f"outgrad.unpatch: {_shown(name)} stays patched: {why}", stacklevel=2)
    return model
