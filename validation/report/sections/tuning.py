"""The tuner's latest run on each kernel."""

import math
from types import SimpleNamespace

from blocks import nothing, paragraph, table
from results import Results

# The ulp class is the default of a 16-bit format if it costs at most this share of additional time. Somebody
# who then gives up the tails would gain nothing.
DEFAULT_CLASS_COST = 0.1


def interval(speedup: dict) -> str:
    return f"{speedup['median']:.3f} [{speedup['low']:.3f}, {speedup['high']:.3f}]"


def default_class(problem: SimpleNamespace) -> str:
    """Whether the timings of a format make the ulp class its default, as a sentence."""
    ulp = next((one for one in problem.fits if one["fit"].get("class", "").startswith("ulp")), None)
    if ulp is None:
        return f"{problem.format}: the class ulp was not timed (`./outgrad tune --accuracy any` times it)."
    least, speedup = 1 / (1 + DEFAULT_CLASS_COST), ulp["speedup"]
    measured = (f"{problem.format}: the class ulp (`{ulp['fit']['name']}`) runs at {interval(speedup)} of "
                "the default's speed")
    if speedup["high"] < least:
        return f"{measured}; at {least:.3f} or more it would be the default, so the class abs stays it."
    if speedup["low"] >= least:
        return f"{measured}, at least {least:.3f}: it can be the default here."
    return f"{measured}; whether that is the {least:.3f} that would make it the default is undecided."


def figure_of(record: dict, key: str) -> float:
    """A figure that is null in a record is infinite."""
    return math.inf if record[key] is None else record[key]


def winner_row(problem: SimpleNamespace) -> list:
    row, winner = [problem.machine, problem.kernel, problem.format, problem.size], problem.winner
    ends = [len(problem.timed), len(problem.rejected)]
    if problem.too_noisy:
        return [*row, f"`{problem.too_noisy['variant']}`", *3 * ["-"], "kept the default: too noisy", *ends]
    if not winner:
        return [*row, "none", *4 * ["-"], *ends]
    ratio = f"{interval(winner['speedup'])} at {100 * winner['speedup']['confidence']:g}%"
    return [*row, f"`{winner['variant']}`", f"{figure_of(winner, 'gb_per_s'):.1f}",
            f"{100 * figure_of(winner, 'share_of_ceiling'):.0f}%", winner.get("ceiling", {}).get("name", ""),
            ratio if winner.get("gain") else "the default, no gain", *ends]


def tuning(results: Results) -> list[dict]:
    if not results.tuned:
        return [nothing("Kernels of this machine", "./outgrad tune")]
    machines = ". ".join(dict.fromkeys(f"{one.machine}; {one.compiler}" for one in results.tuned))
    problem_columns = ["<machine", "<kernel", "<format"]
    blocks = [
        paragraph(f"{machines}. Timings are of these machines and of the moment, and no verdict depends on "
                  "them."),
        table("Winners of the latest run. Every candidate was accepted by bit equality with the reference "
              "before it was timed; the ceiling is a triad (backward) or a copy (forward) over arrays of "
              "the same size, timed in the same rounds.",
              "./outgrad tune",
              [*problem_columns, "<size", "<winner", "GB/s", "share of ceiling", "<ceiling",
               "against the default\nratio of speeds, interval",
               "timed", "rejected"], map(winner_row, results.tuned))]
    fits = [[one.machine, one.kernel, one.format, f"`{record['fit']['name']}`",
             record["fit"].get("class") or "-", interval(record["speedup"])]
            for one in results.tuned for record in one.fits]
    if fits:
        blocks.append(table("Certified fits, each in its fastest timed variant: what an accuracy class "
                            "costs.", "./outgrad tune",
                            [*problem_columns, "<fit", "<class", "speed\nagainst the default, interval"],
                            fits))
    classes = [default_class(one) for one in results.tuned if one.kernel == "gelu_backward"
               and one.format != "f32" and one.fits]
    if classes:
        blocks.append(paragraph(f"The default class. {' '.join(classes)}"))
    rejections = [[one.machine, one.kernel, one.format, f"`{record['variant']}`", rejected.get("stage", ""),
                   rejected.get("reason", ""), rejected.get("detail", "")]
                  for one in results.tuned for record in one.rejected
                  for rejected in [record.get("rejected", {})]]
    if rejections:
        blocks.append(table("Rejected candidates, with the stage they did not survive.", "./outgrad tune",
                            [*problem_columns, "<variant", "<stage", "<reason", "<detail"], rejections))
    else:
        blocks.append(paragraph("No candidate was rejected."))
    return blocks
