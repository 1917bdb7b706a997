"""What approximate gradients do to training: a small BERT, trained with GELU's derivative had in five ways.

    python notebooks_data/studies/training.py [--write] [--seeds N] [--steps N] [--jobs N]
    python notebooks_data/studies/training.py --show

The first trains and prints a summary, with --write it also writes ../training/masked_lm.json; the second
prints the summary of that file. A masked language model reads bytes of a text, and predicts those that were
hidden from it. The runs of one text and one seed start from the same weights and see the same batches, the
same hidden bytes and the same dropout (outgrad.dropout); they differ in one thing only:

    exact    x is kept: PyTorch's own GELU and LayerNorm
    control  the same, where one weight began larger by one unit in its last place: what rounding alone does
    ours     outgrad.patch(model): GELU and LayerNorm from their outputs
    tempo    GELU's derivative by Tempo's published coefficients, from y and one bit
             (../foreign/tempo_gelu.json)
    regelu2  by ReGELU2's published steps, from a code of two bits (../foreign/regelu2.json)

The final loss differs more from seed to seed than from way to way. So the summary has the mean of the
differences from `exact`, paired by seed, with Student's 95% interval. An interval that contains 0 establishes
nothing; of twenty such intervals one misses the truth by chance. For any of this to mean something the model
must use context: the summary shows what is lost by two models of counts, one that knows how frequent each
byte is, one that also knows the byte before. How far the gradient itself is off has no such noise: at the
same weights and batch, along the run of `exact`, the gradient by all parameters is taken in every way, and
from another batch.

A run uses one thread, so that a machine gives the same numbers again; another processor or PyTorch may give
others of the same quality.
"""

import argparse
import concurrent.futures
import functools
import hashlib
import json
import math
import multiprocessing
import pathlib
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

import outgrad
from paired import interval

HERE = pathlib.Path(__file__).resolve().parent
RESULT = HERE.parent / "training" / "masked_lm.json"
WAYS = ("exact", "control", "ours", "tempo", "regelu2")

# Texts that do not change when the repository does: those of this commit.
COMMIT = "89d169e"
# no two of them versions of one text
LICENCES = ("Apache-2.0", "Artistic", "CC0-1.0", "GFDL-1.3", "GPL-3", "MPL-2.0")
BLOCK, HELD_OUT = 1024, 10  # of every ten blocks of a text one is held out; no window crosses a block's end
LENGTH, BATCH, HIDDEN_SHARE, VALIDATION_WINDOWS = 64, 16, 0.15, 256
COLUMNS, LAYERS, INNER, HIDDEN_BYTE = 64, 2, 256, 256
NEAREST = (-1, 1, -2, 2)  # what each head of attention looks at first
DROPOUT, RATE, WARM_UP, POINTS, PROBES = 0.1, 3e-3, 40, 40, 5


# --- Texts ----------------------------------------------------------------------------------------


def committed(*endings):
    """The files of COMMIT with these endings, generated ones apart, one after the other in the order of their
    paths."""
    git = ["git", "-C", str(HERE)]
    names = subprocess.run([*git, "ls-tree", "-r", "--name-only", "--full-tree", COMMIT], check=True,
                           capture_output=True)
    chosen = (n for n in names.stdout.decode().splitlines() if n.endswith(endings) and "/generated/" not in n)
    return b"".join(subprocess.run([*git, "show", f"{COMMIT}:{n}"], check=True, capture_output=True).stdout
                    for n in chosen)


@functools.cache
def text_of(name):
    """(what it is, its bytes)."""
    if name == "licences":
        folder = pathlib.Path("/usr/share/common-licenses")
        return f"{folder}: {', '.join(LICENCES)}", b"".join((folder / one).read_bytes() for one in LICENCES)
    endings = {"prose": (".md",), "sources": (".h", ".cpp")}[name]
    return f"the files {', '.join('*' + e for e in endings)} of commit {COMMIT}", committed(*endings)


TEXTS = ("prose", "sources", "licences")


@functools.cache
def parts_of(name):
    """The blocks to train on and those held out, a row each."""
    content = torch.frombuffer(bytearray(text_of(name)[1]), dtype=torch.uint8).long()
    blocks = content[: len(content) // BLOCK * BLOCK].view(-1, BLOCK)
    held_out = torch.arange(len(blocks)) % HELD_OUT == HELD_OUT - 1
    return blocks[~held_out], blocks[held_out]


def count_losses(name):
    """Nats per byte of the held-out part: knowing the bytes' frequencies, and knowing the byte before too."""
    train, held_out = parts_of(name)
    single = torch.bincount(train.flatten(), minlength=256).double() + 0.5
    pairs = torch.bincount((train[:, :-1] * 256 + train[:, 1:]).flatten(),
                           minlength=256 * 256).double().view(256, 256)
    pairs += single / single.sum()  # as one more observation, spread by frequency
    alone = -(single / single.sum()).log()[held_out].mean()
    after = -(pairs / pairs.sum(1, keepdim=True)).log()[held_out[:, :-1], held_out[:, 1:]].mean()
    return alone.item(), after.item()


def windows(blocks, count, generator):
    """Windows at random, what the model sees of them, and where a byte is hidden."""
    rows = torch.randint(len(blocks), (count, 1), generator=generator)
    starts = torch.randint(BLOCK - LENGTH + 1, (count, 1), generator=generator)
    content = blocks[rows, starts + torch.arange(LENGTH)]
    hidden = torch.rand(content.shape, generator=generator) < HIDDEN_SHARE
    return content, content.masked_fill(hidden, HIDDEN_BYTE), hidden


# --- Ways to GELU's derivative --------------------------------------------------------------------


@functools.cache
def foreign(name):
    return json.loads((HERE.parent / "foreign" / f"{name}.json").read_text())


class Tempo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = F.gelu(x)
        ctx.save_for_backward(y, x >= float(foreign("tempo_gelu")["mask_from"]))
        return y

    @staticmethod
    def backward(ctx, dy):
        y, right = ctx.saved_tensors
        g = torch.empty_like(y)
        for side, here in (("left", ~right), ("right", right)):
            for piece in foreign("tempo_gelu")[side]:
                low, high, closed = float(piece["from"]), float(piece["to"]), piece["includes"]
                inside = here & ((y >= low) if closed in ("from", "both") else (y > low))
                inside &= (y <= high) if closed in ("to", "both") else (y < high)
                if "constant" in piece:
                    g[inside] = float(piece["constant"])
                    continue
                # Each step is rounded to fp32, as by the fused multiply-adds of the published kernel.
                u = (y[inside] - torch.tensor(float(piece["centre"]), dtype=torch.float32)).double()
                value = torch.zeros_like(u)
                for c in reversed(piece["coefficients"]):
                    value = (value * u + torch.tensor(float(c), dtype=torch.float32)).float().double()
                g[inside] = value.float()
        return dy * g


class ReGELU2(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        thresholds = torch.tensor([float(t) for t in foreign("regelu2")["thresholds"]])
        ctx.save_for_backward(torch.bucketize(x, thresholds).to(torch.uint8))
        return F.gelu(x)

    @staticmethod
    def backward(ctx, dy):
        (code,) = ctx.saved_tensors
        steps = torch.tensor([0.0, *(float(a) for a in foreign("regelu2")["increments"])]).cumsum(0)
        return dy * steps[code.long()]


class Activation(nn.GELU):
    """GELU whose derivative is had in one of the foreign ways, or exactly."""

    way = "exact"

    def forward(self, x):
        return {"tempo": Tempo.apply, "regelu2": ReGELU2.apply}.get(self.way, F.gelu)(x)


# --- The model ------------------------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(COLUMNS, 3 * COLUMNS), nn.Linear(COLUMNS, COLUMNS)
        self.up, self.down = nn.Linear(COLUMNS, INNER), nn.Linear(INNER, COLUMNS)
        self.norm1, self.norm2 = nn.LayerNorm(COLUMNS), nn.LayerNorm(COLUMNS)
        self.gelu, self.drop = nn.GELU(), outgrad.Dropout(DROPOUT)
        # Added to the scores by head and distance (T5's relative positions). Each head begins by looking at
        # one neighbour: without that a small BERT stays for thousands of steps where it knows frequencies
        # alone.
        self.near = nn.Parameter(torch.zeros(len(NEAREST), 2 * LENGTH - 1))
        with torch.no_grad():
            for head, distance in enumerate(NEAREST):
                self.near[head, LENGTH - 1 + distance] = 4

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, len(NEAREST), -1).permute(2, 0, 3, 1, 4)
        places = torch.arange(LENGTH)
        bias = self.near[:, places - places[:, None] + LENGTH - 1]
        attended = F.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2).reshape(x.shape)
        x = self.norm1(x + self.drop(self.out(attended)))
        return self.norm2(x + self.drop(self.down(self.gelu(self.up(x)))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bytes, self.places = nn.Embedding(257, COLUMNS), nn.Embedding(LENGTH, COLUMNS)
        self.norm = nn.LayerNorm(COLUMNS)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.head = nn.Linear(COLUMNS, 256)

    def forward(self, seen):
        return self.head(self.layers(self.norm(self.bytes(seen) + self.places.weight)))


def take_way(model, way):
    """From now on the model's gradients are had so."""
    outgrad.unpatch(model)
    if way == "ours":
        outgrad.patch(model)
    for layer in model.layers:
        if way != "ours":
            layer.gelu = Activation()
            layer.gelu.way = way
        elif isinstance(layer.gelu, Activation):
            layer.gelu = outgrad.GELU()


def loss_of(model, batch, dropout_seed):
    content, seen, hidden = batch
    torch.manual_seed(dropout_seed)
    return F.cross_entropy(model(seen)[hidden], content[hidden])


def gradient_of(model, batch, dropout_seed):
    gradients = torch.autograd.grad(loss_of(model, batch, dropout_seed), list(model.parameters()))
    return torch.cat([g.flatten() for g in gradients]).double()


def probe(model, batch, other, dropout_seed):
    """How far each way's gradient is from the exact one, relative in L2, at these weights and this batch."""
    exact = gradient_of(model, batch, dropout_seed)
    distance = lambda g: ((g - exact).norm() / exact.norm()).item()  # noqa: E731
    found = {"other_batch": distance(gradient_of(model, other, dropout_seed)), "ways": []}
    for way in WAYS[2:]:
        take_way(model, way)
        found["ways"].append({"way": way, "relative_l2": distance(gradient_of(model, batch, dropout_seed))})
    take_way(model, "exact")
    return found


def run(text, seed, way, steps):
    """One run: its losses, the loss of the held-out part, and the probes of the exact way."""
    torch.set_num_threads(1)
    train, held_out = parts_of(text)
    torch.manual_seed(seed)
    model = Model()
    if way == "control":
        with torch.no_grad():
            weight = model.layers[0].up.weight
            weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(math.inf))
    take_way(model, way)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01)
    rate = lambda k: min((k + 1) / WARM_UP, 0.55 + 0.45 * math.cos(math.pi * k / steps))  # noqa: E731
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    generator = torch.Generator().manual_seed(1000 + seed)
    every, probed = max(1, steps // POINTS), {1 + k * (steps - 1) // (PROBES - 1) for k in range(PROBES)}
    losses, recent, probes = [], [], []
    for step in range(1, steps + 1):
        batch = windows(train, BATCH, generator)
        if way == "exact" and step in probed:
            other = windows(train, BATCH, torch.Generator().manual_seed(step))
            probes.append({"text": text, "seed": seed, "step": step} | probe(model, batch, other, step))
        loss = loss_of(model, batch, step)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent.append(loss.item())
        if step % every == 0:
            losses.append(round(statistics.fmean(recent), 5))
            recent.clear()
    model.eval()
    with torch.no_grad():
        batches = [windows(held_out, VALIDATION_WINDOWS // 4, torch.Generator().manual_seed(k))
                   for k in range(4)]
        validation = statistics.fmean(loss_of(model, batch, 0).item() for batch in batches)
    finite = math.isfinite(validation)
    result = {"text": text, "seed": seed, "way": way,
              "loss": [x if math.isfinite(x) else None for x in losses]}
    return result | {"validation_loss": round(validation, 6) if finite else None}, probes


# --- The study ------------------------------------------------------------------------------------


def summary_of(runs, probes):
    ended = {(r["text"], r["way"], r["seed"]): r["validation_loss"]
             for r in runs if r["validation_loss"] is not None}
    summary = []
    for text in TEXTS:
        for way in WAYS:
            of_way = {seed: loss for (t, w, seed), loss in ended.items() if (t, w) == (text, way)}
            row = {"text": text, "way": way, "n": len(of_way), "validation_loss": None, "difference": None,
                   "relative_l2": None}
            row["diverged"] = sum(r["text"] == text and r["way"] == way for r in runs) - len(of_way)
            if of_way:
                row["validation_loss"] = {"mean": statistics.fmean(of_way.values())}
            pairs = [loss - ended[text, "exact", seed] for seed, loss in of_way.items()
                     if (text, "exact", seed) in ended]
            if way != "exact":
                row["difference"] = interval(pairs)
            off = [w["relative_l2"] for p in probes if p["text"] == text
                   for w in p["ways"] if w["way"] == way]
            if off:
                row["relative_l2"] = {"median": statistics.median(off), "greatest": max(off)}
            summary.append(row)
    return summary


def study(seeds, steps, jobs):
    """All runs, a line for each as it ends."""
    todo = [(text, seed, way) for text in TEXTS for seed in range(1, seeds + 1) for way in WAYS]
    start, runs, probes = time.monotonic(), [], []
    with concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        pending = {pool.submit(run, *one, steps): one for one in todo}
        for k, future in enumerate(concurrent.futures.as_completed(pending), 1):
            result, found = future.result()
            runs.append(result)
            probes += found
            name = f"{result['text']:10} seed {result['seed']} {result['way']:8}"
            seconds = time.monotonic() - start
            print(f"{k:3} of {len(todo)}, {seconds:5.0f} s: {name} {result['validation_loss']}",
                  file=sys.stderr, flush=True)
    order = {one: k for k, one in enumerate(todo)}
    runs.sort(key=lambda r: order[r["text"], r["seed"], r["way"]])
    probes.sort(key=lambda p: (order[p["text"], p["seed"], "exact"], p["step"]))
    every = max(1, steps // POINTS)
    texts = []
    for name in TEXTS:
        what, content = text_of(name)
        alone, after = count_losses(name)
        about = {"name": name, "what": what, "bytes": len(content),
                 "sha256": hashlib.sha256(content).hexdigest()}
        texts.append(about | {"unigram_loss": round(alone, 4), "bigram_loss": round(after, 4)})
    return {
        "schema": "outgrad.training/2",
        "command": "python notebooks_data/studies/training.py --write",
        "configuration": {
            "model": {"layers": LAYERS, "width": COLUMNS,
                      "parameters": sum(p.numel() for p in Model().parameters())},
            "what": "masked language model of bytes, norms after the sums, dropout 0.1, AdamW",
            "batch": BATCH,
            "length": LENGTH,
            "steps": steps,
            "seeds": list(range(1, seeds + 1)),
            "texts": list(TEXTS),
            "ways": list(WAYS),
            "torch": torch.__version__,
        },
        "texts": texts,
        "loss_steps": [every * (k + 1) for k in range(steps // every)],
        "runs": runs,
        "probes": probes,
        "summary": summary_of(runs, probes),
    }


def show(found):
    print(f"{found['configuration']['steps']} steps, seeds {found['configuration']['seeds']}; nats per "
          "hidden byte")
    for text in found["texts"]:
        print(f"\n{text['name']}: {text['bytes']} bytes; by counts {text['unigram_loss']}, with the byte "
              f"before {text['bigram_loss']}")
        for row in found["summary"]:
            if row["text"] != text["name"]:
                continue
            loss = row["validation_loss"]
            line = f"  {row['way']:8} {loss['mean']:.4f}" if loss else f"  {row['way']:8} diverged"
            if row["difference"]:
                line += "  {mean:+.4f} [{low:+.4f}, {high:+.4f}]".format(**row["difference"])
            if row["relative_l2"]:
                line += "  gradient off by {median:.2g}, at most {greatest:.2g}".format(**row["relative_l2"])
            print(line)


def counted(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--show", action="store_true",
                        help="train nothing: print the summary of what was written")
    parser.add_argument("--seeds", type=counted, default=5)
    parser.add_argument("--steps", type=counted, default=600)
    parser.add_argument("--jobs", type=counted, default=1,
                        help="runs side by side; they give the same numbers")
    options = parser.parse_args()
    if options.show:
        show(json.loads(RESULT.read_text()))
        return
    found = study(options.seeds, options.steps, options.jobs)
    show(found)
    if options.write:
        RESULT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
