"""LayerNorm and RMSNorm from the output: channels of checkpoints, and the bounds under attack."""

import heapq
import math
import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace

from blocks import NONE, Cell, figure, heading, nothing, paragraph, plot, red_if, table
from figures import series
from results import CLASSES, PEERS, Results
from rounding import scientific
from schema import quoted


def shown_path(path: str) -> str:
    """A path under the current folder relative to it; any other path unchanged."""
    near = os.path.relpath(path) if os.path.isabs(path) else path
    return quoted(path if near.startswith("..") else near)


# ---- channels


def stability_command(file: SimpleNamespace) -> str:
    return f"./outgrad stability {shown_path(file.source) or '--gamma ...'} --format {file.options.format}"


def source_name(file: SimpleNamespace) -> str:
    return Path(file.source).name if file.source else "given gamma and beta"


def rho_plot(file: SimpleNamespace) -> dict:
    """Channels by log10 of rho. The ends of the axis collect what lies beyond, 0 and infinity too."""
    reach, step = 4, 0.1
    n = round(2 * reach / step)
    bins = [dict.fromkeys(CLASSES, 0) for _ in range(n)]
    for channel in (channel for norm in file.norms for channel in norm.channels):
        place = (math.log10(channel.rho) + reach) / step if channel.rho > 0 else -math.inf
        bins[int(min(max(place, 0.0), n - 1.0))][channel.class_] += 1
    edges = [10.0 ** (-reach + i * step) for i in range(n + 1)]
    # Counts are stacked: each class is drawn over the sum of those before it, from the bottom of the axis.
    lines = []
    for label, colour, classes in (("stable", "pale", CLASSES), ("degraded", "orange", CLASSES[1:]),
                                   ("unstable or gamma = 0", "red", CLASSES[2:])):
        counts = [sum(one[name] for name in classes) or math.nan for one in bins]
        lines.append({"label": label, "colour": colour, "mark": "steps", "x": edges, "y": counts})
    return plot(f"Channels of {source_name(file)} with y in {file.options.format}, counted by rho = |beta / "
                "gamma| and class",
                f"y in {file.options.format}",
                {"label": "rho = |beta / gamma|", "log": 10, "from": 10.0**-reach, "to": 10.0**reach},
                {"label": "channels", "log": 10, "from": 0.7}, lines)


def worst_channels(file: SimpleNamespace) -> dict:
    channels = [channel for norm in file.norms for channel in norm.channels]
    rows = []
    for one in heapq.nlargest(8, channels, key=lambda channel: channel.bits_lost):
        lost = f"{one.bits_lost:.1f}" if math.isfinite(one.bits_lost) else "all"
        tone = {"stable": "", "degraded": "muted"}.get(one.class_, "bad")
        rows.append([one.layer, one.index, *map(scientific, (one.gamma, one.beta, one.rho)), lost,
                     scientific(one.x_hat_conditional), scientific(one.dgamma_conditional),
                     Cell(one.class_, tone)])
    return table(f"The worst channels of {source_name(file)} with y in {file.options.format}: error bounds "
                 f"of rows whose |x̂| stays under {file.options.x_hat_max:g}.", stability_command(file),
                 ["<layer", "channel", "gamma", "beta", "rho", "bits lost", "error of x̂\nbound",
                  "dgamma\nbound, a row", "<class"], rows)


def layers_table(file: SimpleNamespace) -> dict:
    options, rows = file.options, []
    for norm in file.norms:
        bounds = [getattr(norm.bounds, which).dx_rms_relative.worst
                  for which in ("from_output", "recommended")]
        rows.append([norm.name, norm.columns, *(getattr(norm.classes, name) for name in CLASSES),
                     *map(scientific, (norm.rho.q50, norm.rho.max, *bounds)),
                     scientific(norm.estimates.dgamma_relative_l2), norm.policy.name,
                     norm.policy.bytes_per_row])
    return table(
        f"{source_name(file)}, y in {options.format}; rows with |mean| rstd up to {options.mean_ratio:g}, "
        f"|dy| up to {options.dy_max:g}, eps = {options.eps:g}, tau = {options.tau:g}. Error of dx: "
        "certified, rms over a row, relative to rstd max|dy| rms(gamma). Error of dgamma: an estimate of "
        "the relative L2 error.", stability_command(file),
        ["<layer", "N", "stable", "degraded", "unstable", "gamma = 0", "rho\nmedian", "rho\nlargest",
         "dx\nall from y", "dx\nby policy", "dgamma\nestimate", "<policy", "side buffer\nbytes a row"], rows)


def channels(results: Results) -> list[dict]:
    if not results.stability:
        return [nothing("LayerNorm channels of a checkpoint",
                        "./outgrad stability CHECKPOINT --format FORMAT")]
    blocks = [paragraph(
        "The backward pass takes x̂ = (y - beta) / gamma from the stored y, so a channel's rho = |beta / "
        "gamma| decides how much of it is left. A channel is stable if it loses at most one bit, degraded "
        "beyond that, unstable if the storage error of x̂ exceeds tau. The policy from_output reads every "
        "channel from y; side_buffer keeps x̂ of the unstable ones in fp32. Nothing is clamped.")]
    by_source = {}  # with the formats of a source side by side
    for file in results.stability:
        by_source.setdefault(file.source, []).append(file)
    for files in by_source.values():
        formats = ", ".join(file.options.format for file in files)
        blocks += [heading(source_name(files[0])),
                   figure(f"Channels by rho, classed for y in {formats}; the first and the last bar gather "
                          "what lies beyond.",
                          stability_command(files[0]), list(map(rho_plot, files))),
                   *map(layers_table, files), *map(worst_channels, files)]
    return blocks


# ---- under attack

GRADIENTS = ("dx", "dgamma", "dbeta")


def formats_of(attack: SimpleNamespace) -> list[str]:
    """The formats of y, in the order of the cases."""
    return list(dict.fromkeys(case.format for case in attack.cases))


def tightness_plot(attack: SimpleNamespace, format_: str) -> dict:
    """The tightness of every case, against the length of its rows."""
    most = 1e4  # rows of one or two elements, whose gradients almost vanish, lie beyond
    shortest, longest = 0.6, 131072
    lines = []
    for k, (name, colour) in enumerate(zip(GRADIENTS, ("blue", "green", "orange"))):
        # Gradients are drawn slightly apart, so that none hides another.
        points = [(case.columns * 2 ** (0.22 * (k - 1)), min(gradient.tightness, most))
                  for case in attack.cases
                  if case.format == format_ and (gradient := getattr(case.gradients, name))
                  and gradient.tightness is not None]
        lines.append(series(name, colour, "small dots", points))
    lines += [series("violated below", "red", "line", [(shortest, 1), (longest, 1)]),
              series("4", "grey", "dashed", [(shortest, 4), (longest, 4)])]
    lengths = [(length, str(length)) for length in (1, 2, 3, 7, 16, 64, 257, 1024, 65536)]
    return plot(f"{format_}: bound over largest error found, case by case, over the length N of a row; every "
                "case at or above 1",
                f"{format_}: bound / largest error found",
                {"label": "N", "log": 2, "from": shortest, "to": longest, "ticks": lengths},
                {"label": "bound / error found", "log": 10, "from": 0.8, "to": most * 1.3}, lines)


def group_rows(attack: SimpleNamespace, what: str, key: Callable[[SimpleNamespace], str]) -> list[list]:
    """Cases grouped by `key`, with the median tightness of each gradient in each format."""
    rows = []
    for name in dict.fromkeys(map(key, attack.cases)):
        cases = [case for case in attack.cases if key(case) == name]
        violations = sum(found.violations for case in cases for gradient in GRADIENTS
                         if (found := getattr(case.gradients, gradient)))
        medians = []
        for format_ in formats_of(attack):
            for gradient in GRADIENTS:
                found = [getattr(case.gradients, gradient) for case in cases if case.format == format_]
                tightness = [one.tightness for one in found if one and one.tightness is not None]
                medians.append(scientific(median(tightness)) if tightness else NONE)
        rows.append([what, name, len(cases), red_if(violations > 0, f"{violations:.0f}"), *medians])
    return rows


def ways_table(attack: SimpleNamespace, command: str) -> dict:
    """The largest errors of four ways to compute the same gradient on the same rows."""
    rows = []
    for name in dict.fromkeys(case.parameters for case in attack.cases):
        for format_ in formats_of(attack):
            cases = [case for case in attack.cases if (case.parameters, case.format) == (name, format_)
                     and case.columns >= 2]
            errors = []
            for gradient in ("dx", "dgamma"):
                found = [one for case in cases if (one := getattr(case.gradients, gradient))]
                peers = [[getattr(one.peers_over_bound, way) for one in found if one.peers_over_bound]
                         for way in PEERS]
                errors += [max([0, *each]) for each in ([one.worst_over_bound for one in found], *peers)]
            if cases:  # every case has a dgamma
                rows.append([name, format_, *(red_if(one > 1, scientific(one)) for one in errors)])
    ways = ("ours", "from the input", "gamma clamped", "unguarded")
    return table(
        "Four ways to the same gradient on the rows that the search found, largest error in units of our "
        "bound, N >= 2: ours (with the side buffer where the policy says so), from the input x in the same "
        "precision, and NVIDIA Apex's two ways from the output, by our own implementation of its formulas. "
        "Ours stays at or below 1, or the bound is broken.",
        command,
        ["<gamma, beta", "<y in", *(f"{gradient}\n{way}" for gradient in ("dx", "dgamma") for way in ways)],
        rows)


def attack(results: Results) -> list[dict]:
    command, blocks = results.commands["attack"], []
    if not results.attacks:
        return [nothing("Search against the bounds of LayerNorm and RMSNorm", command)]
    for one in results.attacks:
        medians = ", ".join(f"{name} {median_:.2f}"
                            for name, median_ in vars(one.median_tightness_by_gradient).items())
        groups = [*group_rows(one, "gamma, beta", lambda case: case.parameters),
                  *group_rows(one, "rows", lambda case: case.x),
                  *group_rows(one, "norm", lambda case: case.norm),
                  *group_rows(one, "N", lambda case: str(case.columns))]
        blocks += [
            paragraph("A search by gradient ascent and lattice moves over x and dy tried to break every "
                      f"bound on dx, dgamma, dbeta: {len(one.cases)} cases, {one.evaluations:.4g} "
                      f"evaluations, {one.violations:.0f} violations. Bound over largest error found: median "
                      f"{one.median_tightness:.2f} ({medians}), at most 4 in "
                      f"{100 * one.share_within_4:.0f}%.", "bad" if one.violations > 0 else ""),
            figure("How near the search came: one point a case, norm and gradient. On the red line the "
                   "bound is reached; the dashed line is 4.",
                   command, [tightness_plot(one, format_) for format_ in formats_of(one)]),
            ways_table(one, command),
            table("Median of bound / largest error found, by what the parameters, the rows and their length "
                  "are. Few errors show where a gradient all but vanishes.", command,
                  ["<by", "<case", "cases", "violations",
                   *(f"{gradient}\n{format_}" for format_ in formats_of(one) for gradient in GRADIENTS)],
                  groups)]
    return blocks
