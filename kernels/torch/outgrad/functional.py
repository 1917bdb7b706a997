"""Functions whose backward pass reads their output, not their input.

For the backward pass, each function keeps its own output, which the next layer keeps anyway, and a few bytes
beside it. An activation may keep something else instead: its argument `store` (stores.py). Arrays are
float32, float16 or bfloat16; a gradient has the type of the array that it belongs to. There are only first
derivatives: a second derivative raises an error, since the output does not give it with a proven bound.
"""

import contextlib
import ctypes
import math
import numbers
import operator
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import torch
from torch.autograd import forward_ad

from . import fp8, graphs, library, sharded, stores
from .arguments import is_flag, is_one_of, is_within, shown


def _is_usable(x: object) -> bool:
    """Whether x is a dense tensor of a type that is supported: what _expect finds out at length."""
    return (isinstance(x, torch.Tensor) and x.dtype in library.FORMATS and x.layout is torch.strided
        and not x.is_nested)


def _expect_tensor(function: str, name: str, value: object) -> None:
    if graphs.is_symbol(value):
        raise TypeError(f"outgrad.{function}: {name} is a symbol of torch.fx, which traces calls of "
            f"outgrad.{function} by this name, and behind torch.fx.wrap({function!r}) those by another")
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"outgrad.{function}: {name} is no tensor but {type(value).__name__}")


def _expect(function: str, **tensors: Any) -> None:
    """Raises an error that says which argument cannot be used, and why. The others are compared with the
    first. A bias, a pair's b and a norm's weight may be missing."""
    first_name, first = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        if tensor is None and (name in ("bias", "b") or name == "weight" and function.endswith("norm")):
            continue
        _expect_tensor(function, name, tensor)
        if tensor.is_nested or tensor.layout is not torch.strided:
            raise TypeError(
                f"outgrad.{function}: {name} is {'nested' if tensor.is_nested else tensor.layout}, a dense "
                f"tensor is needed")
        if tensor.dtype not in library.FORMATS:
            raise TypeError(
                f"outgrad.{function}: {name} is {tensor.dtype}; float32, float16 and bfloat16 are supported")
        if tensor.device != first.device:
            raise ValueError(
                f"outgrad.{function}: {name} is on {tensor.device}, {first_name} on {first.device}")


class _Once(torch.autograd.Function):
    """A backward pass whose own derivative (the second derivative of the operation) is an error."""

    @staticmethod
    def forward(operation: str, compute: Callable[..., Any], *tensors: torch.Tensor) -> Any:
        return compute(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.operation = inputs[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, operation: str, *_: Any) -> None:
        raise no_batch_of_gradients(operation)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> None:
        raise no_second_derivative(ctx.operation)


def no_batch_of_gradients(operation: str) -> NotImplementedError:
    return NotImplementedError(
        f"outgrad.{operation}: torch.vmap over its gradient, as in torch.func.jacrev, is not supported; "
        f"torch.autograd.functional.jacobian computes the same")


def no_second_derivative(operation: str) -> RuntimeError:
    return RuntimeError(f"outgrad.{operation}: the second derivative is not known from the output; use "
        f"PyTorch's own for double backward")


def _recorded(name: str, gradients: Callable[..., Any], ctx: Any, dy: Sequence[Any]) -> Any:
    """gradients(ctx, saved, *dy) while a graph of the backward pass is recorded: differentiating it is an
    error.

    Otherwise the graph would treat the gradients as constants, and a gradient penalty would be silently
    wrong.
    """
    return _Once.apply(name, lambda *tensors: gradients(ctx, tensors[len(dy) :], *tensors[: len(dy)]), *dy,
        *ctx.saved_tensors)


def _each_once(inputs: Sequence[Any]) -> list[Any]:
    """With a view in place of a tensor that was there before: no compiler takes a Function of one twice."""
    found: list[Any] = []
    for one in inputs:
        again = isinstance(one, torch.Tensor) and any(one is other for other in found)
        found.append(one.view_as(one) if again else one)
    return found


_OF_OUTPUT = "_from_output"  # in the names of this package's nodes


class _Operation:
    """One operation as two autograd Functions made of the same parts.

    compute(*inputs) gives (result, *more); keep(ctx, inputs, outputs) stores what gradients(ctx, saved, dy)
    reads, `saved` being the tensors that it saved. `direct` is the cheap form: with setup_context, which only
    torch.func needs, a call costs two to seven times as much for small tensors.

    without_y: keep stores no result that has a gradient, so nothing would lead from a graph of the backward
    pass to x, and the error of _recorded would not be met. Hence such an operation has one more output, of no
    elements, which keep stores last. shown: how many of the results after the first a call gives beside it;
    they have no gradients. results: how many a call gives that do have gradients, which gradients(ctx, ..)
    takes; one that does not reach the loss is None. differentiable: gradients are made of operations that
    have derivatives where a graph of the backward pass is recorded. whole(*inputs): of how many of the last
    dimensions of the first input a part of a DTensor must have all elements; None: there are no parts.
    """

    def __init__(self, name: str, compute: Callable[..., tuple[Any, ...]], keep: Callable[..., None],
            gradients: Callable[..., Any], without_y: bool = False, shown: int = 0, results: int = 1,
            differentiable: bool = False, whole: Callable[..., int] | None = None) -> None:
        if without_y:
            only_compute = compute

            def with_nothing(*inputs: Any) -> tuple[Any, ...]:
                outputs = only_compute(*inputs)
                return *outputs, outputs[0].new_empty(0)

            compute = with_nothing

        def direct_forward(ctx: Any, *inputs: Any) -> Any:
            outputs = compute(*inputs)
            keep(ctx, inputs, outputs)
            if shown:
                ctx.mark_non_differentiable(*outputs[1 : 1 + shown])
            if results > 1:
                return outputs[:results]
            return (*outputs[: 1 + shown], outputs[-1]) if without_y else outputs[0]

        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
            ctx.mark_non_differentiable(*(output[1:-1] if without_y else output[results:]))
            keep(ctx, inputs, output)

        def refuse_vmap(info: Any, in_dims: Any, *inputs: Any) -> None:
            raise NotImplementedError(
                f"outgrad.{name}: torch.vmap is not supported; call it on the whole batch")

        def refuse_jvp(ctx: Any, *tangents: Any) -> None:
            raise NotImplementedError(f"outgrad.{name}: forward-mode derivatives are not supported")

        def backward(ctx: Any, *dy: torch.Tensor | None) -> Any:
            if torch._C._is_any_autocast_enabled():
                # around a backward pass it would give a product another type than what it is added to
                with without_autocast(*dy) if torch.compiler.is_compiling() else torch._C._DisableAutocast():
                    return backward(ctx, *dy)
            if torch.is_grad_enabled() and not differentiable:
                return _recorded(name, gradients, ctx, dy[:results])
            return gradients(ctx, ctx.saved_tensors, *dy[:results])

        self.without_y, self.given = without_y, max(1 + shown, results)
        self.name, self.compute, self.whole = name, compute, whole
        self.direct: Any = type(
            f"{name}{_OF_OUTPUT}",
            (torch.autograd.Function,),
            # torch.compile accepts no Function with a jvp.
            {"forward": staticmethod(direct_forward), "backward": staticmethod(backward)},
        )
        # Function.apply without its search of all inputs for what a transform of torch.func left behind.
        self.direct_apply = super(torch.autograd.Function, self.direct).apply  # type: ignore[misc]
        self.transformed: Any = type(
            f"{name}{_OF_OUTPUT}_transformed",
            (torch.autograd.Function,),
            {
                "forward": staticmethod(compute),
                "setup_context": staticmethod(setup_context),
                "backward": staticmethod(backward),
                "vmap": staticmethod(refuse_vmap),
                "jvp": staticmethod(refuse_jvp),
            },
        )

    def __call__(self, *inputs: Any) -> Any:
        if type(inputs[0]) not in sharded.PLAIN and sharded.is_sharded(inputs[0]):
            return sharded.of_parts(self.name, self, self.whole and self.whole(*inputs), inputs)
        compiling = torch.compiler.is_compiling()
        if compiling and library.is_exporting():  # no graph of torch.export has Functions
            with library.Exported():
                result = self.compute(*inputs)
        elif compiling or not (torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0):
            result = self.direct.apply(*_each_once(inputs)) if compiling else self.direct_apply(*inputs)
            if not self.without_y:
                return result
        else:
            result = self.transformed.apply(*inputs)
        return result[: self.given] if self.given > 1 else result[0]


def is_autocast(x: torch.Tensor) -> bool:
    """Whether autocast is on for the device of x; the device "meta" has none."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def without_autocast(*tensors: torch.Tensor | None) -> contextlib.AbstractContextManager[Any]:
    """As torch._C._DisableAutocast for the device of the tensors, of which at least one is there; compilers
    know it."""
    device = [x.device.type for x in tensors if x is not None][0]
    return contextlib.nullcontext() if device == "meta" else torch.autocast(device, enabled=False)


def dtype_under_autocast(x: torch.Tensor) -> torch.dtype:
    """The type in which a Linear of x computes."""
    return torch.get_autocast_dtype(x.device.type) if is_autocast(x) else x.dtype


def _of_elements(*_: Any) -> int:
    return 0


def _of_rows(x: torch.Tensor, columns: int, *_: Any) -> int:
    return sharded.dimensions(x.shape, columns)


def as_it_lies(operation: Callable[..., Any], x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """An elementwise operation of tensors of one shape, on their elements in the order in which x has them in
    memory. So nothing of a dense x is copied, and the result has the strides that PyTorch's own operations
    give it: those of a dense x. What lies in another order than x, such as a dy, the operators copy."""
    if x.is_contiguous():
        return operation(x, *others)
    strides = x.stride()
    if 0 in strides or all(map(operator.ge, strides, strides[1:])):  # an expanded x is copied whole
        return operation(x, *others)
    # compared and not sorted, which torch.compile does not do with sizes that vary
    back = [len([k for k, other in enumerate(strides) if other > own or (other == own and k < dim)])
        for dim, own in enumerate(strides)]
    order = sorted(back, key=back.__getitem__)
    return operation(*(each.permute(order) for each in (x, *others))).permute(back)


# --- Activations ----------------------------------------------------------------------------------


_FORMULAS = {
    "gelu": "x Phi(x)",
    "gelu_tanh": "x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2",
    "quick_gelu": "x sigmoid(1.702 x)",
    "silu": "x sigmoid(x)",
    "swish": "x sigmoid(1.5 x)",
    "mish": "x tanh(log(1 + exp(x)))",
    "tanh": "tanh(x)",
    "sigmoid": "1 / (1 + exp(-x))",
    "softplus": "log(1 + exp(x))",
    "elu": "x for x >= 0, exp(x) - 1 below",
}


def _keeping_y(name: str, index: int) -> _Operation:
    return _Operation(name, lambda x: library.activation_forward(x, index),
        lambda ctx, inputs, outputs: ctx.save_for_backward(*outputs),
        lambda ctx, saved, dy: library.activation_backward(dy, *saved, index), whole=_of_elements)


def _keeping_beside(name: str, encode: Callable[..., Any], decode: Callable[..., Any], dithered: bool = False,
        keeps_y: bool = False, shown: int = 0) -> Callable[..., Any]:
    """encode(x), or with a dither encode(x, seed), gives y and what is kept beside it, of which a call gives
    the first `shown`; decode(saved, dy) gives dx, where `saved` is the seed, y if keeps_y, and the rest."""

    def keep(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[1:], *(outputs if keeps_y else outputs[1:]))

    def gradients(ctx: Any, saved: tuple[Any, ...], dy: torch.Tensor) -> Any:
        return (decode(saved, dy), None) if dithered else decode(saved, dy)

    operation = _Operation(name, encode, keep, gradients, without_y=not keeps_y, shown=shown,
        whole=_of_elements)
    return (lambda x: operation(x, new_seed(x.device))) if dithered else operation


def keeping_own_codes(name: str, value: Callable[[torch.Tensor], torch.Tensor],
        gradient: Callable[[torch.Tensor], torch.Tensor], between: tuple[float, float], bits: int,
        dithered: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """x -> value(x), an activation of the caller's own, which keeps codes of gradient(x.float()) in a
    range."""

    def result(what: str, of: object, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if not isinstance(of, torch.Tensor) or of.shape != x.shape or of.dtype != dtype:
            found = f"{of.dtype} of {tuple(of.shape)}" if isinstance(of, torch.Tensor) else type(of).__name__
            raise ValueError(
                f"outgrad.{name}: {what} gave {found}, where {dtype} of {tuple(x.shape)} is needed")
        return of.contiguous()

    def encode(x: torch.Tensor, seed: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        y = result("value", value(x), x, x.dtype)
        g = result("gradient", gradient(x.float()), x, torch.float32)
        return y, library.encode_gradients(g, *between, bits, seed)

    def decode(saved: tuple[Any, ...], dy: torch.Tensor) -> torch.Tensor:
        codes = saved[1 if dithered else 0]
        return library.backward_encoded(dy, codes, *between, bits, saved[0] if dithered else None)

    operation = _keeping_beside(name, encode, decode, dithered)

    def function(x: torch.Tensor) -> torch.Tensor:
        _expect(name, x=x)
        return as_it_lies(operation, x)

    return function


def _keeping(name: str, index: int, store: str) -> Callable[..., Any]:
    """The operation of an activation that keeps what a store says."""
    if store == stores.DEFAULT:
        return _keeping_y(name, index)
    word, bits = stores.STORES[store]
    of = library.STORES[word]
    number, scaled, dithered = of.number, of.takes_scale, stores.is_dithered(store)
    kept = slice(dithered + scaled, None if of.keeps_y else -1)

    # a default would be one of the inputs that torch.func sees
    def encode(x: torch.Tensor, *seed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if of.writes_y:
            return tuple(library.store_forward(x, index, number, bits, *seed))
        x = x.contiguous()
        y = library.activation_forward(x, index)[0]
        if not scaled:
            return y, *library.store_forward(x, index, number, bits)
        scale = fp8.scale_of(y, number, fp8.LEAST_OF_ACTIVATIONS)
        return y, scale, *library.store_forward(x, index, number, bits, None, scale)

    def decode(saved: tuple[Any, ...], dy: torch.Tensor) -> torch.Tensor:
        seed, scale = saved[0] if dithered else None, saved[0] if scaled else None
        try:
            return library.store_backward(dy, saved[kept], index, number, bits, seed, scale)
        except RuntimeError:  # PyTorch goes through a batch one by one only where no argument is a list
            if torch._C._functorch.is_legacy_batchedtensor(dy):
                raise no_batch_of_gradients(name) from None
            raise

    operation = _keeping_beside(name, encode, decode, dithered, of.keeps_y, shown=2 * scaled)
    if not scaled:
        return operation
    keeping_y = _keeping_y(name, index)

    def function(x: torch.Tensor) -> torch.Tensor:
        if not library.is_recorded():
            return keeping_y(x)  # the same y, without codes that nothing would read
        y, scale, codes = operation(x)
        fp8.offer(y, number, codes, scale)
        return y

    return function


class _OfOutput(Protocol):
    """An activation of the catalogue."""

    def __call__(self, x: torch.Tensor, store: str = ...) -> torch.Tensor: ...


def _of_output(name: str) -> _OfOutput:
    """Makes the function of one activation of the catalogue (kernels/activations.h)."""
    index = library.ACTIVATIONS.index(name)
    operations = {store: _keeping(name, index, store)
        for store in stores.STORES if stores.why_not(name, store) is None}

    def function(x: torch.Tensor, store: str = stores.DEFAULT) -> torch.Tensor:
        if not _is_usable(x):
            _expect(name, x=x)
        if not isinstance(store, str) or store not in operations:
            raise ValueError(f"outgrad.{name}: store: {stores.why_not(name, store)}")
        return as_it_lies(operations[stores.for_type(store, x.dtype)], x)

    formula = _FORMULAS.get(name, "f(x) as in kernels/forwards.h")
    kept = ", and\n    one bit an element" if name in library.MASKED else ""
    other = textwrap.indent(
        textwrap.fill(f"store: what else to keep, by outgrad.stores: {', '.join(operations)}.", 100), 4 * " ")
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""{formula}, elementwise. Keeps y, which the next layer keeps too{kept}.

    |g - f'(x)| of the gradient dx = dy g is bounded by a proof: see outgrad.bounds("{name}"). Source: Tempo
    (NeurIPS 2022).

{other}

    Shapes: x [...], of any strides; the result the same.
    """
    return function


# Each by its name, where editors find it; gelu, which takes one argument more, is below.
_ACTIVATIONS = {name: _of_output(name) for name in library.ACTIVATIONS}
gelu_tanh = _ACTIVATIONS["gelu_tanh"]
quick_gelu = _ACTIVATIONS["quick_gelu"]
silu = _ACTIVATIONS["silu"]
swish = _ACTIVATIONS["swish"]
mish = _ACTIVATIONS["mish"]
tanh = _ACTIVATIONS["tanh"]
sigmoid = _ACTIVATIONS["sigmoid"]
softplus = _ACTIVATIONS["softplus"]
elu = _ACTIVATIONS["elu"]


def gelu(x: torch.Tensor, approximate: Literal["none", "tanh"] = "none",
        store: str = stores.DEFAULT) -> torch.Tensor:
    """x Phi(x), elementwise; approximate="tanh" is gelu_tanh. Keeps y, which the next layer also keeps, and
    one bit per element.

    For the gradient dx = dy g, a proof bounds |g - f'(x)|: see outgrad.bounds. Source: Tempo (NeurIPS 2022).
    store: what else to keep, by outgrad.stores.

    Shapes: x [...], of any strides; the result the same.
    """
    if not is_one_of(approximate, ("none", "tanh")):
        raise ValueError(f"outgrad.gelu: approximate is {shown(approximate)}, neither 'none' nor 'tanh'")
    return _ACTIVATIONS["gelu_tanh" if approximate == "tanh" else "gelu"](x, store)


def matrix_of(x: torch.Tensor) -> torch.Tensor:
    """The rows of x, also of one without elements, of which reshape(-1, n) makes none."""
    return x if x.dim() == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


@library.linear_past_python
def linear_gradients(dy: torch.Tensor, x: torch.Tensor | None, weight: torch.Tensor, for_x: bool,
        for_weight: bool, for_bias: bool, onto: torch.Tensor | None = None) -> tuple[Any, Any, Any]:
    """The gradients of a Linear of PyTorch, for x, weight and the bias; x itself is needed for that of weight
    alone. onto: what the gradient of x is added to, in place.

    Shapes: dy [..., m]; x and onto [..., n]; weight [m, n].
    """
    rows, dweight, dx = matrix_of(dy), None, None
    if for_weight and x is not None:
        dweight = rows.t().mm(matrix_of(x))
    if for_x:
        dx = rows.mm(weight) if onto is None else matrix_of(onto).addmm_(rows, weight)
        dx = dx.view(*dy.shape[:-1], weight.shape[1])
    return dx, dweight, rows.sum(0) if for_bias else None


_GELU = library.ACTIVATIONS.index("gelu")


def _activation_gradients(dy: torch.Tensor, y: torch.Tensor, mask: torch.Tensor | None, index: int,
        with_dbias: bool, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The gradient of what an activation was given, and, where the same pass has it, as GELU's has, that of
    the bias before it in the type of the weight."""
    if with_dbias and index == _GELU and y.shape[-1] > 0:
        return library.bias_gelu_backward(dy, y, mask, y.shape[-1], weight)
    return library.activation_backward(dy, y, mask, index), None


def _read_by(ctx: Any, weight: int, x: torch.Tensor) -> torch.Tensor | None:
    """x, if the gradient of the weight that is this input of a node is wanted, which alone reads it."""
    return x if ctx.needs_input_grad[weight] else None


def _linear_keeping_y(name: str, compute: Callable[..., Any], index: int) -> _Operation:
    """An activation of a Linear as one node, compute(x, weight, bias) giving (y, mask); x and weight are
    kept, too."""

    def keep(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
        x, weight, bias = inputs
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.save_for_backward(*outputs, _read_by(ctx, 1, x), weight)

    def gradients(ctx: Any, saved: tuple[Any, ...], dy: torch.Tensor) -> tuple[Any, ...]:
        y, mask, x, weight = saved
        for_x, for_weight, for_bias = ctx.needs_input_grad
        dz, dbias = _activation_gradients(dy, y, mask, index, for_bias, weight)
        dx, dweight, own = linear_gradients(dz, x, weight, for_x, for_weight, for_bias and dbias is None)
        if for_bias:
            dbias = own if dbias is None else dbias.to(ctx.bias_dtype)
        return dx, dweight, dbias

    return _Operation(name, compute, keep, gradients)


def _linear_gelu_compute(x: torch.Tensor, weight: torch.Tensor,
        bias: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    z = torch.nn.functional.linear(x, weight)
    no_sum = bias is None or bias.shape[0] == 0
    return library.activation_forward(z, 0) if no_sum else library.bias_gelu_forward(z, bias)


def _linear_activation(index: int) -> _Operation:
    def compute(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        return library.activation_forward(torch.nn.functional.linear(x, weight, bias), index)

    return _linear_keeping_y("linear_activation", compute, index)


_linear_gelu = _linear_keeping_y("linear_gelu", _linear_gelu_compute, _GELU)
_linear_activations = {name: _linear_activation(index) for index, name in enumerate(library.ACTIVATIONS)}


def _expect_linear(function: str, x: torch.Tensor, weight: torch.Tensor,
        bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """x and weight as autocast wants them."""
    if not (_is_usable(x) and _is_usable(weight) and x.device == weight.device
            and (bias is None or (_is_usable(bias) and bias.device == x.device))):
        _expect(function, x=x, weight=weight, bias=bias)
    if is_autocast(x):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"outgrad.{function}: x of shape {tuple(x.shape)} and weight of shape {tuple(weight.shape)} have "
            f"no product")
    if x.dtype != weight.dtype:
        raise TypeError(f"outgrad.{function}: x is {x.dtype}, weight {weight.dtype}")
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(
            f"outgrad.{function}: bias has shape {tuple(bias.shape)}, weight gives {weight.shape[0]} columns")
    return x, weight


def linear_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """gelu(x weight^T + bias), where the sum with the bias is in fp32 and never stored. Keeps x, y and one
    bit per element of y.

    x and weight are of one type or under autocast; bias is of any of the three types.

    Shapes: x [..., n]; weight [m, n]; bias [m]; the result [..., m].
    """
    return _linear_gelu(*_expect_linear("linear_gelu", x, weight, bias), bias)


def linear_activation(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,
        activation: str = "gelu") -> torch.Tensor:
    """An activation of PyTorch's Linear, act(linear(x, weight, bias)), as one node of autograd, with the bits
    of the two; GELU's gradient of the bias, whose sums come from the same pass, has another order of them.
    Keeps x, weight and y, and one bit per element of y if the activation has a minimum.

    x, weight and bias are all of one type or under autocast. activation: one of outgrad.ACTIVATIONS.

    Shapes: x [..., n]; weight [m, n]; bias [m]; the result [..., m].
    """
    operation = _linear_activations.get(activation) if isinstance(activation, str) else None
    if operation is None:
        raise ValueError(f"outgrad.linear_activation: activation is {shown(activation)}, none of "
            f"{', '.join(library.ACTIVATIONS)}")
    x, weight = _expect_linear("linear_activation", x, weight, bias)
    if bias is not None and bias.dtype != x.dtype:
        if not is_autocast(x):
            raise TypeError(f"outgrad.linear_activation: x is {x.dtype}, bias {bias.dtype}")
        bias = bias.to(x.dtype)
    return operation(x, weight, bias)


def pytorchs_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """PyTorch's Linear as the result of a node. In older releases it is a view, and such a result may not
    be changed in place."""
    y = torch.nn.functional.linear(x, weight, bias)
    return y.detach() if _LINEAR_IS_VIEW and not torch.compiler.is_compiling() and y._is_view() else y


_LINEAR = torch._C._nn.linear  # which torch.nn.functional names; others may have replaced it there already


def linear_is_pytorchs() -> bool:
    """Whether a Linear's function is PyTorch's own. Others may replace it, or change it by a mode of
    functions, as adapters and fake quantisation do: its derivative is not that of a product then."""
    if torch.nn.functional.linear is not _LINEAR:
        return False
    return torch._C._len_torch_function_stack() == 0 or not library.functions_are_changed()


_ONE = torch.ones(1, device="cpu")
_LINEAR_IS_VIEW = _LINEAR(_ONE.view(1, 1, 1), _ONE.view(1, 1), _ONE)._is_view()


def _linears_of(count: int) -> _Operation:
    """Several Linears of one x. The gradients of x are added as the products are made."""

    def compute(x: torch.Tensor, *parameters: Any) -> tuple[torch.Tensor, ...]:
        return tuple(pytorchs_linear(x, weight, bias)
            for weight, bias in zip(parameters[::2], parameters[1::2], strict=True))

    def keep(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
        ctx.save_for_backward(inputs[0] if any(ctx.needs_input_grad[1::2]) else None, *inputs[1::2])
        if not torch.compiler.is_compiling():
            ctx.set_materialize_grads(False)

    def gradients(ctx: Any, saved: tuple[Any, ...], *dys: torch.Tensor | None) -> tuple[Any, ...]:
        x, *weights = saved
        for_x, *wanted = ctx.needs_input_grad
        dx: torch.Tensor | None = None
        found: list[torch.Tensor | None] = []
        for dy, weight, for_weight, for_bias in zip(dys, weights, wanted[::2], wanted[1::2], strict=True):
            if dy is None:  # it does not reach the loss
                found += [None, None]
                continue
            dx, dweight, dbias = linear_gradients(dy, x, weight, for_x, for_weight, for_bias, dx)
            found += [dweight, dbias]
        return dx, *found

    return _Operation("linears_of", compute, keep, gradients, results=count)


# how many Linears of one x may be one node
SHARED = range(2, 9)
_LINEARS = {count: _linears_of(count) for count in SHARED}


def linears_of(x: torch.Tensor, parameters: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
    """What each of several Linears of PyTorch makes of x, which fits them, as one node. parameters: weight,
    bias, weight, bias, ..."""
    return _LINEARS[len(parameters) // 2](x, *parameters)


# --- Norms ----------------------------------------------------------------------------------------


# What a norm's functions below are given as of_norm: (weight, bias, eps, rms, side_channels, seen, tau). In
# what `checked` gives, which those that make nodes take, weight and bias have one dimension and are of one
# type. seen, tau: what its kernels test (drift.py).


def _norm_keep(ctx: Any, inputs: tuple[Any, ...], kept: tuple[Any, ...]) -> None:
    _, ctx.columns, gamma, beta, _, ctx.rms, side_channels, _, ctx.tau = inputs
    ctx.save_for_backward(gamma, beta, side_channels, *kept)


def _gradients_from_y(ctx: Any, saved: tuple[Any, ...], dy: torch.Tensor) -> tuple[Any, ...]:
    gamma, beta, side_channels, y, rstd, side_x_hat = saved
    _, _, with_dgamma, with_dbeta, *_ = ctx.needs_input_grad
    dx, dgamma, dbeta = library.norm_backward(dy, y, ctx.columns, gamma, beta, rstd, ctx.rms, side_channels,
        side_x_hat, with_dgamma, with_dbeta, ctx.tau)
    return (dx, None, dgamma if with_dgamma else None, dbeta if with_dbeta else None,
        None, None, None, None, None)


def _norm_keeping_y(name: str) -> _Operation:
    return _Operation(name, library.norm_forward, _norm_keep, _gradients_from_y, whole=_of_rows)


def _gradients_from_8_bits(ctx: Any, saved: tuple[Any, ...], dy: torch.Tensor, store: int) -> tuple[Any, ...]:
    gamma, beta, side_channels, codes, scales, rstd, side_x_hat, _ = saved
    _, _, with_dgamma, with_dbeta, *_ = ctx.needs_input_grad
    dx, dgamma, dbeta = library.norm_backward_8bit(dy, codes, scales, ctx.columns, gamma, beta, rstd, ctx.rms,
        side_channels, side_x_hat, with_dgamma, with_dbeta, store)
    return (dx, None, dgamma if with_dgamma else None, dbeta if with_dbeta else None,
        None, None, None, None, None)


def _norm_keeping_8_bits(name: str, word: str) -> Callable[..., Any]:
    store = library.STORES[word].number

    def compute(*inputs: Any) -> tuple[torch.Tensor, ...]:
        return library.norm_forward_8bit(*inputs[:-2], store)

    operation = _Operation(name, compute, lambda ctx, inputs, outputs: _norm_keep(ctx, inputs, outputs[1:]),
        lambda ctx, saved, dy: _gradients_from_8_bits(ctx, saved, dy, store), without_y=True, shown=2,
        whole=_of_rows)

    def function(*inputs: Any) -> torch.Tensor:
        y, codes, scales = operation(*inputs)
        if word in library.FP8:
            fp8.offer(y, store, codes, scales, step=True)
        return y

    return function


_norms = {
    (name, word): _norm_keeping_8_bits(name, word) if word in library.NORM_STORES else _norm_keeping_y(name)
    for name in ("layer_norm", "rms_norm")
    for word in stores.OF_NORMS
}


def norm_store_why_not(store: object, columns: int) -> str | None:
    """Why a norm over so many columns cannot have this store (stores.py); None if it can."""
    if not isinstance(store, str) or store not in stores.OF_NORMS:
        return f"{shown(store)} is no store of norms; there are {', '.join(stores.OF_NORMS)}"
    group = 0 if store == stores.DEFAULT_OF_NORMS else library.NORM_STORES[store][0]
    return (f"{columns} columns are no whole number of groups of {group}, which share a scale" if group
        and columns % group != 0 else None)


def _norm_of_none(x: torch.Tensor, of_norm: tuple[Any, ...]) -> torch.Tensor:
    """Any norm over no columns, which kernels do not take."""
    weight, bias = (None if one is None else one.to(x.dtype) for one in of_norm[:2])
    return torch.nn.functional.layer_norm(x.reshape(1, 0), (0,), weight, bias).view(x.shape)


def norm(function: str, x: torch.Tensor, columns: int, of_norm: tuple[Any, ...],
        store: str = stores.DEFAULT_OF_NORMS) -> torch.Tensor:
    """layer_norm or rms_norm of what `checked` gave."""
    if columns == 0:
        return _norm_of_none(x, of_norm)
    return _norms[function, store](x, columns, *of_norm)


def checked(function: str, x: torch.Tensor, normalized_shape: int | Sequence[int], of_norm: tuple[Any, ...],
        store: str = stores.DEFAULT_OF_NORMS) -> tuple[int, tuple[Any, ...]]:
    """The columns of a norm, and of_norm as its nodes take it; raises an error that says which argument
    cannot be used, and why."""
    weight, bias, eps, _, side_channels, *_ = of_norm
    plain = is_one_of(store, (stores.DEFAULT_OF_NORMS,))
    columns = _columns_at_a_glance(x, normalized_shape, weight, bias) if plain else 0
    if columns == 0:
        columns = _expect_norm(function, x, normalized_shape, weight, bias, store)
        weight, bias = (None if each is None else each.flatten() for each in (weight, bias))
        of_norm = weight, bias, *of_norm[2:]
    if not is_within(eps, 0):
        raise ValueError(f"outgrad.{function}: eps is {shown(eps)}, which must be at least 0")
    if side_channels is not None:
        _expect_channels(function, side_channels, x)
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        of_norm = weight.float(), bias.float(), *of_norm[2:]
    return columns, of_norm


def _columns_at_a_glance(x: torch.Tensor, normalized_shape: int | Sequence[int], weight: torch.Tensor | None,
        bias: torch.Tensor | None) -> int:
    """The columns of a norm over one dimension whose arguments fit; 0 if that takes a longer look."""
    if not _is_usable(x) or x.dim() == 0 or hasattr(normalized_shape, "ndim"):
        return 0
    columns, device = x.shape[-1], x.device
    if normalized_shape != (columns,) and normalized_shape != columns:
        return 0
    for parameter in (weight, bias):
        if parameter is not None and not (_is_usable(parameter) and parameter.shape == (columns,)
                and parameter.device == device):
            return 0
    return columns


def _expect_norm(function: str, x: torch.Tensor, normalized_shape: int | Sequence[int],
        weight: torch.Tensor | None, bias: torch.Tensor | None, store: str) -> int:
    """The columns of a norm; raises an error that says which argument cannot be used, and why."""
    _expect(function, x=x, weight=weight, bias=bias)
    shape: Any = normalized_shape
    if isinstance(normalized_shape, numbers.Integral):
        shape = (normalized_shape,)
    if not isinstance(shape, Sequence) or not all(hasattr(size, "__index__")
            and not isinstance(size, torch.Tensor) for size in shape):
        raise TypeError(f"outgrad.{function}: normalized_shape is {shown(normalized_shape)}; it takes the "
            f"sizes of the last dimensions of x, such as {x.shape[-1] if x.dim() > 0 else 64}")
    shape = tuple(shape)
    if not shape or tuple(x.shape[-len(shape) :]) != shape:
        raise ValueError(
            f"outgrad.{function}: x has shape {tuple(x.shape)}, which does not end in normalized_shape "
            f"{shape}")
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and tuple(parameter.shape) != shape:
            raise ValueError(
                f"outgrad.{function}: {name} has shape {tuple(parameter.shape)}, normalized_shape is {shape}")
    if (why := norm_store_why_not(store, math.prod(shape))) is not None:
        raise ValueError(f"outgrad.{function}: store: {why}")
    return math.prod(shape)


def _expect_channels(function: str, channels: Any, x: torch.Tensor) -> None:
    """Their values are looked at where they are, and on a GPU not at all."""
    _expect_tensor(function, "side_channels", channels)
    if channels.dtype != torch.int32 or channels.dim() != 1:
        raise TypeError(
            f"outgrad.{function}: side_channels is {channels.dtype} of shape {tuple(channels.shape)}; int32 "
            f"numbers of columns in one dimension are needed")
    if channels.device != x.device:
        raise ValueError(f"outgrad.{function}: side_channels is on {channels.device}, x on {x.device}")


EPS_OF_RMS = torch.finfo(torch.float32).eps


def layer_norm(x: torch.Tensor, normalized_shape: int | Sequence[int], weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None, eps: float = 1e-5, side_channels: torch.Tensor | None = None,
        store: str = stores.DEFAULT_OF_NORMS) -> torch.Tensor:
    """LayerNorm over the last dimensions. Keeps y, which the next layer also keeps, and 1 / sigma of each row
    (4 bytes).

    weight and bias are float32, float16 or bfloat16, whatever type x has. side_channels: the ascending int32
    numbers of columns whose x^ is kept in fp32 beside y, since y does not determine it (see
    outgrad.side_channels). Without them, a weight that has no finite reciprocal is an error in the backward
    pass on a CPU, and gives infinities and NaNs on a GPU, never a plausible wrong gradient. store: what is
    kept in place of y, "e4m3", "mxfp8" or "int8" (stores.py).

    Shapes: x [..., *normalized_shape]; weight and bias normalized_shape; side_channels [k]; the result as x.
    """
    of_norm = weight, bias, eps, False, side_channels, None, 0.0
    return norm("layer_norm", x, *checked("layer_norm", x, normalized_shape, of_norm, store), store)


def rms_norm(x: torch.Tensor, normalized_shape: int | Sequence[int], weight: torch.Tensor | None = None,
        eps: float | None = None, side_channels: torch.Tensor | None = None,
        store: str = stores.DEFAULT_OF_NORMS) -> torch.Tensor:
    """RMSNorm over the last dimensions: layer_norm without mean and bias. eps defaults to float32's, 2^-23,
    for each of the three types, because PyTorch computes in float32 and takes the eps of that.

    Shapes: x [..., *normalized_shape]; weight normalized_shape; side_channels [k]; the result as x.
    """
    of_norm = weight, None, EPS_OF_RMS if eps is None else eps, True, side_channels, None, 0.0
    return norm("rms_norm", x, *checked("rms_norm", x, normalized_shape, of_norm, store), store)


# For each format of a stored y: unit roundoff, half the least subnormal, and the least magnitude that rounds
# to infinity.
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
_HALF_SUBNORMAL = {torch.float32: 0.0, torch.float16: 2.0**-25, torch.bfloat16: 2.0**-134}
_OVERFLOW = {torch.float32: 2.0**128 - 2.0**104, torch.float16: 65520.0, torch.bfloat16: 2.0**128 - 2.0**119}
_LARGEST_X_HAT = 6.0  # up to here y must not overflow; a normal variable exceeds it once in 5e8 elements


# The relative error of storing y in 8 bits.
UNIT_OF_STORE = {"e4m3": (1 + 2.0**-20) / 17, "mxfp8": 2.0**-3, "int8": 2.0**-24}


def least_subnormal(dtype: torch.dtype) -> float:
    info = torch.finfo(dtype)
    return info.smallest_normal * info.eps


def largest_storage_error(dtype: torch.dtype, store: str = stores.DEFAULT_OF_NORMS) -> float:
    """The default tau of side_channels: with y in 8 bits and in 16 bits that of `outgrad stability`, 2^-2 and
    2^-4; in float32 128 roundings."""
    return 2.0**-2 if store in library.NORM_STORES else min(2.0**-4, 128 * UNIT_ROUNDOFF[dtype])


def _absolute_storage_error(gamma: torch.Tensor, beta: torch.Tensor, store: str) -> torch.Tensor:
    """What storing y in 8 bits costs at most beside its relative error, for each column: half a step of the
    column's group where no |x^| with the same scale exceeds 6 (validation/norms/stability.h). gamma >= 0,
    beta: [n], float64.
    Infinite if a y of the group may overflow."""
    group = library.NORM_STORES[store][0] or max(gamma.numel(), 1)
    x_hat = min(_LARGEST_X_HAT, math.sqrt(gamma.numel()))
    reach = (gamma * x_hat + beta.abs()).view(-1, group)
    largest = reach.amax(1)
    if store == "e4m3":
        half = (largest / 448).clamp(min=2.0**-126) * 2.0**-10
    elif store == "mxfp8":
        half = torch.exp2((torch.frexp(largest).exponent - 9).clamp(min=-127).double()) * 2.0**-10
    else:
        groups, betas = gamma.view(-1, group), beta.view(-1, group)
        first = groups.topk(2).values
        by_row = (gamma.numel() * first.square().sum(1)).sqrt() + betas.amax(1) - betas.amin(1)
        by_column = (groups * x_hat + betas).amax(1) - (betas - groups * x_hat).amin(1)
        half = (torch.minimum(by_row, by_column) / 255).clamp(min=2.0**-126) * (0.5 + 2.0**-14)
    limit = 2.0**126 if store == "int8" else _OVERFLOW[torch.float32]
    half = torch.where(largest * (1 + 2.0**-10) < limit, half, math.inf)
    return half.repeat_interleave(group)


def side_channels(weight: torch.Tensor | None, bias: torch.Tensor | None = None, dtype: torch.dtype
        | None = None, tau: float | None = None, store: str = stores.DEFAULT_OF_NORMS) -> torch.Tensor | None:
    """The columns (int32, ascending; None if there are none) whose x^ the output of a norm does not determine
    well enough.

    The policy is that of `outgrad stability` (validation/README.md). A channel needs its own x^ in three
    cases: storing y in dtype (by default weight's) moves an x^ of magnitude 1 by more than tau, mainly
    because |bias / weight| is large; 1 / weight is not a normal fp32 number; or y may overflow. store: what
    is kept in place of y (stores.py); with y in 8 bits its own rounding counts, and not that of dtype.

    Shapes: weight and bias [n]; the result [k].
    """
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None:
            _expect_tensor("side_channels", name, parameter)
            if parameter.is_meta:
                raise ValueError(f"outgrad.side_channels: {name} is on meta, where it has no values")
    return chosen_channels(weight, bias, dtype, tau, store)


def most_moved(dtype: torch.dtype, store: str, tau: float | None) -> float:
    """What a tau stands for."""
    if tau is None:
        return largest_storage_error(dtype, store)
    if not is_within(tau, math.ulp(0), sys.float_info.max):
        raise ValueError(f"outgrad: tau is {shown(tau)}, which takes a positive number")
    return tau


def chosen_channels(weight: torch.Tensor | None, bias: torch.Tensor | None, dtype: torch.dtype | None,
        tau: float | None, store: str, margin: float = 1) -> torch.Tensor | None:
    """side_channels, or with a margin above 1 those of which any limit is within this factor."""
    if weight is None:
        if bias is None:
            return None
        weight = torch.ones_like(bias)
    found = (~told_channels(weight, bias, dtype, tau, store, margin)).nonzero().flatten().to(torch.int32)
    return found if found.numel() > 0 else None


def told_channels(weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype | None,
        tau: float | None, store: str, margin: float = 1) -> torch.Tensor:
    """Whether the output of a norm tells each channel well enough."""
    dtype = weight.dtype if dtype is None else dtype
    if not library.is_format(dtype):
        raise TypeError(f"outgrad.side_channels: {shown(dtype)} is none of float32, float16, bfloat16")
    if bias is not None and bias.numel() != weight.numel():
        raise ValueError(f"outgrad.side_channels: bias has {bias.numel()} elements, weight {weight.numel()}")
    gamma = weight.detach().double().flatten().abs()
    beta = torch.zeros_like(gamma) if bias is None else bias.detach().double().flatten()
    if (why := norm_store_why_not(store, gamma.numel())) is not None:
        raise ValueError(f"outgrad.side_channels: store: {why}")
    absolute: float | torch.Tensor
    if store == stores.DEFAULT_OF_NORMS:
        u, absolute, overflow = UNIT_ROUNDOFF[dtype], _HALF_SUBNORMAL[dtype], _OVERFLOW[dtype]
    else:
        u, absolute, overflow = (UNIT_OF_STORE[store], _absolute_storage_error(gamma, beta, store),
            _OVERFLOW[torch.float32])
    beta = beta.abs()
    moved = u * (1 + beta / gamma) + (absolute + 2.0**-149) / gamma + 3 * 2.0**-24
    most = most_moved(dtype, store, tau) / margin
    told = (moved <= most) & (gamma < 2.0**126 / margin) & (gamma > 2.0**-128 * margin)
    return told & ((_LARGEST_X_HAT * gamma + beta) * (1 + 2.0**-10) < overflow / margin)


def loses_channels(weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, tau: float | None,
        store: str, channels: torch.Tensor | None) -> torch.Tensor:
    """Whether the output no longer tells a channel that is none of `channels`, as a tensor."""
    lost = ~told_channels(weight, bias, dtype, tau, store)
    return (lost if channels is None else lost.index_fill(0, channels.long(), False)).any()


def expect_8_bits(weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, tau: float | None,
        store: str, channels: torch.Tensor | None) -> None:
    """For compiled code, where `channels` are constants and kernels of norms from 8 bits test nothing: raises
    where y in 8 bits no longer tells a channel that is none of them."""
    with torch.no_grad():
        torch._assert_async(~loses_channels(weight, bias, dtype, tau, store, channels),
            "outgrad: gamma and beta moved so far at once that the output of a norm no longer gives the "
            "gradient")


# --- Dropout --------------------------------------------------------------------------------------


def _dropout_compute(x: torch.Tensor, seed: torch.Tensor, p: float) -> tuple[torch.Tensor]:
    return (library.dropout(x, seed, p),)


def _dropout_keep(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
    _, seed, ctx.p = inputs
    ctx.save_for_backward(seed)


def _dropout_gradients(ctx: Any, saved: tuple[Any, ...], dy: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    (seed,) = saved
    operation = _dropout if torch.is_grad_enabled() else library.dropout
    return operation(dy, seed, ctx.p), None, None


_dropout = _Operation("dropout", _dropout_compute, _dropout_keep, _dropout_gradients, differentiable=True,
    whole=_of_elements)


def checked_probability(function: str, p: float, training: bool) -> float:
    if not is_within(p, 0, 1):
        raise ValueError(f"outgrad.{function}: p is {shown(p)}, a probability is needed")
    if not is_flag(training):
        raise TypeError(f"outgrad.{function}: training is {shown(training)}, which takes True or False")
    return float(p) if training else 0.0


def new_seed(device: torch.device) -> torch.Tensor:
    """A seed of the device's own generator, there: nothing waits, and each launch of a CUDA graph has a new
    one."""
    return torch.randint(2**62, (1,), device=device)


def dropout_seed(x: torch.Tensor) -> torch.Tensor:
    """What new_seed gives for the device of x, bit for bit, without a launch: the host knows where CUDA's
    generator stands. Where a graph is captured or code compiled, or a mode watches what is called, the device
    draws it itself."""
    device = x.device
    known = device.type == "cuda" and type(x) is torch.Tensor and not (torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack())
    if not known or torch.cuda.is_current_stream_capturing():
        return new_seed(device)
    generator = torch.cuda.default_generators[device.index]
    offset = generator.get_offset()
    generator.set_offset(offset + 4)
    return _on_host(library.seed_at(generator.initial_seed(), offset))


_free_seeds: list[tuple[torch.Tensor, Any, int]] = []  # tensors that have no seed yet, each with its place


def _on_host(seed: int) -> torch.Tensor:
    """A seed as a tensor without dimensions. Several are made at once, for that is most of what one costs."""
    try:
        one, words, place = _free_seeds.pop()
    except IndexError:
        with torch.inference_mode(False):
            block = torch.empty(64, dtype=torch.int64, device="cpu")  # whatever the default device is
            words = (ctypes.c_int64 * len(block)).from_address(block.data_ptr())
            _free_seeds.extend((each, words, place) for place, each in enumerate(block.unbind()))
        one, words, place = _free_seeds.pop()
    words[place] = seed
    return one


def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True) -> torch.Tensor:
    """Each element is 0 with probability p, otherwise multiplied by 1 / (1 - p). Keeps 8 bytes per tensor.

    Philox4x32-10 of a seed and the element's number decides which elements are dropped; the backward pass
    computes it again. Elements are numbered as they lie in memory, so that the same seed drops others of a
    channels_last tensor than of a contiguous one. The seed comes from PyTorch's generator, so
    torch.manual_seed and checkpointing repeat it. What is dropped is +0, of a NaN or an infinity too, where
    PyTorch's product with 0 is NaN.

    Shapes: x [...], of any strides; the result the same.
    """
    if not _is_usable(x):
        _expect("dropout", x=x)
    p = checked_probability("dropout", p, training)
    return as_it_lies(lambda x: _dropout(x, dropout_seed(x), p), x) if p > 0 else x


def written_to(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x with the values of y; y alone where a node of this package may keep x, its output, or is computed in
    parts."""
    if not torch.compiler.is_compiling():  # where no node sees what happens to x behind it
        node = (x._base if x._is_view() else x).grad_fn  # type: ignore[union-attr]
        if type(x) not in sharded.PLAIN or _OF_OUTPUT in type(node).__name__:
            return y
    return x.copy_(y)


def _gradients_of_norm_of_sum(ctx: Any, kept: Sequence[Any], dy: torch.Tensor | None,
        dz_next: torch.Tensor | None, wanted: tuple[bool, bool, bool]) -> tuple[Any, ...]:
    """The gradients of norm(dropout(x, p) + residual): dz, which is that of the residual, dx, dgamma, dbeta.
    kept: what _kept_of_norm_of_sum gave. wanted: whether dx, dgamma and dbeta are."""
    seed, gamma, beta, side_channels, y, rstd, side_x_hat = kept
    for_x, with_dgamma, with_dbeta = wanted
    seed = seed if for_x else None
    dz, dx, dgamma, dbeta = library.norm_backward_of_sum(dy, y, dz_next, ctx.columns, gamma, beta, rstd,
        ctx.rms, side_channels, side_x_hat, with_dgamma, with_dbeta, seed, ctx.p, ctx.tau)
    return (dz, dz if seed is None else dx, dgamma if with_dgamma else None, dbeta if with_dbeta else None)


# What the operations of sums are given beside tensors: (seed, p, columns, *of_norm).


def _kept_of_norm_of_sum(ctx: Any, of_sum: Sequence[Any], y: torch.Tensor, rstd: torch.Tensor,
        side_x_hat: torch.Tensor | None) -> tuple[Any, ...]:
    """What a backward pass reads of a norm."""
    seed, ctx.p, ctx.columns, gamma, beta, _, ctx.rms, side_channels, _, ctx.tau = of_sum
    return seed, gamma, beta, side_channels, y, rstd, side_x_hat


def _norm_of_sum_forward(x: torch.Tensor, residual: torch.Tensor, of_sum: Sequence[Any],
        with_z: bool = False) -> tuple[torch.Tensor, ...]:
    seed, p, columns, gamma, beta, eps, rms, side_channels, seen, tau = of_sum
    return library.norm_forward_of_sum(x, residual, columns, gamma, beta, eps, rms, side_channels, seed, p,
        with_z, seen, tau)


def _norm_of_sum(name: str, with_z: bool) -> _Operation:
    """The norm of z = dropout(x, p) + residual as one node and one pass; a seed of None drops nothing.
    with_z: z is a result, too."""

    def compute(x: torch.Tensor, residual: torch.Tensor, *of_sum: Any) -> tuple[torch.Tensor, ...]:
        y, rstd, side_x_hat, z = _norm_of_sum_forward(x, residual, of_sum, with_z)
        return (y, z, rstd, side_x_hat) if with_z else (y, rstd, side_x_hat)

    def keep(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
        ctx.save_for_backward(*_kept_of_norm_of_sum(ctx, inputs[2:], outputs[0], *outputs[-2:]))
        if with_z and not torch.compiler.is_compiling():
            ctx.set_materialize_grads(False)

    def gradients(ctx: Any, saved: tuple[Any, ...], dy: torch.Tensor | None,
            dz_next: torch.Tensor | None = None) -> tuple[torch.Tensor | None, ...]:
        for_x, for_residual, _, _, _, with_dgamma, with_dbeta, *_ = ctx.needs_input_grad
        if dy is None:  # only z reaches the loss
            return dz_next if for_x else None, dz_next if for_residual else None, *[None] * 10
        dz, dx, dgamma, dbeta = _gradients_of_norm_of_sum(ctx, saved, dy, dz_next,
            (for_x, with_dgamma, with_dbeta))
        return dx if for_x else None, dz if for_residual else None, *[None] * 3, dgamma, dbeta, *[None] * 5

    return _Operation(name, compute, keep, gradients, results=2 if with_z else 1,
        whole=lambda x, residual, seed, p, columns, *_: sharded.dimensions(x.shape, columns))


def _norm_of_linear(name: str) -> _Operation:
    """The norm of dropout(linear(h, weight, bias), p) + residual as one node, with the bits of its parts."""

    def compute(h: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor,
            *of_sum: Any) -> tuple[torch.Tensor, ...]:
        return _norm_of_sum_forward(torch.nn.functional.linear(h, weight, bias), residual, of_sum)[:3]

    def keep(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
        h, weight, *_ = inputs
        ctx.save_for_backward(*_kept_of_norm_of_sum(ctx, inputs[4:], *outputs), _read_by(ctx, 1, h), weight)

    def gradients(ctx: Any, saved: tuple[Any, ...], dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *of_sum, h, weight = saved
        for_h, for_weight, for_bias, for_residual, _, _, _, with_dgamma, with_dbeta, *_ = ctx.needs_input_grad
        for_linear = for_h or for_weight or for_bias
        dz, dx, dgamma, dbeta = _gradients_of_norm_of_sum(ctx, of_sum, dy, None,
            (for_linear, with_dgamma, with_dbeta))
        dh, dweight, dbias = linear_gradients(dx, h, weight, for_h, for_weight, for_bias)
        return dh, dweight, dbias, dz if for_residual else None, *[None] * 3, dgamma, dbeta, *[None] * 5

    return _Operation(name, compute, keep, gradients)


def _norm_of_mlp(name: str, index: int) -> _Operation:
    """The norm of dropout(linear(h, weight2, bias2), p) + x with h = activation(linear(x, weight1, bias1)) as
    one node, with the bits of its parts in the forward pass. Of its dx, a sum of two, the second one is not
    rounded before it is added."""

    def compute(x: torch.Tensor, weight1: torch.Tensor, bias1: torch.Tensor | None, weight2: torch.Tensor,
            bias2: torch.Tensor | None, *of_sum: Any) -> tuple[torch.Tensor, ...]:
        h, mask = library.activation_forward(torch.nn.functional.linear(x, weight1, bias1), index)
        return *_norm_of_sum_forward(torch.nn.functional.linear(h, weight2, bias2), x, of_sum)[:3], h, mask

    def keep(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
        x, weight1, _, weight2, _, *of_sum = inputs
        y, rstd, side_x_hat, h, mask = outputs
        kept = _kept_of_norm_of_sum(ctx, of_sum, y, rstd, side_x_hat)
        ctx.save_for_backward(*kept, _read_by(ctx, 1, x), weight1, weight2, h, mask)

    def gradients(ctx: Any, saved: tuple[Any, ...], dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *kept, x, weight1, weight2, h, mask = saved
        for_x, for_weight1, for_bias1, for_weight2, for_bias2, *others = ctx.needs_input_grad
        with_dgamma, with_dbeta = others[3:5]
        for_h = for_x or for_weight1 or for_bias1
        wanted = for_h or for_weight2 or for_bias2, with_dgamma, with_dbeta
        dz, dropped, dgamma, dbeta = _gradients_of_norm_of_sum(ctx, kept, dy, None, wanted)
        dh, dweight2, dbias2 = linear_gradients(dropped, h, weight2, for_h, for_weight2, for_bias2)
        dx = dweight1 = dbias1 = None
        if for_h:
            da, dbias1 = _activation_gradients(dh, h, mask, index, for_bias1, weight1)
            # nothing else reads dz any more
            dx, dweight1, own = linear_gradients(da, x, weight1, for_x, for_weight1,
                for_bias1 and dbias1 is None, dz)
            dbias1 = own if dbias1 is None else dbias1
        return dx, dweight1, dbias1, dweight2, dbias2, *[None] * 3, dgamma, dbeta, *[None] * 5

    return _Operation(name, compute, keep, gradients)


DROPOUT_ADD, ADD = ({name: f"{before}_{name}" for name in ("layer_norm", "rms_norm")}
    for before in ("dropout_add", "add"))
_dropout_add_norms = {name: _norm_of_sum(function, False) for name, function in DROPOUT_ADD.items()}
_add_norms = {name: _norm_of_sum(function, True) for name, function in ADD.items()}
_norms_of_mlps = {
    (name, activation): _norm_of_mlp(f"mlp_{function}", index) for name, function in DROPOUT_ADD.items()
    for index, activation in enumerate(library.ACTIVATIONS)
}
_norms_of_linears = {name: _norm_of_linear(f"linear_{function}") for name, function in DROPOUT_ADD.items()}


def expect_residual(function: str, x: torch.Tensor, residual: torch.Tensor) -> None:
    """Raises an error that says why x and residual have no sum that a norm takes."""
    if not (_is_usable(residual) and _is_usable(x) and x.device == residual.device):
        _expect(function, x=x, residual=residual)
    if residual.shape != x.shape or residual.dtype != x.dtype:
        found = (f"x is {x.dtype} of shape {tuple(x.shape)}, residual {residual.dtype} of shape "
            f"{tuple(residual.shape)}")
        raise ValueError(f"outgrad.{function}: {found}; they must be alike")


def checked_of_sum(function: str, x: torch.Tensor, residual: torch.Tensor,
        normalized_shape: int | Sequence[int], of_norm: tuple[Any, ...]) -> tuple[int, tuple[Any, ...]]:
    """What `checked` gives for a norm of x + residual."""
    expect_residual(function, x, residual)
    return checked(function, x, normalized_shape, of_norm)


# The rest of these names is that of the norm. Their arguments are what `checked` gave; p is 0 where nothing
# is dropped.


def dropout_add(norm: str, x: torch.Tensor, residual: torch.Tensor, p: float, columns: int,
        of_norm: tuple[Any, ...]) -> torch.Tensor:
    """norm(dropout(x, p) + residual) as one node."""
    if columns == 0:
        return _norm_of_none(dropout(x, p) + residual, of_norm)
    return _dropout_add_norms[norm](x, residual, dropout_seed(x) if p > 0 else None, p, columns, *of_norm)


def add(norm: str, x: torch.Tensor, residual: torch.Tensor, columns: int,
        of_norm: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, z) of z = x + residual as one node."""
    if columns == 0:
        z = x + residual
        return _norm_of_none(z, of_norm), z
    return _add_norms[norm](x, residual, None, 0.0, columns, *of_norm)


def norm_of_linear(norm: str, h: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
        residual: torch.Tensor, p: float, columns: int, of_norm: tuple[Any, ...]) -> torch.Tensor:
    """norm(dropout(linear(h, weight, bias), p) + residual) as one node."""
    return _norms_of_linears[norm](h, weight, bias, residual, dropout_seed(h) if p > 0 else None, p, columns,
        *of_norm)


def norm_of_mlp(norm: str, x: torch.Tensor,
        mlp: tuple[torch.Tensor, torch.Tensor | None, str, torch.Tensor, torch.Tensor | None], p: float,
        columns: int, of_norm: tuple[Any, ...]) -> torch.Tensor:
    """norm(dropout(linear(h, weight2, bias2), p) + x) with h = activation(linear(x, weight1, bias1)) as one
    node, mlp being (weight1, bias1, the activation's name, weight2, bias2)."""
    weight1, bias1, activation, weight2, bias2 = mlp
    return _norms_of_mlps[norm, activation](x, weight1, bias1, weight2, bias2,
        dropout_seed(x) if p > 0 else None, p, columns, *of_norm)


def dropout_add_layer_norm(x: torch.Tensor, residual: torch.Tensor, normalized_shape: int | Sequence[int],
        weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, p: float = 0.5,
        eps: float = 1e-5, training: bool = True, side_channels: torch.Tensor | None = None) -> torch.Tensor:
    """layer_norm(dropout(x, p) + residual), which stands between the sub-layers of BERT, as one node and, on
    a GPU, one pass over the rows. Keeps y, 4 bytes per row and a seed. x and residual have one type.

    Shapes: x and residual [..., *normalized_shape]; weight and bias normalized_shape; side_channels [k]; the
    result as x.
    """
    p = checked_probability("dropout_add_layer_norm", p, training)
    of_norm = weight, bias, eps, False, side_channels, None, 0.0
    return dropout_add("layer_norm", x, residual, p,
        *checked_of_sum("dropout_add_layer_norm", x, residual, normalized_shape, of_norm))


def dropout_add_rms_norm(x: torch.Tensor, residual: torch.Tensor, normalized_shape: int | Sequence[int],
        weight: torch.Tensor | None = None, p: float = 0.5, eps: float | None = None, training: bool = True,
        side_channels: torch.Tensor | None = None) -> torch.Tensor:
    """rms_norm(dropout(x, p) + residual), as dropout_add_layer_norm.

    Shapes: x and residual [..., *normalized_shape]; weight normalized_shape; side_channels [k]; the result
    as x.
    """
    p, eps = checked_probability("dropout_add_rms_norm", p, training), EPS_OF_RMS if eps is None else eps
    of_norm = weight, None, eps, True, side_channels, None, 0.0
    return dropout_add("rms_norm", x, residual, p,
        *checked_of_sum("dropout_add_rms_norm", x, residual, normalized_shape, of_norm))


def add_layer_norm(x: torch.Tensor, residual: torch.Tensor, normalized_shape: int | Sequence[int],
        weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, eps: float = 1e-5,
        side_channels: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, z) with z = x + residual and y = layer_norm(z): what stands before a sub-layer of a pre-norm block,
    whose next residual is z. One node and, on a GPU, one pass over the rows. Keeps y and 4 bytes per row, and
    not z. x and residual have one type.

    Shapes: x and residual [..., *normalized_shape]; weight and bias normalized_shape; side_channels [k]; y
    and z as x.
    """
    of_norm = weight, bias, eps, False, side_channels, None, 0.0
    return add("layer_norm", x, residual,
        *checked_of_sum("add_layer_norm", x, residual, normalized_shape, of_norm))


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, normalized_shape: int | Sequence[int],
        weight: torch.Tensor | None = None, eps: float | None = None,
        side_channels: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, z) with z = x + residual and y = rms_norm(z), as add_layer_norm.

    Shapes: x and residual [..., *normalized_shape]; weight normalized_shape; side_channels [k]; y and z as x.
    """
    of_norm = weight, None, EPS_OF_RMS if eps is None else eps, True, side_channels, None, 0.0
    return add("rms_norm", x, residual,
        *checked_of_sum("add_rms_norm", x, residual, normalized_shape, of_norm))
