"""The errors of g, apart, against the limit set by storing y, and by how often x occurs; the forward's."""

import math
import re
from types import SimpleNamespace

from blocks import (NONE, VALIDATE_AND_CHECK, VALIDATE_ANY, figure, lines_axis, nothing,
                    paragraph, plot, table, validate)
from figures import series
from results import Results
from rounding import power_of_two, rounded_up, scientific, three_digits_up


# ---- T against O


def limits_of(results: Results, format_: str) -> list[tuple[str, float, float, float]]:
    """Name, O, T and R: from sweeps and, for fits that were not swept, as `check` enumerates them."""
    limits = []
    for sweep in results.sweeps:
        for domain in sweep.domains if sweep.format == format_ else ():
            over = f", x in {domain.x_format}" if len(sweep.domains) > 1 else ""
            limits.append((sweep.fit + over, domain.O.max, domain.T.bound, domain.R.bound))
    for header in results.headers["backward"] + results.headers["tables"]:
        claims = header.storage
        if header.format == format_ and claims["O"] > 0 and not results.sweep_of_fit(header.name):
            limits.append((header.name, claims["O"], claims["T"], claims["R"]))
    return sorted(limits, key=lambda one: one[0])


def limits_plot(formats: str, limits: list[tuple[str, float, float, float]]) -> dict:
    """One line per fit: O, T and R on one axis."""
    fits = lines_axis([name for name, *_ in limits])
    shown = [value for _, *values in limits for value in values if 0 < value < math.inf] or [0.5, 1]
    lines = [series(label, colour, mark, [(limit[k], line) for limit, (line, _) in zip(limits, fits["ticks"])
                                          if 0 < limit[k] < math.inf])
             for k, (label, colour, mark) in enumerate(
                 (("O, the floor", "orange", "ticks"), ("T", "blue", "dots"), ("R", "grey", "rings")),
                 start=1)]
    return plot(f"y in {formats}: the total error T and the regret R of each fit beside the floor O",
                f"y in {formats}",
                {"label": "error of g", "log": 2, "from": min(1, *shown) / 1.6, "to": max(shown) * 1.6}, fits, lines,
                max(170, 105 + 17 * len(limits)))


def limits(results: Results) -> list[dict]:
    plots = []
    for together in (["f16"], ["bf16"], ["f32", "e4m3", "e5m2"]):
        found = {format_: more for format_ in together if (more := limits_of(results, format_))}
        if found:
            plots.append(limits_plot(", ".join(found), sum(found.values(), [])))
    if not plots:
        return [nothing("T and O", validate("FORMAT"))]
    return [figure("The total error T of every fit against O, the least that any function of the stored y "
                   "can reach: a blue dot on the orange bar cannot be bettered without storing more. R, the "
                   "distance from the middle of what is possible, is what a better fit could still gain. "
                   "f32 is swept only; over 16 bits the fits that were not swept stand with what `./outgrad "
                   "check` enumerates from every stored y.",
                   VALIDATE_AND_CHECK, plots)]


# ---- how often


def broken(name: str, most: int = 8) -> str:
    """In lines of so many letters, where the name has blanks and hyphens."""
    lines = [""]
    for part in re.findall(r"[^ -]*[ -]?", name.replace("^2", "²")):
        if lines[-1] and len((lines[-1] + part).strip()) > most:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.strip() for line in lines)


def often_plot(results: Results, distributions: list[str]) -> dict:
    """Over f32 x: our default in each format, and other people's coefficients in f32."""
    sweeps = [sweep for format_ in results.formats if (sweep := results.sweep_of(format_))]
    sweeps += [one for one in results.foreign if (one.activation, one.format) == ("gelu", "f32")]
    colours = ("blue", "green", "orange", "red", "violet", "grey", "pale")
    lines = []
    for sweep, colour in zip((one for one in sweeps if one.domains[-1].under), colours):
        points = [(i, one.rms) for i, distribution in enumerate(distributions, start=1)
                  for one in sweep.domains[-1].under if one.x == distribution and 0 < one.rms < math.inf]
        lines.append(series(sweep.fit, colour, "chain", points))
    return plot("root mean square error of g under each distribution of x, a line for each set of "
                "coefficients",
                "rms error of g, over every f32 x",
                {"label": "distribution of x", "from": 0.6, "to": len(distributions) + 0.4,
                 "ticks": list(enumerate(map(broken, distributions), start=1))},
                {"label": "rms error of g", "log": 2}, lines)


def often(results: Results) -> list[dict]:
    rows, distributions = [], {}
    for sweep in results.sweeps + results.foreign:
        widest = sweep.domains[-1]
        for one in widest.under:
            if sweep.activation == "gelu":
                distributions[one.x] = True
            if sweep.activation == "gelu" or sweep.foreign:
                share = one.share_in_worst_codes or 0
                rows.append([sweep.fit, sweep.format, widest.x_format, one.x,
                             *map(scientific, (one.rms, one.bias, one.max)), f"{100 * share:.2g}%"])
    if not rows:
        return [nothing("Errors weighed by how often x occurs", validate("FORMAT"))]
    weighted = table(
        "Errors of g over x of a distribution, each bit pattern weighed by the probability that x rounds to "
        "it. The share is that of x whose stored value leaves f' uncertain by at least half of max O. Our "
        "other activations' are in their sweeps.",
        VALIDATE_ANY + " --activations notebooks_data/activations/all-MiniLM-L6-v2.json",
        ["<fit", "<y in", "<every x in", "<x of", "rms", "bias\nmean signed error", "max\nof nearly all x",
         "share in the worst codes"], rows)
    blocks = [paragraph("A maximum says nothing of how often. Here every bit pattern of x counts by the "
                        "probability that x rounds to it, for normal distributions and for the inputs of a "
                        "real model's GELUs.")]
    if distributions:
        blocks.append(figure("Root mean square error of g under each distribution, over f32 x: ours with y "
                             "in each format, and published coefficients in f32.", weighted["command"],
                             [often_plot(results, list(distributions))]))
    return [*blocks, weighted]


# ---- kept apart


def error_row(header: SimpleNamespace, domain: SimpleNamespace | None) -> list:
    claims = header.storage
    enumerated = not domain and claims["O"] > 0
    over = domain.x_format if domain else "all real x" if enumerated else "-"
    row = [header.name, header.accuracy, header.format, over,
           *map(power_of_two, (header.A, header.K, header.B))]
    if enumerated:
        total, oracle, regret = map(three_digits_up, (claims["T"], claims["O"], claims["R"]))
        return [*row, NONE, total, NONE, oracle, regret, rounded_up(claims["T"] / claims["O"], 4), NONE]
    if not domain:
        return row + 7 * [NONE]
    bounds = [maximum.bound if maximum else 0
              for maximum in (domain.C, domain.T, domain.T_dx, domain.O, domain.R)]
    return [*row, *map(three_digits_up, bounds), rounded_up(domain.T_over_O, 4), scientific(domain.rms_T)]


def place(side: SimpleNamespace | None) -> str:
    return side.x if side else ""


SYMBOLS = {
    "T": "total error: the largest difference between the kernel's g at the stored y and the exact f'(x), over "
         "every input. T_dx: the same for dx at dy = 1.",
    "A": "fit error: the polynomials against the exact g. Certified by ball arithmetic.",
    "B": "rounding error of the fp32 operations that run. Certified.",
    "K": "error of the constants of the coordinate s = sqrt(y - y_c) against the exact minimum y*. Certified.",
    "C": "storage error: the exact g at the stored y against f'(x).",
    "O": "oracle: the least T that any function of the stored y and its bit can have.",
    "R": "regret: the largest distance of g from the middle of the values that the stored y and its bit leave "
         "possible."}


def kept_apart(results: Results) -> list[dict]:
    blocks = [paragraph("Absolute errors of g = f'(x), a pure number between -0.13 and 1.13 for GELU. The "
                        "first screen says what the letters stand for.")]
    rows = []
    for header in results.headers["backward"]:
        sweep = results.sweep_of_fit(header.name)
        rows += [error_row(header, domain) for domain in (sweep.domains if sweep else [None])]
    if rows:
        blocks.append(table(
            "A, K, B, C, T, O and R of every fit. A, K and B are claims of the header that the check "
            "re-proves from its text alone; all else is over every bit pattern of x, by the sweep, or, over "
            "all real x, enumerated from every stored y by the fit and again by the check. A of the class "
            "rel is relative to g.",
            "./outgrad check HEADER and " + VALIDATE_ANY,
            ["<fit", "<class", "<y in", "<over", *(f"{one}\ncertified" for one in "AKB"),
             *(f"{one}\nexhaustive" for one in ("C", "T", "T_dx", "O", "R", "T / O")), "rms T\nx in [-8, 8)"],
            rows))
    else:
        blocks.append(nothing("Headers", "./outgrad emit"))
    rows = [[sweep.fit, one.x_format, one.counts.patterns,
             *map(place, (one.T.left, one.T.right, one.O.left, one.O.right)), one.counts.oracle_decisions]
            for sweep in results.sweeps for one in sweep.domains]
    if rows:
        blocks.append(table(
            "Where they are attained: x of the largest T and O on either side of the minimum.", VALIDATE_ANY,
            ["<fit", "<every x in", "patterns of x", "T, left at x =", "T, right at x =", "O, left at x =",
             "O, right at x =", "left to MPFR\nroundings of y"], rows))
    return blocks


# ---- the forward


def worst_ulp(domain: SimpleNamespace, *regions: str) -> float:
    """0 if the forward is not the kernels' own; what is no number is worse than any."""
    found = [getattr(domain.forward.max_ulp, region) for region in regions] if domain.forward else []
    return max((one.bound for one in found if one), default=0,
               key=lambda error: math.inf if math.isnan(error) else error)


def forward(results: Results) -> list[dict]:
    if not results.sweeps:
        return [nothing("The forward's accuracy", validate("f32"))]
    rows, foreign_rows, names = [], [], []
    for sweep in results.sweeps:
        if sweep is not results.sweep_of(sweep.format):
            continue  # other fits have the same forward, and other activations have none
        for one in sweep.domains:
            counts = one.counts
            rows.append([sweep.forward, sweep.format, one.x_format,
                         rounded_up(worst_ulp(one, "near_minimum"), 4),
                         rounded_up(worst_ulp(one, "left_tail", "subnormal", "elsewhere"), 4),
                         counts.misrounded, counts.finite, counts.wrong_mask, counts.wrong_special])
            # The columns are those of the first sweep. A domain that has other forwards is left out.
            names = names or [f"{other.forward}\nT" for other in one.foreign]
            if len(one.foreign) == len(names):
                foreign_rows.append([sweep.format, one.x_format,
                                     *(three_digits_up(other.T.bound) for other in one.foreign)])
    return [
        table("Accuracy of the forward y against the exact f(x), in ulp of the format of y; y other than "
              "the correctly rounded f(x) are counted.", VALIDATE_ANY,
              ["<forward", "<y in", "<every x in", "|x - x*| <= 0.1\nulp",
               "elsewhere\nulp, tail and subnormals too", "not correctly rounded", "of finite x",
               "wrong masks", "wrong NaN, infinities"], rows),
        table("T when y comes from another forward, that is off by so much before it is stored: near the "
              "minimum, where g is steepest in y.",
              VALIDATE_ANY, ["<y in", "<every x in", *names], foreign_rows)]
