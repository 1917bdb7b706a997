"""Trains a small transformer on text twice, with PyTorch's layers and with outgrad's, from the same weights,
and prints what each keeps for its backward pass and where its loss ends.

usage: python examples/pytorch/train_transformer.py [TEXT_FILE] [STEPS]    (after `pip install .`; less
than a minute)
"""

import argparse
import copy
import pathlib

import torch
from torch import nn
from torch.nn import functional as F

import outgrad

COLUMNS, HEADS, LAYERS, LENGTH, BATCH = 128, 4, 2, 64, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(COLUMNS), nn.LayerNorm(COLUMNS)
        self.qkv, self.out = nn.Linear(COLUMNS, 3 * COLUMNS), nn.Linear(COLUMNS, COLUMNS)
        self.mlp = nn.Sequential(nn.Linear(COLUMNS, 4 * COLUMNS), nn.GELU(), nn.Linear(4 * COLUMNS, COLUMNS))
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, COLUMNS)
        x = x + self.drop(self.out(y))
        return x + self.drop(self.mlp(self.norm2(x)))


class Transformer(nn.Module):
    """A language model of bytes."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(256, COLUMNS), nn.Embedding(LENGTH, COLUMNS)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.LayerNorm(COLUMNS)
        self.head = nn.Linear(COLUMNS, 256)

    def forward(self, tokens):
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def train(model, text, steps):
    """The mean loss of the last ten steps, in nats per byte."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(text) - LENGTH - 1, (BATCH, 1))
        rows = text[starts + torch.arange(LENGTH + 1)]
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-10:]) / len(losses[-10:])


def main():
    default = pathlib.Path(__file__).parents[2] / "CHANGELOG.md"
    parser = argparse.ArgumentParser(
        description="Trains a small transformer on text with PyTorch's layers and with outgrad's.")
    parser.add_argument("file", type=pathlib.Path, nargs="?", default=default, help="(default: CHANGELOG.md)")
    parser.add_argument("steps", type=int, nargs="?", default=200, help="(default: 200)")
    arguments = parser.parse_args()
    file, steps = arguments.file, arguments.steps
    try:
        text = torch.tensor(list(file.read_bytes()), dtype=torch.long)
    except OSError as error:
        parser.error(f"{file}: {error.strerror}")
    if len(text) < LENGTH + 2 or steps < 1:
        parser.error(f"{file}: {LENGTH + 2} bytes of text and a step are needed at least")
    torch.manual_seed(0)
    theirs = Transformer()
    ours = copy.deepcopy(theirs)
    report = outgrad.patch(ours, example=text[:LENGTH].repeat(BATCH, 1))
    print(report)

    print(f"\n{f'{steps} steps on {file.name}':32} bytes kept   loss")
    runs = ("PyTorch", theirs, report.total_before), ("outgrad", ours, report.total_after)
    for name, model, kept in runs:
        print(f"{name:30} {kept:>12,} {train(model, text, steps):>6.3f}", flush=True)


if __name__ == "__main__":
    main()
