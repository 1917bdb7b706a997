"""Blocks of models that patch runs as one node of autograd where they are several: recognised by what their forward does, whatever their class is called.

After a Linear, BERT and its kin drop elements, add what went into the block, and normalise. From the output all of that is one backward pass, and so is an
activation with the Linear before it. The bits are those of a block's parts; only the gradient of a bias before a GELU is added up over the rows in another order.
Where a part has hooks or another class, or autocast would change a type between them, the parts run one by one.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

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
    return not (torch._C._is_any_autocast_enabled() or any(map(_has_hooks, parts)))


def _has_hooks(module):
    return module._forward_pre_hooks or module._forward_hooks or module._backward_pre_hooks or module._backward_hooks


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


def block_of(module: nn.Module) -> Block | None:
    """The block that a module is: it has the block's parts and no others, and its class no method but a constructor and a forward, whose code is the block's.
    An nn.Sequential is one if it has an activation behind a Linear."""
    kind = type(module)
    if "forward" in module.__dict__:
        return None
    if kind is nn.Sequential:
        pairs = itertools.pairwise(module)
        has = any(type(first) is nn.Linear and isinstance(second, _ACTIVATIONS) for first, second in pairs)
        return Block(Sequence, _LINEAR_ACTIVATION) if has else None
    methods = {name for name, member in vars(kind).items() if callable(member) or isinstance(member, property)}
    if methods != {"__init__", "forward"} or kind.__bases__ != (nn.Module,):
        return None
    code = _code_of(kind.forward)
    return next((block for parts, forward, block in _BLOCKS if set(module._modules) == parts and code == _code_of(forward)), None)


def _code_of(function):
    code = getattr(function, "__code__", None)
    return code and (code.co_code, code.co_names, code.co_varnames, code.co_consts[1:], function.__defaults__, function.__kwdefaults__)
