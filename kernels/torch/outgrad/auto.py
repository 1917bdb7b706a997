"""What each module of a model is to keep so that the model keeps the fewest bytes: of PyTorch's class, and of
ours with each store that the caller allows.

Two forward passes were watched, one with PyTorch's classes and one with ours, and each says which storages a
graph keeps and which modules keep them. A storage costs its bytes once, whoever keeps it: so y costs an
activation nothing where the next Linear keeps it, and all of its bytes where that Linear is frozen. What
PyTorch's class would keep in the second pass is what it kept in the first: storages are the same if the same
call of the same module had them as its input or its result. Hence no pass is needed for a choice, but only
one to measure what was chosen.
"""

import collections
import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import is_fake

from . import fp8, functional, library, modules, stores
from .arguments import shown
from .bounds import bounds

PYTORCHS = None  # in place of a store: the class that the module has without patch


class Call(NamedTuple):
    """One call of a module in a pass that was watched."""

    x: int | None  # the storage of its first tensor
    y: int | None  # of its result
    numel: int  # of the result
    dtype: torch.dtype | None
    graph: bool  # whether the result has a gradient


class Kept(NamedTuple):
    """What the graph of a forward pass keeps beside the model's parameters and buffers."""

    total: int  # bytes, each storage counted once
    alone: collections.Counter  # by module: the bytes that it alone keeps
    components: dict[str, int]  # by class of the modules, or that there are several
    types: dict[str, torch.dtype]  # of the modules' results
    owners: dict[int, set[str]]  # of each storage: the modules that keep it
    sizes: dict[int, int]  # of each storage that was kept or that a call had; 0: a parameter's
    calls: dict[str, list[Call]]  # of each module
    functions: set[tuple[str, str]]  # (a module's name, a function of PyTorch's that it calls itself)
    changed: set[str]  # the modules that keep what was changed in place afterwards

    def by_module(self) -> dict[str, set[int]]:
        """The storages that each module keeps."""
        found = collections.defaultdict(set)
        for storage, names in self.owners.items():
            for name in names:
                found[name].add(storage)
        return found


class Choice(NamedTuple):
    """What a module may keep."""

    store: str | None
    keeps: frozenset  # keys of storages


class Decision(NamedTuple):
    store: str | None
    why: str  # for PyTorch's class: with figures


def expect(by_kind: Mapping[str, str], error: object, example: object) -> None:
    """Raises an error that says why patch cannot choose stores."""
    if stores.AUTO not in by_kind.values():
        if error is not None:
            raise ValueError(
                f"outgrad.patch: error is {shown(error)}, but no store is 'auto', which alone has it")
        return
    if example is None:
        raise ValueError("outgrad.patch: store 'auto' needs an example: what the neighbours of a module keep "
            "is measured")
    if error is not None and not (isinstance(error, numbers.Real) and not isinstance(error, bool)
            and 0 < float(error) < math.inf):
        raise ValueError(f"outgrad.patch: error is {shown(error)}, which takes a positive number")


def before_any_choice(by_kind: Mapping[str, str]) -> dict[str, str]:
    """by_kind with the default store wherever one is to be chosen."""
    return {kind: stores.OTHERS.get(kind, (stores.DEFAULT,))[0] if store == stores.AUTO else store
        for kind, store in by_kind.items()}


def stores_of_pairs(by_kind: Mapping[str, str], error: float | None) -> tuple[str, ...]:
    """What gated pairs are tried with beside their default, which is exact: their product where the bound of
    its gradient, of any gate and type that has one, is within the error; and 8 bits, where a number is
    moved by no more than that of itself, unless it is far below its tensor's largest (gates.bound). mxfp8 is
    not: e4m3, of the same error, has no scales of blocks to keep."""
    if by_kind["gated"] != stores.AUTO or error is None:
        return ()
    of_products = max(library.product_error(name, dtype)[0] for name in library.PRODUCTS
        for dtype in (torch.float16, torch.bfloat16))
    least = {stores.OUTPUT: of_products, **{name: fp8.UNIT_ROUNDOFF[of] for name, of in library.FP8.items()}}
    return tuple(store for store, most in least.items() if most <= error)


_CODES = tuple(f"code:{bits}" for bits in range(1, 9))


def _stores_of(activation: str, dtype: torch.dtype, error: float | None, formats: Sequence[str]) -> list[str]:
    """The stores of an activation that are within an error for a y of this type, the default first, which
    always is; of codes the one with the fewest bits. formats: of 8 bits, in which others keep this y."""
    most = max(bounds(activation, dtype).total, error or 0)
    in_8_bits = (of + beside for of in formats for beside in ("", "+bit", "+2bits"))
    within = [store for store in (stores.DEFAULT, "parity", *in_8_bits, *_CODES)
        if stores.why_not(activation, store) is None and stores.for_type(store, dtype) == store
        and bounds(activation, dtype, store).total <= most]
    return [store for k, store in enumerate(within) if store not in _CODES or within[k - 1] not in _CODES]


def _of_activation(module: Any, calls: list[Any], error: float | None, sizes: dict[Any, int],
        in_8_bits: dict[tuple[Any, str], Any]) -> Iterator[Choice]:
    """The choices of an activation, with what each keeps. calls: those that are in a graph. in_8_bits: of
    _in_8_bits."""
    for store in _stores_of(module.activation, calls[0].dtype, error, _formats(calls, in_8_bits)):
        name, bits = stores.STORES[store]
        of, keeps = library.STORES[name], set()
        for call in calls:
            if of.keeps_y:
                keeps.add(call.y)
            if of.takes_scale:
                keeps.add(in_8_bits[call.y, name])
            has_mask = of.keeps_mask and module.activation in library.MASKED
            keeps.add(_own(sizes, 4 * -(-call.numel // 32) if has_mask else -(-call.numel * bits // 8)))
        yield Choice(store, frozenset(keeps))


def _of_norm(module: Any, calls: list[Any], error: float | None, sizes: dict[Any, int],
        in_8_bits: dict[tuple[Any, str], Any]) -> Iterator[Choice]:
    """The choices of a norm that are not its default, which is as exact as today and always allowed."""
    _, weight, bias, *_ = module._arguments()
    if weight is None or weight.is_meta or is_fake(weight):  # without values
        return
    for store, (group, size) in library.NORM_STORES.items():
        if (error is None or error < functional.largest_storage_error(calls[0].dtype, store)
                or functional.norm_store_why_not(store, weight.numel()) is not None):
            continue
        gamma, beta = module._affine(weight, bias)
        channels = functional.chosen_channels(gamma, beta, calls[0].dtype, module.tau, store)
        of_row = 4 * (1 + (0 if channels is None else channels.numel()))
        own = ((call.numel // group if group else 1) * size + call.numel // weight.numel() * of_row
            for call in calls)
        codes = (in_8_bits.get((call.y, store)) or _own(sizes, call.numel) for call in calls)
        yield Choice(store, frozenset((*codes, *(_own(sizes, each) for each in own))))


def _in_8_bits(swapped: Sequence[Any], module_of: Callable[[str], nn.Module], after: Kept,
        kept: dict[str, set[Any]]) -> dict[tuple[Any, str], Any]:
    """{(a storage, a format of 8 bits): the codes of it that Linears keep}."""
    found = {}
    for one in swapped:
        if isinstance(module := module_of(one.name), modules.Linear) and module.store in library.FP8:
            for call in after.calls.get(one.name, ()):
                codes = kept.get(one.name, set()) - {call.x}
                if call.x is not None and codes:  # beside a scale
                    found[call.x, module.store] = max(codes, key=after.sizes.__getitem__)
    return found


def _formats(calls: list[Call], in_8_bits: dict[tuple[Any, str], Any]) -> list[str]:
    return [of for of in library.FP8 if all((call.y, of) in in_8_bits for call in calls)]


def _own(sizes: dict[Any, int], count: int) -> Any:
    """A key for a storage that does not exist yet."""
    key = "new", len(sizes)
    sizes[key] = count
    return key


def _choices(swapped: Sequence[Any], module_of: Callable[[str], nn.Module],
        asked: Callable[[nn.Module], str | None], before: Kept, after: Kept,
        error: float | None) -> tuple[dict[str, list[Choice]], dict[Any, int], set[Any]]:
    """({name: what that module may keep, what it keeps now first, PyTorch's class last}, {storage: bytes},
    the storages that modules without a choice keep).

    Where a module of ours is called no more, because it is a part of a node of the module above it, a gated
    pair's, that one and the parts of its node have one choice together, under the part's name."""
    sizes: dict[Any, int] = dict(after.sizes)
    found: dict[str, list[Choice]] = {}
    choosing: set[str] = set()
    as_after = _as_after(before, after, sizes)
    own = {one.name for one in swapped if after.calls.get(one.name)}
    kept_before, kept_after = before.by_module(), after.by_module()
    in_8_bits = _in_8_bits(swapped, module_of, after, kept_after)
    for name in (one.name for one in swapped):
        names, of_pass = ({name}, after) if name in own else (set(), before)
        if name not in own and before.calls.get(name):
            above = name[: name.rfind(".") + 1]
            names = {one for one in before.calls if one not in own | choosing
                and (one.startswith(above) or f"{one}." == above)}
        if not (ours := _union(kept_after, names)):
            continue
        module, calls = module_of(name), [call for call in of_pass.calls[name] if call.graph]
        theirs, others = {as_after[one] for one in _union(kept_before, names)}, []
        if (asked(module) == stores.AUTO and calls and calls[0].dtype in library.FORMATS
                and all(call.y is not None for call in calls)):
            of_kind = _of_norm if isinstance(module, modules._Norm) else _of_activation
            others = list(of_kind(module, calls, error, sizes, in_8_bits))
        if name not in own:
            # With another store than the default the node is none: beside the activation all is PyTorch's.
            beside = {as_after[one] for one in _union(kept_before, names - {name})}
            others = [Choice(one.store, frozenset(beside.union(as_after.get(key, key) for key in one.keeps)))
                for one in others]
        now = getattr(module, "store", stores.DEFAULT)
        found[name] = [Choice(now, frozenset(ours)), *(one for one in others if one.store != now),
            Choice(PYTORCHS, frozenset(theirs))]
        choosing |= names
    return found, sizes, {storage for storage, owners in after.owners.items() if owners - choosing}


def _union(kept: dict[str, set[Any]], names: Iterable[str]) -> set[Any]:
    return set().union(*(kept[name] for name in names if name in kept))


def _as_after(before: Kept, after: Kept, sizes: dict[Any, int]) -> dict[Any, Any]:
    """For each storage of the pass before the one of the pass after that the same call has; where there is
    none, it is one of its own."""
    same: dict[Any, Any] = {}
    for name, calls in before.calls.items():
        others = after.calls.get(name, [])
        for call, other in zip(calls, others) if len(calls) == len(others) else ():
            for old, new in ((call.x, other.x), (call.y, other.y)):
                if None not in (old, new):
                    same.setdefault(old, new)
    return {storage: same[storage] if storage in same else _own(sizes, before.sizes[storage])
        for storage in before.sizes}


# --- The fewest bytes -----------------------------------------------------------------------------


class _State:
    """Which of its choices each module has, and what that keeps."""

    def __init__(self, choices: dict[str, list[Choice]], sizes: dict[Any, int], fixed: set[Any]) -> None:
        self.sizes, self.fixed = sizes, fixed
        self.now: dict[str, Choice] = {}
        self.keepers: collections.Counter[Any] = collections.Counter()
        for name, (first, *_) in choices.items():
            self.put(name, first)

    def put(self, name: str, choice: Choice) -> None:
        self.now[name] = choice
        self.keepers.update(choice.keeps)

    def take(self, name: str) -> None:
        self.keepers.subtract(self.now.pop(name).keeps)

    def adds(self, choice: Choice) -> int:
        """The bytes that a choice would add to what is kept without it."""
        return sum(self.sizes[one] for one in choice.keeps if one not in self.fixed and not self.keepers[one])

    def try_to_give(self, options: dict[str, list[Choice]]) -> bool:
        """Gives each module of {module: choices} the cheapest of them, in this order; takes that back and is
        False if no bytes are saved."""
        before, saved = {name: self.now[name] for name in options}, 0
        for name in options:
            self.take(name)
        for name, choice in before.items():
            saved += self.adds(choice)
            self.put(name, choice)
        for name in options:
            self.take(name)
        for name, choices in options.items():
            choice = min(choices, key=self.adds)
            saved -= self.adds(choice)
            self.put(name, choice)
        if saved <= 0:
            for name, choice in before.items():
                self.take(name)
                self.put(name, choice)
        return saved > 0


def _settle(state: _State, choices: dict[str, list[Choice]]) -> None:
    """Changes the choices of one module, or of all that could share a storage, while that saves bytes."""
    sharing = collections.defaultdict(list)
    for name, options in choices.items():
        for key in {key for choice in options for key in choice.keeps} - state.fixed:
            sharing[key].append(name)
    moves = [{name: options} for name, options in choices.items()]
    for key, names in sharing.items():
        if len(names) > 1:
            for with_it in (True, False):
                moves.append({name: [choice for choice in choices[name] if (key in choice.keeps) == with_it]
                    or choices[name] for name in names})
    while any([state.try_to_give(move) for move in moves]):
        pass


def decide(swapped: Sequence[Any], module_of: Callable[[str], nn.Module],
        asked: Callable[[nn.Module], str | None], before: Kept, after: Kept,
        error: float | None = None) -> dict[str, Decision]:
    """{module: Decision} for those that should have another class or store than in the pass after.

    swapped: the report's rows of modules that have a class of ours. module_of(name): a module. asked(module):
    the store that the caller asked for. before, after: Kept of the two passes."""
    choices, sizes, fixed = _choices(swapped, module_of, asked, before, after, error)
    state, found = _State(choices, sizes, fixed), {}
    _settle(state, choices)
    for name, (was, *others) in choices.items():
        if (now := state.now[name]) is not was:
            state.take(name)
            kept, instead = state.adds(now), min(map(state.adds, [was, *others[:-1]]))
            state.put(name, now)
            why = f"PyTorch's class keeps {kept:,} bytes that nothing else keeps, ours {instead:,}"
            found[name] = Decision(now.store, why if now.store is PYTORCHS else "")
    return found
