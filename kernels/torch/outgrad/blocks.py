"""Blocks of models that patch runs as one node of autograd where they are several: recognised by what their
forward does, whatever their class is called.

After a Linear, BERT and its kin drop elements, add what went into the block, and normalise. From the output
all of that is one backward pass, the Linear's included, and so is an activation with the Linear before it; a
whole MLP of theirs is one node. Llama, GPT-2, ViT, BART and their kin add to the residual within a layer and
normalise the sum, their attention has several Linears of one input, and their MLPs multiply an activation by
a second Linear's result. The bits are those of a block's parts, but where gradients are added, or a gate is
multiplied (gates.py): such a sum or product is then rounded once. Where a part has hooks or another class, or
autocast would change a type between them, the parts run one by one.
"""

import ast
import collections
import copy
import functools
import inspect
import itertools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import nn
from torch._subclasses.fake_tensor import is_fake
from torch.nn.modules.module import _has_any_global_hook as has_global_hooks

from . import functional, gates, graphs, library, modules, originals, stores


class OfKind:
    """The common part of the classes that _of_kind makes of others' classes, from which they descend: their
    objects stay what others look for, and have their class's attributes."""

    _outgrad_kind: type  # the other's

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        _, _, *state = tuple(super().__reduce_ex__(protocol))
        return _new_of_kind, (type(self).__bases__[0], self._outgrad_kind), *state


@functools.cache
def _of_kind(ours: Any, kind: Any) -> Any:
    """None of a class that refuses a subclass."""
    try:
        return type(kind.__name__, (ours, kind),
            {"_outgrad_kind": kind, "__module__": kind.__module__, "__qualname__": kind.__qualname__})
    except Exception:
        return None


def _new_of_kind(ours: type, kind: type) -> Any:
    made = _of_kind(ours, kind)
    return made.__new__(made)


def _runs_as(module: Any, ours: Any) -> bool:
    """Whether a module is of a class that _of_kind made with `ours`, and of no other's that has been derived
    from it since."""
    return type(module).__bases__[0] is ours


class DropoutAddNorm(OfKind, nn.Module):
    """LayerNorm(dropout(dense(hidden_states)) + input_tensor), for an object that was made as one of Hugging
    Face's SelfOutput and Output classes."""

    def forward(self, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        own: Any = self._modules
        dense, dropout, norm = own["dense"], own["dropout"], own["LayerNorm"]
        if graphs.is_symbol(hidden_states) or not (_norm_takes_all(dropout, norm)
                and _are_alone(dropout, norm)):
            return norm(dropout(dense(hidden_states)) + input_tensor)
        p = functional.checked_probability("dropout", dropout.p, dropout.training)
        weight, bias = _plain(dense)
        if weight is not None and _gives(weight, hidden_states, input_tensor) and _are_alone(dense):
            return norm.of_linear(hidden_states, weight, bias, input_tensor, p)
        x = dense(hidden_states)
        return (norm(x, input_tensor, p) if x.dtype == input_tensor.dtype and x.shape == input_tensor.shape
            else norm(dropout(x) + input_tensor))


class LinearActivation(OfKind, nn.Module):
    """intermediate_act_fn(dense(hidden_states)), for an object made as one of Hugging Face's
    Intermediates."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return _activated(self._modules["dense"], _part(self, "intermediate_act_fn"), hidden_states)


class LinearActivationLinear(OfKind, nn.Module):
    """fc2(activation_fn(fc1(hidden_states))), for an object made as one of Hugging Face's MLP classes."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        own: Any = self._modules
        return own["fc2"](_activated(own["fc1"], _part(self, "activation_fn"), hidden_states))


class _FeedsForward(OfKind):
    """output(intermediate(x), x) as one node, for an object made as one of Hugging Face's layers."""

    _modules: dict[str, Any]  # nn.Module's

    class _Chunk:
        """A layer's feed_forward_chunk, which Hugging Face's apply_chunking_to_forward asks in each call for
        its signature: of a bound method Python makes that anew."""

        __slots__ = ("layer",)
        __signature__ = inspect.Signature([
            inspect.Parameter("attention_output", inspect.Parameter.POSITIONAL_OR_KEYWORD)])

        def __init__(self, layer: Any) -> None:
            self.layer = layer

        def __call__(self, attention_output: torch.Tensor) -> torch.Tensor:
            return self.layer._outgrad_feed_forward(attention_output)

    class _Chunks:
        """In place of a method: what an object has under this name itself goes before it."""

        def __get__(self, layer: Any, _: Any = None) -> Any:
            return self if layer is None else _FeedsForward._Chunk(layer)

    feed_forward_chunk = _Chunks()

    def _outgrad_feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        own = self._modules
        intermediate, output = own["intermediate"], own["output"]
        if (_runs_as(intermediate, LinearActivation) and _runs_as(output, DropoutAddNorm)
                and not graphs.is_symbol(x)):
            inner: Any = intermediate._modules
            outer: Any = output._modules
            first, activation = inner["dense"], _part(intermediate, "intermediate_act_fn")
            second, dropout, norm = outer["dense"], outer["dropout"], outer["LayerNorm"]
            (weight1, bias1), (weight2, bias2) = _plain(first), _plain(second)
            if (weight1 is not None and weight2 is not None and _gives(weight1, x, x, weight2)
                    and (name := _takes_linear(activation)) and _norm_takes_all(dropout, norm)
                    and _are_alone(intermediate, output, first, activation, second, dropout, norm)):
                return norm.of_mlp(x, (weight1, bias1, name, weight2, bias2),
                    functional.checked_probability("dropout", dropout.p, dropout.training))
        return output(intermediate(x), x)


_Names = frozenset[str]  # of a module's parts
PAIR, DROPPED = "gated pair", "activation and dropout"  # what a report calls them


class Sequence(nn.Sequential):
    """nn.Sequential, where each Linear and the activation behind it are one node, or that and the dropout
    behind it."""

    _outgrad_pairs = stores.DEFAULT_OF_PAIRS  # what the latter keeps, by patch

    def __getitem__(self, index: Any) -> Any:
        """Of a slice an nn.Sequential, as which nothing has patched it: unpatch knows the whole alone."""
        if isinstance(index, slice):
            return nn.Sequential(collections.OrderedDict(list(self._modules.items())[index]))
        return super().__getitem__(index)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        rest: list[Any] = [*self][::-1]
        while rest:
            module, *behind = rest.pop(), *rest[:-3:-1], None, None
            if isinstance(behind[0], nn.Dropout) and (_is_relu(module)
                    or isinstance(module, modules._Activation)):
                input = _dropped(self._outgrad_pairs, rest.pop(), module, input)
            elif (type(module) is nn.Linear and isinstance(behind[0], modules._Activation)
                    and not (self._outgrad_pairs == stores.OUTPUT and isinstance(behind[1], nn.Dropout))):
                input = _activated(module, rest.pop(), input)
            else:
                input = module(input)
        return input


class Rewritten(graphs.Ours):
    """The common part of the classes that _rewritten makes."""

    _outgrad_pairs = stores.DEFAULT_OF_PAIRS  # what its gated pairs keep, by patch
    _outgrad_of: tuple[Any, ...]  # what _rewritten was given

    def _outgrad_norm_of(self, norm: Any, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """norm(x + residual)."""
        return norm.of_lost_sum(x, residual) if _takes_sum(norm, x, residual) else norm(x + residual)

    def _outgrad_norm_and(self, norm: Any, x: torch.Tensor,
            residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """norm(x + residual), and the sum."""
        if _takes_sum(norm, x, residual):
            return norm.of_sum(x, residual)
        z = x + residual
        return norm(z), z

    def _outgrad_linears_of(self, x: torch.Tensor, *linears: Any) -> Iterable[torch.Tensor]:
        """The results of several Linears for x."""
        parameters: list[Any] = []
        if functional._is_usable(x) and x.dim() > 1 and len(linears) in functional.SHARED:
            dtype = x.dtype
            for one in linears:
                weight, bias = _plain(one)
                if weight is None or weight.dtype != dtype:
                    break
                parameters += weight, bias
            else:
                if _are_alone(*linears):
                    return functional.linears_of(x, parameters)
        return [one(x) for one in linears]

    def _outgrad_dropped(self, dropout: Any, activation: Any, x: torch.Tensor) -> torch.Tensor:
        """dropout(activation(x))."""
        return _dropped(self._outgrad_pairs, dropout, activation, x)

    def _outgrad_gated(self, gate: Any, first: torch.Tensor, second: torch.Tensor,
            swapped: bool = False, dropout: Any = None) -> torch.Tensor:
        """gate(first) * second; swapped: first * gate(second). dropout: what drops elements of that."""
        a, b = (second, first) if swapped else (first, second)
        if (name := _takes_pair(gate, a, b)) is None:
            z = first * gate(second) if swapped else gate(first) * second
        else:
            packed, other, dropout = _dropped_ahead(dropout, *_as_packed(a, b))
            z = gates.gated(packed, other, name, stores.for_pair(self._outgrad_pairs, name, a.dtype))
        return z if dropout is None else dropout(z)

    def _outgrad_gated_linear(self, linear: Any, gate: Any, first: torch.Tensor, second: torch.Tensor,
            swapped: bool = False, dropout: Any = None, cast: bool = False) -> torch.Tensor:
        """What a Linear makes of such a product. cast: as T5 has it, by _CAST."""
        a, b = (second, first) if swapped else (first, second)
        weight, bias = _plain(linear)
        if (weight is not None and _have_only_watched_hooks(linear) and a.dim() > 1
                and (name := _takes_pair(gate, a, b)) is not None
                and (weight.dtype == a.dtype or functional.is_autocast(a))):
            packed, other, left = _dropped_ahead(dropout, *_as_packed(a, b))
            if left is None:
                return gates.gated_linear(packed, other, weight, bias, name,
                    stores.for_pair(self._outgrad_pairs, name, functional.dtype_under_autocast(a)))
        z = self._outgrad_gated(gate, first, second, swapped, dropout)
        # as often as T5 reads the weight, which may be computed each time
        if (cast and isinstance(linear.weight, torch.Tensor) and z.dtype != linear.weight.dtype
                and linear.weight.dtype != torch.int8):
            z = z.to(linear.weight.dtype)
        return linear(z)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        _, _, *state = tuple(super().__reduce_ex__(protocol))
        return _new, self._outgrad_of, *state


def _takes_pair(gate: Any, a: object, b: object) -> str | None:
    """The name of the activation, where a gate of ours and what it gets make a gated pair."""
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.shape == b.shape
            and a.dtype == b.dtype and a.device == b.device and functional._is_usable(a)):
        return None
    name = _takes_linear(gate)
    return name if name in library.GATES and _have_only_watched_hooks(gate) else None


def _dropped(store: str, dropout: Any, activation: Any, x: Any) -> Any:
    """dropout(activation(x)), as one node of ReLU, and of others where gated pairs keep their product."""
    name = ("relu" if _is_relu(activation) else
        _takes_linear(activation) if store == stores.OUTPUT else None)
    if (name is not None and isinstance(x, torch.Tensor) and functional._is_usable(x)
            and type(dropout) is modules.Dropout and dropout.training
            and _have_only_watched_hooks(activation, dropout) and gates.drops(name, x.dtype)
            and gates.factor_of(dropout.p, x.dtype) is not None):
        return gates.activation_dropout(x, dropout.p, name)
    return dropout(activation(x))


def _dropped_ahead(dropout: Any, a: torch.Tensor,
        b: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None, Any]:
    """(a, b, None), b dropped in place of the product: nothing else needs the product then. (a, b, dropout)
    where that is not so: b is None, of a packed pair, or the dropout is not this package's, or has hooks."""
    if (b is not None and type(dropout) is modules.Dropout and not dropout.inplace
            and _have_only_watched_hooks(dropout)):
        return a, dropout(b), None
    return a, b, dropout


# What autograd has of a part of a matrix.
_PARTS = ("SplitBackward0", "SplitWithSizesBackward0", "SliceBackward0", "AsStridedBackward0")


def _leads_straight_to(whole: torch.Tensor, half: torch.Tensor) -> bool:
    """Whether half's gradient is, without a step between, a part of the matrix's: a view of a view may have
    hooks between, and a Function may give a view and another gradient."""
    node = half.grad_fn
    if node is None or type(node).__name__ not in _PARTS:
        return node is None
    before = node.next_functions[0][0]
    if whole.grad_fn is None:
        return getattr(before, "variable", None) is whole
    return before is whole.grad_fn


def _as_packed(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(the matrix, None) where a and b are the halves of the rows of one, as chunk makes them."""
    if not torch.compiler.is_compiling() and (whole := a._base) is not None and whole is b._base:
        columns = a.shape[-1]
        if (whole.shape == (*a.shape[:-1], 2 * columns) and whole.is_contiguous()
                # views that were taken without gradients lead none back
                and whole.requires_grad == (a.grad_fn is not None) == (b.grad_fn is not None)
                # a gradient that is asked for, or changed, is that of a half
                and not any(half._backward_hooks or half.retains_grad for half in (a, b))
                and a.stride() == b.stride() == whole.stride()
                and b.storage_offset() == a.storage_offset() + columns
                and a.storage_offset() == whole.storage_offset()
                and _leads_straight_to(whole, a) and _leads_straight_to(whole, b)):
            return whole, None
    return a, b


def _runs_our_forward(module: nn.Module) -> bool:
    """Whether a module's forward is one of this package's, and no subclass's."""
    return getattr(type(module).forward, "__module__", None) in (modules.__name__, originals.__name__)


def _takes_sum(norm: Any, x: object, residual: object) -> bool:
    if not (isinstance(norm, modules._Norm) and norm.store == stores.DEFAULT_OF_NORMS
            and _runs_our_forward(norm) and isinstance(x, torch.Tensor)
            and isinstance(residual, torch.Tensor)):
        return False
    return (x.dtype == residual.dtype and x.shape == residual.shape and norm.takes_as_it_is(x)
        and _are_alone(norm))


def _rewritten(kind: type, *parts: _Names) -> tuple[type, _Names, _Names, _Names, bool] | None:
    """_of_methods of those that the class has now: others may replace them."""
    return _of_methods(kind, tuple(map(kind.__dict__.get, _METHODS)), *parts)


@functools.cache
def _of_methods(kind: type, methods: tuple[Any, ...], norms: _Names, linears: _Names, gates: _Names,
        dropouts: _Names, dropped: _Names) -> tuple[type, _Names, _Names, _Names, bool] | None:
    """(a class like this one whose methods give the norms of these names the two parts of a sum where they
    normalise one, what several of these Linears read to all of them at once, and a gated pair to its gate,
    with one of these dropouts if that is behind it; and one of the activations `dropped` with the dropout
    behind it to both; the names of the norms, the gates and these activations that it does so for; whether it
    does so for Linears). None if there are none, or no source to be read."""
    parts = norms, linears, gates, dropouts, dropped
    found = {name: one for name, method in zip(_METHODS, methods, strict=True)
        if (one := _rewritten_method(method, *parts)) is not None}
    if not found:
        return None

    def made() -> type:
        return type(kind.__name__, (Rewritten, kind), {**{name: ours for name, (ours, *_) in found.items()},
            "_outgrad_of": (kind, *parts), "__module__": kind.__module__,
            "__qualname__": kind.__qualname__})

    # What Hugging Face's layers wrap around a forward for checkpoints they wrap around that of a subclass,
    # too, but not what they wrap around those of experts. A class may refuse a subclass, as where it lists
    # them by name.
    try:
        again = made()
    except Exception:
        return None
    found = {name: one for name, one in found.items()
        if _wrappers(kind.__dict__[name]) == _wrappers(getattr(again, name))}
    if not found:
        return None
    _, *names, shared = zip(*found.values(), strict=True)
    sums, pairs, both = (frozenset[str]().union(*of) for of in names)
    return made(), sums, pairs, both, any(shared)


# What is looked at of a class: beside its forward the product of Hugging Face's mixtures of experts.
_METHODS = ("forward", "_apply_gate")


def _wrappers(function: Any) -> list[types.CodeType]:
    return [each.__code__ for each in _unwrapped(function)[:-1]]


def _rewritten_method(method: Any, norms: _Names, linears: _Names, gates: _Names, dropouts: _Names,
        dropped: _Names) -> tuple[Any, ...] | None:
    """(a method as _rewritten has it, the names of the norms, the gates and the activations, whether
    Linears), or None."""
    function = _unwrapped(method)[-1]
    if not inspect.isfunction(function) or function.__closure__:
        return None
    try:
        module = ast.parse("".join(inspect.findsource(function)[0]))
    except (OSError, SyntaxError):
        return None
    imports = [node for node in module.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    line = function.__code__.co_firstlineno
    # none if it has decorators
    definition = next(
        (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef) and node.lineno == line),
        None)
    if definition is None or not definition.args.args:
        return None
    for argument in ast.walk(definition.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    definition.returns = None
    # A file that was changed after it was imported holds another function than the one that runs.
    if _body_of(_function_of(definition, imports, function)) != _body_of(function):
        return None
    own = definition.args.args[0].arg
    rewriters = (_Sums(own, norms), _Pairs(own, gates, linears, dropouts, definition),
        _Dropped(own, dropped, dropouts, definition), _Shared(own, linears))
    for rewriter in rewriters:
        rewriter.generic_visit(definition)
    found = [rewriter.found for rewriter in rewriters]
    if not any(found):
        return None
    return _function_of(ast.fix_missing_locations(definition), imports, function), *found


def _new(kind: type, *parts: _Names) -> Any:
    made: Any = (_rewritten(kind, *parts) or [kind])[0]  # in another release its source may have none of them
    return made.__new__(made)


def _function_of(definition: ast.FunctionDef, imports: Iterable[ast.stmt],
        like: types.FunctionType) -> types.FunctionType | None:
    """What a definition makes where a function was made, with that one's globals, defaults and words.
    imports: those of its module, by which Python calls what a module has in another way than what an object
    has; they are not run."""
    code = compile(ast.Module([*imports, definition], []), like.__code__.co_filename, "exec")
    body = next(one for one in code.co_consts if isinstance(one, types.CodeType)
        and one.co_name == definition.name)
    if body.co_freevars:
        return None
    made = types.FunctionType(body, like.__globals__, like.__name__, like.__defaults__)
    made.__kwdefaults__, made.__doc__, made.__qualname__ = (like.__kwdefaults__, like.__doc__,
        like.__qualname__)
    return made


def _unwrapped(function: Any) -> list[Any]:
    """A function and those that it wraps, from the outside in."""
    functions = [function]
    while hasattr(functions[-1], "__wrapped__"):
        functions.append(functions[-1].__wrapped__)
    return functions


class _OfMethod(ast.NodeTransformer):
    """Rewrites the statements of a method, branch by branch, but not what it defines."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, field, None), list):
                self._join(statements)
        return node

    def _join(self, statements: list[Any]) -> None:
        raise NotImplementedError

    def visit_FunctionDef(self, node: ast.AST) -> ast.AST:
        return node  # of its own names

    visit_Lambda = visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef


class _Sums(_OfMethod):
    """Rewrites the sums that a method gives to norms of its object:

        z = x + r; kept = z; z = self.norm(z)     z, kept = self._outgrad_norm_and(self.norm, x, r)
        z = x + r; z = self.norm(z)               z = self._outgrad_norm_of(self.norm, x, r)
        self.norm(x + r)                          self._outgrad_norm_of(self.norm, x, r)

    Where a branch stands between the sum and the norm, as GPT-2's cross attention does, each of its two ways
    gets both. own: the object's name."""

    def __init__(self, own: str, norms: _Names) -> None:
        self.own, self.norms = own, norms
        self.found: set[str] = set()

    def _join(self, statements: list[Any]) -> None:
        for k in range(len(statements)):  # which become fewer
            statements[k : k + 4] = self._joined(statements[k : k + 4])

    def _joined(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        match statements:
            case [ast.Assign(targets=[ast.Name(z)], value=ast.BinOp(x, ast.Add(), residual)),
                ast.Assign(targets=[ast.Name(kept)], value=ast.Name(z_kept)), normalise, *rest]:
                if z == z_kept != kept and (norm := self._normalised(normalise, z)) is not None:
                    results = ast.Tuple([ast.Name(z, ast.Store()), ast.Name(kept, ast.Store())], ast.Store())
                    return (
                        [ast.copy_location(ast.Assign([results],
                        self._call("_outgrad_norm_and", norm, x, residual)), statements[0]), *rest])
            case [ast.Assign(targets=[ast.Name(z)], value=ast.BinOp(x, ast.Add(), residual)),
                ast.Assign() as normalise, *rest]:
                if (norm := self._normalised(normalise, z)) is not None:
                    return (
                        [ast.copy_location(ast.Assign(normalise.targets,
                        self._call("_outgrad_norm_of", norm, x, residual)), statements[0]), *rest])
            case [ast.Assign(targets=[ast.Name(z)], value=ast.BinOp(op=ast.Add())) as add,
                ast.If(test) as branch, ast.Assign(value=ast.Name(z_kept)) as keep, normalise]:
                if z == z_kept and self._normalised(normalise, z) is not None and _reads_names_but(test, z):
                    for field in ("body", "orelse"):
                        setattr(branch, field, copy.deepcopy([add, *getattr(branch, field), keep, normalise]))
                        self._join(getattr(branch, field))
                    return [branch]
        return statements

    def _normalised(self, statement: ast.stmt, z: str) -> Any:
        """The norm in z = self.norm(z); None for another statement."""
        match statement:
            case ast.Assign(targets=[ast.Name(y)], value=ast.Call(func=norm, args=[ast.Name(of)],
                keywords=[])) if y == of == z and self._is_norm(norm):
                return norm
        return None

    def _is_norm(self, node: ast.AST) -> bool:
        return (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            and node.value.id == self.own and node.attr in self.norms)

    def _call(self, method: str, norm: Any, x: ast.expr, residual: ast.expr) -> ast.Call:
        self.found.add(norm.attr)
        return ast.Call(ast.Attribute(ast.Name(self.own, ast.Load()), method, ast.Load()),
            [norm, x, residual], [])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(norm, [ast.BinOp(x, ast.Add(), residual)], []) if self._is_norm(norm):
                return ast.copy_location(self._call("_outgrad_norm_of", norm, x, residual), node)
        return node


class _Shared(_OfMethod):
    """Has Linears of its object that read the same in statements one after the other read it at once:

        q = self.query(x).view(shape)
        k = self.key(x).view(shape)

    becomes

        _outgrad_0, _outgrad_1 = self._outgrad_linears_of(x, self.query, self.key)
        q = _outgrad_0.view(shape)
        k = _outgrad_1.view(shape)

    Behind a Linear may stand views of its result alone, whose arguments are names and constants. own: the
    object's name."""

    VIEWS = frozenset({"view", "reshape", "transpose", "permute", "unflatten", "contiguous"})

    def __init__(self, own: str, linears: _Names) -> None:
        self.own, self.linears, self.found = own, linears, False

    def _join(self, statements: list[Any]) -> None:
        statements[:] = list(self._joined(statements))

    def _joined(self, statements: list[ast.stmt]) -> Iterator[ast.stmt]:
        for x, alike in itertools.groupby(statements, self._read_by):
            run: list[Any] = list(alike)
            if x is None or len(run) == 1:
                yield from run
                continue
            self.found = True
            results: list[ast.expr] = []
            linears = []
            for statement in run:
                call = self._call_in(statement.value)
                name = f"_outgrad_{len(results)}"
                results.append(ast.Name(name, ast.Store()))
                linears.append(call.func)
                _replace(statement, call, ast.copy_location(ast.Name(name, ast.Load()), call))
            method = ast.Attribute(ast.Name(self.own, ast.Load()), "_outgrad_linears_of", ast.Load())
            call = ast.Call(method, [ast.Name(x, ast.Load()), *linears], [])
            yield ast.copy_location(ast.Assign([ast.Tuple(results, ast.Store())], call), run[0])
            yield from run

    def _read_by(self, statement: ast.stmt) -> str | None:
        """What the Linear of a statement reads; None if it is another statement, or changes what is read."""
        match statement:
            case ast.Assign(targets=[ast.Name(result)], value=value) if (
                call := self._call_in(value)) is not None and result not in (call.args[0].id, self.own):
                return call.args[0].id
        return None

    def _call_in(self, value: ast.AST) -> Any:
        """The call of a Linear, with views behind it."""
        match value:
            case ast.Call(func=ast.Attribute(ast.Name(self.own), name), args=[ast.Name()],
                keywords=[]) if name in self.linears:
                return value
            case ast.Call(func=ast.Attribute(of, view), args=arguments,
                keywords=[]) if view in self.VIEWS and all(map(_is_told, arguments)):
                return self._call_in(of)
        return None


def _end(node: Any) -> tuple[int, int]:
    """The place in the source where a node ends."""
    return node.end_lineno, node.end_col_offset


class _Calls(_OfMethod):
    """Rewrites calls of calls, f(g(x)), as _behind says, and where they are two statements, z = g(x); y =
    f(z), if nothing else reads that z, for a return, too."""

    def __init__(self, definition: ast.FunctionDef) -> None:
        inner = (ast.For, ast.While, ast.FunctionDef, ast.Lambda, ast.comprehension)
        self.straight = not any(isinstance(node, inner) for node in ast.walk(definition)
            if node is not definition)
        self.handles = any(hasattr(node, "finalbody") for node in ast.walk(definition))
        self.reads: collections.Counter[str] = collections.Counter()
        self.last_read: dict[str, tuple[int, int]] = {}
        changed = {node.target for node in ast.walk(definition) if isinstance(node, ast.AugAssign)}
        for node in ast.walk(definition):
            # or by a del, or where it is changed, which reads it
            if isinstance(node, ast.Name) and (node in changed or not isinstance(node.ctx, ast.Store)):
                self.reads[node.id] += 1
                self.last_read[node.id] = max(_end(node), self.last_read.get(node.id, (0, 0)))

    def _join(self, statements: list[Any]) -> None:
        k = 0
        while k + 1 < len(statements):
            match statements[k], statements[k + 1]:
                case (ast.Assign(targets=[ast.Name(z)], value=ast.Call() as inner),
                    (ast.Return(value=ast.Call(outer, [ast.Name(read)], []))
                    | ast.Assign(targets=[ast.Name()],
                    value=ast.Call(outer, [ast.Name(read)], []))) as reader) if z == read:
                    last: Any = reader
                    behind = ast.copy_location(ast.Call(outer, [inner], []), last.value)
                    if self._needs_no_more(z, last) and (found := self._behind(behind)) is not behind:
                        last.value = found
                        del statements[k]
                        continue
            k += 1

    def _behind(self, node: ast.AST) -> Any:
        raise NotImplementedError

    def _needs_no_more(self, z: str, statement: Any) -> bool:
        """Whether nothing reads z behind a statement that reads it, nor where that fails."""
        if self.handles and self.reads[z] > 1:
            return False
        return (isinstance(statement, ast.Return) or statement.targets[0].id == z
            or (self.straight and self.last_read[z] <= _end(statement)))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return self._behind(node)


class _Dropped(_Calls):
    """Rewrites the dropouts behind activations of its object:

        self.dropout(self.act(x))             self._outgrad_dropped(self.dropout, self.act, x)

    own: the object's name."""

    def __init__(self, own: str, activations: _Names, dropouts: _Names,
            definition: ast.FunctionDef) -> None:
        super().__init__(definition)
        self.own, self.activations, self.dropouts = own, activations, dropouts
        self.found: set[str] = set()

    def _behind(self, node: ast.AST) -> Any:
        match node:
            case ast.Call(ast.Attribute(ast.Name(self.own), outer) as dropout,
                [ast.Call(ast.Attribute(ast.Name(self.own), inner) as activation, [x], [])],
                []) if outer in self.dropouts and inner in self.activations:
                self.found.add(inner)
                method = ast.Attribute(ast.Name(self.own, ast.Load()), "_outgrad_dropped", ast.Load())
                return ast.copy_location(ast.Call(method, [dropout, activation, x], []), node)
        return node


class _Pairs(_Calls):
    """Rewrites the products of a gate of its object:

        self.act(a) * b                       self._outgrad_gated(self.act, a, b)
        b * self.act(a)                       self._outgrad_gated(self.act, b, a, True)
        self.down(self.act(a) * b)            self._outgrad_gated_linear(self.down, self.act, a, b)
        g = self.act(f(x)); h = ..; z = g * h g = f(x); h = ..; z = self._outgrad_gated(self.act, g, h)
        self.dropout(self.act(a) * b)         self._outgrad_gated(self.act, a, b, dropout=self.dropout)

    the fourth but where something else reads g, and of an f(x) alone: an array that has a name might be
    changed by h. Before the Linear may stand T5's change of type, _CAST. own: the object's name."""

    def __init__(self, own: str, gates: _Names, linears: _Names, dropouts: _Names,
            definition: ast.FunctionDef) -> None:
        super().__init__(definition)
        self.own, self.gates, self.linears, self.dropouts = own, gates, linears, dropouts
        self.found: set[str] = set()

    def _join(self, statements: list[Any]) -> None:
        for first, second, third in zip(statements, statements[1:], statements[2:]):
            match first, second, third:
                case (ast.Assign(targets=[ast.Name(g)], value=ast.Call() as gate),
                    ast.Assign(targets=[ast.Name(h)]),
                    ast.Assign(value=ast.BinOp(ast.Name(left), ast.Mult(), ast.Name(right)))):
                    if ((g, h) == (left, right) and g != h and self._is_gate(gate) and self.reads[g] == 1
                            and isinstance(gate.args[0], ast.Call)):
                        first.value = gate.args[0]
                        product: Any = third.value
                        third.value = ast.copy_location(
                            self._pair(gate.func, [product.left, product.right]), product)
        super()._join(statements)
        for k in reversed(range(len(statements) - 2)):
            match statements[k : k + 3]:
                case (ast.Assign(targets=[ast.Name(z)], value=product), ast.If() as cast,
                    ast.Assign(targets=[ast.Name(y)], value=ast.Call(ast.Attribute(), [ast.Name(read)],
                    []) as call) as last) if z == y == read:
                    linear = ast.Call(call.func, [product], [])
                    told = ast.parse(_CAST.format(z=z, linear=ast.unparse(call.func))).body[0]
                    if ast.dump(cast) == ast.dump(told) and (found := self._behind(linear)) is not linear:
                        found.keywords.append(ast.keyword("cast", ast.Constant(True)))
                        last.value = ast.copy_location(found, call)
                        del statements[k : k + 2]

    def _is_gate(self, node: ast.AST) -> TypeGuard[ast.Call]:
        match node:
            case ast.Call(ast.Attribute(ast.Name(self.own), name), [_], []):
                return name in self.gates
        return False

    def _pair(self, gate: Any, arguments: list[ast.expr]) -> ast.Call:
        self.found.add(gate.attr)
        return ast.Call(ast.Attribute(ast.Name(self.own, ast.Load()), "_outgrad_gated", ast.Load()),
            [gate, *arguments], [])

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.BinOp(gate, ast.Mult(), b) if self._is_gate(gate):
                return ast.copy_location(self._pair(gate.func, [gate.args[0], b]), node)
            case ast.BinOp(b, ast.Mult(), gate) if self._is_gate(gate):
                return ast.copy_location(self._pair(gate.func, [b, gate.args[0], ast.Constant(True)]), node)
        return node

    def _behind(self, node: ast.AST) -> Any:
        """A Linear or a dropout of a pair, as one call."""
        match node:
            case ast.Call(ast.Attribute(ast.Name(self.own), name) as outer,
                [ast.Call(ast.Attribute(ast.Name(self.own), "_outgrad_gated") as gated, arguments,
                keywords)], []):
                if name in self.dropouts and not keywords:
                    return ast.copy_location(
                        ast.Call(gated, arguments, [ast.keyword("dropout", outer)]), node)
                if name in self.linears:
                    method = ast.Attribute(gated.value, "_outgrad_gated_linear", ast.Load())
                    return ast.copy_location(ast.Call(method, [outer, *arguments], keywords), node)
        return node


# What T5 and its kin do before their last Linear.
_CAST = """
if (isinstance({linear}.weight, torch.Tensor) and {z}.dtype != {linear}.weight.dtype
        and {linear}.weight.dtype != torch.int8):
    {z} = {z}.to({linear}.weight.dtype)"""


def _is_told(argument: ast.AST) -> bool:
    """Whether an argument is of names and constants, so that it may be read before or after other
    statements."""
    parts = (ast.Name, ast.Attribute, ast.Constant, ast.Starred, ast.UnaryOp, ast.USub, ast.Tuple, ast.Load)
    return all(isinstance(node, parts) for node in ast.walk(argument))


def _replace(statement: ast.stmt, old: ast.AST, new: ast.AST) -> None:
    for node in ast.walk(statement):
        for field, value in ast.iter_fields(node):
            if value is old:
                setattr(node, field, new)


def _reads_names_but(test: ast.AST, name: str) -> bool:
    """Whether a condition reads other names alone, so that it may be asked before this one is set."""
    parts = (ast.Name, ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.boolop, ast.unaryop, ast.cmpop,
        ast.Load)
    return all(isinstance(node, parts) and getattr(node, "id", None) != name for node in ast.walk(test))


def _norm_takes_all(dropout: Any, norm: Any) -> bool:
    return (type(norm) is modules.LayerNorm and type(dropout) is modules.Dropout
        and norm.store == stores.DEFAULT_OF_NORMS)


_LINEAR_FORWARD = nn.Linear.forward  # which others may replace for all Linears


def _plain(linear: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The weight and the bias of a Linear of PyTorch's own; (None, None) of another one, where the weight is
    of a subclass of Tensor, hence sharded or quantised, and where somebody changes what Linears compute."""
    # A module's attributes take 0.5 us each, its dictionaries 0.05.
    if (type(linear) is nn.Linear and nn.Linear.forward is _LINEAR_FORWARD
            and functional.linear_is_pytorchs()):
        own = linear._parameters
        if "bias" in own and (type(weight := own.get("weight")) is nn.Parameter or is_fake(weight)):
            return weight, own["bias"]
    return None, None


def _gives(weight: torch.Tensor, x: torch.Tensor, like: torch.Tensor,
        second: torch.Tensor | None = None) -> bool:
    """Whether what a Linear of this weight makes of x, or what that of a second one makes of this, has the
    shape and type of another tensor."""
    shape, last = x.shape, weight if second is None else second
    fit = second is None or second.shape[1] == weight.shape[0]
    alike = x.dtype == weight.dtype == last.dtype == like.dtype and len(shape) > 1 and fit
    return alike and shape[-1] == weight.shape[1] and like.shape == (*shape[:-1], last.shape[0])


def _takes_linear(activation: Any) -> str | None:
    """The name of an activation that a node takes together with the Linear before it; None of another one."""
    return (activation.activation if getattr(type(activation), "forward", None) is modules._Activation.forward
        and activation.store == stores.DEFAULT else None)


def makes_a_node(module: nn.Module, what: str) -> bool:
    """Whether a block of this kind makes its node with the classes and stores that its parts have now."""
    if what != _LINEAR_ACTIVATION:
        return True
    parts = module._modules.values()
    pairs = (itertools.pairwise(parts) if isinstance(module, Sequence) else itertools.product(parts, parts))
    return any(type(linear) is nn.Linear and _takes_linear(activation) for linear, activation in pairs)


def _part(module: nn.Module, name: str) -> Any:
    """module.name, which may be a function in place of a module by now."""
    own = module._modules
    return own[name] if name in own else getattr(module, name)


def _activated(linear: Any, activation: Any, x: torch.Tensor) -> torch.Tensor:
    weight, bias = _plain(linear)
    if (weight is not None and (name := _takes_linear(activation)) and functional._is_usable(x)
            and x.dim() > 1 and _are_alone(linear, activation)):
        return functional.linear_activation(x, weight, bias, name)
    return activation(linear(x))


def _are_alone(*parts: nn.Module) -> bool:
    """Whether calls of these modules do no more than their classes say, without autocast."""
    return not torch._C._is_any_autocast_enabled() and _have_no_hooks(*parts)


def _have_no_hooks(*parts: nn.Module) -> bool:
    """Whether none of these modules has hooks, or a forward of its own, as accelerate gives it."""
    if has_global_hooks():
        return False
    for part in parts:
        if (part._forward_pre_hooks or part._forward_hooks or part._backward_pre_hooks or part._backward_hooks
                or "forward" in part.__dict__):
            return False
    return True


def _have_only_watched_hooks(*parts: nn.Module) -> bool:
    """The same, but that patch may watch them: what a gated pair keeps is less than what its parts do."""

    def others(hooks: Any) -> bool:
        return hooks and any(not hasattr(hook, "outgrad_watches") for hook in hooks.values())

    return not has_global_hooks() and not any(
        others(part._forward_pre_hooks) or others(part._forward_hooks) or part._backward_pre_hooks
        or part._backward_hooks or "forward" in part.__dict__ for part in parts)


def _dropout_add_norm(self: Any, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
    hidden_states = self.dense(hidden_states)
    hidden_states = self.dropout(hidden_states)
    hidden_states = self.LayerNorm(hidden_states + input_tensor)
    return hidden_states


def _linear_activation(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    hidden_states = self.dense(hidden_states)
    hidden_states = self.intermediate_act_fn(hidden_states)
    return hidden_states


def _linear_activation_linear(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    hidden_states = self.fc1(hidden_states)
    hidden_states = self.activation_fn(hidden_states)
    hidden_states = self.fc2(hidden_states)
    return hidden_states


def _feed_forward_chunk(self: Any, attention_output: torch.Tensor) -> torch.Tensor:
    intermediate_output = self.intermediate(attention_output)
    layer_output = self.output(intermediate_output, attention_output)
    return layer_output


class Block(NamedTuple):
    ours: Any  # a class of modules
    what: str  # runs as one node
    parts: _Names  # the norms and activations in it, by their names in the module


_LINEAR_ACTIVATION = "Linear and activation"

# By the names of their parts, and the code of their forward.
_BLOCKS: tuple[tuple[set[str], Callable[..., torch.Tensor], Block], ...] = (
    ({"dense", "dropout", "LayerNorm"}, _dropout_add_norm,
    Block(DropoutAddNorm, "dropout, add and norm", frozenset({"LayerNorm"}))),
    ({"dense", "intermediate_act_fn"}, _linear_activation,
    Block(LinearActivation, _LINEAR_ACTIVATION, frozenset({"intermediate_act_fn"}))),
    ({"fc1", "activation_fn", "fc2"}, _linear_activation_linear,
    Block(LinearActivationLinear, _LINEAR_ACTIVATION, frozenset({"activation_fn"}))),
)

_ACTIVATIONS = (nn.GELU, nn.SiLU, nn.Mish, nn.ELU, modules._Activation)


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, (nn.LayerNorm, nn.RMSNorm, modules._Norm))


def _is_activation(module: nn.Module) -> bool:
    return isinstance(module, _ACTIVATIONS)


def _is_relu(module: object) -> bool:
    return type(module) is nn.ReLU and not module.inplace


def _is_dropout(module: object) -> bool:
    return isinstance(module, nn.Dropout)


def _in_sequence(module: nn.Module, before: Callable[[Any], bool],
        behind: Callable[[Any], bool]) -> list[_Names]:
    """Names of the parts of an nn.Sequential that are pairs of neighbours: (of the first, of the second)."""
    return [frozenset(names) for names in zip(*((first, second)
        for (first, one), (second, other) in itertools.pairwise(module._modules.items())
        if before(one) and behind(other)), strict=True)] or [frozenset()] * 2


def block_of(module: nn.Module, becomes_norm: Callable[[nn.Module], bool] = _is_norm,
        becomes_activation: Callable[[nn.Module], bool] = _is_activation,
        becomes_dropout: Callable[[nn.Module], bool] = _is_dropout, drops: bool = False) -> Block | None:
    """The block that a module is: it has the block's parts and no others, and its class no method but a
    constructor and a forward, whose code is the block's. An nn.Sequential is one if it has an activation
    behind a Linear, or before a dropout, and any module if its forward normalises a sum, multiplies a gate or
    drops what an activation gives. becomes_norm, becomes_activation, becomes_dropout: whether a module gets
    the class of one of ours. drops: whether other activations than ReLU are one with the dropout behind
    them."""
    kind: Any = type(module)
    if "forward" in module.__dict__:
        return None
    if kind is nn.Sequential:
        _, activated = _in_sequence(module, lambda one: type(one) is nn.Linear,
            lambda one: isinstance(one, _ACTIVATIONS))
        dropped, _ = _in_sequence(module, lambda one: _is_relu(one) or (drops and becomes_activation(one)),
            becomes_dropout)
        what = [_LINEAR_ACTIVATION] * bool(activated - dropped) + [DROPPED] * bool(dropped)
        return Block(Sequence, " and ".join(what), activated | dropped) if what else None
    methods = {name for name, one in vars(kind).items() if callable(one) or isinstance(one, property)}
    if methods == {"__init__", "forward"} and kind.__bases__ == (nn.Module,):
        code = _code_of(kind.forward)
        for parts, forward, block in _BLOCKS:
            if set(module._modules) == parts and code == _code_of(forward):
                made = _of_kind(block.ours, kind)
                return None if made is None else block._replace(ours=made)
    if _feeds_forward(kind, module) and (made := _of_kind(_FeedsForward, kind)) is not None:
        return Block(made, "Linear, activation, Linear, dropout, add and norm", frozenset())
    parts_there = {name: part for name, part in module._modules.items() if part is not None}
    norms = frozenset(name for name, part in parts_there.items() if becomes_norm(part)
        and (_runs_our_forward(part) or not isinstance(part, modules._Norm)))
    gates = frozenset(name for name, part in parts_there.items() if becomes_activation(part))
    linears = frozenset(name for name, part in parts_there.items() if type(part) is nn.Linear)
    dropouts = frozenset(name for name, part in parts_there.items() if becomes_dropout(part))
    before_dropouts = (gates if drops else frozenset()).union(
        name for name, part in parts_there.items() if _is_relu(part))
    if (norms or gates or len(linears) > 1 or (before_dropouts and dropouts)) and (
            found := _rewritten(kind, norms, linears, gates, dropouts, before_dropouts)) is not None:
        ours, in_sums, in_pairs, dropped, shared = found
        what = (["add and norm"] * bool(in_sums) + [PAIR] * bool(in_pairs) + [DROPPED] * bool(dropped)
            + ["Linears of one input"] * shared)
        return Block(ours, " and ".join(what), in_sums | in_pairs | dropped)
    return None


def _feeds_forward(kind: type, module: nn.Module) -> bool:
    """Whether a layer's feed_forward_chunk is that of BERT, over blocks of BERT's kind."""
    if _code_of(getattr(kind, "feed_forward_chunk", None)) != _code_of(_feed_forward_chunk):
        return False

    def is_block(name: str, ours: type) -> bool:
        part = module._modules.get(name)
        return part is not None and (_runs_as(part, ours)
            or ((block := block_of(part)) is not None and block.ours.__bases__[0] is ours))

    return is_block("intermediate", LinearActivation) and is_block("output", DropoutAddNorm)


def why_apart(part: nn.Module) -> str:
    """Why a norm or an activation is in no block, though the module that it is in has been looked at."""
    return ("no sum of this module goes straight into it" if isinstance(part, modules._Norm)
        else "it follows no Linear in a forward that is recognised")


def _body_of(function: Any) -> Any:
    code = getattr(function, "__code__", None)
    return code and (code.co_code, code.co_names, code.co_varnames, originals.constants_of(function))


def _code_of(function: Any) -> Any:
    body = _body_of(function)
    return body and (*body, function.__defaults__, function.__kwdefaults__)
