"""Speed of the PyTorch package beside PyTorch's own on a CPU: forward and backward through autograd, and the
operators by themselves; on a row of 64 elements, where the host's work around the operators counts, more
operations through autograd, beside two of them a node that does nothing else, and a whole model.

`python notebooks_data/studies/package_speed.py --write` measures, and writes package_speed.json beside this
file; --show prints it. All ways run in turn in each round. The ratio of PyTorch's time to ours is taken round
by round; its median stands with the interval that holds it with 99% confidence, by order statistics. The load
of the machine at both ends is part of the result: beside other work the intervals are wide, and nothing here
passes or fails.

--own-time takes the time that one thread has been computing, and not that in which it waited for a core that
other work had: for a machine that has other work.

The C library keeps the memory that arrays had, and gives it to the next ones. By default it asks the system
for every array of 32 MiB anew, and the system's first touch of its pages can take several times as long as
the computation (--system measures that).
"""

import argparse
import copy
import ctypes
import json
import math
import os
import pathlib
import platform
import sys
import time

import torch
import torch.nn.functional as F

import outgrad
from outgrad import library

RESULT = pathlib.Path(__file__).with_suffix(".json")
SCHEMA = "outgrad.package_speed/2"
COLUMNS, EPS = 1024, 1e-5
FORMATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h


def keep_memory():
    mallopt = ctypes.CDLL(None).mallopt
    if not (mallopt(M_MMAP_MAX, 0) == 1 and mallopt(M_TRIM_THRESHOLD, 2**31 - 1) == 1):
        sys.exit("package_speed: this C library cannot be told to keep memory; try --system")


def through_autograd(function, inputs, dy):
    return lambda: torch.autograd.grad(function(*inputs), inputs, dy)


def ways_of_gelu(x, dy):
    """{what: (ours, PyTorch's)}; each is called without arguments."""
    kept, given = x.detach(), dy
    y, mask = library.activation_forward(kept, 0)
    return {
        "through autograd": (through_autograd(outgrad.gelu, (x,), dy), through_autograd(F.gelu, (x,), dy)),
        "forward": (lambda: library.activation_forward(kept, 0), lambda: torch.ops.aten.gelu(kept)),
        "backward": (lambda: library.activation_backward(given, y, mask, 0),
                     lambda: torch.ops.aten.gelu_backward(given, kept)),
    }


def ways_of_layer_norm(x, dy):
    n = x.shape[-1]
    kept, gamma, beta = x.detach(), torch.rand(n) + 0.5, torch.randn(n)
    own = gamma.to(x.dtype), beta.to(x.dtype)  # PyTorch takes parameters of x's type
    ours = (x, *(p.clone().requires_grad_() for p in (gamma, beta)))
    theirs = (x, *(p.clone().requires_grad_() for p in own))

    def our_backward(y, rstd, side):
        return library.norm_backward(dy, y, n, gamma, beta, rstd, False, None, side, True, True)

    def their_backward(mean, rstd):
        return torch.ops.aten.native_layer_norm_backward(dy, kept, [n], mean, rstd, *own, [True] * 3)

    outputs, statistics = (library.norm_forward(kept, n, gamma, beta, EPS, False, None),
                           torch.ops.aten.native_layer_norm(kept, [n], *own, EPS)[1:])
    return {
        "through autograd": (
            through_autograd(lambda x, g, b: outgrad.layer_norm(x, n, g, b), ours, dy),
            through_autograd(lambda x, g, b: F.layer_norm(x, (n,), g, b), theirs, dy),
        ),
        "in sequence": (
            lambda: our_backward(*library.norm_forward(kept, n, gamma, beta, EPS, False, None)),
            lambda: their_backward(*torch.ops.aten.native_layer_norm(kept, [n], *own, EPS)[1:]),
        ),
        "forward": (lambda: library.norm_forward(kept, n, gamma, beta, EPS, False, None),
                    lambda: torch.ops.aten.native_layer_norm(kept, [n], *own, EPS)),
        "backward": (lambda: our_backward(*outputs), lambda: their_backward(*statistics)),
    }


class BareSiLU(torch.autograd.Function):
    """The least that a node written in Python does around the operators."""

    @staticmethod
    def forward(ctx, x):
        y, mask = library.activation_forward(x, SILU)
        ctx.save_for_backward(y, mask)
        return y

    @staticmethod
    def backward(ctx, dy):
        return library.activation_backward(dy, *ctx.saved_tensors, SILU)


class BareLayerNorm(torch.autograd.Function):
    """Likewise."""

    @staticmethod
    def forward(ctx, x, gamma, beta):
        y, rstd, ctx.side = library.norm_forward(x, x.shape[-1], gamma, beta, EPS, False, None)
        ctx.save_for_backward(gamma, beta, y, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):
        gamma, beta, y, rstd = ctx.saved_tensors
        return library.norm_backward(dy, y, y.shape[-1], gamma, beta, rstd, False, None, ctx.side, True, True)


SILU = library.ACTIVATIONS.index("silu")


def only_through_autograd(ours, theirs, *shapes):
    """Ways of an operation, whose further arguments are parameters of these shapes."""

    def ways(x, dy):
        inputs = (x, *(torch.rand(shape(x.shape[-1])).add(0.5).to(x.dtype).requires_grad_()
                       for shape in shapes))
        return {"through autograd": (through_autograd(ours, inputs, dy),
                                     through_autograd(theirs, inputs, dy))}

    return ways


def columns(n):
    return (n,)


def square(n):
    return n, n


def with_residual(ours, theirs, *shapes):
    def ways(x, dy):
        residual = torch.randn(x.shape).to(x.dtype).requires_grad_()
        return only_through_autograd(lambda x, *rest: ours(x, residual, *rest),
                                     lambda x, *rest: theirs(x, residual, *rest), *shapes)(x, dy)

    return ways


def pair(name, activation, store="recompute"):
    """A gated pair, with the gradients of both; nothing for a type that has no such store."""

    def ways(x, dy):
        if outgrad.stores.for_pair(store, name, x.dtype) != store:
            return {}
        inputs = x, torch.randn(x.shape).to(x.dtype).requires_grad_()
        return {"through autograd": (through_autograd(lambda a, b: outgrad.gated(a, b, name, store), inputs,
                                                      dy),
                                     through_autograd(lambda a, b: activation(a) * b, inputs, dy))}

    return ways


P = 0.1  # of dropout


class Block(torch.nn.Module):
    """What stands behind the attention of a layer of BERT: whole is an MLP, otherwise one Linear, and a norm
    of the sum."""

    def __init__(self, norm, n, whole):
        super().__init__()
        self.first, self.second, self.norm, self.whole = (torch.nn.Linear(n, n) if whole else None,
                                                          torch.nn.Linear(n, n), norm(n), whole)

    def forward(self, x, residual):
        if isinstance(self.norm, outgrad.LayerNorm):
            second = self.second.weight, self.second.bias
            return (self.norm.of_mlp(x, (self.first.weight, self.first.bias, "gelu", *second), P)
                    if self.whole else self.norm.of_linear(x, *second, residual, P))
        h = F.gelu(self.first(x)) if self.whole else x
        return self.norm(F.dropout(self.second(h), P) + (x if self.whole else residual))


def block(whole):
    def ways(x, dy):
        residual = torch.randn(x.shape).to(x.dtype).requires_grad_()
        both = [Block(norm, x.shape[-1], whole).to(x.dtype)
                for norm in (outgrad.LayerNorm, torch.nn.LayerNorm)]
        given = (x,) if whole else (x, residual)
        results = [through_autograd(lambda x, *_, of=of: of(x, residual), (*given, *of.parameters()), dy)
                   for of in both]
        return {"through autograd": tuple(results)}

    return ways


LAYERS = 24


def whole_model(x, dy):
    """BERT of Hugging Face, which has as many layers as BERT-Large, on a text of one token; nothing where
    transformers is not installed."""
    try:
        from transformers import BertConfig, BertModel
    except ImportError:
        print("bert is left out: it needs transformers", file=sys.stderr)
        return {}

    n = x.shape[-1]
    shape = BertConfig(vocab_size=8, hidden_size=n, num_hidden_layers=LAYERS, num_attention_heads=1,
                       intermediate_size=n)
    theirs = BertModel(shape, add_pooling_layer=False).to(x.dtype).train()
    ours = copy.deepcopy(theirs)
    outgrad.patch(ours)
    given = dy.view(1, 1, n)
    both = [through_autograd(lambda x, *_, of=of: of(inputs_embeds=x.view(1, 1, n)).last_hidden_state,
                             (x, *of.encoder.parameters()), given) for of in (ours, theirs)]
    return {"through autograd": tuple(both)}


KINDS = {
    "gelu": ways_of_gelu,
    "layer_norm": ways_of_layer_norm,
    "gated silu": pair("silu", F.silu),
    "gated silu, output": pair("silu", F.silu, "output"),
    "gated silu, e4m3": pair("silu", F.silu, "e4m3"),
    "gated silu, mxfp8": pair("silu", F.silu, "mxfp8"),
    "gated gelu_tanh": pair("gelu_tanh", lambda a: F.gelu(a, approximate="tanh")),
}
# Measured on few elements, where what stands around the operators takes the time.
KINDS_OF_FEW = KINDS | {
    "silu": only_through_autograd(outgrad.silu, F.silu),
    "silu, bare node": only_through_autograd(BareSiLU.apply, F.silu),
    "layer_norm, bare node": only_through_autograd(
        BareLayerNorm.apply, lambda x, g, b: F.layer_norm(x, x.shape[-1:], g, b), columns, columns),
    "rms_norm": only_through_autograd(lambda x, g: outgrad.rms_norm(x, x.shape[-1:], g),
                                      lambda x, g: F.rms_norm(x, x.shape[-1:], g), columns),
    "dropout": only_through_autograd(lambda x: outgrad.dropout(x, P), lambda x: F.dropout(x, P)),
    "dropout_add_layer_norm": with_residual(
        lambda x, r, g, b: outgrad.dropout_add_layer_norm(x, r, x.shape[-1:], g, b, P),
        lambda x, r, g, b: F.layer_norm(F.dropout(x, P) + r, x.shape[-1:], g, b),
        columns,
        columns,
    ),
    "linear_gelu": only_through_autograd(outgrad.linear_gelu, lambda x, w, b: F.gelu(F.linear(x, w, b)),
                                         square, columns),
    "linear_dropout_add_layer_norm": block(False),
    "mlp_dropout_add_layer_norm": block(True),
    "linear_silu": only_through_autograd(
        lambda x, w, b: outgrad.linear_activation(x, w, b, "silu"), lambda x, w, b: F.silu(F.linear(x, w, b)),
        square, columns
    ),
    "bert": whole_model,
}
FEW = 64


def seconds(function, clock):
    start = clock()
    result = function()  # freed after the clock has stopped
    taken = clock() - start
    del result
    return taken


def interval(values):
    """[median, low, high]: the median, and the order statistics of ranks k + 1 and n - k, between which it
    lies with at least 99% confidence, 1 - 2 P(Binomial(n, 1/2) <= k). Up to 7 values are too few, and give
    the least and the greatest."""
    ordered, n = sorted(values), len(values)
    k = max((k for k in range(n // 2) if sum(math.comb(n, i) for i in range(k + 1)) / 2**n <= 0.005),
            default=0)
    return [ordered[n // 2], ordered[k], ordered[n - 1 - k]]


def measured(kind, dtype, elements, rounds, repeats=1, clock=time.perf_counter):
    """A row for each way of a kind."""
    torch.manual_seed(1)
    columns = min(COLUMNS, elements)
    x, dy = (torch.randn(elements // columns, columns).to(dtype).requires_grad_(),
             torch.randn(elements // columns, columns).to(dtype))
    ways = KINDS_OF_FEW[kind](x, dy)
    taken = {what: ([], []) for what in ways}
    for counted in range(-2, rounds):  # two rounds to warm up
        for what, pair in ways.items():
            for times, function in zip(taken[what], pair, strict=True):
                spent = min(seconds(function, clock) for _ in range(repeats))
                if counted >= 0:
                    times.append(spent)
    for what, (ours, theirs) in taken.items():
        ratios = interval([b / a for a, b in zip(ours, theirs, strict=True)])
        yield {"what": what, "ours_ms": interval([1e3 * t for t in ours]),
               "pytorch_ms": interval([1e3 * t for t in theirs]), "times_as_fast": ratios}


def processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def show(found):
    print(f"{found['processor']} with {found['vectors']}, {found['threads']} threads on {found['cores']} "
          f"cores, PyTorch {found['pytorch']}, memory {found['memory']}, time {found.get('time', 'passed')}")
    before, after = found["load"]
    load = "busy" if max(before, after) > 1 else "quiet"
    print(f"load average {before:.1f} before and {after:.1f} after: {load}")
    for row in found["rows"]:
        median, low, high = row["times_as_fast"]
        ours, theirs = row["ours_ms"][0], row["pytorch_ms"][0]
        print(f"{row['kind']:30} {row['format']:4} {row['elements']:>9} {row['what']:16} {ours:9.3f} ms, "
              f"PyTorch {theirs:9.3f} ms: {median:.2f} [{low:.2f}, {high:.2f}]")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"measure, and write {RESULT.name}")
    parser.add_argument("--show", action="store_true", help="print what the file has, without measuring")
    parser.add_argument("--out", type=pathlib.Path, default=RESULT,
                        help="the file (default: beside this program)")
    parser.add_argument("--elements", type=int, default=2**24, help="of an array (default: 2^24)")
    parser.add_argument("--rounds", type=int, default=25, help="(default: 25)")
    parser.add_argument("--repeats", type=int, default=200,
                        help="of a call on 64 elements in a round, a 50th of it of a model; the shortest "
                             "counts (default: 200)")
    parser.add_argument("--own-time", action="store_true",
                        help="one thread, and the time that it has been computing")
    parser.add_argument("--kind", action="append", choices=tuple(KINDS_OF_FEW), default=[],
                        help="only these, as often as given (default: all)")
    parser.add_argument("--few", action="store_true", help="only what is measured on few elements")
    parser.add_argument("--system", action="store_true",
                        help="leave the C library's memory as it is by default")
    options = parser.parse_args()
    if options.show:
        show(json.loads(options.out.read_text()))
        return 0
    if (options.elements < FEW or options.elements % min(COLUMNS, options.elements) != 0
            or min(options.rounds, options.repeats) < 1):
        parser.error("--elements takes 64 or more, in whole rows of 1024, --rounds and --repeats at least 1")
    if not options.system:
        keep_memory()
    threads = torch.get_num_threads()
    clock = time.thread_time if options.own_time else time.perf_counter
    if options.own_time:
        torch.set_num_threads(1)
    found = {
        "schema": SCHEMA,
        "processor": processor(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "pytorch": torch.__version__.split("+")[0],
        "memory": "of the system" if options.system else "kept",
        "rounds": options.rounds,
        "time": "the thread's own" if options.own_time else "passed",
        "load": [os.getloadavg()[0]],
        "rows": [],
    }
    for kinds, elements, repeats in ((KINDS, options.elements, 1), (KINDS_OF_FEW, FEW, options.repeats)):
        if kinds is KINDS and options.few:
            continue
        if kinds is KINDS_OF_FEW:
            torch.set_num_threads(1)  # as few elements have no work for more
        for kind in (kind for kind in kinds if not options.kind or kind in options.kind):
            for name, dtype in FORMATS.items():
                calls = max(1, repeats // 50) if KINDS_OF_FEW[kind] is whole_model else repeats
                found["rows"] += [{"kind": kind, "format": name, "elements": elements, **row}
                                  for row in measured(kind, dtype, elements, options.rounds, calls, clock)]
    found["load"].append(os.getloadavg()[0])
    torch.set_num_threads(threads)
    if options.write:
        partial = options.out.with_suffix(".part")
        partial.write_text(json.dumps(found, indent=1) + "\n")
        partial.replace(options.out)
    show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
