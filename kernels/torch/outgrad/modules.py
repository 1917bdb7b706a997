"""Modules with the names, parameters and state_dict of PyTorch's own, whose backward pass reads the
output."""

import math
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import is_fake
from torch.utils._python_dispatch import _disable_current_modes

from . import drift, fp8, functional, graphs, library, sharded, stores
from .arguments import is_within
from .bounds import Bounds, bounds, rounded_up
from .linear import linear
from .softmax import softmax


# What the common parts are mixed into: no module at run time, so that they leave the order of bases alone.
if TYPE_CHECKING:

    class _Base(graphs.Ours, nn.Module):
        pass
else:
    _Base = graphs.Ours


class _Activation(_Base):
    """The common part of the activation modules: which activation of the catalogue a module is, what it keeps
    for the backward pass, and its bound."""

    store = stores.DEFAULT  # one of outgrad.stores, by the constructor, by patch, or assigned
    _activation: str | None

    def __init__(self, *args: Any, store: str = stores.DEFAULT, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.require(store)
        if store != stores.DEFAULT:
            self.store = store

    def require(self, store: str) -> None:
        """Raises ValueError if this module cannot have a store."""
        if self.activation is None:
            why = None if store == stores.DEFAULT else "it computes as PyTorch does, which keeps its input"
        else:
            why = stores.why_not(self.activation, store)
        if why is not None:
            raise ValueError(f"outgrad.{type(self).__name__}: store: {why}")

    @property
    def activation(self) -> str | None:
        """The activation's name in outgrad.bounds; None if the module computes as PyTorch does."""
        return self._activation

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if graphs.is_symbol(input):
            return graphs.as_node(self, input)
        name = self.activation
        return super().forward(input) if name is None else getattr(functional, name)(input, store=self.store)

    def _bounds(self, dtype: torch.dtype) -> Bounds:
        activation: Any = self.activation
        return bounds(activation, dtype, self.store)

    def bound(self, dtype: torch.dtype) -> str:
        """In words, how far the gradient may be from the exact one if the output is of dtype."""
        return str(self._bounds(dtype))

    def extra_repr(self) -> str:
        if self.activation is None:
            return super().extra_repr()
        store = "" if self.store == stores.DEFAULT else f"store={self.store!r}"
        return ", ".join(filter(None, [super().extra_repr(), store,
            *(f"{name}: {self.bound(dtype)}" for name, dtype in _FORMAT_NAMES.items())]))


class GELU(_Activation, nn.GELU):
    """nn.GELU from its output, in both of its forms."""

    # for an object that was made as Hugging Face's GELUActivation, which lacks this attribute
    approximate = "none"
    _FORMS = {"none": "gelu", "tanh": "gelu_tanh"}

    @property
    def activation(self) -> str | None:
        form = self.approximate
        return self._FORMS.get(form) if isinstance(form, str) else None  # PyTorch reports any other value


class TanhGELU(GELU):
    """GELU's tanh form, for an object that was made as one of Hugging Face's classes, which have no attribute
    for it."""

    approximate = "tanh"


class QuickGELU(_Activation, nn.Module):
    """x sigmoid(1.702 x) from its output."""

    _activation = "quick_gelu"


class SiLU(_Activation, nn.SiLU):
    """nn.SiLU from its output. inplace has no effect: nothing of the input is kept anyway."""

    _activation = "silu"
    inplace = False  # of an object that was made as another class


class Mish(_Activation, nn.Mish):
    """nn.Mish from its output. inplace has no effect: nothing of the input is kept anyway."""

    _activation = "mish"
    inplace = False  # of an object that was made as another class


def _as_autocast_does(x: torch.Tensor) -> torch.Tensor:
    """x as PyTorch's autocast for GPUs gives it to a softplus or a softmax, which is in float32."""
    return (x.float() if torch.is_autocast_enabled("cuda") and x.device.type == "cuda"
        and x.dtype in library.FORMATS else x)


class Softplus(_Activation, nn.Softplus):
    """nn.Softplus from its output, for beta = 1 and a threshold of 20, PyTorch's default, or more (otherwise
    as in PyTorch). f is evaluated everywhere: from 20 on, where PyTorch gives x itself, the two round to the
    same numbers."""

    LEAST_THRESHOLD = 20

    @property
    def activation(self) -> str | None:
        usual = is_within(self.beta, 1, 1) and is_within(self.threshold, self.LEAST_THRESHOLD)
        return "softplus" if usual else None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(_as_autocast_does(input))


class ELU(_Activation, nn.ELU):
    """nn.ELU from its output, for alpha = 1 (otherwise as in PyTorch). inplace has no effect, as in SiLU."""

    @property
    def activation(self) -> str | None:
        return "elu" if is_within(self.alpha, 1, 1) else None


_FORMAT_NAMES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def _power_of_two(value: float) -> str:
    """The least power of two that is not less than the argument."""
    return f"2^{math.ceil(math.log2(value))}" if value > 0 else "0"


def _equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Whether two parameters have the same values, or both are missing."""
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


def _parameter(module: nn.Module, name: str) -> Any:
    """module.name, which nn.Module takes 0.5 us to find. What stands for a parameter under FSDP1 or a
    parametrization is no entry of the dictionary."""
    own = module._parameters
    return own[name] if name in own else getattr(module, name)


def _whole(parameter: Any) -> Any:
    return parameter.full_tensor() if sharded.is_sharded(parameter) else parameter


_UNWATCHED = None, None, 0.0  # what _Norm._side gives where there are no side channels and nothing is tested


class _Found(NamedTuple):
    """The side channels that a norm has found."""

    key: tuple  # what they were searched for
    # of the parameters, where values are compared in each pass of eager mode; empty: nothing is, they are
    # searched for again
    copies: tuple | None
    channels: torch.Tensor | None
    watched: tuple  # (channels, seen, tau) for the kernels in eager mode

    def holds(self, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
        """Whether these parameters have the values that the channels are of, where values are compared."""
        if not self.copies:
            return self.copies is None
        return torch.equal(weight, self.copies[0]) and (bias is None or torch.equal(bias, self.copies[1]))


class _Norm(_Base):
    """The common part of norms: their behaviour under autocast, and which channels have side buffers."""

    # The type of norms under autocast. "fp32": fp32, as in PyTorch's autocast for GPUs (the one for CPUs
    # leaves norms in the type of their input). "autocast": autocast's type, which takes half the bytes.
    norms = "fp32"
    # what is kept in place of y: one of stores.OF_NORMS, by the constructor or by patch
    store = stores.DEFAULT_OF_NORMS
    tau = None  # for functional.side_channels; None: its default for the output's type
    _outgrad_found: Any = None  # a _Found
    _outgrad_stale = False  # whether the channels are to be searched for again
    _outgrad_changes = 0  # how often the channels found have changed, or may have
    # two numbers on the parameters' device, by which the kernels say that a channel has drifted (drift.py)
    _outgrad_seen = None
    _outgrad_looks = -1  # drift.looks when this norm ran last
    _outgrad_name = None  # in a patched model
    # (what was asked for, a _Found, weak references to the parameters) of a pass in eager mode
    _outgrad_last: Any = None
    # which no copy of a norm has
    OF_THE_SEARCH: tuple[str, ...] = ("_outgrad_found", "_outgrad_stale", "_outgrad_changes", "_outgrad_seen",
        "_outgrad_looks", "_outgrad_last")

    def __init__(self, *args: Any, store: str = stores.DEFAULT_OF_NORMS, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.set_store(store, f"outgrad.{type(self).__name__}")

    def _arguments(self) -> tuple[Any, ...]:
        """The shape of a row (None if it is not known), weight and bias (or None), eps, and whether it is an
        RMSNorm."""
        raise NotImplementedError

    def set_store(self, store: str, who: str) -> None:
        """Sets what is kept in place of y; raises ValueError if this norm cannot have it."""
        shape, *_ = self._arguments()
        columns = 0 if shape is None else math.prod(shape)  # 0: told when it runs
        if (why := functional.norm_store_why_not(store, columns)) is not None:
            raise ValueError(f"{who}: store: {why}")
        self.__dict__.pop("store", None)
        if store != stores.DEFAULT_OF_NORMS:
            self.store = store

    def _input(self, x: torch.Tensor) -> torch.Tensor:
        if not torch._C._is_any_autocast_enabled():
            return x
        if not (isinstance(x, torch.Tensor) and functional.is_autocast(x) and x.dtype in library.FORMATS):
            return x
        return x.to(torch.get_autocast_dtype(x.device.type)) if self.norms == "autocast" else x.float()

    def side_channels(self, dtype: torch.dtype | None = None) -> torch.Tensor | None:
        """The columns that have a side buffer if the output is of dtype (by default that of last time, at
        first the weight's): int32, ascending; None if there are none.

        They are chosen with a margin, for half of tau, because gamma and beta drift in training. On a CPU in
        eager mode they are searched for whenever a parameter has other values than last time. Values are
        compared, which takes 2 us, because FSDP refills an array, and code writes to .data, without a new
        version of the tensor. Elsewhere they are searched for where a drift has been seen (drift.py),
        and after load_state_dict, a move or choose_again.
        """
        _, weight, bias, *_ = self._arguments()
        if weight is None:
            return None
        if dtype is None:
            dtype = weight.dtype if self._outgrad_found is None else self._outgrad_found.key[0]
        found = self._find(dtype, weight, bias)
        return None if found is None else found.channels

    # torch.compile calls it while tracing, with the current parameters, and treats the result as a constant,
    # because the number of channels is part of the shapes of a graph. (This is
    # torch.compiler.assume_constant_result without its import of the compiler.)
    setattr(side_channels, "_dynamo_marked_constant", True)

    def _find(self, dtype: torch.dtype, weight: torch.Tensor, bias: torch.Tensor | None) -> _Found | None:
        """A _Found; None for a fake weight, which has no values, if nothing was found before."""
        # Parameters that have values are looked at where the input has none, too, and a pass that a selective
        # checkpoint recomputes searches for nothing.
        if library.is_in_selective_checkpoint() or (library.is_faked() and not is_fake(weight)):
            with _disable_current_modes():
                return self._find(dtype, weight, bias)
        known, transforms = self._outgrad_found, torch._C._are_functorch_transforms_active()
        key = (dtype, self.tau, self.store, weight.device, type(weight), weight.dtype,
            None if bias is None else bias.dtype)
        stale = self._outgrad_stale or transforms
        if known is not None and known.key == key and not stale and known.holds(weight, bias):
            return known
        if weight.is_meta or is_fake(weight):  # torch.export traces with such ones
            known_still = known is not None and known.key[0] == dtype and not stale
            return known if known_still and library.is_exporting() else None
        if transforms:
            channels = self._searched(weight, bias, dtype)
            # not kept, because it would outlive the transform
            return _Found(key, None, channels, (channels, None, 0.0))
        device = weight.device
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"outgrad.{type(self).__name__}: which channels keep x^ is not known in a capture: run the "
                f"model once before it")
        # a result found in evaluation must serve training, and none is a part of what torch.jit.trace traces
        with torch.inference_mode(False), torch.no_grad(), graphs.untraced():
            copies = tuple(None if p is None else _whole(p.detach()).clone() for p in (weight, bias))
            channels = self._searched(copies[0], copies[1], dtype)
            if self._outgrad_seen is None or self._outgrad_seen.device != device:
                self._outgrad_seen = torch.zeros(2, dtype=torch.int32, device=device)
                drift.watch(self)
        if not _equal(channels, None if known is None else known.channels):
            self._outgrad_changes += 1
        on_host = device.type in drift.AT_ONCE
        seen, tau = (None, 0.0) if on_host else (self._outgrad_seen, self._most_moved(dtype))
        compared = () if sharded.is_sharded(weight) else copies if on_host else None
        self._outgrad_found, self._outgrad_stale = (_Found(key, compared, channels, (channels, seen, tau)),
            False)
        return self._outgrad_found

    def _searched(self, weight: torch.Tensor | None, bias: torch.Tensor | None,
            dtype: torch.dtype) -> torch.Tensor | None:
        # of y in 8 bits drift.py compares the values after each step
        margin = 2 if self.store == stores.DEFAULT_OF_NORMS else 1
        weight, bias = self._affine(weight, bias)
        return functional.chosen_channels(weight, bias, dtype, self.tau, self.store, margin)

    def has_moved(self) -> torch.Tensor:
        """Whether a channel that was not found needs a side buffer now: a tensor where the parameters are."""
        _, weight, bias, *_ = self._arguments()
        found = self._outgrad_found
        weight, bias = self._affine(*(None if p is None else _whole(p.detach()) for p in (weight, bias)))
        return functional.loses_channels(weight, bias, found.key[0], self.tau, self.store, found.channels)

    def choose_again(self) -> None:
        """Searches for the channels in the next forward pass: after a change of gamma or beta by hand."""
        self._outgrad_stale = True
        self._outgrad_changes += 1

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        # on another device or in another type: compiled graphs are made anew by themselves
        self._outgrad_stale, self._outgrad_last = True, None
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._outgrad_last = None  # torch.utils.swap_tensors refuses what weak references point to
        super()._load_from_state_dict(*args, **kwargs)
        self.choose_again()

    def _most_moved(self, dtype: torch.dtype) -> float:
        return functional.most_moved(dtype, self.store, self.tau)

    def _side(self, x: torch.Tensor, weight: torch.Tensor | None,
            bias: torch.Tensor | None) -> tuple[torch.Tensor | None, torch.Tensor | None, float]:
        """The channels, and what the kernels test: (channels, where they say what they have seen, tau)."""
        if weight is None or x.dtype not in library.FORMATS or not (torch.is_grad_enabled()
                or torch._C._get_tracing_state()):  # torch.jit.trace traces twice, once without gradients
            return _UNWATCHED
        if torch.compiler.is_compiling():
            return self._side_compiled(x, weight, bias)
        if type(weight) not in sharded.PLAIN:
            weight, bias = sharded.part_of(weight), sharded.part_of(bias)
        found = self._find(x.dtype, weight, bias)
        if found is None:
            return _UNWATCHED
        if found.watched[1] is not None:
            drift.runs(self)
        return found.watched

    def _side_compiled(self, x: torch.Tensor, weight: torch.Tensor,
            bias: torch.Tensor | None) -> tuple[torch.Tensor | None, torch.Tensor | None, float]:
        channels = self.side_channels(x.dtype)
        # _outgrad_changes is a guard: if a call of side_channels() finds other channels, or the kernels have
        # seen a drift, the graph is made anew.
        seen = self._outgrad_seen if self._outgrad_changes >= 0 else None
        if seen is None:
            return channels, None, 0.0
        if self.store != stores.DEFAULT_OF_NORMS:
            functional.expect_8_bits(*self._affine(weight, bias), x.dtype, self.tau, self.store, channels)
        # of a graph of torch.export nobody asks what it has seen
        return channels, None if library.is_exporting() else seen, self._most_moved(x.dtype)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None, p: float = 0.0) -> torch.Tensor:
        """With a residual, of x's shape and type: of dropout(x, p) + residual, as one node."""
        if graphs.is_symbol(x):
            return graphs.as_node(self, x)
        return self._norm(self._input(x), residual, p)

    def _norm(self, x: torch.Tensor, residual: torch.Tensor | None = None, p: float = 0.0) -> torch.Tensor:
        if residual is not None and self.store != stores.DEFAULT_OF_NORMS:
            x, residual = functional.dropout(x, p) + residual, None
        name, columns, of_norm = self._of(x, residual)
        if residual is None:
            return functional.norm(name, x, columns, of_norm, self.store)
        p = functional.checked_probability(functional.DROPOUT_ADD[name], p, True)
        return functional.dropout_add(name, x, residual, p, columns, of_norm)

    def of_lost_sum(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """y of x + residual, in one type and of one shape, as one node; not under autocast."""
        return self._norm(x, residual)

    def of_sum(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(y, z) of z = x + residual, where z is needed too; as of_lost_sum."""
        name, columns, of_norm = self._of(x, residual, functional.ADD)
        return functional.add(name, x, residual, columns, of_norm)

    def of_linear(self, h: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
            residual: torch.Tensor, p: float) -> torch.Tensor:
        """y of dropout(linear(h, weight, bias), p) + residual as one node; not under autocast. The Linear is
        one of PyTorch, whose result has residual's shape and type."""
        name, columns, of_norm = self._of(residual)
        return functional.norm_of_linear(name, h, weight, bias, residual, p, columns, of_norm)

    def of_mlp(self, x: torch.Tensor,
            mlp: tuple[torch.Tensor, torch.Tensor | None, str, torch.Tensor, torch.Tensor | None],
            p: float) -> torch.Tensor:
        """y of dropout(linear(h, weight2, bias2), p) + x with h = activation(linear(x, weight1, bias1)) as
        one node, mlp being (weight1, bias1, the activation's name, weight2, bias2); as of_linear."""
        name, columns, of_norm = self._of(x)
        return functional.norm_of_mlp(name, x, mlp, p, columns, of_norm)

    def _affine(self, weight: Any, bias: torch.Tensor | None) -> tuple[Any, torch.Tensor | None]:
        """gamma and beta of the parameters of these names."""
        return weight, bias

    def takes_as_it_is(self, x: torch.Tensor) -> bool:
        """Whether it normalises x, outside of autocast, in the type that x has."""
        return True

    def _of(self, x: torch.Tensor, residual: torch.Tensor | None = None,
            functions: dict[str, str] = functional.DROPOUT_ADD) -> tuple[str, int, tuple[Any, ...]]:
        """(layer_norm or rms_norm, the columns, what functional calls of_norm) of a norm of x or of a sum
        with x, for which `functions` has the name of the function that errors are of."""
        shape, weight, bias, eps, rms = self._arguments()
        name = "rms_norm" if rms else "layer_norm"
        if not isinstance(x, torch.Tensor) or x.is_nested:
            functional._expect(name, x=x)
        found = self._found_last_time(x, shape, weight, bias, eps)
        if found is not None:
            if residual is not None:
                functional.expect_residual(functions[name], x, residual)
            return name, shape[0], (weight, bias, eps, rms, *found.watched)
        side = self._side(x, weight, bias)
        gamma, beta = (weight, bias) if weight is None else self._affine(weight, bias)
        of_norm, shape = (gamma, beta, eps, rms, *side), x.shape[-1:] if shape is None else shape
        columns, of_norm = (functional.checked(name, x, shape, of_norm, self.store) if residual is None
            else functional.checked_of_sum(functions[name], x, residual, shape, of_norm))
        gamma, beta, *_ = of_norm
        if not torch.compiler.is_compiling():  # where what a module remembers is a guard
            found = self._outgrad_found
            if (found is not None and side is found.watched and gamma is weight and beta is bias
                    and weight is not None and type(weight) in sharded.PLAIN):
                asked = (x.dtype, x.device, shape, eps, self.store, self.tau, weight.dtype,
                    None if bias is None else bias.dtype)
                self.__dict__["_outgrad_last"] = (asked, found, weakref.ref(weight),
                    weakref.ref(self if bias is None else bias))
        return name, columns, of_norm

    def _found_last_time(self, x: torch.Tensor, shape: Any, weight: torch.Tensor | None,
            bias: torch.Tensor | None, eps: float) -> _Found | None:
        """The side channels of a pass in eager mode that looked at everything, if only x is new since and is
        as it was then. To look at everything again takes the host as long as a launch or two."""
        if torch.compiler.is_compiling() or (last := self._outgrad_last) is None or weight is None:
            return None
        asked, found, last_weight, last_bias = last
        if (last_weight() is not weight or last_bias() is not (self if bias is None else bias)
                or self._outgrad_stale or self._outgrad_found is not found or not torch.is_grad_enabled()
                or asked != (x.dtype, x.device, shape, eps, self.store, self.tau, weight.dtype,
                    None if bias is None else bias.dtype)
                or x.shape[-1:] != shape or x.layout is not torch.strided
                or torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active()
                or torch._C._get_tracing_state()
                or (found.copies is not None and not found.holds(weight, bias))):
            return None
        if found.watched[1] is not None:
            drift.runs(self)
        return found

    def bound(self, dtype: torch.dtype) -> str:
        """In words, how far an x^ that the backward pass reads from y may be from the x^ of the forward
        pass."""
        return self._moved(_power_of_two(self._most_moved(dtype)),
            _power_of_two(functional.UNIT_OF_STORE.get(self.store, functional.UNIT_ROUNDOFF[dtype])))

    def _moved(self, tau: str, u: str) -> str:
        if self.store != stores.DEFAULT_OF_NORMS:
            return (f"storing y in {self.store} moves x^ by at most {tau} + {u} |x^| where no |x^| with the "
                f"same scale exceeds 6")
        return f"storing y moves x^ by at most {tau} + {u} |x^|"

    def _moved_in_every_type(self) -> str:
        if self.store != stores.DEFAULT_OF_NORMS:
            return self.bound(torch.float32)
        return self._moved("min(2^-4, 128 u)" if self.tau is None
            else _power_of_two(self._most_moved(torch.float32)), "u")

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self._moved_in_every_type()}"

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles do not carry the channels; they search for them themselves."""
        return {name: value for name, value in self.__dict__.items() if name not in self.OF_THE_SEARCH}


class LayerNorm(_Norm, nn.LayerNorm):
    """nn.LayerNorm from its output; u in its repr is the unit roundoff of the output's type."""

    def forward(self, input: torch.Tensor, residual: torch.Tensor | None = None,
            p: float = 0.0) -> torch.Tensor:
        if graphs.is_symbol(input):
            return graphs.as_node(self, input)
        return self._norm(self._input(input), residual, p)

    def _arguments(self) -> tuple[Any, ...]:
        weight, bias = _parameter(self, "weight"), _parameter(self, "bias")
        if weight is None and bias is not None:  # whose channels are to be found all the same
            weight = torch.ones_like(bias)
        return self.normalized_shape, weight, bias, self.eps, False


class RMSNorm(_Norm, nn.RMSNorm):
    """nn.RMSNorm from its output; u in its repr is the unit roundoff of the output's type."""

    def _arguments(self) -> tuple[Any, ...]:
        return (self.normalized_shape, _parameter(self, "weight"), None,
            functional.EPS_OF_RMS if self.eps is None else self.eps, True)


class _WithStore(_Base):
    """The common part of modules that are no activations and keep what a store of stores.OTHERS says."""

    kind: str
    store: str

    def __init__(self, *args: Any, store: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if store is not None:
            self.store = store
            self._expect_store()

    def _expect_store(self) -> None:
        if (why := stores.why_not_other(self.kind, self.store)) is not None:
            raise ValueError(f"outgrad.{type(self).__name__}: store: {why}")

    @property
    def _as_pytorch(self) -> bool:
        return self.store == stores.OTHERS[self.kind][0]

    def _bound(self, dtype: torch.dtype | None) -> str:
        raise NotImplementedError

    def bound(self, dtype: torch.dtype | None = None) -> str:
        """In words, how far a gradient may be from the exact one if x is of dtype."""
        return "as in PyTorch" if self._as_pytorch else self._bound(dtype)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, store={self.store!r}, {self.bound()}"


class Linear(_WithStore, nn.Linear):
    """nn.Linear that keeps its input in 8 bits, store e4m3 or e5m2, or rows of it that are drawn at random,
    rows:1 to rows:99 percent, also with +e4m3 or +e5m2, or as PyTorch does, store x (linear.py)."""

    kind = "linear"
    store = stores.OTHERS[kind][0]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if graphs.is_symbol(input):
            return graphs.as_node(self, input)
        return (super().forward(input) if self._as_pytorch or not functional.linear_is_pytorchs()
            else linear(input, self.weight, self.bias, self.store))

    def _bound(self, dtype: torch.dtype | None) -> str:
        percent, name = stores.OF_LINEARS[self.store]
        relative, least, absolute = "u", "t'", ""
        if dtype is not None:
            relative = _power_of_two(functional.UNIT_ROUNDOFF[dtype])
            least = _power_of_two(functional.least_subnormal(dtype))
        if name is not None:
            of = library.FP8[name]
            relative = f"({_power_of_two(fp8.UNIT_ROUNDOFF[of])} + 3 {relative})"
            absolute = f" + {_power_of_two(fp8.HALF_SUBNORMAL[of])} / scale"
        moved = f"storing x moves it by at most {relative} |x|{absolute} + {least}"
        if percent is None:
            return moved
        return (f"the mean of dW' is dW, and E |dW' - dW|^2 <= sum |x| sum |x| |dy|^2 / k with k = "
            f"{percent}% of the rows, but that {moved}")


class Softmax(_WithStore, nn.Softmax):
    """nn.Softmax that keeps codes of 8 bits, store log2:8, or its output, store p (softmax.py)."""

    kind = "softmax"
    store = stores.OTHERS[kind][0]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if graphs.is_symbol(input):
            return graphs.as_node(self, input)
        # Without a dim, PyTorch chooses one and warns.
        if self._as_pytorch or self.dim is None:
            return super().forward(input)
        self._expect_store()
        return softmax(_as_autocast_does(input), self.dim)

    def _bound(self, dtype: torch.dtype | None) -> str:
        relative, least, _ = library.softmax_error(library.MOST_SOFTMAX)
        return (
            f"sum |dx' - dx| <= {rounded_up(2 * relative, 3)} sum |dx| + {rounded_up(2 * least, 3)} n (max "
            f"dy - min dy)")


class Dropout(graphs.Ours, nn.Dropout):
    """nn.Dropout that keeps 8 bytes. With inplace its input has the result, too, but where that is the output
    of a node of this package, which keeps it."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if graphs.is_symbol(input):
            return graphs.as_node(self, input)
        y = functional.dropout(input, self.p, self.training)
        return functional.written_to(input, y) if self.inplace and y is not input else y

    def bound(self, dtype: torch.dtype) -> str:
        """The backward pass drops exactly what the forward pass dropped."""
        return "the same elements are dropped in both passes"

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.bound(torch.float32)}"
