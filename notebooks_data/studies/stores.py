"""What few bits do to training: three small networks, trained with GELU's derivative from what each store
keeps.

    python notebooks_data/studies/stores.py [--write] [--tasks NAME...] [--ways NAME...] [--seeds N]
                                            [--steps N]
    python notebooks_data/studies/stores.py --show

The first trains and prints a summary, with --write it also writes ../training/stores.json, anew after each
seed; --ways adds some ways to what is written, and is refused where the runs of `exact`, along which the
probes lie, no longer end where they did. (Probes of a store that rounds at random then draw other numbers.)
The second prints the summary of that file. It needs the PyTorch package, whose stores are studied beside
those of outgrad_peers.

    regression  a made-up smooth function of 8 inputs, two hidden layers of 128 GELUs; the logarithm of the
                validation error over the variance
    digits      8 x 8 handwritten digits (../training/digits.csv.gz), a vision transformer of 2 layers and
                patches of 2 x 2; validation cross-entropy in nats
    text        Genesis and Exodus (../training/genesis_exodus.txt.gz), a causal transformer of 2 layers that
                predicts the next character; validation cross-entropy in nats a character

Networks compute in fp32, but for the GELUs, whose x, y and gradients are bf16, as under autocast. The runs of
one task and one seed start from the same weights and see the same batches. They differ in one thing:

    exact    PyTorch's own GELU, which keeps x
    control  the same, where one weight began larger by one unit in its last place: what rounding alone does
    regelu2  ReGELU2's published steps, a code of 2 bits (../foreign/regelu2.json)
    actnn:shared:2  actnn:auto:2, where layers share their bits by outgrad_peers.share_bits, anew in the first
                    of each 50 steps and for each probe, by the batch at hand
    others   GELU with the store of this name: what it keeps is in kernels/torch/outgrad/stores.py, and of
             Mesa's and ActNN's in outgrad_peers. With parity the next layer gets another y: the one store
             that changes the forward pass too, in validation as well

y of `exact` and y of a store are rounded from values that differ by few units of fp32's last place; so in
rare elements they differ by one of bf16's, which is one more source of what `control` has.

The final loss differs more from seed to seed than from way to way. So the summary has the mean of the
differences from `exact`, paired by seed, of two codes of 2 bits from `regelu2`, and of shared bits from bits
of each layer, with Student's intervals, so wide that all of a task's intervals hold together with 95%
(Bonferroni). An interval that contains 0 establishes nothing, not equality either. Beside them stands, free
of that noise, what each way does at the same weights and batch along the run of `exact`: the distance of the
gradient by all parameters (relative, L2), its shrinkage <g', g> / <g, g>, the RMS error of f' (bf16's
rounding of the gradient included), and the distance of another batch's exact gradient.

A run uses one thread, so that a machine gives the same numbers again; another processor or PyTorch may give
others of the same quality.
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

import outgrad_peers
from paired import CONFIDENCE, interval, student

HERE = pathlib.Path(__file__).resolve().parent
RESULT = HERE.parent / "training" / "stores.json"
WAYS = ("exact", "control", "y+bit", "parity", "mxfp8+bit", "e4m3", "e4m3+bit", "e4m3+2bits", "e5m2",
        "e5m2+bit", "e5m2+2bits")
WAYS += (*(f"code:{bits}" for bits in range(1, 9)), "dither:2", "dither:3", "regelu2", "mesa", "actnn:2",
         "actnn:4", "actnn:8")
WAYS += ("actnn:auto:2", "actnn:auto:3", "actnn:auto:4", "actnn:shared:2")
SHARED = {"actnn:shared:2": "actnn:auto:2"}  # ways that are this store with shared bits
PAIRS = [(way, "exact") for way in WAYS[1:]] + [("code:2", "regelu2"), ("dither:2", "regelu2"),
                                                *SHARED.items()]
RATE, WARM_UP, PROBES, SHARE_EVERY = 3e-3, 50, 5, 50


# --- Ways to GELU's derivative --------------------------------------------------------------------


def derivative(x):
    return torch.special.ndtr(x) + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


@functools.cache
def regelu2_steps():
    published = json.loads((HERE.parent / "foreign" / "regelu2.json").read_text())
    levels = torch.tensor([0.0, *map(float, published["increments"])]).cumsum(0)
    return torch.tensor([float(t) for t in published["thresholds"]]), levels


class ReGELU2(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(torch.bucketize(x.float(), regelu2_steps()[0]).to(torch.uint8))
        return F.gelu(x)

    @staticmethod
    def backward(ctx, dy):
        return (dy * regelu2_steps()[1][ctx.saved_tensors[0].long()]).to(dy.dtype)


class Activation(outgrad_peers.GELU):
    """GELU in bf16 between layers in fp32, whose derivative is had in one of the ways."""

    way = "exact"

    def take(self, way):
        store = SHARED.get(way, way if way not in ("exact", "control", "regelu2") else "y+bit")
        self.way, self.store, self._outgrad_bits = way, store, None

    def forward(self, x):
        x = x.bfloat16()
        if self.way in ("exact", "control"):
            self._ranges(x)  # which the probes of mesa need
            return F.gelu(x).float()
        return (ReGELU2.apply(x) if self.way == "regelu2" else super().forward(x)).float()


# --- Tasks ----------------------------------------------------------------------------------------


class Regression:
    """sin(x A) b / 3 + x0 x1 / 2 for x ~ N(0, 1)^8, A and b drawn anew for each seed; 8192 points to train
    on, others to validate."""

    name, seeds, steps, batch = "regression", 10, 1200, 256
    what = "log of validation error over variance, 8-128-128-1, Adam"

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(100 + seed)
        inner, outer = torch.randn(8, 16, generator=generator) * 0.7, torch.randn(16, generator=generator)
        x = torch.randn(2, 8192, 8, generator=generator)
        y = (torch.sin(x @ inner) @ outer) / 3 + 0.5 * x[..., 0] * x[..., 1]
        (self.train, self.held_out), self.variance = zip(x, y), y[0].var()

    def model(self):
        return nn.Sequential(nn.Linear(8, 128), Activation(), nn.Linear(128, 128), Activation(),
                             nn.Linear(128, 1), nn.Flatten(0))

    def loss(self, model, batch):
        return F.mse_loss(model(batch[0]), batch[1])

    def validation(self, model):
        return (self.loss(model, self.held_out) / self.variance).log().item()

    def baseline(self):
        """Predicting the mean."""
        return (self.held_out[1].var(correction=0) / self.variance).log().item()


class Layer(nn.Module):
    def __init__(self, width, causal=False):
        super().__init__()
        self.causal = causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), Activation(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.patch, self.places = nn.Linear(4, width), nn.Parameter(0.02 * torch.randn(16, width))
        self.layers, self.norm, self.head = (nn.Sequential(Layer(width), Layer(width)), nn.LayerNorm(width),
                                             nn.Linear(width, 10))

    def forward(self, images):
        patches = images.unflatten(-1, (4, 2, 4, 2)).transpose(-3, -2).flatten(-2).flatten(1, 2)
        return self.head(self.norm(self.layers(self.patch(patches) + self.places)).mean(1))


class Digits:
    """The digits, of which each seed holds out another quarter."""

    name, seeds, steps, batch = "digits", 5, 300, 32
    what = "validation cross-entropy in nats, vision transformer of 2 layers, width 32, Adam"

    def __init__(self, seed):
        rows = gzip.decompress((HERE.parent / "training" / "digits.csv.gz").read_bytes()).decode().split()
        table = torch.tensor([[float(v) for v in row.split(",")] for row in rows])
        table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(100 + seed))]
        part = len(table) // 4
        self.held_out, self.train = ((t[:, :64] / 8 - 1, t[:, 64].long())
                                     for t in (table[:part], table[part:]))

    def model(self):
        return Transformer()

    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    def validation(self, model):
        return self.loss(model, self.held_out).item()

    def baseline(self):
        """Knowing nothing."""
        return math.log(10)


class LanguageModel(nn.Module):
    """It is shown each character with the one before. Else it stays for hundreds of steps where it knows
    pairs alone."""

    def __init__(self, width=64):
        super().__init__()
        self.characters, self.before = nn.Embedding(128, width), nn.Embedding(128, width)
        self.places = nn.Parameter(0.02 * torch.randn(Text.length, width))
        self.layers, self.norm = (nn.Sequential(Layer(width, causal=True), Layer(width, causal=True)),
                                  nn.LayerNorm(width))
        self.head = nn.Linear(width, 128)

    def forward(self, seen):
        before = F.pad(seen, (1, 0))[:, :-1]
        return self.head(self.norm(self.layers(self.characters(seen) + self.before(before) + self.places)))


class Text:
    """Genesis and Exodus, of which each seed holds out another tenth of the blocks. No window crosses a
    block's end."""

    name, seeds, steps, batch, block, length = "text", 5, 400, 8, 4096, 64
    what = "validation cross-entropy in nats a character, causal transformer of 2 layers, width 64, Adam"

    def __init__(self, seed):
        content = gzip.decompress((HERE.parent / "training" / "genesis_exodus.txt.gz").read_bytes())
        characters = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        blocks = characters[: len(content) // self.block * self.block].view(-1, self.block)
        blocks = blocks[torch.randperm(len(blocks), generator=torch.Generator().manual_seed(100 + seed))]
        part = len(blocks) // 10
        self.held_out, self.train = ((b.unfold(1, self.length + 1, step).flatten(0, 1),)
                                     for b, step in ((blocks[:part], self.length), (blocks[part:], 1)))

    def model(self):
        return LanguageModel()

    def loss(self, model, batch):
        content = batch[0].long()
        return F.cross_entropy(model(content[:, :-1]).flatten(0, 1), content[:, 1:].flatten())

    def validation(self, model):
        return self.loss(model, self.held_out).item()

    def baseline(self):
        """Knowing the character before: by counts of pairs, each with half an observation more."""
        pairs = torch.full((128, 128), 0.5)
        train, held_out = (t[0].long() for t in (self.train, self.held_out))
        pairs.view(-1).index_add_(0, train[:, 0] * 128 + train[:, 1], torch.ones(len(train)))
        return -(pairs / pairs.sum(1, keepdim=True)).log()[held_out[:, :-1], held_out[:, 1:]].mean().item()


TASKS = (Regression, Digits, Text)


# --- Runs -----------------------------------------------------------------------------------------


def activations(model):
    return [m for m in model.modules() if isinstance(m, Activation)]


def gradient_of(task, model, batch, way="exact"):
    """In one way, and its RMS error of f', without a trace: running ranges are put back."""
    before, seen, layers = [a._outgrad_ranges for a in activations(model)], [], activations(model)
    for a in layers:
        a.take(way)
    if way in SHARED:
        outgrad_peers.share_bits(model, lambda: task.loss(model, batch))
    hooks = [a.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().bfloat16().float()))
             for a in layers]
    gradients = torch.autograd.grad(task.loss(model, batch), list(model.parameters()))
    for hook in hooks:
        hook.remove()
    squares = []
    for a, x in zip(layers, seen, strict=True):
        a.eval()  # its ranges stay as they were in this pass
        g = torch.autograd.grad(a(x.requires_grad_()).sum(), x)[0]
        squares.append((g - derivative(x.detach())).square().mean().item())
    for a, ranges in zip(layers, before, strict=True):
        a.train()
        a.take("exact")
        a._outgrad_ranges = ranges
    return torch.cat([g.flatten() for g in gradients]).double(), math.sqrt(statistics.fmean(squares))


def probe(task, model, batch, other, ways=WAYS):
    """How far each of these ways' gradient is from the exact one at these weights and this batch."""
    exact, _ = gradient_of(task, model, batch)
    distance = lambda g: ((g - exact).norm() / exact.norm()).item()  # noqa: E731
    found = {"other_batch": distance(gradient_of(task, model, other)[0]), "ways": []}
    for way in (w for w in WAYS[2:] if w in ways):
        g, rms = gradient_of(task, model, batch, way)
        figures = {"relative_l2": distance(g), "shrinkage": (g @ exact / (exact @ exact)).item(), "rms": rms}
        found["ways"].append({"way": way} | {key: float(f"{value:.6g}") for key, value in figures.items()})
    return found


def take(model, way):
    for a in activations(model):
        a.take(way)


def run(of_task, seed, way, steps, probed_ways=WAYS, take=take, probe=probe):
    """One run: where its validation ended, and the probes along the exact way."""
    torch.set_num_threads(1)
    task = of_task(seed)
    torch.manual_seed(seed)  # of the weights, and then of what is random in a store
    model, generator = task.model(), torch.Generator().manual_seed(1000 + seed)
    if way == "control":
        with torch.no_grad():
            weight = next(model.parameters())
            weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(math.inf))
    take(model, way)
    optimizer = torch.optim.Adam(model.parameters(), RATE, fused=True)
    rate = lambda k: min(1, (k + 1) / WARM_UP) * (0.501 + 0.5 * math.cos(math.pi * k / steps))  # noqa: E731
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    probed, probes = {1 + k * (steps - 1) // (PROBES - 1) for k in range(PROBES)}, []
    for step in range(1, steps + 1):
        rows = torch.randint(len(task.train[0]), (task.batch,), generator=generator)
        batch = [t[rows] for t in task.train]
        if way == "exact" and step in probed:
            rows = torch.randint(len(task.train[0]), (task.batch,),
                                 generator=torch.Generator().manual_seed(step))
            found = probe(task, model, batch, [t[rows] for t in task.train], probed_ways)
            probes.append({"task": task.name, "seed": seed, "step": step} | found)
        if way in SHARED and step % SHARE_EVERY == 1:
            outgrad_peers.share_bits(model, lambda: task.loss(model, batch))  # noqa: B023
        loss = task.loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        validation = task.validation(model)
    ended = round(validation, 6) if math.isfinite(validation) else None
    return {"task": task.name, "seed": seed, "way": way, "validation": ended}, probes


# --- The study ------------------------------------------------------------------------------------


def summary_of(runs, probes):
    ended = {(r["task"], r["way"], r["seed"]): r["validation"] for r in runs if r["validation"] is not None}
    summary = []
    for task in dict.fromkeys(r["task"] for r in runs):
        for way in WAYS:
            of_way = {seed: value for (t, w, seed), value in ended.items() if (t, w) == (task, way)}
            row = {"task": task, "way": way, "n": len(of_way),
                   "validation": statistics.fmean(of_way.values()) if of_way else None}
            row["diverged"] = sum(r["task"] == task and r["way"] == way for r in runs) - len(of_way)
            for other in (o for w, o in PAIRS if w == way):
                pairs = [value - ended[task, other, seed] for seed, value in of_way.items()
                         if (task, other, seed) in ended]
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
        about = {"name": task.name, "what": task.what, "steps": steps or task.steps, "batch": task.batch,
                 "seeds": seeds}
        about["parameters"] = sum(p.numel() for p in task(1).model().parameters())
        other = [p["other_batch"] for p in probes if p["task"] == task.name]
        about["baseline"] = round(statistics.fmean(task(seed).baseline() for seed in seeds), 4)
        tasks.append(about | {"other_batch": statistics.median(other)})
    configuration = {"tasks": tasks, "ways": list(WAYS), "comparisons": len(PAIRS),
                     "torch": torch.__version__}
    about = {"schema": "outgrad.store_training/1",
             "command": "python notebooks_data/studies/stores.py --write"}
    return about | {"configuration": configuration, "runs": runs, "probes": probes,
                    "summary": summary_of(runs, probes)}


def show(found):
    for task in found["configuration"]["tasks"]:
        seeds, comparisons = len(task["seeds"]), found["configuration"]["comparisons"]
        print(f"{task['name']}: {task['what']}; {task['steps']} steps, {seeds} seeds")
        if seeds > 1:
            quantile = student(1 - (1 - CONFIDENCE) / comparisons, seeds - 1)
            print(f"  {comparisons} intervals that hold together with {CONFIDENCE:.0%}: t = {quantile} of "
                  f"{seeds - 1} degrees of freedom")
        print(f"  without a network {task['baseline']:.4f}; another batch's gradient lies "
              f"{task['other_batch']:.2g} away")
        for row in (r for r in found["summary"] if r["task"] == task["name"]):
            line = f"  {row['way']:12}" + ("     none" if row["validation"] is None
                                           else f" {row['validation']:8.4f}")
            line += f"  {row['diverged']} diverged" if row["diverged"] else ""
            for other in ("exact", "regelu2", *SHARED.values()):
                if row.get(f"from_{other}"):
                    line += (f"  from {other} "
                             + "{mean:+.4f} [{low:+.4f}, {high:+.4f}]".format(**row[f"from_{other}"]))
            if row["rms"] is not None:
                line += ("  gradient off by {relative_l2:.2g}, shrinkage {shrinkage:.4f}, RMS of f' "
                         "{rms:.2g}".format(**row))
            print(line)


def together(written, found):
    """Probes of some ways, in which `found` takes the place of what was written of its own."""
    merged = {(p["task"], p["seed"], p["step"]): p for p in written}
    for p in found:
        at = p["task"], p["seed"], p["step"]
        ways = {w["way"]: w for w in (*merged.get(at, p)["ways"], *p["ways"])}
        merged[at] = p | {"ways": [ways[way] for way in WAYS if way in ways]}
    return [*merged.values()]


def study(tasks, seeds, steps, write, ways=WAYS):
    """All runs of these tasks and ways, a line for each as it ends; what was found after the last. What was
    written of other tasks and ways stays written."""
    todo = [(task, seed) for task in TASKS if task.name in tasks
            for seed in range(1, (seeds or task.seeds) + 1)]
    written = json.loads(RESULT.read_text()) if write and RESULT.exists() else {"runs": [], "probes": []}
    runs = [r for r in written["runs"] if r["task"] not in tasks or r["way"] not in ways]
    probes = [p for p in written["probes"] if p["task"] not in tasks or "exact" not in ways]
    before = {(r["task"], r["seed"]): r["validation"] for r in runs if r["way"] == "exact"}
    start = time.monotonic()
    for task, seed in todo:
        for way in dict.fromkeys(("exact", *(w for w in WAYS if w in ways))):
            ended, found = run(task, seed, way, steps or task.steps, ways)
            if way in ways:
                runs.append(ended)
            elif before.get((task.name, seed), ended["validation"]) != ended["validation"]:
                raise SystemExit(f"{task.name}, seed {seed}: exact ended at {ended['validation']}, not as "
                                 "written: train every way anew")
            probes = together(probes, found)
            seconds = time.monotonic() - start
            print(f"{seconds:5.0f} s: {task.name} seed {seed} {way:12} {ended['validation']}",
                  file=sys.stderr, flush=True)
        in_order = sorted(runs, key=lambda r: ([t.name for t in TASKS].index(r["task"]), r["seed"],
                                               WAYS.index(r["way"])))
        found = result_of(in_order, probes, steps)
        if write:
            RESULT.write_text(json.dumps(found, indent=1) + "\n")
    return found


def counted(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--show", action="store_true",
                        help="train nothing: print the summary of what was written")
    parser.add_argument("--seeds", type=counted,
                        help="of each task; else " + ", ".join(f"{t.seeds} of {t.name}" for t in TASKS))
    parser.add_argument("--steps", type=counted,
                        help="of each run; else " + ", ".join(f"{t.steps} of {t.name}" for t in TASKS))
    names = [task.name for task in TASKS]
    parser.add_argument("--tasks", nargs="+", choices=names, default=names,
                        help="these alone; with --write others stay written")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS,
                        help="these alone; with --write others stay written")
    options = parser.parse_args()
    if options.write and options.steps and (len(options.tasks) < len(TASKS) or len(options.ways) < len(WAYS)):
        parser.error("--steps: what stays written has other steps")
    show(json.loads(RESULT.read_text()) if options.show
         else study(options.tasks, options.seeds, options.steps, options.write, options.ways))


if __name__ == "__main__":
    main()
