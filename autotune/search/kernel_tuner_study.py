#!/usr/bin/env python3
"""Runs the strategies of Kernel Tuner (the package from PyPI) in its simulation mode on recorded caches, for `outgrad tune --study`.

usage: kernel_tuner_study.py --out RUNS.jsonl [--seeds 50] [--shares 1,2,5,10] [--strategies A,B] [--jobs N] CACHE.json...

Every strategy runs with its default options, once per seed and budget; a budget is a share of the cache's configurations, failed
ones among them, so that Kernel Tuner searches the very space that the replay searches. What it minimises is the cache's `time`.
A line of RUNS.jsonl is one run: {"schema", "cache", "strategy", "seed", "budget", "evaluations", "best", "error", "seconds"}: `best`
is the least time found (null: none), `evaluations` the distinct configurations that were evaluated, `error` why the run ended early
(null: it did not). Lines that are there already are kept: an interrupted study goes on where it was.
"""
import argparse
import contextlib
import io
import json
import math
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import warnings

SCHEMA = "outgrad.kernel_tuner_runs/1"
# brute_force visits everything in order; it is no strategy for a budget.
NOT_COMPARED = {"brute_force"}
# pyatf_strategies is a family: without a name of the technique it refuses.
OPTIONS = {"pyatf_strategies": {"searchtechnique": "auc_bandit"}}


def name_of(path):
    return os.path.splitext(os.path.basename(path))[0]


def budget_of(size, percent):
    """At least one evaluation; rounded down, as the replay's budgets are."""
    return max(1, math.floor(size * percent / 100))


def run_once(task):
    """One run of one strategy. Returns its line."""
    path, strategy, seed, budget = task
    import numpy as np
    from constraint import FunctionConstraint
    from kernel_tuner import tune_kernel, util

    cache = util.read_cache(path, open_cache=False)
    recorded = {tuple(entry[key] for key in cache["tune_params_keys"]) for entry in cache["cache"].values()}
    arguments = util.infer_args_from_cache(cache)
    random.seed(seed)
    np.random.seed(seed)
    began = time.perf_counter()
    results, error = [], None
    with tempfile.TemporaryDirectory() as scratch:
        # The package writes to the cache it reads.
        copy = shutil.copy(path, os.path.join(scratch, "cache.json"))
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            try:
                results, _ = tune_kernel(
                    **arguments,
                    cache=copy,
                    restrictions=[FunctionConstraint(lambda *values: values in recorded)],
                    simulation_mode=True,
                    strategy=strategy,
                    strategy_options={"max_fevals": budget, **OPTIONS.get(strategy, {})},
                    quiet=True,
                    verbose=False,
                )
            except Exception as failure:  # of the strategy: part of the result
                error = f"{type(failure).__name__}: {failure}"[:200]
    seen = {}
    for result in results or []:
        if result:
            seen.setdefault(tuple(result[key] for key in cache["tune_params_keys"]), result)
    times = [r["time"] for r in list(seen.values())[:budget] if "__error__" not in r and isinstance(r.get("time"), (int, float))]
    return {
        "schema": SCHEMA,
        "cache": name_of(path),
        "strategy": strategy,
        "seed": seed,
        "budget": budget,
        "evaluations": min(len(seen), budget),
        "best": min(times) if times else None,
        "error": error,
        "seconds": round(time.perf_counter() - began, 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("caches", nargs="+", metavar="CACHE.json")
    parser.add_argument("--out", required=True)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--shares", default="1,2,5,10", help="budgets, in percent of the space")
    parser.add_argument("--strategies", default="", help="names, separated by commas (all)")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    try:
        from kernel_tuner.interface import strategy_map
    except ImportError as missing:
        print(f"kernel_tuner_study.py: {sys.executable}: {missing}", file=sys.stderr)
        return 3
    names = options.strategies.split(",") if options.strategies else [name for name in strategy_map if name not in NOT_COMPARED]

    done = set()
    if os.path.exists(options.out):
        with open(options.out, encoding="utf-8") as lines:
            for line in lines:
                with contextlib.suppress(ValueError, KeyError):  # a line that a kill cut short is run again
                    run = json.loads(line)
                    done.add((run["cache"], run["strategy"], run["seed"], run["budget"]))
    tasks = []
    for path in options.caches:
        with open(path, encoding="utf-8") as file:
            size = len(json.load(file)["cache"])
        for percent in options.shares.split(","):
            budget = budget_of(size, float(percent))
            for seed in range(1, options.seeds + 1):
                tasks += [(path, name, seed, budget) for name in names if (name_of(path), name, seed, budget) not in done]
    with multiprocessing.Pool(options.jobs) as pool, open(options.out, "a", encoding="utf-8") as out:
        for count, line in enumerate(pool.imap_unordered(run_once, tasks), 1):
            out.write(json.dumps(line) + "\n")
            out.flush()
            if sys.stderr.isatty():
                print(f"\rkernel_tuner: {count} of {len(tasks)} runs", end="", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
