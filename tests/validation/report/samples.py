"""Small results of every kind for the tests of the report's page; one name in each of them is hostile."""

import json
import shutil
from pathlib import Path

HOSTILE = "<script>alert(1)</script>|`x`\"'&"


def stability() -> dict:
    channels = {"gamma": [1.0, 0.0], "beta": [0.1, 0.2], "rho": [0.1, None],  # gamma = 0: nothing bounds it
                "class": ["stable", "zero_gamma"], "bits_lost": [0.5, None], "x_hat_conditional": [0.5, None],
                "dgamma_conditional": [0.5, None]}
    norm = {"name": HOSTILE, "norm": "layernorm", "columns": 2,
            "classes": {"stable": 1, "degraded": 0, "unstable": 0, "zero_gamma": 1},
            "rho": {"q50": 0.1, "max": None},
            "policy": {"name": "side_buffer", "channels": [1], "bytes_per_row": 4},
            "bounds": {"from_output": {"dx_rms_relative": {"worst": None}},
                       "recommended": {"dx_rms_relative": {"worst": 0.01, "conditional": 0.01}}},
            "estimates": {"dgamma_relative_l2": 0.001}, "channels": channels}
    return {"schema": "outgrad.stability/1", "source": "checkpoints/a`b.npz", "norms": [norm],
            "options": {"format": "bf16", "eps": 1e-5, "mean_ratio": 10, "dy_max": 1, "x_hat_max": 6,
                        "tau": 0.0625}}


def tuning_record(time: str, variant: str, state: str, **more) -> dict:
    record = {"schema": "outgrad.tune/1", "time": time, "device": {"model": "a processor", "threads": 2},
              "compiler": "a compiler", "kernel": "gelu_backward", "format": "f32", "variant": variant,
              "fit": {"name": f"fit_of_{variant}", "class": "abs:2^-10", "as_accurate": True},
              "default": variant == "usual", "state": state}
    if state == "rejected":
        record["rejected"] = {"stage": "verify", "reason": "wrong_answer", "detail": HOSTILE}
    if state == "timed":
        record |= {"winner": variant == "best", "gain": variant == "best", "ceiling": {"name": "triad"},
                   "gb_per_s": 20.0,
                   "share_of_ceiling": 0.75,
                   "speedup": {"median": 1.25, "low": 1.2, "high": 1.3, "confidence": 0.99}}
    return record | more


def pareto() -> dict:
    def point(name: str, work: int, size: int, error: float) -> dict:
        return {"name": name, "class": "abs:2^-10", "work": work, "depth": work - 3, "table_bytes": size,
                "a_plus_b": error, "total": 0.011, "regret": error, "oracle": 0.01, "operations": 7,
                "spec": {"name": name}}

    return {"schema": "outgrad.pareto/2", "activation": "gelu", "format": "bf16", "exact": False, "tried": 9,
            "points": [point("cheap_of_all", 12, 0, 2**-7), point(HOSTILE, 21, 384, 2**-10)]}


def attack() -> dict:
    """Two cases: one of a bound that the search reached nearly, one of a row without dx."""

    def bound(tightness: float | None, ours: float, unguarded: float | None) -> dict:
        return {"evaluations": 1e6, "violations": 0, "tightness": tightness, "worst_over_bound": ours,
                "peers_over_bound": {"from_input": 0.5, "clamped_gamma": 123456.0, "unguarded": unguarded}}

    def case(parameters: str, gradients: dict) -> dict:
        return {"norm": "layernorm", "format": "bf16", "parameters": parameters, "x": "centred",
                "policy": "side_buffer",
                "columns": 64, "gradients": gradients}

    rstd = bound(2.0, 0.5, 0.0)
    del rstd["peers_over_bound"]
    return {"schema": "outgrad.norm_attack/1", "evaluations": 2e8, "violations": 0, "median_tightness": 2.5,
            "share_within_4": 0.75, "median_tightness_by_gradient": {"dx": 2.25, "dgamma": 2, "dbeta": 1.5},
            "median_tightness_of_dx_by_format": {"bf16": 2},
            "cases": [case(HOSTILE,
                           {"dx": bound(1.25, 0.8, None), "dgamma": bound(2.0, 0.5, 1.0), "rstd": rstd}),
                      case("gamma 1", {"dgamma": bound(None, 0, 0.0)})]}


def ledger() -> dict:
    kept = {"kept": 3 << 20, "batch": {"11": 3, "80": 44}}
    less = {"kept": 1 << 19, "batch": {"11": 30, "80": 440}}
    return {"schema": "outgrad.ledger/1", "length": 512,
            "command": "python notebooks_data/studies/ledger.py --write",
            "layers": {"a layer": {"ours": {"fp32": 20.285, "pure bf16": 10.285},
                                   "theirs": {"fp32": 69.008, "pure bf16": 37.008}}},
            "models": {"a model": {"ours": {"fp32": less, "pure bf16": less},
                                   "theirs": {"fp32": kept, "pure bf16": kept}}}}


def llama_ledger() -> dict:
    return {"schema": "outgrad.ledger_llama/1", "command": "python notebooks_data/studies/ledger_llama.py --write",
            "length": 4096, "MiB": {"eager": 800, HOSTILE: 200.5}}


def speeds() -> dict:
    def row(elements: int, ratio: float) -> dict:
        return {"kind": "gelu", "format": "bf16", "elements": elements, "what": "through autograd",
                "times_as_fast": [ratio, ratio - 0.25, ratio + 0.25]}

    return {"schema": "outgrad.package_speed/2", "processor": HOSTILE, "threads": 2, "pytorch": "2.15.0",
            "rows": [row(1 << 24, 2.5), row(64, 0.5)]}


def training() -> dict:
    """Two ways on two texts from two seeds; one run diverged."""

    def run(text: str, seed: int, way: str, second: float | None) -> dict:
        return {"text": text, "seed": seed, "way": way, "loss": [3.0 + seed, second]}

    def end(text: str, way: str, ended: int, difference: dict | None) -> dict:
        return {"text": text, "way": way, "n": ended, "diverged": 2 - ended, "validation_loss": {"mean": 1.5},
                "difference": difference, "relative_l2": {"median": 0.001, "greatest": 0.002}}

    difference = {"mean": 0.0125, "low": -0.25, "high": 0.5, "confidence": 0.95}
    return {"schema": "outgrad.training/2", "command": "python notebooks_data/studies/training.py --write",
            "configuration": {"model": {"layers": 2, "width": 64, "parameters": 110000}, "steps": 20,
                              "seeds": [1, 2],
                              "texts": ["prose", "sources"], "ways": ["exact", HOSTILE]},
            "loss_steps": [10, 20], "probes": [{"other_batch": 0.75}, {"other_batch": None}],
            "runs": [run("prose", 1, "exact", 2.0), run("prose", 2, "exact", 2.5),
                     run("prose", 1, HOSTILE, 2.25),
                     run("prose", 2, HOSTILE, None), run("sources", 1, "exact", 2.0)],
            "summary": [end("prose", "exact", 2, None), end("prose", HOSTILE, 1, difference)]}


def quantiser() -> dict:
    under = [{"x": "N(0, 1^2)", "mass": 1, "rms": 0.00673}, {"x": "N(0, 2^2)", "mass": 0.5, "rms": 0.0777}]
    return {"schema": "outgrad.quantiser/1", "activation": "gelu", "format": "f16", "bits_per_element": 8.25,
            "foreign": {"name": "theirs", "stored": "x in 8 bits", "source": {"work": HOSTILE}},
            "ranges": [{"min": -4, "max": 4, "T": {"bound": 0.0251}, "T_wrapped": {"bound": 1.129},
                        "O": 0.025,
                        "bias": {"value": -0.00625}, "maximum_wraps": 0.125, "under": under}],
            "groups": [{"x": "N(0, 1^2)", "rms": 0.0321}],
            "maximum_wraps": [{"mean": 0.019, "greatest": 0.126}, {"mean": 0.018, "greatest": 0.127}],
            "running": {"share_of_steps": 0.38}}


def front() -> dict:
    def under(greatest: float, rms: float) -> list[dict]:
        return [{"x": "normal(0.5)", "greatest": greatest, "rms": 2 * rms, "bias": -0.001, "shrinkage": 0.97},
                {"x": "normal(1)", "greatest": greatest, "rms": rms, "bias": 0, "shrinkage": 1}]

    stores = [{"name": "code of 4 bits", "origin": "outgrad", "bits_beyond": 4, "bits_all": 20,
               "proven": 0.0393,
               "under": under(0.039, 0.023)},
              {"name": HOSTILE, "origin": "somebody", "bits_beyond": 4.125, "bits_all": 20.125,
               "dominated_by": "code of 4 bits", "under": under(0.3, 0.081)}]
    return {"schema": "outgrad.front/1", "activation": "gelu", "x_format": "bf16", "stores": stores}


def published(committed: Path) -> dict:
    """A sweep of somebody's coefficients."""
    audit = json.loads((committed / "sweeps/gelu_f32.json").read_text())
    audit |= {"subject": "theirs+rounded",
              "foreign": {"stored": "y and one bit", "source": {"work": HOSTILE}}}
    domain = audit["domains"][0]
    domain |= {"C": None, "forward": None, "foreign": []}
    domain["T"]["bound"] = 2.75
    domain["under"] = [{"x": "N(0, 1^2)", "rms": 0.125, "bias": -0.0625, "max": "inf",
                        "share_in_worst_codes": 0.0334}]
    return audit


def tests() -> dict:
    run = {"date": "2026-11-27", "commit": "0123abc", "processor": HOSTILE, "cores": 2, "seconds": 900,
           "passed": 81, "failed": ["system.mpi_test"], "skipped": ["system.other_machines.avx2"]}
    return {"schema": "outgrad.tests/1", "runs": {"nightly": run}}


def write(repository: Path, folder: Path) -> None:
    """GELU's committed headers, fits and sweeps in three formats, a proof, stores, and the samples."""
    committed = repository / "notebooks_data"
    for part in ("generated", "fits", "sweeps", "proofs"):
        (folder / part).mkdir()
    for name in ("gelu_f32", "gelu_f16", "gelu_bf16"):
        shutil.copy(repository / "kernels/generated" / f"{name}.h", folder / "generated")
        for part in ("fits", "sweeps"):
            shutil.copy(committed / part / f"{name}.json", folder / part)
    shutil.copy(committed / "sweeps/gelu_code_bf16.json", folder / "sweeps")
    shutil.copy(committed / "proofs/gelu_bf16.json", folder / "proofs")
    samples = {"stability/checkpoint.json": stability(), "pareto/gelu_bf16.json": pareto(),
               "attack/norms.json": attack(),
               "studies/ledger.json": ledger(), "studies/ledger_llama.json": llama_ledger(),
               "studies/package_speed.json": speeds(), "training/masked_lm.json": training(),
               "tests/nightly.json": tests(),
               "front/gelu.json": front(),
               "foreign/sweeps/theirs_f32.json": published(committed),
               "foreign/sweeps/theirs_f16.json": quantiser()}
    for name, sample in samples.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(sample))
    records = [tuning_record("2021-01-01T00:00:00Z", variant, state)
               for variant, state in (("usual", "timed"), ("best", "timed"), (HOSTILE, "rejected"))]
    (folder / "tuned").mkdir()
    (folder / "tuned/tune_cpu.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
