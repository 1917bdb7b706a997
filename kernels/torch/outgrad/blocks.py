"""Blocks of models that patch runs as one node of autograd where they are several: recognised by what their forward does, whatever their class is called.

After a Linear, BERT and its kin drop elements, add what went into the block, and normalise. From the output all of that is one backward pass, and so is an
activation with the Linear before it. Llama, ViT and their kin add to the residual within a layer and normalise the sum. The bits are those of a block's parts,
but where a gradient reaches such a sum too: it is then rounded once, after the addition. Where a part has hooks or another class, or autocast would change a type
between them, the parts run one by one.
"""

import ast
import functools
import inspect
import itertools
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook as has_global_hooks

from . import functional, modules, stores


class DropoutAddNorm(nn.Module):
    """LayerNorm(dropout(dense(hidden_states)) + input_tensor), for an object that was made as one of Hugging Face's SelfOutput and Output classes."""

    def forward(self, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        x, dropout, norm = self.dense(hidden_states), self.dropout, self.LayerNorm
        if _norm_takes_all(dropout, norm) and x.dtype == input_tensor.dtype and x.shape == input_tensor.shape:
            return norm(x, input_tensor, dropout.p if dropout.training else 0.0)
        return norm(dropout(x) + input_tensor)


class LinearActivation(nn.Module):
    """intermediate_act_fn(dense(hidden_states)), for an object that was made as one of Hugging Face's Intermediate classes."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return _activated(self.dense, self.intermediate_act_fn, hidden_states)


class LinearActivationLinear(nn.Module):
    """fc2(activation_fn(fc1(hidden_states))), for an object that was made as one of Hugging Face's MLP classes."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.fc2(_activated(self.fc1, self.activation_fn, hidden_states))


class Sequence(nn.Sequential):
    """nn.Sequential, where each Linear and the activation behind it are one node."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        linear = None  # waits for what follows it
        for module in (*self, None):
            if linear is not None:
                if isinstance(module, modules._Activation):
                    input, linear = _activated(linear, module, input), None
                    continue
                input, linear = linear(input), None
            if type(module) is nn.Linear:
                linear = module
            elif module is not None:
                input = module(input)
        return input


class _PreNorm:
    """The common part of the classes that _with_sums_in_norms makes."""

    def _outgrad_norm_of_sum(self, norm, x, residual):
        """norm(x + residual), and the sum."""
        # A norm that has a type of its own takes the sum in that.
        takes = isinstance(norm, modules._Norm) and norm.store == stores.DEFAULT_OF_NORMS and (type(norm) is not modules.LlamaRMSNorm or norm.weight.dtype == x.dtype)
        if takes and x.dtype == residual.dtype and x.shape == residual.shape and _are_alone(norm):
            return norm.of_sum(x, residual)
        z = x + residual
        return norm(z), z

    def __reduce_ex__(self, protocol):
        _, _, *state = super().__reduce_ex__(protocol)
        return _new, (self.__dict__["_outgrad_was"],), *state


@functools.cache
def _with_sums_in_norms(kind):
    """(the class, the names of the norms) like one whose forward has

        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.norm(hidden_states)

    and which gives each such norm the sum's two parts; None if there is none of these, or no source to be read."""
    *wrappers, forward = _unwrapped(kind.__dict__.get("forward"))
    if not inspect.isfunction(forward) or forward.__closure__:
        return None
    try:
        lines, first = inspect.getsourcelines(forward)
        definition = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, SyntaxError, IndexError):
        return None
    if not isinstance(definition, ast.FunctionDef) or definition.decorator_list or not definition.args.args:
        return None
    for argument in ast.walk(definition.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    definition.returns = None
    ast.increment_lineno(definition, first - 1)
    # A file that was changed after it was imported holds another function than the one that runs.
    if _body_of(_function_of(definition, forward)) != _body_of(forward):
        return None
    own, norms = definition.args.args[0].arg, []
    for node in ast.walk(definition):
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                _join_sums(statements, own, norms)
    if not norms:
        return None
    ours = _function_of(ast.fix_missing_locations(definition), forward)
    made = type(kind.__name__, (_PreNorm, kind), {"forward": ours, "__module__": kind.__module__, "__qualname__": kind.__qualname__})
    # What Hugging Face's layers wrap around a forward for checkpoints they wrap around that of a subclass, too.
    *again, _ = _unwrapped(made.forward)
    return (made, frozenset(norms)) if [each.__code__ for each in wrappers] == [each.__code__ for each in again] else None


def _function_of(definition, like):
    """What a definition makes where a function was made, with that one's file, defaults and words."""
    space: dict[str, Any] = {}
    exec(compile(ast.Module([definition], []), like.__code__.co_filename, "exec"), like.__globals__, space)
    made = space[definition.name]
    made.__defaults__, made.__kwdefaults__, made.__doc__, made.__qualname__ = like.__defaults__, like.__kwdefaults__, like.__doc__, like.__qualname__
    return made


def _unwrapped(function):
    """A function and those that it wraps, from the outside in."""
    functions = [function]
    while hasattr(functions[-1], "__wrapped__"):
        functions.append(functions[-1].__wrapped__)
    return functions


def _join_sums(statements, own, norms):
    """Puts one statement in place of each three that add, keep the sum and normalise it; appends the names of the norms."""
    for k in reversed(range(len(statements) - 2)):
        add, keep, normalise = statements[k : k + 3]
        match add, keep, normalise:
            case (
                ast.Assign(targets=[ast.Name(id=z)], value=ast.BinOp(left=ast.Name() as x, op=ast.Add(), right=ast.Name() as residual)),
                ast.Assign(targets=[ast.Name(id=kept)], value=ast.Name(id=z_kept)),
                ast.Assign(
                    targets=[ast.Name(id=y)],
                    value=ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=norm), args=[ast.Name(id=z_normalised)], keywords=[]),
                ),
            ) if z == z_kept == z_normalised == y != kept and owner == own:
                results = ast.Tuple([ast.Name(y, ast.Store()), ast.Name(kept, ast.Store())], ast.Store())
                function = ast.Attribute(ast.Name(own, ast.Load()), "_outgrad_norm_of_sum", ast.Load())
                call = ast.Call(function, [normalise.value.func, x, residual], [])
                statements[k : k + 3] = [ast.copy_location(ast.Assign([results], call), add)]
                norms.append(norm)


def _new(kind):
    ours, _ = _with_sums_in_norms(kind)
    return ours.__new__(ours)


def _norm_takes_all(dropout, norm):
    plain = type(norm) is modules.LayerNorm and type(dropout) is modules.Dropout and norm.store == stores.DEFAULT_OF_NORMS
    return plain and _are_alone(dropout, norm)


def _activated(linear, activation, x):
    plain = type(linear) is nn.Linear and type(activation).forward is modules._Activation.forward and activation.store == stores.DEFAULT
    # A parameter of a subclass of Tensor is sharded or quantised.
    if plain and type(linear.weight) is nn.Parameter and x.dim() > 1 and activation.activation is not None and _are_alone(linear, activation):
        return functional.linear_activation(x, linear.weight, linear.bias, activation.activation)
    return activation(linear(x))


def _are_alone(*parts):
    return not (torch._C._is_any_autocast_enabled() or has_global_hooks() or any(map(_is_watched, parts)))


def _is_watched(module):
    """Whether a call of a module does more than its class says: it has hooks, or a forward of its own, as accelerate gives it."""
    hooks = module._forward_pre_hooks or module._forward_hooks or module._backward_pre_hooks or module._backward_hooks
    return hooks or "forward" in module.__dict__


def _dropout_add_norm(self, hidden_states, input_tensor):
    hidden_states = self.dense(hidden_states)
    hidden_states = self.dropout(hidden_states)
    hidden_states = self.LayerNorm(hidden_states + input_tensor)
    return hidden_states


def _linear_activation(self, hidden_states):
    hidden_states = self.dense(hidden_states)
    hidden_states = self.intermediate_act_fn(hidden_states)
    return hidden_states


def _linear_activation_linear(self, hidden_states):
    hidden_states = self.fc1(hidden_states)
    hidden_states = self.activation_fn(hidden_states)
    hidden_states = self.fc2(hidden_states)
    return hidden_states


class Block(NamedTuple):
    ours: type[nn.Module]
    what: str  # runs as one node


_LINEAR_ACTIVATION = "Linear and activation"

# By the names of their parts, and the code of their forward.
_BLOCKS: tuple[tuple[set[str], Callable[..., torch.Tensor], Block], ...] = (
    ({"dense", "dropout", "LayerNorm"}, _dropout_add_norm, Block(DropoutAddNorm, "dropout, add and norm")),
    ({"dense", "intermediate_act_fn"}, _linear_activation, Block(LinearActivation, _LINEAR_ACTIVATION)),
    ({"fc1", "activation_fn", "fc2"}, _linear_activation_linear, Block(LinearActivationLinear, _LINEAR_ACTIVATION)),
)

_ACTIVATIONS = (nn.GELU, nn.SiLU, nn.Mish, nn.ELU, modules._Activation)


def _is_norm(module):
    return isinstance(module, (nn.LayerNorm, nn.RMSNorm, modules._Norm))


def block_of(module: nn.Module, becomes_norm: Callable[[nn.Module], bool] = _is_norm) -> Block | None:
    """The block that a module is: it has the block's parts and no others, and its class no method but a constructor and a forward, whose code is the block's.
    An nn.Sequential is one if it has an activation behind a Linear, and any module if its forward normalises a sum and keeps it. becomes_norm: whether a module
    gets the class of a norm of ours."""
    kind = type(module)
    if "forward" in module.__dict__:
        return None
    if kind is nn.Sequential:
        pairs = itertools.pairwise(module)
        has = any(type(first) is nn.Linear and isinstance(second, _ACTIVATIONS) for first, second in pairs)
        return Block(Sequence, _LINEAR_ACTIVATION) if has else None
    methods = {name for name, member in vars(kind).items() if callable(member) or isinstance(member, property)}
    if methods == {"__init__", "forward"} and kind.__bases__ == (nn.Module,):
        code = _code_of(kind.forward)
        for parts, forward, block in _BLOCKS:
            if set(module._modules) == parts and code == _code_of(forward):
                return block
    if any(map(becomes_norm, module._modules.values())) and (found := _with_sums_in_norms(kind)) is not None:
        ours, norms = found
        if any(becomes_norm(module._modules.get(norm)) for norm in norms):
            return Block(ours, "add and norm")
    return None


def _body_of(function):
    code = getattr(function, "__code__", None)
    return code and (code.co_code, code.co_names, code.co_varnames, code.co_consts[1:])


def _code_of(function):
    body = _body_of(function)
    return body and (*body, function.__defaults__, function.__kwdefaults__)
