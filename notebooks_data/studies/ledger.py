"""Bytes that transformer layers keep for their backward pass: PyTorch's own, eager and compiled, and ours.

Counted by storage, parameters apart, on fake CUDA tensors: what is counted is what a GPU would keep, and
nothing is computed. A layer's figure is what two layers keep less what one keeps. `python
notebooks_data/studies/ledger.py` prints the tables; with --write it writes ledger.json beside this file,
which a test compares with a count of its own.

The largest batch is arithmetic, not a measurement: what a GPU's memory leaves beside weights, gradients and
Adam's two moments, divided by what one sequence keeps. What kernels need for a while, and what the allocator
loses, is not in it.
"""

import argparse
import functools
import json
import math
import pathlib

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table

import outgrad
from outgrad.report import autocast_on, fake

MIB, GIB = 2**20, 2**30
LENGTH = 512
P = 0.1
RESULT = pathlib.Path(__file__).with_suffix(".json")
# What a layer keeps, by its elements for each token; all else is as wide as the model: norms, sums, queries,
# keys and values, inputs of Linears, masks of dropouts.
REST = "as wide as the model"
WIDTHS = {"attention's probabilities": 16 * LENGTH, "as wide as the MLP": 4 * 1024}

# Types of parameters and inputs; whether autocast to bf16 is on.
MODES = {"fp32": (torch.float32, False), "bf16 autocast": (torch.float32, True),
         "pure bf16": (torch.bfloat16, False)}
# Columns, heads, layers, words, positions; whether the norms come before the sub-layers (GPT-2) or after the
# sums (BERT).
MODELS = {
    "BERT-Large": (1024, 16, 24, 30522, 512, False),
    "RoBERTa-Large": (1024, 16, 24, 50265, 514, False),
    "GPT-2 medium": (1024, 16, 24, 50257, 1024, True),
}
MEMORIES = (11, 16, 80)  # GiB


# --- Layers and models ----------------------------------------------------------------------------


def eager_attention(q, k, v):
    scores = torch.matmul(q, k.transpose(2, 3)) * (1 / math.sqrt(q.shape[-1]))
    return torch.matmul(F.dropout(F.softmax(scores, dim=-1), P, True), v)


def flash_attention(q, k, v):
    if q.dtype == torch.float32 and torch.is_autocast_enabled(q.device.type):
        q, k, v = (t.to(torch.bfloat16) for t in (q, k, v))
    if q.device.type == "cpu":
        return flash_stand_in(q, k, v)[0]
    # By its own name: on a fake device scaled_dot_product_attention would choose the form for the CPU.
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, P, False, False)[0]


@torch.library.custom_op("outgrad_ledger::flash", mutates_args=())
def flash_stand_in(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keeps what flash attention keeps, where the device is a fake CPU: result, sums of exponentials,
    seed."""
    raise NotImplementedError("for fake tensors alone")


@torch.library.custom_op("outgrad_ledger::flash_backward", mutates_args=())
def flash_stand_in_backward(
    dy: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, y: torch.Tensor, sums: torch.Tensor,
    seed: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    raise NotImplementedError("for fake tensors alone")


@flash_stand_in.register_fake
def _(q, k, v):
    return (torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32),
            q.new_empty(2, dtype=torch.int64))


@flash_stand_in_backward.register_fake
def _(dy, q, k, v, y, sums, seed):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


flash_stand_in.register_autograd(
    lambda ctx, dy, *_: flash_stand_in_backward(dy, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, *output),
)


def softmax_attention(q, k, v):
    return outgrad.attention(q, k, v, p=P, form="softmax")


class TanhGELU(nn.Module):
    """GPT-2's GELU as Hugging Face has it (NewGELUActivation): of elementary operations."""

    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Recipe:
    """Which classes a layer is made of, its attention, the norms' type under autocast, and what our modules
    keep: {"linear", "gelu" or "norm": store}."""

    def __init__(self, ours, attention, norms="fp32", stores=None):
        self.ours, self.attention, self.norms, self.stores = ours, attention, norms, stores or {}
        package = outgrad if ours else nn
        self.layer_norm, self.dropout = package.LayerNorm, package.Dropout

    def linear(self, *sizes):
        return outgrad.Linear(*sizes, store=self.stores["linear"]) if self.stores else nn.Linear(*sizes)

    def gelu(self, tanh):
        store = {"store": self.stores["gelu"]} if self.stores else {}
        if tanh:
            return outgrad.GELU("tanh", **store) if self.ours else TanhGELU()
        return outgrad.GELU(**store) if self.ours else nn.GELU()

    def norm(self, columns):
        made = self.layer_norm(columns, eps=1e-12, **({"store": self.stores["norm"]} if self.stores else {}))
        if isinstance(made, outgrad.LayerNorm):
            made.norms = self.norms
        return made


EAGER = Recipe(False, eager_attention)
EAGER_FLASH = Recipe(False, flash_attention)
OURS_FLASH = Recipe(True, flash_attention)
OURS_FLASH_BF16_NORMS = Recipe(True, flash_attention, "autocast")
OURS_SOFTMAX = Recipe(True, softmax_attention)
OURS_ROWS, OURS_ROWS_E4M3 = (
    Recipe(True, flash_attention, stores={"linear": linear, "gelu": "code:4", "norm": "e4m3"})
    for linear in ("rows:30", "rows:30+e4m3"))


class Layer(nn.Module):
    """A layer as BERT's (norms after the sums, GELU by erf) or GPT-2's (norms before them, GELU by tanh)."""

    def __init__(self, recipe, columns=1024, heads=16, before=False):
        super().__init__()
        self.heads, self.attention, self.before = heads, recipe.attention, before
        self.q, self.k, self.v, self.out = (recipe.linear(columns, columns) for _ in range(4))
        self.up, self.down = recipe.linear(columns, 4 * columns), recipe.linear(4 * columns, columns)
        self.norm1, self.norm2 = recipe.norm(columns), recipe.norm(columns)
        self.gelu, self.drop = recipe.gelu(tanh=before), recipe.dropout(P)

    def attend(self, x):
        b, s, h = x.shape
        q, k, v = (f(x).view(b, s, self.heads, h // self.heads).transpose(1, 2)
                   for f in (self.q, self.k, self.v))
        return self.drop(self.out(self.attention(q, k, v).transpose(1, 2).reshape(b, s, h)))

    def forward(self, x):
        if self.before:
            x = x + self.attend(self.norm1(x))
            return x + self.drop(self.down(self.gelu(self.up(self.norm2(x)))))
        x = self.norm1(self.attend(x) + x)
        return self.norm2(self.drop(self.down(self.gelu(self.up(x)))) + x)


class Model(nn.Module):
    """Embeddings, layers, the head over all positions, and the loss; the words' matrix is the last product's
    too."""

    def __init__(self, recipe, columns, heads, layers, words, positions, before):
        super().__init__()
        self.before = before
        self.words, self.positions = nn.Embedding(words, columns), nn.Embedding(positions, columns)
        self.norm, self.drop = recipe.norm(columns), recipe.dropout(P)
        self.layers = nn.ModuleList(Layer(recipe, columns, heads, before) for _ in range(layers))
        if not before:
            self.dense, self.gelu, self.head_norm = (nn.Linear(columns, columns), recipe.gelu(tanh=False),
                                                     recipe.norm(columns))

    def forward(self, tokens, labels):
        x = self.words(tokens) + self.positions.weight[: tokens.shape[1]]
        x = self.drop(x if self.before else self.norm(x))
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x) if self.before else self.head_norm(self.gelu(self.dense(x)))
        logits = F.linear(x, self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Stack(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


# --- Counting -------------------------------------------------------------------------------------


class Storages:
    """The storages of tensors, without those of parameters, and without the copies of weights that autocast
    makes: of those a step has one each, however many sequences there are. A copy is told by its shape."""

    def __init__(self, model):
        self.parameters = {p.untyped_storage()._cdata for p in model.parameters()}
        in_products = [m for m in model.modules() if isinstance(m, nn.Linear)]
        in_products += [m.words for m in model.modules() if isinstance(m, Model)]
        self.weights = {tuple(m.weight.shape) for m in in_products}
        self.weights |= {shape[::-1] for shape in self.weights}
        self.sizes, self.alive = {}, []

    def add(self, tensor):
        storage = tensor.untyped_storage()
        known = storage._cdata in self.parameters or storage._cdata in self.sizes
        if not known and tuple(tensor.shape) not in self.weights:
            self.sizes[storage._cdata] = storage.nbytes()
            self.alive.append(tensor)
        return tensor

    def bytes(self):
        return sum(self.sizes.values())

    def bytes_of(self, elements):
        """Of the storages with so many elements; a word of an int32 array holds 32 of them, one bit each."""
        return sum(
            size for tensor, size in zip(self.alive, self.sizes.values(), strict=True)
            if size // tensor.itemsize * (32 if tensor.dtype == torch.int32 else 1) == elements)


def all_bytes(storages, *_):
    return storages.bytes()


def bytes_of_width(columns):
    """The measure of what has so many elements for each token."""
    return lambda storages, x: storages.bytes_of(x.numel() // x.shape[-1] * columns)


def kept_eager(model, *inputs, measure=all_bytes):
    storages = Storages(model)
    with torch.autograd.graph.saved_tensors_hooks(storages.add, lambda tensor: tensor):
        model(*inputs)
    return measure(storages, *inputs)


def kept_compiled(model, *inputs, measure=all_bytes):
    """What the graph of the forward pass gives to that of the backward pass, as torch.compile cuts them:
    AOTAutograd with Inductor's decompositions and the min-cut partition. On a fake CPU, for the backward pass
    is traced too, and the engine asks a CUDA device for its context. The stack's result is in it; a
    difference of two stacks is rid of it."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    storages = Storages(model)

    def count(graph, _):
        given = {node for node in graph.graph.nodes if node.op == "placeholder"}
        for node in next(node for node in graph.graph.nodes if node.op == "output").args[0]:
            if (isinstance(node, torch.fx.Node) and node not in given
                    and isinstance(node.meta["val"], torch.Tensor)):
                storages.add(node.meta["val"])
        return graph

    aot_function(
        lambda inputs, parameters: torch.func.functional_call(
            model, dict(zip(names, parameters, strict=True)), inputs),
        fw_compiler=count,
        bw_compiler=lambda graph, _: graph,
        partition_fn=functools.partial(min_cut_rematerialization_partition, compiler="inductor"),
        decompositions=select_decomp_table(),
    )(inputs, parameters)
    return measure(storages, *inputs)


def without_ban(count):
    """count with a private flag of PyTorch, by which a compiled backward pass computes more again."""
    return functorch_config.patch(ban_recompute_materialized_backward=False)(count)


def device_of(count):
    """Of a way to count: the fake device that it takes."""
    return "cuda" if getattr(count, "func", count) is kept_eager else "cpu"


def parts(kept, count, widths):
    """{part: MiB}: kept(count) by the number of elements for each token, and the rest."""
    found = {part: kept(functools.partial(count, measure=bytes_of_width(columns)))
        for part, columns in widths.items()}
    found[REST] = kept(count) - sum(found.values())
    return {part: round(mib, 3) for part, mib in found.items()}


def of_layer(recipe, mode, count=kept_eager, before=False):
    """MiB that a layer keeps for one sequence: from two sizes of batch, so that what does not grow with it is
    left out."""
    dtype, autocast = MODES[mode]
    device = device_of(count)

    def kept(layers, batch):
        with fake(device, dtype):
            stack = Stack(Layer(recipe, before=before) for _ in range(layers))
            x = torch.empty(batch, LENGTH, 1024, requires_grad=True)
            with autocast_on(device, autocast):
                return count(stack, x)

    of_one, of_three = (kept(2, batch) - kept(1, batch) for batch in (1, 3))
    return (of_three - of_one) / 2 / MIB


@functools.cache
def of_model(recipe, mode, model):
    """Bytes that a whole model keeps for one sequence, and the bytes of weights, gradients and Adam's
    moments: four arrays in the weights' type, under autocast the matrices in bf16 too."""
    dtype, autocast = MODES[mode]
    kept = []
    with fake("cuda", dtype):
        made = Model(recipe, *MODELS[model])
        for batch in (1, 3):
            tokens = torch.zeros(batch, LENGTH, dtype=torch.int64)
            with autocast_on("cuda", autocast):
                kept.append(kept_eager(made, tokens, tokens))
    elements, in_matrices = (sum(p.numel() for p in made.parameters() if p.dim() >= d) for d in (0, 2))
    return (kept[1] - kept[0]) // 2, 4 * dtype.itemsize * elements + (2 * in_matrices if autocast else 0)


def largest_batch(gib, per_sequence, state):
    return max(0, (gib * GIB - state) // per_sequence)


# --- The study ------------------------------------------------------------------------------------


def layers_table():
    """{order of norms: {recipe: {mode: MiB}}}."""
    recipes = {
        "eager": (EAGER, kept_eager),
        "eager + flash": (EAGER_FLASH, kept_eager),
        "compile + flash": (EAGER_FLASH, kept_compiled),
        "compile + flash, ban_recompute_materialized_backward=False": (EAGER_FLASH,
                                                                       without_ban(kept_compiled)),
        "ours, attention from the softmax's output": (OURS_SOFTMAX, kept_eager),
        "ours + flash": (OURS_FLASH, kept_eager),
        "ours + flash, bf16 norms": (OURS_FLASH_BF16_NORMS, kept_eager),
        "ours + flash, compiled": (OURS_FLASH, kept_compiled),
        "ours + flash, bf16 norms, compiled": (OURS_FLASH_BF16_NORMS, kept_compiled),
        "ours + flash, rows:30, code:4, norms in e4m3": (OURS_ROWS, kept_eager),
        "ours + flash, rows:30+e4m3, code:4, norms in e4m3": (OURS_ROWS_E4M3, kept_eager),
    }
    return {
        order: {
            name: {mode: round(of_layer(recipe, mode, count, before), 3) for mode in MODES}
            for name, (recipe, count) in recipes.items()
        }
        for order, before in (("BERT-Large, RoBERTa-Large", False), ("GPT-2 medium", True))
    }


def parts_table():
    """{recipe: {part: MiB}} of a layer of BERT-Large in pure bf16."""
    recipes = {
        "eager": (EAGER, kept_eager),
        "eager + flash": (EAGER_FLASH, kept_eager),
        "compile + flash": (EAGER_FLASH, kept_compiled),
        "compile + flash, ban_recompute_materialized_backward=False": (EAGER_FLASH,
                                                                       without_ban(kept_compiled)),
        "ours + flash": (OURS_FLASH, kept_eager),
    }
    return {name: parts(functools.partial(of_layer, recipe, "pure bf16"), count, WIDTHS)
        for name, (recipe, count) in recipes.items()}


def models_table():
    """{model: {recipe: {mode: {kept: bytes of a sequence, state: bytes, batch: {GiB: sequences}}}}}."""
    recipes = {"eager": EAGER, "eager + flash": EAGER_FLASH, "ours + flash": OURS_FLASH}
    table = {}
    for model in MODELS:
        table[model] = {}
        for name, recipe in recipes.items():
            table[model][name] = {}
            for mode in MODES:
                kept, state = of_model(recipe, mode, model)
                batch = {str(gib): largest_batch(gib, kept, state) for gib in MEMORIES}
                table[model][name][mode] = {"kept": kept, "state": state, "batch": batch}
    return table


def show_parts(model, table):
    print(f"\nMiB of it by part, {model}, pure bf16")
    for name, row in table.items():
        print(f"{name:60}" + ", ".join(f"{part} {mib:.3f}" for part, mib in row.items()))


def show(found):
    for order, rows in found["layers"].items():
        print(f"\nMiB that a layer of {order} keeps for a sequence of {LENGTH}")
        print(f"{'':60}" + "".join(f"{mode:>15}" for mode in MODES))
        for name, row in rows.items():
            print(f"{name:60}" + "".join(f"{row[mode]:15.3f}" for mode in MODES))
    show_parts("BERT-Large", found["parts"])
    memories = ", ".join(f"{gib}" for gib in MEMORIES)
    print(f"\nLargest batch of sequences of {LENGTH}, by arithmetic, in {memories} GiB (MiB kept for "
          "a sequence)")
    for model, rows in found["models"].items():
        for name, row in rows.items():
            cells = (f"{'/'.join(map(str, row[m]['batch'].values())):>12} ({row[m]['kept'] / MIB:7.1f})"
                     for m in MODES)
            print(f"{model:15}{name:16}" + "".join(cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name} beside this file")
    options = parser.parse_args()
    command = "python notebooks_data/studies/ledger.py --write"
    found = {"schema": "outgrad.ledger/1", "command": command, "length": LENGTH, "dropout": P,
             "layers": layers_table(), "parts": parts_table(), "models": models_table()}
    show(found)
    if options.write:
        RESULT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
