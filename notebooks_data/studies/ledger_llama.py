"""Bytes that a layer of Llama-3-8B keeps for its backward pass, for a sequence of 4,096 tokens in bf16,
counted as ledger.py counts them: what two layers keep less what one keeps.

PyTorch's own layer is written as Hugging Face writes it, of elementary operations where that one is. Liger
Kernel's (Hsu et al., 2024) is represented by what its functions save: the RMSNorm its input and 1 / rms,
SwiGLU a and b, rotary embeddings no array. `python notebooks_data/studies/ledger_llama.py` prints the table;
with --write it writes ledger_llama.json beside this file, which a test compares with a count of its own.
"""

import argparse
import functools
import json
import pathlib

import torch
import torch.nn as nn
import torch.nn.functional as F
from ledger import (MIB, Stack, device_of, flash_stand_in, kept_compiled, kept_eager, parts, show_parts,
    without_ban)
from torch.utils.checkpoint import checkpoint

import outgrad
from outgrad.report import fake

RESULT = pathlib.Path(__file__).with_suffix(".json")
LENGTH, COLUMNS, INNER, HEADS, KEYS = 4096, 4096, 14336, 32, 8
WIDTHS = {"as wide as the MLP": INNER}


class _Keeps(torch.autograd.Function):
    """compute(*inputs), of which some tensors are kept, as a library's own function keeps them."""

    @staticmethod
    def forward(ctx, compute, kept, *inputs):
        result = compute(*inputs)
        ctx.save_for_backward(*kept(*inputs))
        return result


class RMSNorm(nn.Module):
    """As Hugging Face has it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(COLUMNS))

    def forward(self, x):
        kind, x = x.dtype, x.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * x.to(kind)


class LigerRMSNorm(RMSNorm):
    def forward(self, x):
        return _Keeps.apply(torch.clone, lambda x: (x, x.new_empty(x.shape[:-1], dtype=torch.float32)), x)


def rotated(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Layer(nn.Module):
    def __init__(self, norm=RMSNorm):
        super().__init__()
        self.norm1, self.norm2 = norm(), norm()
        keys = COLUMNS * KEYS // HEADS
        self.q, self.k, self.v, self.o, self.gate, self.up, self.down = (nn.Linear(*sizes, bias=False)
            for sizes in ((COLUMNS, COLUMNS), (COLUMNS, keys), (COLUMNS, keys), (COLUMNS, COLUMNS),
            (COLUMNS, INNER), (COLUMNS, INNER), (INNER, COLUMNS)))

    def rotate(self, q, k):
        cos, sin = q.new_empty(2, LENGTH, COLUMNS // HEADS)
        return rotated(q, cos, sin), rotated(k, cos, sin)

    def mlp(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))

    def forward(self, x):
        b, s, _ = x.shape
        y = self.norm1(x)
        q, k, v = (f(y).view(b, s, -1, COLUMNS // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.rotate(q, k)
        x = x + self.o(flash_stand_in(q, k, v)[0].transpose(1, 2).reshape(b, s, COLUMNS))
        return x + self.mlp(self.norm2(x))


class LigerLayer(Layer):
    def __init__(self):
        super().__init__(LigerRMSNorm)

    def rotate(self, q, k):
        return (_Keeps.apply(torch.clone, lambda _: (), each) for each in (q, k))

    def mlp(self, x):
        return self.down(_Keeps.apply(lambda a, b: a.clone(), lambda a, b: (a, b), self.gate(x), self.up(x)))


class OurLayer(Layer):
    def __init__(self, pairs="recompute"):
        super().__init__(lambda: outgrad.RMSNorm(COLUMNS, eps=1e-5))
        self.pairs = pairs

    def mlp(self, x):
        return outgrad.gated_linear(self.gate(x), self.up(x), self.down.weight, store=self.pairs)


class CheckpointedMLP(Layer):
    def mlp(self, x):
        return checkpoint(super().mlp, x, use_reentrant=False)


class CheckpointedLayer(Layer):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def kept(layer, count=kept_eager):
    """MiB of a layer for a sequence, of three together: one has as many rows as a weight has, for whose copy
    it would be taken."""
    device, batch = device_of(count), 3

    def of(layers):
        with fake(device, torch.bfloat16):
            stack = Stack(layer() for _ in range(layers))
            return count(stack, torch.empty(batch, LENGTH, COLUMNS, requires_grad=True))

    return (of(2) - of(1)) / batch / MIB


RECIPES = {
    "eager": (Layer, kept_eager),
    "eager, PyTorch's own RMSNorm": (lambda: Layer(lambda: nn.RMSNorm(COLUMNS, eps=1e-5)), kept_eager),
    "Liger": (LigerLayer, kept_eager),
    "compile": (Layer, kept_compiled),
    "compile, ban_recompute_materialized_backward=False": (Layer, without_ban(kept_compiled)),
    "eager, the MLP checkpointed": (CheckpointedMLP, kept_eager),
    "eager, the layer checkpointed": (CheckpointedLayer, kept_eager),
    "ours": (OurLayer, kept_eager),
    "ours, compiled": (OurLayer, kept_compiled),
    "ours, the gated pair from its output": (lambda: OurLayer("output"), kept_eager),
    "ours, the gated pair in e4m3": (lambda: OurLayer("e4m3"), kept_eager),
}


def parts_table():
    """{recipe: {part: MiB}}."""
    names = ("eager", "Liger", "compile", "compile, ban_recompute_materialized_backward=False", "ours")
    table = {}
    for name in names:
        layer, count = RECIPES[name]
        table[name] = parts(functools.partial(kept, layer), count, WIDTHS)
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name} beside this file")
    options = parser.parse_args()
    found = {name: round(kept(*recipe), 3) for name, recipe in RECIPES.items()}
    for name, mib in found.items():
        print(f"{name:60}{mib:12.3f}")
    table = parts_table()
    show_parts("Llama-3-8B", table)
    if options.write:
        command = "python notebooks_data/studies/ledger_llama.py --write"
        written = {"schema": "outgrad.ledger_llama/1", "command": command, "length": LENGTH, "MiB": found,
            "parts": table}
        RESULT.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
