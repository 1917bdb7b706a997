#!/usr/bin/env python3
"""Times PyTorch's own kernels, and the norms of QuACK and Liger-Kernel where they are installed, as
`outgrad-gpu time` times ours: the same sizes, graphs of at least 20 calls, sets of arrays beyond the cache,
rounds.

usage: torch_peer.py [--out FILE] [--ours FILE [--theirs FILE]] [--budget SECONDS] [--reduced]
                     [--device cuda|cpu]

FILE of --out is JSON (outgrad.gpu_torch/5), replaced as results come. --ours FILE, what `outgrad-gpu time`
wrote, prints both side by side at the end; with --theirs FILE, what this program wrote, too, nothing is
timed. The ceiling of a share is the faster of copying an array and scaling it in place, over all sizes of the
run: a device copy moves less than kernels do where arrays are large.
x is N(0, 1). PyTorch's GELU backward reads x where ours reads y and a bit. Of a gated pair z = silu(a) b
PyTorch keeps silu(a) beside a and b, and takes two launches forward and three backward; compiled, in bf16
alone, it keeps a and b as ours does. The bytes of such a row are ours: a, b and z, and dz, a, b and the two
gradients. A row of QuACK or Liger-Kernel names it and its version (`of`). An operation that fails is a row
with its reason, and so is each one of a package that cannot be imported. --device cpu, for a look whether all
of it runs, takes no graphs, and neither of the two packages, which have kernels for GPUs alone. Exit status:
0, 2 bad usage or input, 3 no PyTorch or no device.
"""
import argparse
import functools
import importlib
import importlib.metadata
import json
import math
import os
import statistics
import sys
import time

SCHEMA = "outgrad.gpu_torch/5"
CEILINGS = ("copy", "scale")
CALLS = 20  # of a graph, the fewest
ROUNDS, FEWEST, REDUCED_ROUNDS = 25, 5, 2
CACHES = 3  # by which the sets of arrays exceed the second-level cache
COPY_FLOOR = 0.9  # of a round's copy to the best
WARM_UP_SECONDS = 0.2
FORMATS = {"bf16": ("bfloat16", 2), "f16": ("float16", 2), "f32": ("float32", 4)}
# Theirs under another name than what it is compared with.
NORMS = tuple(f"{norm}_{which}" for norm in ("layernorm", "rmsnorm") for which in ("forward", "backward"))
COMPILED = ("gelu_backward", "gated_silu_forward", "gated_silu_backward")
COMPARED_WITH = ({f"{name}_compiled": name for name in COMPILED}
                 | {f"{peer}_{norm}": norm for peer in ("quack", "liger") for norm in NORMS})
EPS = 1e-5


class Refusal(Exception):
    def __init__(self, status, why):
        super().__init__(why)
        self.status = status


def elementwise_sizes(reduced):
    return [(1, 1 << 12), (1, 1 << 14)] if reduced else [(1, 1 << k) for k in (20, 22, 24, 28)]


def norm_sizes(reduced):
    return [(4, 1024)] if reduced else [(1 << 18, 128),  # of heads
        *((rows, columns) for columns in (1024, 4096, 8192) for rows in (1 << 10, 1 << 12, 1 << 13, 1 << 14))]


def sets_of(elements, size, l2_bytes, pool):
    """How many sets of arrays calls go round, of those that the pool has."""
    return max(1, min(math.ceil(CACHES * l2_bytes / (elements * size)), pool // elements))


def calls_of(sets):
    """Each set as often as the others."""
    return -(-CALLS // sets) * sets


def kept_rounds(copies):
    """Rounds disturbed from outside show in the copy."""
    best = min(copies)
    return [r for r, us in enumerate(copies) if best >= COPY_FLOOR * us]


def finished(rows):
    """Medians and bandwidth of rows of one size, the copy among them."""
    copies = next(row["us"] for row in rows if row["name"] == "copy")
    kept = kept_rounds(copies)
    for row in rows:
        if "failed" in row:
            continue
        row["kept_rounds"] = len(kept)
        row["us_median"] = statistics.median(row["us"][r] for r in kept)
        row["gb_per_s"] = 1e-3 * row["bytes"] / row["us_median"]
    return rows


def ceiling_of(rows):
    """The most bytes a second that a copy or a scale in place of these rows moved, in GB/s."""
    return max(row["gb_per_s"] for row in rows if row["name"] in CEILINGS and "gb_per_s" in row)


def shape_text(row):
    return str(row["columns"]) if row["rows"] == 1 else f"{row['rows']} x {row['columns']}"


def line_of(row, ceiling):
    head = f"torch {row['name']:24} {row['format']:4} {shape_text(row):>12}"
    if "failed" in row:
        return f"{head} FAILED: {row['failed']}"
    share = 100 * row["gb_per_s"] / ceiling
    return (f"{head} {row['us_median']:10.2f} us {row['gb_per_s']:8.1f} GB/s {share:6.1f}% of the ceiling"
            f"  ({row['kept_rounds']} of {len(row['us'])} rounds)")


def joined(ours, theirs):
    """(their row, our row of the same work) where both have a time."""
    place = lambda row, name: (name, row["format"], row["rows"], row["columns"])
    own = {place(row, row["name"]): row for row in ours if "us_median" in row}
    pairs = [(row, own.get(place(row, COMPARED_WITH.get(row["name"], row["name"]))))
             for row in theirs if "us_median" in row]
    return [(their, our) for their, our in pairs if our is not None]


def comparison(ours, theirs):
    """Lines of the table ours / theirs; what only they lack is in our own table. PyTorch's rows say of nobody
    whose they are. The counts at the end leave the ceilings out, which are nobody's kernels, and what
    torch.compile made apart."""
    pairs = joined(ours, theirs)
    lines = [f"{'':25}{'':4} {'':>12} {'ours':>10} {'theirs':>10} us  {'times as fast':>13}   shares of each "
             "one's ceiling"]
    own_ceiling, their_ceiling = ceiling_of(ours), ceiling_of(theirs)
    rows, behind = {}, {}
    for their, our in pairs:
        ratio = their["us_median"] / our["us_median"]
        ceiling = their["name"] in CEILINGS
        of = their.get("of", "compiled PyTorch" if their["name"].endswith("_compiled") else "PyTorch")
        if not ceiling:
            rows[of] = rows.get(of, 0) + 1
            behind[of] = behind.get(of, 0) + (ratio < 1)
        own_share, their_share = 100 * our["gb_per_s"] / own_ceiling, 100 * their["gb_per_s"] / their_ceiling
        lines.append(f"{their['name']:25}{their['format']:4} {shape_text(their):>12} "
                     f"{our['us_median']:10.2f} {their['us_median']:10.2f}     {ratio:13.2f}   "
                     f"{own_share:5.1f}% {their_share:5.1f}%"
                     + ("  BEHIND" if ratio < 1 and not ceiling else ""))
    lines += [f"{rows[of]} rows, behind {of} in {behind[of]}" for of in rows]
    whys = {(row["of"], row["failed"]) for row in theirs if "of" in row and "failed" in row}
    return lines + [f"no row: {of}: {why}" for of, why in sorted(whys)]


def read_rows(path, schema, program):
    """The rows of a result: of this schema, whatever its version, with a ceiling among them."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        rows = data["timings"]
        if (not data["schema"].startswith(schema + "/")
                or not all({"name", "format", "rows", "columns"} <= set(row) for row in rows)):
            raise KeyError
        if (not all({"us_median", "gb_per_s"} <= set(row) for row in rows if "failed" not in row)
                or not ceiling_of(rows) > 0):
            raise KeyError
        return rows
    except OSError as error:
        raise Refusal(2, f"{path}: {error.strerror}")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refusal(2, f"{path}: is not what {program} writes ({schema})")


class Results:
    def __init__(self, path, head):
        self.path, self.head, self.rows = path, head, []

    def write(self, complete):
        if not self.path:
            return
        try:
            with open(self.path + ".tmp", "w", encoding="utf-8") as file:
                json.dump({**self.head, "complete": complete, "timings": self.rows}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(self.path + ".tmp", self.path)
        except OSError as error:
            raise Refusal(3 if error.errno == 28 else 2, f"{self.path}: write: {error.strerror}")


class Machine:
    """What is timed, on a GPU by graphs and events, on a CPU by a clock."""

    def __init__(self, torch, device):
        self.torch, self.device = torch, device
        if device == "cuda":
            properties = torch.cuda.get_device_properties(0)
            # an H100's where PyTorch does not say
            self.name, self.l2_bytes = properties.name, getattr(properties, "L2_cache_size", 50 << 20)
            self.stream = torch.cuda.Stream()
            self.start, self.stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        else:
            self.name, self.l2_bytes = "cpu", 64 << 10

    def free_bytes(self):
        return self.torch.cuda.mem_get_info()[0] if self.device == "cuda" else 1 << 28

    def prepared(self, call, sets, calls):
        """A function that runs `calls` calls and gives the time of one in us. `call(set)`'s results live as
        long: each set has arrays of its own."""
        results = [None] * sets

        def run():
            for k in range(calls):
                results[k % sets] = call(k % sets)

        if self.device == "cpu":
            def timed():
                begun = time.perf_counter()
                run()
                return 1e6 * (time.perf_counter() - begun) / calls

            timed()
            return timed
        torch = self.torch
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):  # compiles, chooses algorithms, allocates
            for k in range(min(sets, 3)):
                results[k] = call(k)
        self.stream.synchronize()
        results[:] = [None] * sets
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            run()

        def sample():
            with torch.cuda.stream(self.stream):
                self.start.record()
                graph.replay()
                self.stop.record()
            self.stop.synchronize()
            return 1e3 * self.start.elapsed_time(self.stop) / calls

        sample()
        return sample

    def release(self):
        if self.device == "cuda":
            self.torch.cuda.empty_cache()


def reason(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def ceilings(machine, pool, elements, size):
    def part(array, k):
        return array[k * elements:(k + 1) * elements]

    return [("copy", 2 * size * elements, lambda: lambda k: part(pool["out"], k).copy_(part(pool["dy"], k))),
            ("scale", 2 * size * elements, lambda: lambda k: part(pool["out"], k).mul_(1.0))]


def elementwise_cases(machine, pool, elements, size, dtype):
    torch, aten = machine.torch, machine.torch.ops.aten

    def part(name, k):
        return pool[name][k * elements:(k + 1) * elements]

    def compiled(function, *names):
        import triton  # noqa: F401  (without it torch.compile has no GPU kernels)
        # Each size is a graph of its own, of which one function has eight: from the ninth on it would run
        # uncompiled, without an error.
        torch.compiler.reset()
        made = torch.compile(function, dynamic=False, fullgraph=True)
        return lambda k: made(*(part(name, k) for name in names))

    def pair(a, b):
        return aten.mul(aten.silu(a), b)

    def pair_backward(dz, a, b, silu):
        return aten.silu_backward(aten.mul(dz, b), a), aten.mul(dz, silu)

    cases = ceilings(machine, pool, elements, size)
    cases += [
        ("gelu_forward", 2 * size * elements,
         lambda: lambda k: aten.gelu.out(part("x", k), approximate="none", out=part("out", k))),
        ("gelu_backward", 3 * size * elements,
         lambda: lambda k: aten.gelu_backward.grad_input(part("dy", k), part("x", k), approximate="none",
                                                         grad_input=part("out", k))),
        ("gated_silu_forward", 3 * size * elements, lambda: lambda k: pair(part("x", k), part("b", k))),
        ("gated_silu_backward", 5 * size * elements,  # what silu(a) is, no time depends on
         lambda: lambda k: pair_backward(part("dy", k), part("x", k), part("b", k), part("out", k))),
    ]
    if machine.device == "cuda":
        functions = {"gelu_backward": (
            3, lambda dy, x: aten.gelu_backward(dy, x, approximate="none"), "dy", "x")}
        if dtype == torch.bfloat16:  # of one type alone, for compiling takes seconds
            functions |= {
                "gated_silu_forward": (3, pair, "x", "b"),
                "gated_silu_backward": (
                    5, lambda dz, a, b: pair_backward(dz, a, b, aten.silu(a)), "dy", "x", "b")}
        cases += [(f"{name}_compiled", arrays * size * elements, functools.partial(compiled, *of))
                  for name, (arrays, *of) in functions.items()]
    return cases


@functools.cache
def imported(modules, distribution):
    """The modules of an installed package and its version, or None and why there are none."""
    try:
        found = [importlib.import_module(module) for module in modules]
        return found, importlib.metadata.version(distribution)
    except Exception as error:  # what it imports itself may be absent or too old: PyTorch, Triton, the driver
        return None, reason(error)


def quack_norms(quack, part, gamma, beta):
    wide_gamma, wide_beta = gamma.float(), beta.float()  # its LayerNorm takes no others

    def layernorm_backward():
        _, rstd, mean = quack.layernorm_fwd(part("x", 0), wide_gamma, wide_beta, EPS, return_rstd=True,
                                            return_mean=True)
        return lambda k: quack.layernorm_bwd(part("x", k), wide_gamma, part("dy", k), rstd, mean)

    def rmsnorm_backward():
        rstd = quack.rmsnorm_fwd(part("x", 0), gamma, eps=EPS, store_rstd=True)[2]
        return lambda k: quack.rmsnorm_bwd(part("x", k), gamma, part("dy", k), rstd)

    def layernorm_forward():
        return lambda k: quack.layernorm_fwd(part("x", k), wide_gamma, wide_beta, EPS, return_rstd=True,
                                             return_mean=True)

    return {"layernorm_forward": layernorm_forward,
            "layernorm_backward": layernorm_backward,
            "rmsnorm_forward": lambda: lambda k: quack.rmsnorm_fwd(part("x", k), gamma, eps=EPS,
                                                                   store_rstd=True),
            "rmsnorm_backward": rmsnorm_backward}


def liger_norms(layer, rms, part, gamma, beta):
    rms_settings = 0.0, "llama", None  # no offset, its default of types, rows as it chooses

    def layernorm_backward():
        _, _, mean, rstd, *_ = layer.layer_norm_forward(part("x", 0), gamma, beta, EPS)
        return lambda k: layer.layer_norm_backward(part("dy", k), part("x", k), gamma, beta, mean, rstd)

    def rmsnorm_backward():
        _, _, rstd, block, warps, types = rms.rms_norm_forward(part("x", 0), gamma, EPS, *rms_settings)
        # In place of dy, as it does by default: `out` is that.
        return lambda k: rms.rms_norm_backward(part("out", k), part("x", k), gamma, rstd, rms_settings[0],
                                               types, block, warps, True, rms_settings[2])

    return {"layernorm_forward": lambda: lambda k: layer.layer_norm_forward(part("x", k), gamma, beta, EPS),
            "layernorm_backward": layernorm_backward,
            "rmsnorm_forward": lambda: lambda k: rms.rms_norm_forward(part("x", k), gamma, EPS,
                                                                      *rms_settings),
            "rmsnorm_backward": rmsnorm_backward}


# Those whose norms are timed beside PyTorch's: name, distribution, modules, cases. quack/__init__.py hides
# the module `rmsnorm` behind a function.
PEERS = {"quack": ("QuACK", "quack-kernels", ("quack.rmsnorm",), quack_norms),
         "liger": ("Liger-Kernel", "liger-kernel",
                   ("liger_kernel.ops.layer_norm", "liger_kernel.ops.rms_norm"), liger_norms)}


def peer_cases(part, gamma, beta, bytes_of):
    def absent(why):
        raise ImportError(why)

    for peer, (name, distribution, modules, norms) in PEERS.items():
        found, told = imported(modules, distribution)
        made = (norms(*found, part, gamma, beta) if found
                else dict.fromkeys(NORMS, lambda why=told: absent(why)))
        for norm in NORMS:
            yield f"{peer}_{norm}", bytes_of[norm], made[norm], f"{name} {told}" if found else name


def norm_cases(machine, pool, rows, columns, size, dtype):
    torch, aten = machine.torch, machine.torch.ops.aten
    elements = rows * columns
    gamma = torch.full((columns,), 0.75, dtype=dtype, device=machine.device)
    beta = torch.full((columns,), 0.25, dtype=dtype, device=machine.device)
    # Matrices, parameters and their gradients, and of a row the mean and rstd, or rstd alone.
    bytes_of = {f"{norm}_{which}": (matrices * elements + gradients * vectors * columns) * size
                + 4 * vectors * rows
                for norm, vectors in (("layernorm", 2), ("rmsnorm", 1))
                for which, matrices, gradients in (("forward", 2, 1), ("backward", 3, 2))}

    def part(name, k):
        return pool[name][k * elements:(k + 1) * elements].view(rows, columns)

    def layernorm_backward():
        _, mean, rstd = aten.native_layer_norm(part("x", 0), [columns], gamma, beta, EPS)
        return lambda k: aten.native_layer_norm_backward(part("dy", k), part("x", k), [columns], mean, rstd,
                                                         gamma, beta, [True, True, True])

    def rmsnorm_forward():
        if hasattr(aten, "_fused_rms_norm"):
            return lambda k: aten._fused_rms_norm(part("x", k), [columns], gamma, EPS)
        return lambda k: torch.nn.functional.rms_norm(part("x", k), (columns,), gamma, EPS)

    def rmsnorm_backward():
        if machine.device == "cuda" and hasattr(aten, "_fused_rms_norm_backward"):  # it has none for a CPU
            _, rstd = aten._fused_rms_norm(part("x", 0), [columns], gamma, EPS)
            return lambda k: aten._fused_rms_norm_backward(part("dy", k), part("x", k), [columns], rstd,
                                                           gamma, [True, True])
        weight = gamma.clone().requires_grad_(True)
        made = {}

        def backward(k):
            if k not in made:
                x = part("x", k).detach().requires_grad_(True)
                made[k] = x, torch.nn.functional.rms_norm(x, (columns,), weight, EPS)
            x, y = made[k]
            return torch.autograd.grad(y, (x, weight), part("dy", k), retain_graph=True)

        # Every forward before a capture, on the stream that captures.
        if machine.device == "cuda":
            with torch.cuda.stream(machine.stream):
                for k in range(sets_of(elements, size, machine.l2_bytes, pool["x"].numel())):
                    backward(k)
        return backward

    cases = {
        "layernorm_forward": lambda: lambda k: aten.native_layer_norm(part("x", k), [columns],
                                                                      gamma, beta, EPS),
        "layernorm_backward": layernorm_backward,
        "rmsnorm_forward": rmsnorm_forward,
        "rmsnorm_backward": rmsnorm_backward,
    }
    peers = list(peer_cases(part, gamma, beta, bytes_of)) if machine.device == "cuda" else []
    return (ceilings(machine, pool, elements, size)
            + [(norm, bytes_of[norm], cases[norm]) for norm in NORMS] + peers)


def time_size(machine, cases, sets, calls, shape, name, seconds, reduced, warm):
    """Rows of one size: all cases in every round, for `seconds` but in no fewer rounds than FEWEST."""
    begun = time.perf_counter()
    rows, runs = [], []
    for case, bytes_of_call, make, *of in cases:
        head = ({"name": case, "format": name, "rows": shape[0], "columns": shape[1]}
                | ({"of": of[0]} if of else {}))
        row = head | {"bytes": bytes_of_call, "sets": sets, "calls": calls, "us": []}
        try:
            runs.append((row, machine.prepared(make(), sets, calls)))
        except Exception as error:  # whatever one operation ends in, the others have their times
            if case == "copy":
                raise
            row = head | {"failed": reason(error)}
        rows.append(row)
    while warm and time.perf_counter() - begun < WARM_UP_SECONDS:
        for _, run in runs:
            run()
    rounds = 0
    most = REDUCED_ROUNDS if reduced else ROUNDS
    while rounds < most and (rounds < FEWEST or time.perf_counter() - begun < seconds):
        for k in range(len(runs)):
            row, run = runs[(k + rounds) % len(runs)]
            row["us"].append(run())
        rounds += 1
    return finished(rows)


def time_all(torch, device, reduced, budget, results):
    machine = Machine(torch, device)
    results.head["device"] = machine.name
    begun = time.perf_counter()
    sizes = elementwise_sizes(reduced) + norm_sizes(reduced)

    def weight(shape, size):
        elements = shape[0] * shape[1]
        return calls_of(sets_of(elements, size, machine.l2_bytes, 1 << 62)) * elements * size

    to_go = sum(weight(shape, size) for _, size in FORMATS.values() for shape in sizes)
    warm, told = not reduced, set()  # what failed, which is said once
    for name, (dtype_name, size) in FORMATS.items():
        dtype = getattr(torch, dtype_name)
        most = max(rows * columns for rows, columns in sizes)
        arrays = 7  # x, b, dy, out, and what a pair's backward makes
        while most > 1 << 12 and arrays * size * most > 0.8 * machine.free_bytes():
            most //= 2
        pool = {"x": torch.empty(most, dtype=dtype, device=device).normal_(),
                "b": torch.empty(most, dtype=dtype, device=device).normal_(),
                "dy": torch.empty(most, dtype=dtype, device=device).uniform_(-1, 1)}
        pool["out"] = pool["dy"].clone()
        for shape in sizes:
            own = weight(shape, size)
            seconds = own / to_go * (budget - (time.perf_counter() - begun))
            to_go -= own
            rows, columns = shape
            if rows == 1:
                columns = min(columns, most)
            elements = rows * columns
            if elements > most or any(row["rows"] == rows and row["columns"] == columns
                                      and row["format"] == name for row in results.rows):
                continue
            sets = sets_of(elements, size, machine.l2_bytes, most)
            try:
                cases = (elementwise_cases(machine, pool, elements, size, dtype) if rows == 1
                         else norm_cases(machine, pool, rows, columns, size, dtype))
                timed = time_size(machine, cases, sets, calls_of(sets), (rows, columns), name, seconds,
                                  reduced, warm)
            except Exception as error:
                timed = [{"name": "copy", "format": name, "rows": rows, "columns": columns,
                          "failed": reason(error)}]
            warm = False
            machine.release()
            results.rows += timed
            ceiling = ceiling_of(timed) if any("gb_per_s" in row for row in timed) else 1
            for row in timed:
                why = row["name"], row.get("failed")
                if why not in told:
                    print(line_of(row, ceiling), flush=True)
                if "failed" in row:
                    told.add(why)
            results.write(complete=False)
        del pool
    results.write(complete=True)


def options_of(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)

    def refuse(why):
        raise Refusal(2, why)

    parser.error = refuse
    parser.add_argument("--out", default="")
    parser.add_argument("--ours", default="")
    parser.add_argument("--theirs", default="")
    parser.add_argument("--budget", type=float, default=60)
    parser.add_argument("--reduced", action="store_true")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args(arguments)
    if not 0 < options.budget < 1e5:
        refuse(f"--budget: {options.budget:g} is not a number of seconds from 1 to 99999")
    return options


def run(arguments):
    options = options_of(arguments)
    ours = read_rows(options.ours, "outgrad.gpu_time", "outgrad-gpu time") if options.ours else None
    if options.theirs:
        if ours is None:
            raise Refusal(2, "--theirs: stands beside --ours FILE")
        print("\n".join(comparison(ours, read_rows(options.theirs, SCHEMA.split("/")[0], "torch_peer.py"))))
        return 0
    try:
        import torch
    except ImportError as error:
        raise Refusal(3, f"PyTorch is not importable: {reason(error)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise Refusal(3, "PyTorch has no CUDA device")
    results = Results(options.out, {"schema": SCHEMA, "torch": torch.__version__, "reduced": options.reduced})
    results.write(complete=False)
    time_all(torch, options.device, options.reduced, options.budget, results)
    if ours is not None:
        print("\n".join(comparison(ours, results.rows)))
    return 0


def main():
    try:
        return run(sys.argv[1:])
    except Refusal as refusal:
        print(f"outgrad: torch_peer: {refusal}", file=sys.stderr)
        return refusal.status


if __name__ == "__main__":
    sys.exit(main())
