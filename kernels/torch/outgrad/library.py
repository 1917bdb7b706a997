"""Loads the compiled operators, and makes for each the function that gives fake tensors of its results."""

import ctypes
import functools
import importlib.util
import pathlib
import typing
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

LEAST_TORCH = (2, 10)

_version = tuple(int("".join(c for c in part if c.isdigit()) or 0)
    for part in torch.__version__.split("+")[0].split(".")[:2])
if _version < LEAST_TORCH:
    raise ImportError(
        f"outgrad needs PyTorch {LEAST_TORCH[0]}.{LEAST_TORCH[1]} or later, this is {torch.__version__}")

_path = next(iter(pathlib.Path(__file__).parent.glob("liboutgrad_torch.*")), None)
if _path is None:
    raise ImportError(
        f"outgrad: {pathlib.Path(__file__).parent} has no liboutgrad_torch: the package was not built")
from torch.overrides import (  # noqa: E402  (after what an older PyTorch is told)
    TorchFunctionMode,
    _get_current_function_mode_stack,
)
from torch.utils._device import DeviceContext  # noqa: E402
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack  # noqa: E402

from .sharded import PLAIN  # noqa: E402

torch.ops.load_library(str(_path))

# outgrad_format of kernels/c/outgrad.h.
FORMATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}

_c = ctypes.CDLL(str(_path))
# seed_at(seed, offset): what torch.randint(0, 2**62, (1,)) draws on a CUDA device whose generator has this
# seed and stands at this offset.
seed_at = _c.outgrad_torch_seed
seed_at.argtypes, seed_at.restype = (ctypes.c_uint64, ctypes.c_uint64), ctypes.c_int64
for _function in (_c.outgrad_torch_version, _c.outgrad_torch_activation, _c.outgrad_torch_operator,
        _c.outgrad_torch_store, _c.outgrad_torch_norm_store):
    _function.restype = ctypes.c_char_p


def _catalogue(function: Callable[..., Any], count: int) -> list[tuple[Any, ...]]:
    """What a function says of 0, 1, .. until there are no more: names, each with so many numbers."""
    found: list[tuple[Any, ...]] = []
    numbers = (ctypes.c_int32 * count)()
    while (name := function(len(found), numbers)) is not None:
        found.append((name.decode(), *numbers))
    return found


_activations = _catalogue(_c.outgrad_torch_activation, 3)
# The activations of kernels/activations.h, in the order of outgrad_activation.
ACTIVATIONS: tuple[str, ...] = tuple(name for name, *_ in _activations)
# Those with a minimum, for which a bit says on which side of it x was.
MASKED = tuple(name for name, masked, *_ in _activations if masked)
# Those that a gated pair has (kernels/gate.h).
GATES: tuple[str, ...] = tuple(name for name, _, gate, _ in _activations if gate)
# Those of which a pair can keep its product, in float16 and bfloat16 (kernels/product.h).
PRODUCTS: tuple[str, ...] = tuple(name for name, *_, product in _activations if product)


class Store(typing.NamedTuple):
    """What an activation keeps: a row of kernels/catalogue/stores.h."""

    number: int  # of outgrad_store
    keeps_y: bool
    keeps_mask: bool
    writes_y: bool
    code_bits: int  # -1: the caller chooses them
    block: int
    has_parts: bool
    takes_scale: bool


STORES = {name: Store(number, *facts)
    for number, (name, *facts) in enumerate(_catalogue(_c.outgrad_torch_store, 7))}
# Of norms that keep y in 8 bits: the elements of a row that share a scale, 0 for all of the tensor, and the
# bytes of a scale.
NORM_STORES = {name: tuple(facts) for name, *facts in _catalogue(_c.outgrad_torch_norm_store, 2)}
# The formats of 8 bits that have a type in PyTorch and are read at one scale of the tensor.
FP8 = {name: STORES[name].number for name in ("e4m3", "e5m2")}

# The CUDA run-time compiler is in a package that PyTorch depends on. It is loaded with the first kernel, like
# libcuda.
if torch.version.cuda is not None and (_nvidia := importlib.util.find_spec("nvidia")) is not None:
    _folders = sorted({str(path.parent).encode() for root in _nvidia.submodule_search_locations or ()
        for path in pathlib.Path(root).glob("*/lib/libnvrtc.so*")})
    _c.outgrad_torch_nvrtc_folders((ctypes.c_char_p * len(_folders))(*_folders), len(_folders))


class _Fit(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("sha256", ctypes.c_char_p), ("bounds", ctypes.c_double * 6)]


def fit_of(activation: str, dtype: torch.dtype, store: str = "y", bits: int = 0,
        dithered: bool = False) -> tuple[str, str, tuple[float, ...]]:
    """The name of the fit that a backward pass runs for one of STORES, its header's SHA-256, and its bounds
    (kA + kB, kK, kT, kR, kBias) with the largest |y| of a tensor for which kT holds."""
    fit = _Fit()
    if _c.outgrad_torch_fit(ACTIVATIONS.index(activation), FORMATS[dtype], STORES[store].number, bits,
            dithered, ctypes.byref(fit)) != 0:
        raise ValueError(f"no fit of {activation} for {dtype}")
    return fit.name.decode(), fit.sha256.decode(), tuple(fit.bounds)


def store_error(activation: str, store: str, scale: float, bits: int) -> float:
    """The proven bound of an activation's gradient from y in 8 bits at this scale, with 0 to 2 bits
    beside."""
    error = ctypes.c_double()
    if _c.outgrad_torch_store_error(ACTIVATIONS.index(activation), STORES[store].number,
            ctypes.c_float(scale), bits, ctypes.byref(error)) != 0:
        raise ValueError(f"no y in {store} of {activation} at a scale of {scale}")
    return error.value


def product_error(activation: str, dtype: torch.dtype) -> tuple[float, float, float]:
    """What a gated pair's gradients from its product are off by (kernels/product.h): at most the first of
    these for f'(a), and the second times |f(a)| plus the third for f(a)."""
    found = (ctypes.c_double * 3)()
    if _c.outgrad_torch_product(ACTIVATIONS.index(activation), FORMATS[dtype], found) != 0:
        raise ValueError(f"no pair of {activation} keeps its product in {dtype}")
    return tuple(found)


# Longer rows of softmax have no codes.
MOST_SOFTMAX = 2**23


def softmax_error(n: int, total: float = 0.0, spread: float = 0.0,
        largest: float = 0.0) -> tuple[float, float, float]:
    """For a row of n elements with codes: (relative error of p', the largest p with code 0, the bound of sum
    |dx - ds|, where total is sum |ds|, spread the largest less the least dy, and largest the greatest
    |dy|)."""
    found = (ctypes.c_double * 3)()
    row = (ctypes.c_double * 3)(total, spread, largest)
    if not 1 <= n <= MOST_SOFTMAX or _c.outgrad_torch_softmax(ctypes.c_int64(n), row, found) != 0:
        raise ValueError(f"softmax has codes for rows of 1 to 2^23 elements, not of {n}")
    return tuple(found)


def softmax_values() -> tuple[float, ...]:
    """What the 256 codes of softmax's output stand for."""
    values = (ctypes.c_float * 256)()
    _c.outgrad_torch_softmax_values(values)
    return tuple(values)


def version() -> str:
    return _c.outgrad_torch_version().decode()


# --- Operators, of which kernels/torch/operators.h has the list -----------------------------------


def _same(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _bytes(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.new_empty((count,), dtype=torch.uint8)


def _mask(x: torch.Tensor, activation: int = 0) -> torch.Tensor:
    return x.new_empty((x.numel() + 31) // 32 if ACTIVATIONS[activation] in MASKED else 0, dtype=torch.int32)


def _octets(x: torch.Tensor, bits: int) -> torch.Tensor:
    return _bytes(x, (x.numel() * bits + 7) // 8)


def _stored(x: torch.Tensor, activation: int, store: int, bits: int) -> list[torch.Tensor]:
    has = BY_NUMBER[store]
    arrays = (
        (has.writes_y, lambda: _same(x)),
        (has.keeps_mask and ACTIVATIONS[activation] in MASKED, lambda: _mask(x)),
        (has.code_bits, lambda: _octets(x, bits if has.code_bits < 0 else has.code_bits)),
        (has.block, lambda: _bytes(x, (x.numel() + has.block - 1) // has.block)),
        (has.has_parts and bits > 0, lambda: _octets(x, bits)),
    )
    return [make() for there, make in arrays if there]


def _norm_scales(x: torch.Tensor, store: int) -> torch.Tensor:
    group, size = _OF_NORMS[store]
    return _bytes(x, (x.numel() // group if group else 1) * size)


def _tensor_scale(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((1,), dtype=torch.float32)


def _tensor_scales(x: torch.Tensor, store: int) -> torch.Tensor:
    block = BY_NUMBER[store].block
    return _bytes(x, (x.numel() + block - 1) // block) if block else _tensor_scale(x)


def _reals_like(x: torch.Tensor, number: int) -> torch.Tensor:
    return torch.empty_like(x, dtype=_BY_FORMAT[number], memory_format=torch.contiguous_format)


def _none(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(0)


def _gated(a: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
    return _same(a if b is not None else a[..., : a.shape[-1] // 2])


def _gated_codes(a: torch.Tensor, b: torch.Tensor | None, store: int) -> tuple[torch.Tensor, torch.Tensor]:
    one = _gated(a, b)
    return _octets(one, 8), _tensor_scales(one, store)


def _gated_mask(a: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
    elements = a.numel() if b is not None else a.numel() // 2
    return a.new_empty((elements + 31) // 32, dtype=torch.int32)


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], 2 * x.shape[-1]))


def _reals(x: torch.Tensor, count: int, model: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty(count, dtype=torch.float32 if model is None else model.dtype)


def _of_rows(x: torch.Tensor, columns: int,
        side_channels: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """1 / sigma of each row, and the x^ of side channels."""
    rows = x.numel() // columns
    return x.new_empty(rows, dtype=torch.float32), x.new_empty(rows,
        0 if side_channels is None else side_channels.numel(), dtype=torch.float32)


def _of_parameters(dy: torch.Tensor, columns: int, gamma: torch.Tensor | None, beta: torch.Tensor | None,
        *wanted: bool) -> Iterator[torch.Tensor]:
    return (_reals(dy, columns if one else 0, beta if gamma is None else gamma) for one in wanted)


BY_NUMBER = tuple(STORES.values())
_BY_FORMAT = {number: dtype for dtype, number in FORMATS.items()}
_OF_NORMS = {STORES[name].number: facts for name, facts in NORM_STORES.items()}
# By these names an operator's list of results is made for fake tensors.
_RESULTS = {
    "same": _same,
    "bytes": _bytes,
    "octets": _octets,
    "mask": _mask,
    "stored": _stored,
    "gated": _gated,
    "gated_mask": _gated_mask,
    "gated_codes": _gated_codes,
    "doubled": _doubled,
    "none": _none,
    "tensor_scale": _tensor_scale,
    "tensor_scales": _tensor_scales,
    "reals_like": _reals_like,
    "norm_scales": _norm_scales,
    "reals": _reals,
    "of_rows": _of_rows,
    "of_parameters": _of_parameters,
}


def _on_one_device(fake: Callable[..., Any]) -> Callable[..., Any]:
    """Where one tensor is on the device "meta", PyTorch takes what a fake function makes for the result of
    all the others, too: memory that nothing was written to. A seed without dimensions is on the host."""

    def checked(*given: Any, **named: Any) -> Any:
        devices = {str(one.device) for one in (*given, *named.values())
            if isinstance(one, torch.Tensor) and one.dim() > 0}
        if len(devices) > 1:
            raise RuntimeError(f"outgrad: an operator takes tensors on one device, and these are on "
                f"{' and '.join(sorted(devices))}")
        return fake(*given, **named)

    return checked


def _functions_are_watched() -> bool:
    """Whether there is a mode of functions that is no default device: that one only says where tensors are
    made that no other tensor tells."""
    return any(type(mode) is not DeviceContext for mode in _get_current_function_mode_stack())


def functions_are_changed() -> bool:
    """Whether there is a mode of functions that may change what they give: PyTorch's, of default devices and
    tracers, and our own do not."""
    return any(type(mode).__module__.partition(".")[0] not in ("torch", "outgrad")
        for mode in _get_current_function_mode_stack())


def _a_profiler_runs() -> bool:
    """Whether one does in any thread: it may be told to look at all of them."""
    return torch.autograd.profiler._is_profiler_enabled


def _ways_past() -> Callable[[int, Any], Any] | None:
    """(a number, what stands behind it) -> the same past the dispatcher (kernels/torch/eager.h); None if
    there is no such way."""
    watchers = (torch.is_grad_enabled, None, torch._C._len_torch_dispatch_stack, None,
        torch._C._len_torch_function_stack, _functions_are_watched, torch._C._get_tracing_state, None,
        torch._C._are_functorch_transforms_active, None, torch.autograd._profiler_enabled, None,
        _a_profiler_runs, None)
    bridge: tuple[Any, Any] = None, None
    shims = "torch_tensor_from_pyobject", "torch_tensor_to_pyobject"
    if not all(hasattr(_c, name) for name in shims):  # before PyTorch 2.14
        aoti: Any = getattr(torch._C, "_aoti", None)
        bridge = (getattr(aoti, "unsafe_alloc_void_ptr_from_tensor", None),
            getattr(aoti, "alloc_tensors_by_stealing_from_void_ptrs", None))
        if None in bridge:
            return None
    python = ctypes.PyDLL(str(_path))  # whose functions are called with Python's global lock
    eager = python.outgrad_torch_eager
    eager.argtypes = (ctypes.py_object,)
    if eager((torch.Tensor, torch.nn.Parameter, torch.Tensor.is_neg, *bridge, *watchers)) != 0:
        return None
    past = python.outgrad_torch_past
    past.restype, past.argtypes = ctypes.py_object, (ctypes.c_int32, ctypes.py_object)
    return past


def _past(number: int, behind: Callable[..., Any]) -> Callable[..., Any]:
    """A function as the package calls it: past the dispatcher where that may be. Compilers know only what
    stands behind it."""
    if _ways is None:
        return behind
    way = _ways(number, behind)

    @functools.wraps(behind, updated=())
    def call(*given: Any, **named: Any) -> Any:
        if named or torch.compiler.is_compiling():
            return behind(*given, **named)
        return way(*given)

    return call


def linear_past_python(behind: Callable[..., Any]) -> Callable[..., Any]:
    """Of the gradients of a Linear, which the compiled library can compute, too (kernels/torch/linear.h)."""
    return _past(len(_OPERATORS), behind)


def _operators() -> None:
    """Finds each operator by name, as an overload: the packet above it would search for that in each call."""
    results = ctypes.c_char_p()
    while (schema := _c.outgrad_torch_operator(len(_OPERATORS), ctypes.byref(results))) is not None:
        name = schema.decode().partition("(")[0]
        _OPERATORS[name] = operator = getattr(torch.ops.outgrad, name).default
        arguments = ", ".join(f"{one.name}={one.default_value!r}" if one.has_default_value() else one.name
            for one in operator._schema.arguments)
        of, several = (results.value or b"").decode(), len(operator._schema.returns) > 1
        fake = _on_one_device(eval(f"lambda {arguments}: {f'({of},)' if several else of}", _RESULTS.copy()))
        for namespace in ("outgrad", "outgrad_exported"):
            torch.library.register_fake(f"{namespace}::{name}", fake)
        globals()[name] = _past(len(_OPERATORS) - 1, operator)
        _EXPORTED[operator] = getattr(torch.ops.outgrad_exported, name).default


_OPERATORS: dict[str, Any] = {}
_EXPORTED: dict[Any, Any] = {}  # by operator
_ways = _ways_past()
_operators()
if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """An operator, whose name and schema the C++ side has."""


def is_in_selective_checkpoint() -> bool:
    """Whether a checkpoint numbers the operations, in a pass or where it recomputes one: then both have to
    call the same ones."""
    return any(type(mode).__module__ == "torch.utils.checkpoint"
        for mode in _get_current_dispatch_mode_stack())


def is_in_checkpoint() -> bool:
    """Whether one runs that keeps nothing of its forward pass and computes it again, both by hooks of what
    nodes save."""
    hooks = (None if torch.compiler.is_compiling()
        else torch._C._autograd._top_saved_tensors_default_hooks(True))
    return hooks is not None and getattr(hooks[0], "__module__", None) == "torch.utils.checkpoint"


def is_recorded() -> bool:
    """Whether what is kept for a backward pass is made. torch.jit.trace traces twice, once without gradients,
    and compares."""
    return torch.is_grad_enabled() or torch._C._get_tracing_state() is not None


def is_format(dtype: object) -> bool:
    """Whether it is one of FORMATS, in which not everything can be looked up."""
    return isinstance(dtype, torch.dtype) and dtype in FORMATS


def is_watched(x: torch.Tensor) -> bool:
    """Whether more than the values of what is made of x counts: a compiler, a tracer, a transform or a mode
    sees which operators x is given to, or x has no values."""
    return (torch.compiler.is_compiling() or type(x) not in PLAIN or x.is_meta
        or torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active())


def is_faked() -> bool:
    """Whether a mode gives operators tensors without values."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def python_operator(name: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Makes an operator of a function that is made of PyTorch's own, so that torch.compile keeps what it
    gives, and not what it is made of. Where nothing watches, the function itself is called: PyTorch's way to
    an operator in Python takes 8 us."""

    def made(function: Callable[..., Any]) -> Callable[..., Any]:
        torch.library.custom_op(f"outgrad::{name}", function, mutates_args=()).register_fake(fake)
        operator = getattr(torch.ops.outgrad, name).default

        @functools.wraps(function)
        def call(x: torch.Tensor, *others: Any) -> Any:
            return operator(x, *others) if is_watched(x) else function(x, *others)

        return call

    return made


def is_exporting() -> bool:
    """Whether torch.export traces. In PyTorch 2.10 code that torch.compile traces gets True from
    torch.compiler.is_exporting, too."""
    return torch.compiler._is_exporting_flag


class Exported(TorchFunctionMode):
    """Calls operators under the names that graphs of torch.export have, with derivatives (exported.py)."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None) -> Any:
        return _EXPORTED.get(func, func)(*args, **(kwargs or {}))
