"""ActNN's bits shared between the layers of a model, by the error that they add to the gradient of its
parameters.

ActNN (Chen et al., ICML 2021, arXiv:2104.14129, sections 4.2 and 4.3) shares a total of bits between layers
so that the sum of what they add to the variance of the parameters' gradient is least. Its layers are linear
in what they keep, so that a layer's part follows from the widths of its ranges, the squared norm of its
gradient, and a law of 1 / (2^b - 1)^2 for b bits.

An activation is not linear in x. Its gradient dx = dy f'(x') has the error dy (f'(x') - f'(x)), which f'
bounds: where x is large, f' is all but constant, and at 1 or 2 bits the law asks for too much. Its mean is
not 0, although x' has the mean x: the bias is dy (E f'(x') - f'(x)). And backpropagation from x to the
parameters, which is linear, J^T, multiplies errors of one layer by more than those of another, and biases,
which point the same way in many elements, by more than noise. So nothing of this is modelled. x' is one of
two numbers, with known probabilities; so the bias b_i and the variance v_i of each element's error are sums
of two terms (quantisers.actnn_auto_errors), at 1, 1.5, ..., 8 bits in the mean, which the groups of the layer
share by their ranges as in each step. At the parameters the layer's expected squared error is

    |J^T b|^2 + E |J^T n|^2,        n independent, of variances v_i.

The first term is computed, by backpropagation of b: for up to 4 bits, and with more, where it is small, it is
taken to grow as |b|^2. So is the second from sum_i v_i, with the factor |J^T n|^2 / |n|^2 of errors n_i =
+-sqrt(v_i) whose signs are drawn at random; in the mean over signs that is the factor sought, at the bits of
the store.

The errors of different layers are taken to add up. Left out are products of errors of several layers, and
that biases of several layers could point the same way.
"""

import contextlib
import statistics
from collections.abc import Callable

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from outgrad import library, modules

from . import mean_bits, quantisers

DRAWS = 2  # of signs, for each layer
MOST_OF_BIASES = 4  # bits up to which J^T b is computed


class _Seen:
    """A call of a module in the forward pass."""

    def __init__(self, name, module, x, y):
        self.name, self.average, self.index = name, mean_bits(module.store), library.ACTIVATIONS.index(
            module.activation)
        self.x, self.from_x, self.from_y = x.detach().clone(), get_gradient_edge(x), get_gradient_edge(y)
        self.numbers = -(-x.numel() // quantisers.ACTNN_GROUP) * quantisers.ACTNN_GROUP

    def derivative(self, x):
        return library.activation_backward(torch.ones_like(x), *library.activation_forward(x, self.index),
            self.index)

    def factor(self, e, parameters):
        """|J^T e|^2 / |e|^2; 0 if e is 0."""
        # of the size of dy, so that no number underflows in 16 bits
        e = (e * (self.size / e.norm()).nan_to_num(0.0)).to(self.x.dtype)
        arrived = torch.autograd.grad(self.from_x, parameters, e, retain_graph=True, allow_unused=True)
        here = e.double().square().sum().item()
        return (sum(g.double().square().sum().item() for g in arrived if g is not None) / here if here != 0
            else 0.0)

    def errors(self, dy, parameters, generator):
        """The expected squared error at the parameters, float64, at each of ACTNN_LEVELS."""
        dy = dy.double()
        self.size, squares = dy.norm(), dy.square()
        deviations = (
            dy.abs() * quantisers.actnn_auto_errors(self.x, self.derivative, self.average)[1].double().sqrt())
        signs = [torch.randint(0, 2, dy.shape, generator=generator, dtype=torch.int8).to(dy.device) * 2 - 1
            for _ in range(DRAWS)]
        of_noise = statistics.fmean(self.factor(deviations * each, parameters) for each in signs)
        found = []
        for bits in quantisers.ACTNN_LEVELS:
            mean, variance = quantisers.actnn_auto_errors(self.x, self.derivative, bits)
            bias = dy * mean
            if bits <= MOST_OF_BIASES:
                of_bias = self.factor(bias, parameters)
            found.append(of_bias * bias.square().sum().item() + of_noise * (squares * variance).sum().item())
        return torch.tensor(found, dtype=torch.float64)


def share_bits(model: nn.Module, closure: Callable[[], torch.Tensor]) -> dict[str, float]:
    """Shares the bits of a model's activations whose store is actnn:auto:K by the gradient of a loss:

        bits = outgrad_peers.share_bits(model, lambda: loss_of(model, batch))

    From then on each of these modules keeps as many bits in the mean as it got, 1 to 8, until the next
    sharing; the result has them by the module's name. Over all numbers that these modules keep, the mean
    stays what their stores say. Modules that the loss does not depend on keep the bits that they have, and so
    do all if every error is 0. The shares are in the model's state dict, where there are any: load it after
    patch has set the store.

    closure: called once, without arguments; computes the loss, a tensor of one number, and does not call
    backward. It may be multiplied by any factor, as by that of a GradScaler. No .grad changes. It takes the
    time of nine backward passes for each of these modules, from it to the start, and the memory of a step and
    of all their x. Signs are drawn from a generator of its own, always the same ones. torch.compile is not in
    force in the closure. A reentrant activation checkpoint hides modules from it, and so do wrappers that
    need .backward, as DistributedDataParallel: give it what they wrap.

    Raises TypeError if model is no module or the loss no tensor of one number, ValueError if no module has
    this store, and RuntimeError, with the shares as they were, if the loss depends on no such module or an
    error is not finite.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"outgrad_peers.share_bits: a module is needed, not {type(model).__name__}")
    sharing = {
        name or "(the model)": m
        for name, m in model.named_modules()
        if isinstance(m, modules._Activation) and m.activation is not None and mean_bits(m.store) is not None
    }
    if not sharing:
        raise ValueError("outgrad_peers.share_bits: no activation of the model has the store actnn:auto:K; "
            "outgrad_peers.patch(model, store=...) gives it")
    seen = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(torch.enable_grad())
        for name, module in sharing.items():

            def watch(module, args, kwargs, y, name=name):
                if y.requires_grad:
                    seen.append(_Seen(name, module, next(iter((*args, *kwargs.values()))), y))

            stack.callback(module.register_forward_hook(watch, with_kwargs=True).remove)
        loss = closure()
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError("outgrad_peers.share_bits: closure gave no tensor of one number, which a loss is")
    dys = (
        torch.autograd.grad(loss, [one.from_y for one in seen], torch.ones_like(loss), retain_graph=True,
        allow_unused=True) if seen and loss.requires_grad else [])
    parameters, generator = [p for p in model.parameters() if p.requires_grad], torch.Generator().manual_seed(
        0)
    numbers, errors = {}, {}
    for one, dy in zip(seen, dys, strict=False):
        if dy is not None:
            of_one = one.errors(dy, parameters, generator)
            if not of_one.isfinite().all():
                raise RuntimeError(
                    f"outgrad_peers.share_bits: {one.name}: x or its gradient is not finite; share by a loss "
                    f"without overflow")
            numbers[one.name] = numbers.get(one.name, 0) + one.numbers
            errors[one.name] = errors.get(one.name, 0) + of_one
    if not errors:
        raise RuntimeError("outgrad_peers.share_bits: the loss has no gradient that comes through "
            + ", ".join(sharing))
    if any(of_one.any() for of_one in errors.values()):
        budget = sum(mean_bits(sharing[name].store) * n for name, n in numbers.items())
        shares = quantisers.share(torch.stack([*errors.values()]), torch.tensor([*numbers.values()]), budget)
        for name, share in zip(errors, shares.tolist(), strict=True):
            sharing[name]._outgrad_bits = share
    return {name: module._outgrad_bits or mean_bits(module.store) for name, module in sharing.items()}
