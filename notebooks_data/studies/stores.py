"""What few bits do to training: two small networks, trained with GELU's derivative from what each store keeps.

    python notebooks_data/studies/stores.py [--write] [--seeds N] [--steps N]
    python notebooks_data/studies/stores.py --show

The first trains and prints a summary, with --write it also writes ../training/stores.json, anew after each seed; the
second prints the summary of that file. It needs PyTorch alone.

    regression  a made-up smooth function of 8 inputs, two hidden layers of 128 GELUs; the logarithm of the validation
                error over the variance
    digits      8 x 8 handwritten digits (../training/digits.csv.gz), a vision transformer of 2 layers and patches of
                2 x 2; validation cross-entropy in nats

The runs of one task and one seed start from the same weights and see the same batches. They differ in one thing:

    exact         PyTorch's own GELU
    control       the same, where one weight began larger by one unit in its last place: what rounding alone does
    bf16_bit      y in bf16, and one bit for the side of the minimum
    bf16_parity   y in bf16, whose last bit says the side where y < 0. The next layer gets this y: the one way that
                  changes the forward pass too, in validation as well
    mxfp8_bit     y in MXFP8, blocks of 32 along the last axis, and one bit
    code_K        the number of f'(x)'s cell of 2^K of equal width, which stands for its middle: the least sup error
                  that K bits can have
    dither_K      f'(x) in K bits with subtractive dither: no bias, errors that do not depend on f'(x)
    regelu2       ReGELU2's published steps, a code of 2 bits (../foreign/regelu2.json)
    mesa_8        Mesa's x in 8 bits by stochastic rounding, saturated, with a running range for the tensor
    actnn_2       ActNN's x in 2 bits by stochastic rounding, with a range for each 256

This emulates the stores in PyTorch. The library's kernels take f' of x by a fit that is off by at most 4e-5. That of y
they take from fits which near the minimum give the middle of what a stored y stands for. Here it is the exact inverse (a
table, off by at most 3e-5), whose errors there are up to twice the kernels': 0.016 for 0.011 in bf16, 0.024 for 0.017
with parity, 0.08 for 0.04 in MXFP8. But for bf16_parity's, a y that is kept in few bits serves the derivative alone:
the next layer gets it in fp32.

The final loss differs more from seed to seed than from way to way. So the summary has the mean of the differences from
`exact`, paired by seed, and of two codes of 2 bits from `regelu2`, with Student's intervals, so wide that all of a
task's intervals hold together with 95% (Bonferroni). An interval that contains 0 establishes nothing, not equality
either. Beside them stands, free of that noise, what each way does at the same weights and batch along the run of
`exact`: the distance of the gradient by all parameters (relative, L2), its shrinkage <g', g> / <g, g>, the RMS error of
f', and the distance of another batch's exact gradient.

A run uses one thread, so that a machine gives the same numbers again; another processor or PyTorch may give others of
the same quality.
"""

import argparse
import functools
import gzip
import json
import math
import pathlib
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

from paired import CONFIDENCE, interval, student

HERE = pathlib.Path(__file__).resolve().parent
RESULT = HERE.parent / "training" / "stores.json"
WAYS = ("exact", "control", "bf16_bit", "bf16_parity", "mxfp8_bit", "code_2", "code_3", "code_4", "code_5")
WAYS += ("dither_2", "dither_3", "regelu2", "mesa_8", "actnn_2")
PAIRS = [(way, "exact") for way in WAYS[1:]] + [("code_2", "regelu2"), ("dither_2", "regelu2")]
RATE, WARM_UP, PROBES = 3e-3, 50, 5

X_STAR, Y_STAR = -0.7517915246935645, -0.16997120747990369  # GELU's minimum
LO, HI = -0.12890414518515492, 1.128904145185155  # of f'


# --- Stores --------------------------------------------------------------------------------------------------------


def derivative(x):
    return torch.special.ndtr(x) + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


@functools.cache
def inverse_table(dtype):
    """f' over s = +-sqrt(y - Y_STAR), negative left of the minimum, in steps of 2^-15 up to where f' is 1 to fp32."""
    s = torch.arange(-13510, 81200, dtype=torch.float64) * 2.0**-15
    low, high = torch.where(s < 0, -40.0, X_STAR).double(), torch.where(s < 0, X_STAR, 8.0).double()
    for _ in range(64):
        middle = (low + high) / 2
        beyond = (middle * torch.special.ndtr(middle) - Y_STAR > s * s) ^ (s < 0)
        low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    return s[0].item(), derivative((low + high) / 2).to(dtype)


def derivative_of_output(y, right):
    """f'(x) from y = f(x) and the side of the minimum on which x lies."""
    start, table = inverse_table(y.dtype)
    s = (y - Y_STAR).clamp(min=0).sqrt()
    place = ((torch.where(right, s, -s) - start) * 2.0**15).clamp(0, len(table) - 2)
    row = place.long()
    return torch.lerp(table[row], table[row + 1], place - row)


def parity(y, right):
    """y in bf16, of which a negative one is even right of the minimum and odd left of it (kernels/parity.h)."""
    bits = y.view(torch.int32)
    code, inexact = (bits >> 16) & 0x7FFF, (bits & 0xFFFF) != 0
    code = torch.where(right, (code + inexact) & ~1, code | 1) | 0x8000
    return torch.where((y < 0) | ~right, (code << 16).view(torch.float32), y.bfloat16().float())


def mxfp8(y):
    """y in MXFP8 and back: scales of 2^(floor(log2 amax) - 8), elements in e4m3 (kernels/mxfp8.h)."""
    blocks = y.unflatten(-1, (-1, 32))
    exponent = torch.frexp(blocks.abs().amax(-1, keepdim=True)).exponent - 9
    scale = torch.exp2(exponent.clamp(min=-126).float())
    return ((blocks / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale).flatten(-2)


def coded(x, bits):
    cell = (HI - LO) / 2**bits
    return LO + cell * (((derivative(x) - LO) / cell).floor().clamp(0, 2**bits - 1) + 0.5)


def dithered(x, bits):
    step = (HI - LO) / (2**bits - 1)
    dither = torch.rand_like(x) - 0.5
    return LO + step * (((derivative(x) - LO) / step + dither).round().clamp(0, 2**bits - 1) - dither)


@functools.cache
def regelu2_steps():
    published = json.loads((HERE.parent / "foreign" / "regelu2.json").read_text())
    levels = torch.tensor([0.0, *map(float, published["increments"])]).cumsum(0)
    return torch.tensor([float(t) for t in published["thresholds"]]), levels


def regelu2(x):
    thresholds, levels = regelu2_steps()
    return levels[torch.bucketize(x, thresholds)]


def mesa(x, low, width):
    code = ((x - low) * (255 / width) + torch.rand_like(x) - 0.5).round().clamp(0, 255)
    return derivative(code * (width / 255) + low)


def actnn(x, bits):
    groups, top = x.reshape(-1, 256), 2**bits - 1
    low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    scale = top / (high - low + 2e-6)
    code = ((groups - low) * scale + torch.rand_like(groups) - 0.5).round().clamp(0, top)
    return derivative((code / scale.bfloat16().float() + low.bfloat16().float()).view_as(x))


class Kept(torch.autograd.Function):
    """y, whose derivative by x is taken to be g."""

    @staticmethod
    def forward(ctx, x, y, g):
        ctx.save_for_backward(g)
        return y.view_as(y)

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.saved_tensors[0], None, None


class Activation(nn.Module):
    """GELU whose derivative is had in one of the ways."""

    way, range, measuring, mean_square = "exact", None, False, None

    def stored(self, x):
        """y as the next layer gets it, and the derivative."""
        y, right = F.gelu(x), x >= X_STAR
        match self.way.split("_"):
            case ["bf16", "bit"]:
                return y, derivative_of_output(y.bfloat16().float(), right)
            case ["bf16", "parity"]:
                y = parity(y, right)
                return y, derivative_of_output(y, (y >= 0) | ((y.view(torch.int32) >> 16) % 2 == 0))
            case ["mxfp8", "bit"]:
                return y, derivative_of_output(mxfp8(y), right)
            case ["code", bits]:
                return y, coded(x, int(bits))
            case ["dither", bits]:
                return y, dithered(x, int(bits))
            case ["regelu2"]:
                return y, regelu2(x)
            case ["mesa", "8"]:
                return y, mesa(x, *self.range)
            case ["actnn", bits]:
                return y, actnn(x, int(bits))

    def follow(self, x):
        """Mesa's running range, moved before it is used. The run of `exact` follows it too, for its probes."""
        now = torch.stack((x.amin(), x.amax() - x.amin()))
        self.range = now if self.range is None else self.range + 0.1 * (now - self.range)

    def forward(self, x):
        exact = self.way in ("exact", "control")
        if not torch.is_grad_enabled():
            return F.gelu(x) if self.way != "bf16_parity" else parity(F.gelu(x), x >= X_STAR)
        with torch.no_grad():
            if self.way in ("exact", "mesa_8"):
                self.follow(x)
            y, g = (None, None) if exact else self.stored(x)
            if self.measuring and not exact:
                self.mean_square = (g - derivative(x)).square().mean().item()
        return F.gelu(x) if exact else Kept.apply(x, y, g)


# --- Tasks ---------------------------------------------------------------------------------------------------------


class Regression:
    """sin(x A) b / 3 + x0 x1 / 2 for x ~ N(0, 1)^8, A and b drawn anew for each seed; 8192 points to train on, others to validate."""

    name, seeds, steps, batch = "regression", 16, 1200, 256
    what = "log of validation error over variance, 8-128-128-1, Adam"

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(100 + seed)
        inner, outer = torch.randn(8, 16, generator=generator) * 0.7, torch.randn(16, generator=generator)
        x = torch.randn(2, 8192, 8, generator=generator)
        y = (torch.sin(x @ inner) @ outer) / 3 + 0.5 * x[..., 0] * x[..., 1]
        (self.train, self.held_out), self.variance = zip(x, y), y[0].var()

    def model(self):
        return nn.Sequential(nn.Linear(8, 128), Activation(), nn.Linear(128, 128), Activation(), nn.Linear(128, 1), nn.Flatten(0))

    def loss(self, model, batch):
        return F.mse_loss(model(batch[0]), batch[1])

    def validation(self, model):
        return (self.loss(model, self.held_out) / self.variance).log().item()


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), Activation(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.patch, self.places = nn.Linear(4, width), nn.Parameter(0.02 * torch.randn(16, width))
        self.layers, self.norm, self.head = nn.Sequential(Layer(width), Layer(width)), nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images):
        patches = images.unflatten(-1, (4, 2, 4, 2)).transpose(-3, -2).flatten(-2).flatten(1, 2)
        return self.head(self.norm(self.layers(self.patch(patches) + self.places)).mean(1))


class Digits:
    """The digits, of which each seed holds out another quarter."""

    name, seeds, steps, batch = "digits", 8, 600, 32
    what = "validation cross-entropy in nats, vision transformer of 2 layers, width 32, Adam"

    def __init__(self, seed):
        rows = gzip.decompress((HERE.parent / "training" / "digits.csv.gz").read_bytes()).decode().split()
        table = torch.tensor([[float(v) for v in row.split(",")] for row in rows])
        table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(100 + seed))]
        part = len(table) // 4
        self.held_out, self.train = ((t[:, :64] / 8 - 1, t[:, 64].long()) for t in (table[:part], table[part:]))

    def model(self):
        return Transformer()

    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    def validation(self, model):
        return self.loss(model, self.held_out).item()


TASKS = (Regression, Digits)


# --- Runs ----------------------------------------------------------------------------------------------------------


def activations(model):
    return [m for m in model.modules() if isinstance(m, Activation)]


def gradient_of(task, model, batch, way="exact"):
    """In one way, without a trace: running ranges are put back."""
    kept = [(a, a.range) for a in activations(model)]
    for a, _ in kept:
        a.way, a.measuring = way, True
    gradients = torch.autograd.grad(task.loss(model, batch), list(model.parameters()))
    for a, before in kept:
        a.way, a.measuring, a.range = "exact", False, before
    return torch.cat([g.flatten() for g in gradients]).double()


def probe(task, model, batch, other):
    """How far each way's gradient is from the exact one at these weights and this batch."""
    exact = gradient_of(task, model, batch)
    distance = lambda g: ((g - exact).norm() / exact.norm()).item()  # noqa: E731
    found = {"other_batch": distance(gradient_of(task, model, other)), "ways": []}
    for way in WAYS[2:]:
        g = gradient_of(task, model, batch, way)
        figures = {"relative_l2": distance(g), "shrinkage": (g @ exact / (exact @ exact)).item()}
        figures["rms"] = math.sqrt(statistics.fmean(a.mean_square for a in activations(model)))
        found["ways"].append({"way": way} | {key: float(f"{value:.6g}") for key, value in figures.items()})
    return found


def run(of_task, seed, way, steps):
    """One run: where its validation ended, and the probes of the exact way."""
    torch.set_num_threads(1)
    task = of_task(seed)
    torch.manual_seed(seed)  # of the weights, and then of what is random in a store
    model, generator = task.model(), torch.Generator().manual_seed(1000 + seed)
    if way == "control":
        with torch.no_grad():
            weight = next(model.parameters())
            weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(math.inf))
    for a in activations(model):
        a.way = way
    optimizer = torch.optim.Adam(model.parameters(), RATE, fused=True)
    rate = lambda k: min(1, (k + 1) / WARM_UP) * (0.501 + 0.5 * math.cos(math.pi * k / steps))  # noqa: E731
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    probed, probes = {1 + k * (steps - 1) // (PROBES - 1) for k in range(PROBES)}, []
    for step in range(1, steps + 1):
        rows = torch.randint(len(task.train[0]), (task.batch,), generator=generator)
        batch = [t[rows] for t in task.train]
        if way == "exact" and step in probed:
            rows = torch.randint(len(task.train[0]), (task.batch,), generator=torch.Generator().manual_seed(step))
            found = probe(task, model, batch, [t[rows] for t in task.train])
            probes.append({"task": task.name, "seed": seed, "step": step} | found)
        loss = task.loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        validation = task.validation(model)
    ended = round(validation, 6) if math.isfinite(validation) else None
    return {"task": task.name, "seed": seed, "way": way, "validation": ended}, probes


# --- The study -----------------------------------------------------------------------------------------------------


def summary_of(runs, probes):
    ended = {(r["task"], r["way"], r["seed"]): r["validation"] for r in runs if r["validation"] is not None}
    summary = []
    for task in dict.fromkeys(r["task"] for r in runs):
        for way in WAYS:
            of_way = {seed: value for (t, w, seed), value in ended.items() if (t, w) == (task, way)}
            row = {"task": task, "way": way, "n": len(of_way), "validation": statistics.fmean(of_way.values()) if of_way else None}
            row["diverged"] = sum(r["task"] == task and r["way"] == way for r in runs) - len(of_way)
            for other in (o for w, o in PAIRS if w == way):
                pairs = [value - ended[task, other, seed] for seed, value in of_way.items() if (task, other, seed) in ended]
                row[f"from_{other}"] = interval(pairs, len(PAIRS))
            for key in ("relative_l2", "shrinkage", "rms"):
                found = [w[key] for p in probes if p["task"] == task for w in p["ways"] if w["way"] == way]
                row[key] = statistics.median(found) if found else None
            summary.append(row)
    return summary


def result_of(runs, probes, steps):
    tasks = []
    for task in TASKS:
        seeds = sorted({r["seed"] for r in runs if r["task"] == task.name})
        if not seeds:
            continue
        about = {"name": task.name, "what": task.what, "steps": steps or task.steps, "batch": task.batch, "seeds": seeds}
        about["parameters"] = sum(p.numel() for p in task(1).model().parameters())
        other = [p["other_batch"] for p in probes if p["task"] == task.name]
        tasks.append(about | {"other_batch": statistics.median(other)})
    configuration = {"tasks": tasks, "ways": list(WAYS), "comparisons": len(PAIRS), "torch": torch.__version__}
    about = {"schema": "outgrad.store_training/1", "command": "python notebooks_data/studies/stores.py --write"}
    return about | {"configuration": configuration, "runs": runs, "probes": probes, "summary": summary_of(runs, probes)}


def show(found):
    for task in found["configuration"]["tasks"]:
        seeds, comparisons = len(task["seeds"]), found["configuration"]["comparisons"]
        print(f"{task['name']}: {task['what']}; {task['steps']} steps, {seeds} seeds")
        if seeds > 1:
            quantile = student(1 - (1 - CONFIDENCE) / comparisons, seeds - 1)
            print(f"  {comparisons} intervals that hold together with {CONFIDENCE:.0%}: t = {quantile} of {seeds - 1} degrees of freedom")
        print(f"  another batch's gradient lies {task['other_batch']:.2g} away")
        for row in (r for r in found["summary"] if r["task"] == task["name"]):
            line = f"  {row['way']:12}" + ("     none" if row["validation"] is None else f" {row['validation']:8.4f}")
            line += f"  {row['diverged']} diverged" if row["diverged"] else ""
            for other in ("exact", "regelu2"):
                if row.get(f"from_{other}"):
                    line += f"  from {other} " + "{mean:+.4f} [{low:+.4f}, {high:+.4f}]".format(**row[f"from_{other}"])
            if row["rms"] is not None:
                line += "  gradient off by {relative_l2:.2g}, shrinkage {shrinkage:.4f}, RMS of f' {rms:.2g}".format(**row)
            print(line)


def study(seeds, steps, write):
    """All runs, a line for each as it ends; what was found after the last."""
    todo = [(task, seed) for task in TASKS for seed in range(1, (seeds or task.seeds) + 1)]
    start, runs, probes = time.monotonic(), [], []
    for task, seed in todo:
        for way in WAYS:
            ended, found = run(task, seed, way, steps or task.steps)
            runs.append(ended)
            probes += found
            print(f"{time.monotonic() - start:5.0f} s: {task.name} seed {seed} {way:12} {ended['validation']}", file=sys.stderr, flush=True)
        if write:
            RESULT.write_text(json.dumps(result_of(runs, probes, steps), indent=1) + "\n")
    return result_of(runs, probes, steps)


def counted(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--show", action="store_true", help="train nothing: print the summary of what was written")
    parser.add_argument("--seeds", type=counted, help="of each task; else " + ", ".join(f"{t.seeds} of {t.name}" for t in TASKS))
    parser.add_argument("--steps", type=counted, help="of each run; else " + ", ".join(f"{t.steps} of {t.name}" for t in TASKS))
    options = parser.parse_args()
    show(json.loads(RESULT.read_text()) if options.show else study(options.seeds, options.steps, options.write))


if __name__ == "__main__":
    main()
