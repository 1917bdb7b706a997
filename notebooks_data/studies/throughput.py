"""Memory, largest batch and speed of BERT-Large, RoBERTa-Large and GPT-2 medium in training, as Hugging Face has them, on one GPU: PyTorch's own eager,
with fused attention, compiled, and compiled with the flag that recomputes more; and patched by outgrad.

A step is forward pass, backward pass and AdamW, on sequences of 512 random words, with dropout 0.1. `python notebooks_data/studies/throughput.py --write`
writes throughput.json beside this file, replaced as results come; --seconds ends it early, and what it left out is not in the file. The largest batch is
found by trying: the file has the largest that ran, and the smallest of those tried that did not. Speeds are medians over steps, at one batch for all
recipes and at each one's largest. Without a GPU, --device cpu --tiny runs all of it on small models, without memory and largest batch.
"""

import argparse
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
WARM_STEPS, STEPS, MOST_SECONDS = 3, 15, 6.0  # of one figure
TRIES = 6  # for the largest batch
RESERVE = 0.01  # of memory: what the driver and the allocator's rounding take

MODELS = {
    "BERT-Large": ("bert", {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}),
    "GPT-2 medium": ("gpt2", {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "RoBERTa-Large": (
        "roberta",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096, "vocab_size": 50265,
         "max_position_embeddings": 514, "type_vocab_size": 1},
    ),
}
TINY = {"bert": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 99},
        "roberta": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 99},
        "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 99, "bos_token_id": 0, "eos_token_id": 0}}  # fmt: skip
# Type of parameters; whether autocast to bf16 is on.
MODES = {"pure bf16": (torch.bfloat16, False), "bf16 autocast": (torch.float32, True), "fp32": (torch.float32, False)}
# Attention, whether patched (and the norms' type under autocast), whether compiled (and with the flag).
RECIPES = {
    "eager + SDPA": ("sdpa", None, None),
    "ours": ("sdpa", "fp32", None),
    "eager": ("eager", None, None),
    "ours, norms in bf16": ("sdpa", "autocast", None),
    "compile": ("sdpa", None, "default"),
    "compile + flag": ("sdpa", None, "flag"),
    "ours, compiled": ("sdpa", "fp32", "default"),
}


class Training:
    """One model in one recipe, ready to step."""

    def __init__(self, model, mode, recipe, device, tiny):
        import transformers

        self.device, (dtype, self.autocast) = device, MODES[mode]
        attention, norms, self.compiled = RECIPES[recipe]
        kind, shape = MODELS[model]
        config = transformers.AutoConfig.for_model(kind, **(TINY[kind] if tiny else shape))
        self.words = config.vocab_size
        factory = transformers.AutoModelForCausalLM if kind == "gpt2" else transformers.AutoModelForMaskedLM
        torch.manual_seed(1)
        self.model = factory.from_config(config, attn_implementation=attention).to(device=device, dtype=dtype).train()
        if norms is not None:
            outgrad.patch(self.model, norms=norms)
        self.forward = torch.compile(self.model) if self.compiled else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=device == "cuda")

    def step(self, batch, length):
        tokens = torch.randint(0, self.words, (batch, length), device=self.device)
        if self.compiled:
            torch._dynamo.mark_dynamic(tokens, 0)
        flag = functorch_config.patch(ban_recompute_materialized_backward=False) if self.compiled == "flag" else contextlib.nullcontext()
        with flag, torch.autocast(self.device, torch.bfloat16, enabled=self.autocast):
            loss = self.forward(input_ids=tokens, labels=tokens).loss
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def peak_bytes(training, batch, length):
    """Of one step, after the optimizer has its moments."""
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
    """(largest that ran, smallest that did not, None if none was tried) from peaks at two small batches: a line through them says where `room` bytes end,
    and tries around there, of which each says runs(batch), decide."""
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


def sequences_per_second(training, batch, length):
    """Median over steps, each between two waits for the device."""
    wait = torch.cuda.synchronize if training.device == "cuda" else lambda: None
    for _ in range(WARM_STEPS):
        training.step(batch, length)
    wait()
    times, begun = [], time.perf_counter()
    while len(times) < STEPS and (len(times) < 3 or time.perf_counter() - begun < MOST_SECONDS):
        start = time.perf_counter()
        training.step(batch, length)
        wait()
        times.append(time.perf_counter() - start)
    return {"batch": batch, "sequences_per_s": batch / statistics.median(times), "step_s": times}


def at_largest_batch(training, row, length):
    """Several steps one after another may not have the room that a first one had: the largest batch is one at which the speed was measured."""
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


def trained(row, device, tiny, work):
    """work(training, length) for a row of the file; whatever it ends in, the other rows have their figures."""
    begun, training = time.perf_counter(), None
    try:
        training = Training(row["model"], row["mode"], row["recipe"], device, tiny)
        work(training, 16 if tiny else LENGTH)
    except Exception as error:
        row["failed"] = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
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
        if device == "cuda":
            training.step(4, length)
            row["small_peak_bytes"] = [(b, peak_bytes(training, b, length)) for b in (4, 8)]
            (b0, m0), (b1, m1) = row["small_peak_bytes"]
            row["mib_per_sequence"] = (m1 - m0) / (b1 - b0) / MIB
            row["peak_mib"] = {"batch": common, "mib": peak_bytes(training, common, length) / MIB}
        row["at_common_batch"] = sequences_per_second(training, common, length)

    trained(row, device, tiny, work)


def measure_at_largest_batch(row, device, tiny):
    def work(training, length):
        training.step(4, length)
        torch.cuda.empty_cache()
        room = (torch.cuda.mem_get_info()[0] + torch.cuda.memory_allocated()) * (1 - RESERVE)
        row["largest_batch"], row["smallest_that_failed"] = largest_batch(lambda batch: runs(training, batch, length), row["small_peak_bytes"], room)
        at_largest_batch(training, row, length)

    trained(row, device, tiny, work)


def ratio(rows, row, of):
    """Of a figure to eager + SDPA's in the same model and mode."""
    base = next((r for r in rows if (r["model"], r["mode"], r["recipe"]) == (row["model"], row["mode"], "eager + SDPA")), None)
    return of(row) / of(base) if base is not None and of(row) and of(base) else None


def line_of(rows, row):
    def cell(of, form):
        value, times = of(row), ratio(rows, row, of)
        return "-" if value is None else format(value, form) + (f" ({times:.2f})" if times else "")

    def speed(name):
        return cell(lambda r: r.get(name, {}).get("sequences_per_s"), ".1f")

    bytes_of_each, largest = cell(lambda r: r.get("mib_per_sequence"), ".1f"), cell(lambda r: r.get("largest_batch"), "d")
    failed = f"  then FAILED: {row['failed']}" if "failed" in row else ""
    return f"{row['model']:15}{row['mode']:14}{row['recipe']:17}{bytes_of_each:>14}{largest:>16}{speed('at_largest_batch'):>18}{speed('at_common_batch'):>18}{failed}"


def table(found):
    head = [f"{found['device']}, PyTorch {found['torch']}, transformers {found['transformers']}; (x) against eager + SDPA",
            f"{'':46}{'MiB/sequence':>14}{'largest batch':>16}{'seq/s there':>18}{'seq/s at ' + str(COMMON_BATCH):>18}"]  # fmt: skip
    return head + [line_of(found["rows"], row) for row in found["rows"]]


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

    torch.backends.cuda.matmul.allow_tf32 = True  # as who trains in fp32 on such a GPU has it
    # Mode by mode, so that a run that ends early has recipes to compare.
    wanted = [(model, mode, recipe) for mode in choices(parser, options.modes, MODES, "modes") for recipe in choices(parser, options.recipes, RECIPES, "recipes")
              for model in choices(parser, options.models, MODELS, "models") if recipe != "ours, norms in bf16" or MODES[mode][1]]  # fmt: skip
    found = {"schema": SCHEMA, "command": "python notebooks_data/studies/throughput.py " + " ".join(map(json.dumps, sys.argv[1:])), "torch": torch.__version__,
             "transformers": transformers.__version__, "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu", "tiny": options.tiny,
             "length": LENGTH, "dropout": P, "complete": False, "rows": []}  # fmt: skip
    begun = time.perf_counter()

    def has_time():
        return time.perf_counter() - begun <= options.seconds

    def keep(row):
        searched = options.device != "cuda" or all("at_largest_batch" in one or "failed" in one for one in found["rows"])
        found["complete"] = searched and len(found["rows"]) == len(wanted)
        print(line_of(found["rows"], row), flush=True)
        if options.write or options.out:
            written(path, found)

    # All at the common batch first: the search for the largest takes longer, and what it ends in is no matter to the others.
    for model, mode, recipe in wanted:
        if not has_time():
            break
        found["rows"].append({"model": model, "mode": mode, "recipe": recipe})
        measure_at_common_batch(found["rows"][-1], options.device, options.tiny)
        keep(found["rows"][-1])
    searched = 0
    for row in (row for row in found["rows"] if options.device == "cuda" and "failed" not in row):
        if not has_time():
            break
        measure_at_largest_batch(row, options.device, options.tiny)
        searched += 1
        keep(row)
    print("\n".join(table(found)))
    if not found["complete"]:
        largest = f", the largest batch of {len(found['rows']) - searched}" if options.device == "cuda" else ""
        print(f"left out, for want of time: {len(wanted) - len(found['rows'])} of {len(wanted)} rows{largest}")
    return 1 if any("failed" in row for row in found["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
