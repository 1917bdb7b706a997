"""Published coefficients and quantisers beside ours; and what is kept, in how few bits, for which error."""

import math
from collections.abc import Callable
from types import SimpleNamespace

from blocks import AUDIT, NONE, Cell, figure, nothing, paragraph, plot, red_if, table
from figures import series
from results import Results
from rounding import grouped, power_of_two, rounded_up, scientific, three_digits_up

# The ends of the table's intervals: the asymptotes, x*, and the ends of Tempo's pieces (y = 3 is x = 3.004).
INTERVALS = (-8, -2, -0.75, 0, 0.5, 1.13, 3, 5, 8)
FRONT = "./outgrad front --activation NAME --foreign FILE..."


def greatest(bins: list[SimpleNamespace]) -> float:
    return max((max(abs(one.least), abs(one.greatest)) for one in bins), default=0)


def beside_plot(sweeps: list[SimpleNamespace]) -> dict:
    lines = []
    for sweep, colour in zip(sweeps, ("blue", "red", "orange", "violet", "green", "grey")):
        curve = sweep.domains[-1].curve
        join = max(1, -(-len(curve) // 500))
        points = [(curve[i].x, greatest(curve[i:i + join])) for i in range(0, len(curve), join)]
        lines.append(series(sweep.fit, colour, "line",
                            [(x, most) for x, most in points if 0 < most < math.inf]))
    return plot("Largest error of g over x from -8 to 8: ours far below the published coefficients",
                "largest error of g, y in f32", {"label": "x", "from": -8, "to": 8},
                {"label": "largest |error of g|", "log": 2, "from": 2**-36, "to": 2**3}, lines)


def interval_table(sweeps: list[SimpleNamespace]) -> dict:
    rows = [[f"{least:g}", f"{most:g}",
             *(scientific(greatest([one for one in sweep.domains[-1].curve if least <= one.x < most]))
               for sweep in sweeps)]
            for least, most in zip(INTERVALS, INTERVALS[1:])]
    rows.append(["-inf", "inf", *(three_digits_up(sweep.domains[-1].T.bound) for sweep in sweeps)])
    return table("Largest error by interval of x, y in f32, as the curves of the sweeps have it (a bin "
                 "belongs to the interval that its middle lies in; the last row is over all x).", AUDIT,
                 ["x from", "to", *(f"{sweep.fit}\nlargest |g - f'|" for sweep in sweeps)], rows)


def worst_place(maximum: SimpleNamespace) -> str:
    sides = [side for side in (maximum.left, maximum.right) if side]
    return max(sides, key=lambda side: side.value).x if sides else ""


def audit_table(results: Results) -> dict:
    """Published coefficients, in the same sweep as ours."""
    rows = []
    for sweep in results.foreign:
        ours = next((one for one in results.sweeps
                     if (one.activation, one.format) == (sweep.activation, sweep.format)), None)
        totals = {one.x_format: scientific(one.T.bound) for one in ours.domains} if ours else {}
        for one in sweep.domains:
            rows.append([sweep.fit, sweep.activation, sweep.foreign.stored, sweep.format, one.x_format,
                         scientific(one.T.bound), worst_place(one.T), scientific(one.O.max),
                         scientific(one.R.bound), f"{one.T_over_O:.4g}", scientific(one.rms_T),
                         one.counts.wrong_special, totals.get(one.x_format, Cell("not swept", "muted"))])
    return table(
        "Published coefficients, as published, through the same exhaustive sweep as ours: every bit pattern "
        "of x, the same exact derivative, the same T, O and R. O is the least T of any function of what the "
        "backward pass is given: (y, bit), or a code of x.", AUDIT,
        ["<coefficients", "<activation", "<backward is given", "<format", "<every x in", "T\nexhaustive",
         "at x =", "O\nexhaustive", "R\nexhaustive", "T / O\nexhaustive", "rms T\nx in [-8, 8)",
         "wrong NaN, infinities", "T of ours\nsame x and format"], rows)


def quantiser_rows(quantiser: SimpleNamespace) -> list[list]:
    """A row for each range, one for groups that each have their own, and one for a range that runs."""

    def rms(under: list[SimpleNamespace]) -> str | Cell:
        return next((scientific(one.rms) for one in under if one.x == "N(0, 1^2)"), NONE)

    rows = []
    for one in quantiser.ranges:
        nearly_all = [under for under in one.under if under.mass >= 0.999]
        wrapped = one.T_wrapped.bound if one.T_wrapped else 0
        rows.append([f"{one.min:.4g}, {one.max:.4g}", three_digits_up(one.T.bound if one.T else 0),
                     Cell(three_digits_up(wrapped), "bad") if wrapped > 0 else NONE,
                     *map(scientific, (one.O, one.bias.value, one.maximum_wraps)), rms(nearly_all)])
    wraps = quantiser.maximum_wraps
    if quantiser.groups or wraps:
        mean, most = (scientific(max((getattr(one, key) for one in wraps), default=0))
                      for key in ("mean", "greatest"))
        rows.append(["each group's own", *4 * [NONE], f"mean {mean}, most {most}" if wraps else NONE,
                     rms(quantiser.groups)])
    if quantiser.running:
        rows.append(["running", *4 * [NONE], f"{100 * quantiser.running.share_of_steps:.0f}% of steps", NONE])
    head = [quantiser.foreign.name, f"{quantiser.bits_per_element:.4g}", quantiser.format]
    return [head + row for row in rows]


def quantisers(results: Results) -> list[dict]:
    rows = [row for one in results.quantisers for row in quantiser_rows(one)]
    blocks = [table(
        "Systems that keep x in a few bits and take f' from the number that these stand for, in their own "
        "arithmetic: the largest error of f' over every x of the range and every random number, bounded; "
        "where a code wraps, a large x becomes a small one. O is the least T of any function of the code. "
        "The mean signed error of x is over the random numbers, exact. rms is by quadrature; how often "
        "something wraps with a running range is simulated.", AUDIT,
        ["<quantiser", "bits\nan element", "<format", "min, max", "T\nwithout wraps", "T\nwrapped", "O",
         "bias of x", "the maximum wraps\nprobability", "rms T\nx of N(0, 1)"], rows)]
    sources = {}
    for one in results.quantisers:
        sources.setdefault(one.foreign.source.work, one.foreign.name)
    return blocks + [paragraph(f"`{name}`: {work}", "muted") for work, name in sources.items()]


def bound_text(bound: float) -> str:
    return f"{scientific(bound)} = {power_of_two(bound)}"


def beside_pytorch(results: Results) -> dict:
    sweep = results.sweep_of("f32")
    header = next((one for one in results.headers["backward"] if one.name == "gelu_f32"), None)
    from_x = sweep and sweep.domains[-1].from_x
    theirs = bound_text(from_x.T.bound) if from_x else "not measured"
    ours = bound_text(header.AB if header.AB > 0 else header.A + header.B) if header else "not measured"
    constants = bound_text(header.K) if header else "not measured"
    return paragraph(
        f"PyTorch's fp32 formula of GELU's derivative reads x, not y, and is off by up to {theirs} (over "
        "every x from 2^-20 to 16 in magnitude, by this machine's erff and expf, in the sweep of f32). What "
        f"compares with it is the error of our fit and evaluation, A + B = {ours}, certified. Next to the "
        f"minimum the constants that stand for it add up to K = {constants}, so that T is small there. What "
        "storing y in place of x adds is bounded from below by O, for every method.")


def others(results: Results) -> list[dict]:
    blocks = []
    if results.foreign:
        published = [one for one in results.foreign if (one.activation, one.format) == ("gelu", "f32")]
        ours = results.sweep_of("f32")
        if sweeps := [*([ours] if ours else []), *published]:
            blocks += [figure(
                "Ours and published coefficients for GELU over every f32 x, y (or its code) as each stores "
                "it: Tempo's pieces meet a square-root branch point with polynomials in y, and one piece "
                "adds its centre where it should subtract it; steps of two bits cannot follow f'.",
                AUDIT, [beside_plot(sweeps)]), interval_table(sweeps)]
        blocks.append(audit_table(results))
        blocks += [paragraph(f"`{one.fit}`: {one.foreign.source.work}", "muted")
                   for one in results.foreign if one.format == "f32"]
    else:
        blocks.append(nothing("Published coefficients", AUDIT))
    return blocks + (quantisers(results) if results.quantisers else []) + [beside_pytorch(results)]


# ---- bits kept


def front_plot(front: SimpleNamespace, heading: str, error: Callable[[SimpleNamespace], float]) -> dict:
    """The bits beyond y against an error; a name at each point that nothing dominates."""
    lines = []
    for label, colour, mark in (("ours", "blue", "dots"), ("published", "orange", "squares")):
        if stores := [one for one in front.stores if (one.origin == "outgrad") == (label == "ours")]:
            lines.append(series(label, colour, mark, [(one.bits_beyond, error(one)) for one in stores],
                                notes=["" if one.dominated_by else one.name for one in stores]))
    return plot(f"{heading} of each store of {front.activation} over the bits that it keeps beyond y",
                heading,
                {"label": "bits an element beyond y", "from": -0.5},
                {"label": "error of g", "log": 2}, lines)


def front_table(front: SimpleNamespace) -> dict:
    distributions = [under.x for under in front.stores[0].under]
    one = min(1, len(distributions) - 1)  # N(0, 1), if there are several
    timed = any(store.speed for store in front.stores)
    rows = []
    for store in front.stores:
        row = [store.name, f"{store.bits_beyond:.4g}", f"{store.bits_all:.4g}",
               NONE if store.proven is None else three_digits_up(store.proven), scientific(store.found),
               *(scientific(under.rms) for under in store.under), f"{store.under[one].bias:+.2g}",
               f"{store.under[one].shrinkage:.5f}"]
        if timed:
            ways = (store.speed.forward, store.speed.backward) if store.speed else ()
            row += [f"{way.median:.2f}" for way in ways] or 2 * [NONE]
        rows.append([*row, store.dominated_by])
    speeds = ["speed\nforward, over y and a bit", "speed\nbackward"] if timed else []
    return table(
        f"Stores of {front.activation}, for every x of bf16. Shrinkage is E(g f') / E(f'^2). A store is "
        "dominated by one that needs no more bits and is no worse in its largest error and its rms.", FRONT,
        ["<store", "bits beyond y", "bits in all", "largest error\nproven for every x",
         "largest error\nfound", *(f"rms\n{x}" for x in distributions), f"bias\n{distributions[one]}",
         f"shrinkage\n{distributions[one]}", *speeds, "<dominated by"], rows)


def store_row(sweep: SimpleNamespace, store: SimpleNamespace) -> list:
    """What a sweep of a store found, beside what its header proves."""
    found, proven = store.T.bound, store.proven.T
    row = [sweep.fit, store.store, sweep.format, grouped(store.counts.patterns), three_digits_up(proven),
           scientific(store.T.max), red_if(not found <= proven, rounded_up(found / proven, 6)),
           worst_place(store.T)]
    weighed = len(store.under) > 1
    row += [scientific(store.under[1].rms), f"{store.under[1].bias:+.2g}"] if weighed else 2 * [NONE]
    if not store.bias:
        return row + 2 * [NONE]
    bias, proven = store.bias.bound, store.proven.bias
    return [*row, red_if(not bias <= proven, three_digits_up(bias)), three_digits_up(proven)]


def product_row(sweep: SimpleNamespace) -> list:
    found, claims = sweep.T.bound, sweep.claims
    return [sweep.subject, sweep.format, grouped(sweep.counts.pairs), three_digits_up(claims.T),
            scientific(sweep.T.max), red_if(not found <= claims.T, rounded_up(found / claims.T, 6)),
            scientific(claims.O), scientific(claims.relative),
            red_if(not sweep.relative.bound <= claims.relative, scientific(sweep.relative.bound))]


def bits(results: Results) -> list[dict]:
    blocks = []
    if not results.fronts:
        blocks.append(nothing("Fronts of bits and errors", FRONT))
    for front in results.fronts:
        plots = [front_plot(front, "largest error",
                            lambda one: one.found if one.proven is None else one.proven)]
        if len(front.stores[0].under) > 1:
            plots.append(front_plot(front, "rms error, x of N(0, 1)", lambda one: one.under[1].rms))
        blocks += [figure("Names stand at stores that no other dominates, where there is room. No single "
                          "figure ranks stores: rms, bias and shrinkage are in the table.",
                          FRONT, plots), front_table(front)]
    if results.store_sweeps:
        blocks.append(table(
            "Codes of f'(x), y that carries its branch, and y in 8 or 4 bits: the largest error over every "
            "x of the format, of a dithered code over every dither too, and of y at a scale or in blocks "
            "over some of these from one end of the claims to the other, beside the bound that its header "
            "proves for every x.", results.commands["stores"],
            ["<header", "<store", "<x in", "patterns of x", "largest error\nproven", "largest error\nfound",
             "found / proven", "<at x =", "rms\nN(0, 1^2)", "bias\nN(0, 1^2)",
             "bias of one x\ndithered, found", "bias of one x\nproven"],
            [store_row(sweep, store) for sweep in results.store_sweeps for store in sweep.domains]))
    if results.product_sweeps:
        blocks.append(table(
            "Gated pairs act(a) b of which the product, b and a bit are kept, over every pair (a, b) of "
            "the format: the largest error of act'(a), beside the bound that is proven for all reals and "
            "the least that any function of what is kept can have, and the relative error of product / b.",
            results.commands["products"],
            ["<header", "<a and b in", "pairs", "largest error\nproven", "largest error\nfound",
             "found / proven", "least possible\nproven", "product / b\nproven", "product / b\nfound"],
            [product_row(sweep) for sweep in results.product_sweeps]))
    return blocks
