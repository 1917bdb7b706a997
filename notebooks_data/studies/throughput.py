"""Memory, largest batch and speed of BERT-Large, RoBERTa-Large and GPT-2 medium in training, as Hugging Face
has them, on one GPU: PyTorch's own eager, with fused attention, captured in a CUDA graph, compiled, and
compiled with the flag that recomputes more; and patched by outgrad.

A step is forward pass, backward pass and AdamW, on sequences of 512 random words, with dropout 0.1. `python
notebooks_data/studies/throughput.py --write` writes throughput.json beside this file, replaced as results
come; --seconds ends it early, and what it left out is not in the file. The largest batch is found by trying:
the file has the largest that ran, and the smallest of those tried that did not. Speeds are medians over
steps, at one batch for all recipes and at each one's largest. Forward and backward alone are timed at three
batches, with the time that the GPU's kernels take of it and how many they are: what is not in kernels is the
host's. The host's speed moves by half from minute to minute where others share it, so that passes and steps
of PyTorch's own and ours are also timed in turn, and their ratio taken round by round. Without a GPU,
--device cpu --tiny runs all of it on small models, without memory, largest batch, kernels and graphs.
"""

import argparse
import collections
import contextlib
import gc
import json
import os
import pathlib
import statistics
import sys
import time

import torch
from torch._functorch import config as functorch_config

import outgrad

RESULT = pathlib.Path(__file__).with_suffix(".json")
SCHEMA = "outgrad.throughput/1"
LENGTH, P, MIB = 512, 0.1, 2**20
COMMON_BATCH = 16  # at which all recipes are compared
BATCHES = (4, 16, 64)  # of forward and backward alone
MOST_KERNELS = 16  # those that take longest are in the file by name
WARM_STEPS, STEPS, MOST_SECONDS = 3, 15, 6.0  # of one figure
TRIES = 6  # for the largest batch
RESERVE = 0.01  # of memory: what the driver and the allocator's rounding take

MODELS = {
    "BERT-Large": ("bert", {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                            "intermediate_size": 4096}),
    "GPT-2 medium": ("gpt2", {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "RoBERTa-Large": (
        "roberta",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
         "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1},
    ),
}
TINY = {"bert": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
                 "vocab_size": 99},
        "roberta": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                    "intermediate_size": 64, "vocab_size": 99},
        "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 99, "bos_token_id": 0,
                 "eos_token_id": 0}}
# Type of parameters; whether autocast to bf16 is on.
MODES = {"pure bf16": (torch.bfloat16, False), "bf16 autocast": (torch.float32, True),
         "fp32": (torch.float32, False)}
# No word is padding here. Hugging Face's "sdpa" makes no mask then, but where it is captured or compiled
# (transformers 5.17) a mask of ones, with which PyTorch takes its slowest attention: in a graph, BERT-Large's
# pass at a batch of 16 takes 105 ms with it, and 49 without.
SDPA = "sdpa_without_mask"
Recipe = collections.namedtuple("Recipe", "attention norms compiled graph", defaults=(None, None, False))
# Attention; whether patched, and the norms' type under autocast; whether compiled, and with the flag; whether
# captured in a CUDA graph.
RECIPES = {
    "eager + SDPA": Recipe(SDPA),
    "ours": Recipe(SDPA, "fp32"),
    "eager + SDPA, graph": Recipe(SDPA, graph=True),
    "ours, graph": Recipe(SDPA, "fp32", graph=True),
    "eager + SDPA with a mask, graph": Recipe("sdpa", graph=True),
    "ours with a mask, graph": Recipe("sdpa", "fp32", graph=True),
    "eager": Recipe("eager"),
    "ours, norms in bf16": Recipe(SDPA, "autocast"),
    "compile": Recipe(SDPA, compiled="default"),
    "compile + flag": Recipe(SDPA, compiled="flag"),
    "ours, compiled": Recipe(SDPA, "fp32", "default"),
}


class Training:
    """One model in one recipe, ready to step."""

    def __init__(self, model, mode, recipe, device, tiny):
        import transformers
        import transformers.integrations.sdpa_attention

        self.device, (dtype, self.autocast), self.recipe = device, MODES[mode], RECIPES[recipe]
        transformers.AttentionInterface.register(
            SDPA, transformers.integrations.sdpa_attention.sdpa_attention_forward)
        transformers.AttentionMaskInterface.register(SDPA, lambda *_, **__: None)
        kind, shape = MODELS[model]
        config = transformers.AutoConfig.for_model(kind, **(TINY[kind] if tiny else shape))
        self.words = config.vocab_size
        factory = transformers.AutoModelForCausalLM if kind == "gpt2" else transformers.AutoModelForMaskedLM
        torch.manual_seed(1)
        with torch.device(device):
            self.model = factory.from_config(config, attn_implementation=self.recipe.attention)
        self.model.to(dtype=dtype).train()
        if self.recipe.norms is not None:
            outgrad.patch(self.model, norms=self.recipe.norms)
        self.forward = torch.compile(self.model) if self.recipe.compiled else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=device == "cuda",
                                           capturable=self.recipe.graph)
        self.captured = None  # (what, batch), the words that it reads, the graph, its loss

    def random_words(self, batch, length):
        return torch.randint(0, self.words, (batch, length), device=self.device)

    def eager_passes(self, tokens):
        """Forward and backward."""
        if self.recipe.compiled:
            torch._dynamo.mark_dynamic(tokens, 0)
        flag = (functorch_config.patch(ban_recompute_materialized_backward=False)
                if self.recipe.compiled == "flag" else contextlib.nullcontext())
        with flag, torch.autocast(self.device, torch.bfloat16, enabled=self.autocast,
                                  cache_enabled=not self.recipe.graph):
            loss = self.forward(input_ids=tokens, labels=tokens).loss
            loss.backward()
        return loss.detach()

    def eager_step(self, tokens):
        loss = self.eager_passes(tokens)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def run(self, what, tokens):
        """`what` of this object's functions on these words, from the graph where the recipe has one. The last
        graph stays, no other."""
        if not self.recipe.graph:
            return what(tokens)
        key = what.__name__, tuple(tokens.shape)
        if self.captured is None or self.captured[0] != key:
            self.captured = None
            self.captured = key, *self.capture(what, tokens.clone())
        _, words, graph, loss = self.captured
        words.copy_(tokens)
        graph.replay()
        return loss

    def capture(self, what, words):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_STEPS):
                self.optimizer.zero_grad(set_to_none=True)
                what(words)
        torch.cuda.current_stream().wait_stream(stream)
        self.optimizer.zero_grad(set_to_none=True)
        gc.collect()
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = what(words)
        return words, graph, loss

    def step(self, batch, length):
        return self.run(self.eager_step, self.random_words(batch, length))

    def passes(self, tokens):
        if not self.recipe.graph:  # what a graph has captured writes gradients, and adds to none
            self.optimizer.zero_grad(set_to_none=True)
        return self.run(self.eager_passes, tokens)


def peak_bytes(training, batch, length):
    """The most bytes during one step, after the optimizer has its moments."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    training.step(batch, length)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def runs(training, batch, length):
    try:
        training.step(batch, length)
        torch.cuda.synchronize()
        return True
    except torch.OutOfMemoryError:
        training.optimizer.zero_grad(set_to_none=True)
        return False
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def largest_batch(runs, of_small, room):
    """(largest that ran, smallest that did not, None if none was tried) from peaks at two small batches: a
    line through them says where `room` bytes end, and tries around there, of which each says runs(batch),
    decide."""
    (b0, m0), (b1, m1) = of_small
    ran, failed = b1, None
    attempt = max(b1 + 1, b0 + int((room - m0) * (b1 - b0) / (m1 - m0)))
    for _ in range(TRIES):
        if runs(attempt):
            ran = attempt
        else:
            failed = attempt
        step = max(1, attempt // 50)
        attempt = ran + step if failed is None else max(failed - step, (ran + failed) // 2)
        if failed is not None and failed - ran <= 1:
            break
    return ran, failed


def waiting(device):
    return torch.cuda.synchronize if device == "cuda" else lambda: None


def timed(call, device):
    """Seconds of each of several calls, each between two waits for the device, after some that are not
    counted."""
    wait = waiting(device)
    for _ in range(WARM_STEPS):
        call()
    wait()
    times, begun = [], time.perf_counter()
    while len(times) < STEPS and (len(times) < 3 or time.perf_counter() - begun < MOST_SECONDS):
        start = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - start)
    return times


def sequences_per_second(training, batch, length):
    times = timed(lambda: training.step(batch, length), training.device)
    return {"batch": batch, "sequences_per_s": batch / statistics.median(times), "step_s": times}


def kernels_of(call):
    """What the GPU did in a call: its time in kernels, copies and fills, their number, and those that took
    longest."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    # the others are calls of the driver
    events = [e for e in profile.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    found = sorted(((e.key, e.count, e.self_device_time_total / 1e3) for e in events),
                   key=lambda row: -row[2])
    longest = [{"name": name[:120], "count": count, "ms": ms} for name, count, ms in found[:MOST_KERNELS]]
    return {"kernels_ms": sum(ms for _, _, ms in found), "launches": sum(count for _, count, _ in found),
            "longest": longest}


def forward_and_backward(training, batch, length):
    tokens = training.random_words(batch, length)
    times = timed(lambda: training.passes(tokens), training.device)
    row = {"batch": batch, "ms": 1e3 * statistics.median(times), "s": times}
    if training.device == "cuda":
        row |= kernels_of(lambda: training.passes(tokens))
    return row


def at_largest_batch(training, row, length):
    """Several steps one after another may not have the room that a first one had: the largest batch is one at
    which the speed was measured."""
    while True:
        try:
            row["at_largest_batch"] = sequences_per_second(training, row["largest_batch"], length)
            return
        except torch.OutOfMemoryError:
            training.optimizer.zero_grad(set_to_none=True)
        gc.collect()  # outside of the handler, whose error holds the step's tensors
        torch.cuda.empty_cache()
        row["smallest_that_failed"] = row["largest_batch"]
        row["largest_batch"] -= max(1, row["largest_batch"] // 50)


def why_of(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def trained(row, device, tiny, work):
    """work(training, length) for a row of the file; whatever it ends in, the other rows have their
    figures."""
    begun, training = time.perf_counter(), None
    try:
        training = Training(row["model"], row["mode"], row["recipe"], device, tiny)
        work(training, 16 if tiny else LENGTH)
    except Exception as error:
        row["failed"] = why_of(error)
    training = None
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    torch._dynamo.reset()
    row["seconds"] = row.get("seconds", 0) + time.perf_counter() - begun


def measure_at_common_batch(row, device, tiny):
    def work(training, length):
        begun, common = time.perf_counter(), 4 if tiny else COMMON_BATCH
        row["first_loss"] = training.step(2, length).item()
        row["first_step_s"] = time.perf_counter() - begun
        # a graph has its memory for itself, and all of it all the time
        if device == "cuda" and not training.recipe.graph:
            training.step(4, length)
            row["small_peak_bytes"] = [(b, peak_bytes(training, b, length)) for b in (4, 8)]
            (b0, m0), (b1, m1) = row["small_peak_bytes"]
            row["mib_per_sequence"] = (m1 - m0) / (b1 - b0) / MIB
            row["peak_mib"] = {"batch": common, "mib": peak_bytes(training, common, length) / MIB}
        row["at_common_batch"] = sequences_per_second(training, common, length)
        row["forward_and_backward"] = []
        for batch in (2, 4) if tiny else BATCHES:
            try:
                row["forward_and_backward"].append(forward_and_backward(training, batch, length))
            except torch.OutOfMemoryError:
                row["forward_and_backward"].append({"batch": batch, "failed": "out of memory"})

    trained(row, device, tiny, work)


def in_turn(model, mode, device, tiny):
    """Passes at three batches, and steps at the common one, of PyTorch's own and ours in turn: for each the
    seconds of every round, and the quartiles of the ratio of a round, above 1 where ours is faster."""
    length, common, wait = (16, 4, lambda: None) if tiny else (LENGTH, COMMON_BATCH, waiting(device))
    trainings, found = {name: Training(model, mode, name, device, tiny)
                        for name in ("eager + SDPA", "ours")}, []
    passes = [("forward and backward", batch) for batch in ((2, 4) if tiny else BATCHES)]
    for what, batch in passes + [("step", common)]:
        times, tokens = {name: [] for name in trainings}, trainings["ours"].random_words(batch, length)
        for k in range(WARM_STEPS + STEPS):
            for name, training in trainings.items():
                wait()
                start = time.perf_counter()
                training.passes(tokens) if what != "step" else training.run(training.eager_step, tokens)
                wait()
                if k >= WARM_STEPS:
                    times[name].append(time.perf_counter() - start)
        ratios = [theirs / ours for theirs, ours in zip(*times.values(), strict=True)]
        found.append({"model": model, "mode": mode, "what": what, "batch": batch, "s": times,
                      "times_as_fast": statistics.quantiles(ratios)})
        if what == "step":
            continue
        for training in trainings.values():
            training.optimizer.zero_grad(set_to_none=True)
    return found


def line_in_turn(row):
    if "failed" in row:
        return f"{row['model']}, {row['mode']}, in turn FAILED: {row['failed']}"
    theirs, ours = (1e3 * statistics.median(times) for times in row["s"].values())
    low, middle, high = row["times_as_fast"]
    return (f"{row['model']}, {row['mode']}, {row['what']} in turn at {row['batch']}: {theirs:.1f} and "
            f"{ours:.1f} ms, "
            f"{middle:.2f} [{low:.2f}, {high:.2f}] times as fast")


def measure_at_largest_batch(row, device, tiny):
    def work(training, length):
        training.step(4, length)
        torch.cuda.empty_cache()
        room = (torch.cuda.mem_get_info()[0] + torch.cuda.memory_allocated()) * (1 - RESERVE)
        row["largest_batch"], row["smallest_that_failed"] = largest_batch(
            lambda batch: runs(training, batch, length), row["small_peak_bytes"], room)
        at_largest_batch(training, row, length)

    trained(row, device, tiny, work)


def ratio(rows, row, of):
    """A figure's ratio to eager + SDPA's in the same model and mode."""
    wanted = (row["model"], row["mode"], "eager + SDPA")
    base = next((r for r in rows if (r["model"], r["mode"], r["recipe"]) == wanted), None)
    return of(row) / of(base) if base is not None and of(row) and of(base) else None


def passes_at(batch, key):
    return lambda row: next(
        (at.get(key) for at in row.get("forward_and_backward", ()) if at["batch"] == batch), None)


def line_of(rows, row, batches):
    def cell(of, form):
        value, times = of(row), ratio(rows, row, of)
        return "-" if value is None else format(value, form) + (f" ({times:.2f})" if times else "")

    def speed(name):
        return cell(lambda r: r.get(name, {}).get("sequences_per_s"), ".1f")

    bytes_of_each, largest = (cell(lambda r: r.get("mib_per_sequence"), ".1f"),
                              cell(lambda r: r.get("largest_batch"), "d"))
    passes = "".join(f"{cell(passes_at(batch, 'ms'), '.1f'):>15}" for batch in batches)
    on_gpu = "".join(f"{cell(passes_at(batch, 'kernels_ms'), '.1f'):>15}" for batch in batches)
    failed = f"  then FAILED: {row['failed']}" if "failed" in row else ""
    return (f"{row['model']:15}{row['mode']:14}{row['recipe']:33}{bytes_of_each:>14}{largest:>16}"
            f"{speed('at_largest_batch'):>18}{speed('at_common_batch'):>18}{passes}{on_gpu}"
            f"{cell(passes_at(batches[1], 'launches'), 'd'):>13}{failed}")


def batches_of(found):
    return (2, 4, 64) if found["tiny"] else BATCHES


def table(found):
    batches = batches_of(found)
    passes = "".join(f"{'ms at ' + str(batch):>15}" for batch in batches)
    on_gpu = "".join(f"{'GPU at ' + str(batch):>15}" for batch in batches)
    head = [f"{found['device']}, PyTorch {found['torch']}, transformers {found['transformers']}; (x) against "
            "eager + SDPA; ms, GPU, launches: of forward and backward",
            f"{'':62}{'MiB/sequence':>14}{'largest batch':>16}{'seq/s there':>18}"
            f"{'seq/s at ' + str(COMMON_BATCH):>18}{passes}{on_gpu}{'launches':>13}"]
    return (head + [line_of(found["rows"], row, batches) for row in found["rows"]]
            + [line_in_turn(row) for row in found["in_turn"]])


def choices(parser, text, known, what):
    names = list(known) if text == "all" else text.split("|")
    for name in names:
        if name not in known:
            parser.error(f"--{what}: {name!r} is none of {' | '.join(known)}")
    return names


def written(path, found):
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(found, indent=1) + "\n")
    os.replace(temporary, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name} beside this file")
    parser.add_argument("--out", type=pathlib.Path, help="write this file")
    parser.add_argument("--show", action="store_true", help="only print the table of the file")
    parser.add_argument("--models", default="all", help="of " + " | ".join(MODELS))
    parser.add_argument("--modes", default="all", help="of " + " | ".join(MODES))
    parser.add_argument("--recipes", default="all", help="of " + " | ".join(RECIPES))
    parser.add_argument("--layers", type=int,
                        help="so many of each model, for a look at what takes long to compile")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models")
    options = parser.parse_args()
    path = options.out or RESULT
    if options.show:
        print("\n".join(table(json.loads(path.read_text()))))
        return 0
    if options.device == "cuda" and not torch.cuda.is_available():
        print("throughput: PyTorch has no CUDA device", file=sys.stderr)
        return 3
    import transformers

    if options.layers is not None:
        for _, shape in MODELS.values():
            shape["n_layer" if "n_layer" in shape else "num_hidden_layers"] = options.layers
    torch.backends.cuda.matmul.allow_tf32 = True  # as who trains in fp32 on such a GPU has it
    # Mode by mode, so that a run that ends early has recipes to compare.
    wanted = [(model, mode, recipe) for mode in choices(parser, options.modes, MODES, "modes")
              for recipe in choices(parser, options.recipes, RECIPES, "recipes")
              for model in choices(parser, options.models, MODELS, "models")
              if recipe != "ours, norms in bf16" or MODES[mode][1]]
    # not where it writes, which is this machine's matter
    arguments = [each for k, each in enumerate(sys.argv[1:], 1) if "--out" not in (each, sys.argv[k - 1])]
    command = "python notebooks_data/studies/throughput.py " + " ".join(map(json.dumps, arguments))
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    found = {"schema": SCHEMA, "command": command, "torch": torch.__version__,
             "transformers": transformers.__version__, "device": device, "tiny": options.tiny,
             "layers": options.layers, "length": LENGTH, "dropout": P, "complete": False, "rows": [],
             "in_turn": []}
    begun = time.perf_counter()

    def has_time():
        return time.perf_counter() - begun <= options.seconds

    def keep(row):
        print(line_of(found["rows"], row, batches_of(found)), flush=True)
        write()

    def write():
        searched = all("at_largest_batch" in one or "failed" in one for one in found["rows"]
                       if "small_peak_bytes" in one)
        found["complete"] = searched and len(found["rows"]) == len(wanted)
        if options.write or options.out:
            written(path, found)

    # All at the common batch first: the search for the largest takes longer, and what it ends in is no matter
    # to the others.
    for model, mode, recipe in wanted:
        if not has_time():
            break
        found["rows"].append({"model": model, "mode": mode, "recipe": recipe})
        measure_at_common_batch(found["rows"][-1], options.device, options.tiny)
        keep(found["rows"][-1])
    for model, mode in dict.fromkeys((model, mode) for model, mode, recipe in wanted if recipe == "ours"):
        if (model, mode, "eager + SDPA") in wanted and has_time():
            try:
                rows = in_turn(model, mode, options.device, options.tiny)
            except Exception as error:  # the other rows have their figures
                rows = [{"model": model, "mode": mode, "failed": why_of(error)}]
            found["in_turn"] += rows
            print("\n".join(map(line_in_turn, rows)), flush=True)
            write()
            gc.collect()
            if options.device == "cuda":
                torch.cuda.empty_cache()
    searched = 0
    for row in (row for row in found["rows"] if "small_peak_bytes" in row and "failed" not in row):
        if not has_time():
            break
        measure_at_largest_batch(row, options.device, options.tiny)
        searched += 1
        keep(row)
    print("\n".join(table(found)))
    if not found["complete"]:
        largest = (f", the largest batch of {len(found['rows']) - searched}"
                   if options.device == "cuda" else "")
        print(f"left out, for want of time: {len(wanted) - len(found['rows'])} of {len(wanted)} "
              f"rows{largest}")
    return 1 if any("failed" in row for row in found["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
