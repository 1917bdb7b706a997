"""What the stores of gated pairs do to training: the three small networks of stores.py, with SiLU(a) b where
these have GELU(a).

    python notebooks_data/studies/gated_pairs.py [--write]
    python notebooks_data/studies/gated_pairs.py --show

The first trains and prints a summary, with --write it also writes ../training/gated_pairs.json. The second
prints the summary of that file. Tasks, batches, pairs of runs and intervals are those of stores.py. Each
Linear before a GELU there has twice its outputs here, a and b, and the GELU and the Linear after it are one
gated Linear. a, b, the product z and that Linear are in bf16, as under autocast, all else in fp32.

    exact      PyTorch: z = SiLU(a) b in fp32, rounded once, and the gradients that autograd has of that
    control    the same, where one weight began larger by one unit in its last place
    recompute  outgrad.gated_linear, which keeps a and b
    output     it keeps z, b and a bit of a
    e4m3       it keeps a and b in 8 bits, with one scale each, and makes z again from these

z is rounded once in all ways, so that they differ in their gradients alone but for the last bits of SiLU in
fp32. Beside where training ended stands the median distance of a way's gradient from the exact one.
"""

import torch
import torch.nn.functional as F
from torch import nn

import outgrad
import stores
from ways import Study


class GatedLinear(nn.Linear):
    """A Linear of SiLU(a) b, with a and b the halves of what it is given."""

    way = "exact"

    def forward(self, pair):
        pair = pair.bfloat16()
        with torch.autocast("cpu", torch.bfloat16):
            if self.way in ("exact", "control"):
                a, b = pair.float().chunk(2, -1)
                return F.linear((F.silu(a) * b).bfloat16(), self.weight, self.bias).float()
            return outgrad.gated_linear(pair, None, self.weight, self.bias, "silu", store=self.way).float()


def gated(model):
    """A network of stores.py with a gated pair in the place of each of its activations."""
    for block in [m for m in model.modules() if isinstance(m, nn.Sequential)]:
        for i in [i for i, m in enumerate(block) if isinstance(m, stores.Activation)]:
            before, after = block[i - 1], block[i + 1]
            block[i - 1] = type(before)(before.in_features, 2 * before.out_features)
            block[i + 1] = GatedLinear(after.in_features, after.out_features)
        for i in reversed([i for i, m in enumerate(block) if isinstance(m, stores.Activation)]):
            del block[i]
    return model


class Gated:
    """A task with such a network."""

    def model(self):
        return gated(super().model())


class Regression(Gated, stores.Regression):
    seeds = 5


class Digits(Gated, stores.Digits):
    pass


class Text(Gated, stores.Text):
    pass


def take(model, way):
    for module in model.modules():
        if isinstance(module, GatedLinear):
            module.way = way


STUDY = Study(stores.RESULT.with_name("gated_pairs.json"), "outgrad.gated_training/1",
              "python notebooks_data/studies/gated_pairs.py --write",
              ("exact", "control", "recompute", "output", "e4m3"), take,
              (Regression, Digits, Text))

if __name__ == "__main__":
    STUDY.main(__doc__)
