"""What was exhausted: for every fit, the inputs that were swept, or enumerated from every stored y."""

from blocks import (VALIDATE_AND_CHECK, VALIDATE_ANY, figure, lines_axis, nothing, paragraph, plot, red_if,
                    table, validate)
from figures import series
from results import Results
from rounding import grouped

DOMAINS = (("f32", "f32"), ("f16", "f16"), ("f16", "f32"), ("bf16", "bf16"),
           ("bf16", "f32"))  # formats of y and of x
FITS_A_PLOT = 20  # one fit per line
MARKS = {"swept": ("every input swept", "green", "squares"),
         "enumerated": ("all real x enumerated", "blue", "dots"),
         "certified": ("A, K, B certified", "grey", "rings")}

Covered = dict[int, str]  # how, by the place in DOMAINS


def covered_fits(results: Results) -> dict[str, Covered]:
    """The fits whose y has one of these formats, in the order of their names."""
    fits = {}

    def add(name: str, format_: str, otherwise: str):
        sweep = results.sweep_of_fit(name)
        swept = [one.x_format for one in sweep.domains] if sweep and sweep.format == format_ else []
        covered = {i: "swept" if x in swept else otherwise for i,
                   (y, x) in enumerate(DOMAINS, start=1) if y == format_}
        if covered:
            fits[name] = covered

    for header in results.headers["backward"] + results.headers["tables"]:
        add(header.name, header.format, "enumerated" if header.storage["O"] > 0 else "certified")
    for sweep in results.sweeps:
        if sweep.fit not in fits:  # its header is not here
            add(sweep.fit, sweep.format, "certified")
    return dict(sorted(fits.items()))


def coverage_plot(fits: dict[str, Covered]) -> dict:
    names = list(fits)
    axis = lines_axis(names)
    lines = [series(*look, [(i, line) for (line, _), covered in zip(axis["ticks"], fits.values())
                            for i, kind in covered.items() if kind == how])
             for how, look in MARKS.items()]
    formats = {"from": 0.4, "to": len(DOMAINS) + 0.6,
               "ticks": [(i, f"y {y}\nx {x}") for i, (y, x) in enumerate(DOMAINS, start=1)]}
    return plot(f"Coverage of the fits {names[0]} to {names[-1]}: for each pair of formats of y and x "
                "whether every input was swept, enumerated over all real x, or only certified",
                "", formats, axis, lines, 120 + 15 * len(names))


def coverage(results: Results) -> list[dict]:
    if not results.sweeps and not results.foreign:
        return [nothing("Sweeps", validate("FORMAT"))]
    blocks = [paragraph("A sweep that has not met every bit pattern of its domain is refused by this "
                        "report: the count of patterns is the format's, NaN and infinities among them.")]
    if fits := list(covered_fits(results).items()):
        blocks.append(figure(
            "Which inputs of which fit were exhausted. Green: every bit pattern of x through forward and "
            "backward, counted. Blue: T, O and R over all real x, enumerated from every stored y, again by "
            "the check. Grey: certified bounds A, K, B alone, which hold for every y there is.",
            VALIDATE_AND_CHECK,
            [coverage_plot(dict(fits[i:i + FITS_A_PLOT])) for i in range(0, len(fits), FITS_A_PLOT)]))
    rows, patterns = [], 0
    for sweep in results.sweeps + results.foreign:
        for domain in sweep.domains:
            counts = domain.counts
            patterns += counts.patterns
            wrong = counts.wrong_mask + counts.wrong_special
            rows.append([sweep.fit, sweep.activation, sweep.format, domain.x_format, grouped(counts.patterns),
                         "2^32" if domain.x_format == "f32" else "2^16", grouped(counts.finite),
                         grouped(counts.patterns - counts.finite), grouped(counts.oracle_decisions),
                         red_if(wrong > 0, grouped(wrong))])
    blocks.append(table(f"Patterns of x that were swept, counted. {grouped(patterns)} in all.", VALIDATE_ANY,
                        ["<coefficients", "<activation", "<y in", "<every x in", "patterns", "of", "finite",
                         "NaN, infinities", "left to MPFR\nroundings of y",
                         "wrong masks, NaN, infinities"], rows))
    return blocks
