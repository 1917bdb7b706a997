"""Mesa's and ActNN's ways to keep x in few bits, mended, to compare outgrad's stores with. They are no part
of outgrad.

    import outgrad_peers                      # with notebooks_data/studies in PYTHONPATH
    outgrad_peers.patch(model, store="mesa")  # as outgrad.patch, whose words are known here, too

    mesa         x in 8 bits, rounded at random, with a range for each 64 columns, which a module follows
    actnn:K      x in K bits, 2, 4 or 8, rounded at random, with a range for each 256 elements
    actnn:auto:K the same with K bits, 2, 3 or 4, in the mean: 1 to 8 for each 256 elements, more where their
                 range is wide

quantisers.py has their arithmetic, and sharing.py shares the bits of actnn:auto:K between layers.
"""

import collections.abc
import contextlib
import dataclasses
import functools
import math

import outgrad
import torch
from outgrad import functional, library, modules, patching, stores

from . import quantisers

MESA, ACTNN, ACTNN_AUTO = "mesa", ("actnn:2", "actnn:4", "actnn:8"), ("actnn:auto:2", "actnn:auto:3",
    "actnn:auto:4")
OF_X = (MESA, *ACTNN, *ACTNN_AUTO)
STORES = (*stores.STORES, *OF_X)


def mean_bits(store):
    """K of actnn:auto:K; None for any other store."""
    return float(store[-1]) if store in ACTNN_AUTO else None


def why_not(activation, store):
    """Why an activation cannot have a store of STORES; None if it can."""
    if isinstance(store, str) and store in OF_X:
        return None
    why = stores.why_not(activation, store)
    return why if isinstance(store, str) and store in stores.STORES else f"{why}, and {', '.join(OF_X)}"


def bounds(activation="gelu", dtype=torch.float32, store=stores.DEFAULT, largest=None):
    """outgrad.bounds. Of a store that keeps x, whose error depends on the ranges, it is the width of f',
    which holds for every x, also where it was saturated."""
    if store not in OF_X:
        return outgrad.bounds(activation, dtype, store, largest)
    # f' is continuous, and the two values of a code of 1 bit are within its bound of all of it.
    width, gradient = outgrad.bounds(activation, dtype, "code:1"), outgrad.bounds(activation)
    return dataclasses.replace(gradient, total=math.nextafter(4 * width.total + gradient.total, math.inf),
        over=width.over)


# --- Functions ------------------------------------------------------------------------------------


@functools.cache
def _keeping_x(name, kind):
    """The operation x, how -> y that keeps x in few bits: encode(x, how) gives what is kept, and
    decode(shape, *kept) an x' in float32. The backward pass is that of y+bit in float32 from f(x')."""
    index, bits = library.ACTIVATIONS.index(name), None if kind in (MESA, "actnn:auto") else int(kind[-1])
    encode, decode = {
        MESA: (
            lambda x, ranges: (quantisers.mesa_encode(x, ranges), ranges.clone()),
            lambda _, codes, ranges: quantisers.mesa_decode(codes, ranges),
        ),
        "actnn:auto": (
            quantisers.actnn_auto_encode,
            lambda shape, *kept: quantisers.actnn_auto_decode(*kept, shape.numel()).view(shape),
        ),
    }.get(kind) or (
        lambda x, _: quantisers.actnn_encode(x, bits),
        lambda shape, *kept: quantisers.actnn_decode(*kept, bits, shape.numel()).view(shape),
    )

    def gradients(ctx, saved, dy):
        y, mask = library.activation_forward(decode(dy.shape, *saved[:-1]), index)
        return library.activation_backward(dy.float(), y, mask, index).to(dy.dtype), None

    return functional._Operation(name,
        lambda x, how: (library.activation_forward(x, index)[0], *encode(x, how)),
        lambda ctx, inputs, outputs: ctx.save_for_backward(*outputs[1:]), gradients, without_y=True)


_OPERATIONS = {(name, kind): _keeping_x(name, kind) for name in library.ACTIVATIONS
    for kind in (MESA, *ACTNN, "actnn:auto")}


def activation(name, x, store, how=None):
    """The activation of this name with a store of STORES. how: the ranges of mesa, [2, groups] in float32, in
    place of those of x; the bits of actnn:auto:K in the mean, 1 to 8, in place of K."""
    if (why := why_not(name, store)) is not None:
        raise ValueError(f"outgrad_peers.{name}: store: {why}")
    if store not in OF_X:
        return getattr(functional, name)(x, store=store)
    functional._expect(name, x=x)
    if store == MESA:
        return _OPERATIONS[name, store](x,
            quantisers.mesa_follow(None, quantisers.mesa_ranges(x)) if how is None else how)
    if store in ACTNN:
        return _OPERATIONS[name, store](x, None)
    return _OPERATIONS[name, "actnn:auto"](x, mean_bits(store) if how is None else how)


gelu = functools.partial(activation, "gelu")


# --- Modules --------------------------------------------------------------------------------------

_BITS = "_outgrad_bits"  # their key in the state dict


class _Peer:
    """What an activation module of outgrad gets to have these stores, too."""

    _outgrad_ranges = None  # those that the store mesa follows
    _outgrad_bits = None  # what share_bits gave to the store actnn:auto:K in place of K

    def require(self, store):
        if self.activation is None or not isinstance(store, str) or store not in OF_X:
            super().require(store)

    def forward(self, x):
        name = self.activation
        if name is None or self.store not in OF_X:
            return super().forward(x)
        x = modules._as_autocast_does(x) if name == "softplus" else x
        return activation(name, x, self.store, self._ranges(x) if self.store == MESA else self._outgrad_bits)

    def _ranges(self, x):
        """Mesa's running ranges. In training x moves them before they are used. They are a new tensor then,
        so that what a graph has kept stays as it was. Each process and each copy of the module has its own,
        and the state dict has none."""
        functional._expect(self.activation, x=x)
        now, before = quantisers.mesa_ranges(x), self._outgrad_ranges
        if before is not None:
            if before.shape != now.shape:
                groups = f"{before.shape[1]} groups of {quantisers.MESA_COLUMNS} columns"
                raise ValueError(
                    f"outgrad_peers.{type(self).__name__}: store mesa: the running ranges are of {groups}, "
                    f"x has {now.shape[1]} of them")
            before = before.to(x.device)
        moves = self.training and torch.is_grad_enabled()
        ranges = before if before is not None and not moves else quantisers.mesa_follow(before, now)
        if moves and not torch._C._are_functorch_transforms_active():  # else they would outlive the transform
            self._outgrad_ranges = ranges
        return ranges

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._outgrad_bits is not None:
            destination[prefix + _BITS] = torch.tensor(self._outgrad_bits, dtype=torch.float64)

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, *found):
        """Bits that were shared are loaded with the rest. Of a module with another store they are an
        unexpected key."""
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, *found)
        _, unexpected_keys, error_msgs = found
        if prefix + _BITS not in state_dict or mean_bits(self.store) is None:
            return
        bits = float(state_dict[prefix + _BITS])
        if 1 <= bits <= quantisers.ACTNN_MOST_BITS:
            self._outgrad_bits = bits
        else:
            error_msgs.append(
                f"{prefix}{_BITS} is {bits}, which is no mean of 1 to {quantisers.ACTNN_MOST_BITS} bits")
        if prefix + _BITS in unexpected_keys:
            unexpected_keys.remove(prefix + _BITS)

    def _bounds(self, dtype):
        return bounds(self.activation, dtype, self.store)

    def extra_repr(self):
        shared = self._outgrad_bits is not None and mean_bits(self.store) is not None
        return super().extra_repr() + (f", bits={self._outgrad_bits:.3g}" if shared else "")


_OURS = {kind: type(kind.__name__, (_Peer, kind), {"__module__": __name__, "__doc__": kind.__doc__})
    for kind in vars(modules).copy().values() if isinstance(kind, type)
    and issubclass(kind, modules._Activation) and kind is not modules._Activation}
globals().update({kind.__name__: kind for kind in _OURS.values()})
_WITHOUT = {ours: kind for kind, ours in _OURS.items()}


# --- patch ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _unmoved(model):
    """Puts back the ranges that modules follow."""
    before = [(module, module._outgrad_ranges) for module in model.modules() if isinstance(module, _Peer)]
    try:
        yield
    finally:
        for module, ranges in before:
            module._outgrad_ranges = ranges


def _forget(module):
    for setting in ("_outgrad_ranges", _BITS):
        module.__dict__.pop(setting, None)


def patch(model, example=None, norms="fp32", store=stores.DEFAULT):
    """outgrad.patch, for the stores of STORES. A module whose store stays keeps its ranges and bits."""
    by_kind = dict(store) if isinstance(store, collections.abc.Mapping) else dict.fromkeys(
        library.ACTIVATIONS, store)
    theirs = {kind: by_kind.pop(kind) for kind, one in [*by_kind.items()] if kind in library.ACTIVATIONS
        and one in OF_X}
    with _unmoved(model):
        before = [(module, module.store) for module in model.modules() if isinstance(module, _Peer)]
        # which measures for itself, unless what it would measure is not what runs then
        kept = None if example is None or not theirs else patching._run(model, example, "forward pass before")
        # outgrad.patch frees a model first, and would take these classes for another library's, which stay
        peers = [(module, type(module)) for module, _ in before if "_outgrad_was" in vars(module)]
        for module, kind in peers:
            module.__class__ = _WITHOUT[kind]
        try:
            report = outgrad.patch(model, None if theirs else example, norms, by_kind)
        except BaseException:
            for module, kind in peers:
                module.__class__ = kind
            raise
    for module, was in before:
        if theirs.get(module.activation) != was:
            _forget(module)
    for module in model.modules():
        if "_outgrad_was" in vars(module) and isinstance(module, modules._Activation):
            kind = _WITHOUT.get(type(module), type(module))
            module.__class__ = _OURS[kind] if module.activation in theirs else kind
            if module.activation in theirs:
                module.store = theirs[module.activation]
    if not theirs:
        return report
    types, by_name = {}, dict(model.named_modules())
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    if kept is not None:
        with _unmoved(model):
            after = patching._run(model, example, "forward pass after")
        report.total_before, report.components_before = kept.total, kept.components
        report.total_after, report.components_after, types = after.total, after.components, after.types
        for one in report.swapped:
            one.bytes_before, one.bytes_after = kept.alone[one.name], after.alone[one.name]
    for one in report.swapped:
        if isinstance(by_name[one.name], _Peer):
            patching._describe(one, by_name[one.name], types.get(one.name, dtype))
    return report


def unpatch(model):
    """outgrad.unpatch, after which nothing of these stores is left."""
    for module in model.modules():
        if isinstance(module, _Peer) and "_outgrad_was" in vars(module):
            _forget(module)
            module.__class__ = _WITHOUT.get(type(module), type(module))
    return outgrad.unpatch(model)


from .sharing import share_bits  # noqa: E402, F401  (it needs what is above)
