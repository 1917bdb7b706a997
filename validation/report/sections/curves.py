"""Error curves: over x, over y, and next to the branch point."""

import math
from types import SimpleNamespace

from blocks import VALIDATE_ANY, figure, nothing, plot, validate
from figures import series
from results import Results
from rounding import scientific

X_STAR, Y_STAR = -0.7517915247, -0.1699712075  # the minimum of GELU, where plots point; no bound uses them
REACH = 8  # of the curves that a sweep leaves
MOST_POINTS = 500  # with more points, several would share a pixel
OVER_X = {"label": "x", "from": -REACH, "to": REACH}


def gelu(x: float) -> float:
    """It gives the place of a bin on the axis of y."""
    return x * 0.5 * math.erfc(-x * math.sqrt(0.5))


def magnitude(one: SimpleNamespace) -> float:
    return max(abs(one.least), abs(one.greatest))


def drawable(curve: list[SimpleNamespace]) -> list[SimpleNamespace]:
    return [one for one in curve
            if abs(one.x) <= REACH and math.isfinite(one.least) and math.isfinite(one.greatest)]


def thinned(curve: list[SimpleNamespace]) -> list[SimpleNamespace]:
    """Joins neighbours until there are at most MOST_POINTS; the least and greatest values are kept."""
    if not curve:
        return []
    join, thin = -(-len(curve) // MOST_POINTS), []
    for i in range(0, len(curve), join):
        part = curve[i:i + join]
        thin.append(SimpleNamespace(x=(part[0].x + part[-1].x) / 2, least=min(one.least for one in part),
                                    greatest=max(one.greatest for one in part),
                                    floor=max(one.floor for one in part)))
    return drawable(thin)


def positive(value: float) -> float:
    """A NaN, which breaks a line, for a value that a logarithmic axis cannot show."""
    return value if 0 < value < math.inf else math.nan


def magnitudes(bins: list[SimpleNamespace], at=lambda one: one.x) -> list[tuple[float, float]]:
    return [(at(one), positive(magnitude(one))) for one in bins]


def floors(bins: list[SimpleNamespace], at=lambda one: one.x) -> list[tuple[float, float]]:
    return [(at(one), positive(one.floor)) for one in bins]


def errors_axis(format_: str) -> dict:
    """For magnitudes; errors of f32 are the smaller ones."""
    least, most = (2**-36, 2**-12) if format_ == "f32" else (2**-30, 2**-4)
    return {"label": "largest |error of g|", "log": 2, "from": least, "to": most}


def signed_plot(domain: SimpleNamespace, format_: str) -> tuple[dict, bool]:
    """Signed error, and whether its peak is cut off: the range is that away from x* if it is much less."""
    bins = thinned(domain.curve)
    most = max(map(magnitude, bins), default=0)
    # Nearer to x* the errors from the storage of y alone would flatten all others.
    away = max((magnitude(one) for one in bins if abs(one.x - X_STAR) > 0.25), default=0)
    clipped = away > 0 and most > 4 * away
    reach = 1.15 * (away if clipped else most if most > 0 else 1)
    band = series("least to greatest error", "blue", "band", [(one.x, one.greatest) for one in bins],
                  low=[one.least for one in bins], high=[one.greatest for one in bins])
    above = series("O, the floor", "orange", "line", [(one.x, one.floor) for one in bins])
    below = series("", "orange", "line", [(one.x, -one.floor) for one in bins])
    title = (f"{format_}: least and greatest signed error of g over x from -8 to 8, and the floor O on "
             "either side")
    return plot(title, f"{format_}: signed error of g over x", OVER_X, {"label": "error of g", "from": -reach, "to": reach},
                [band, above, below]), clipped


def magnitude_plot(domain: SimpleNamespace, format_: str) -> dict:
    bins = thinned(domain.curve)
    lines = [series("largest |error|", "blue", "line", magnitudes(bins)),
             series("O, the floor", "orange", "line", floors(bins))]
    if domain.from_x:
        level = domain.from_x.T.bound
        lines.append(series("PyTorch fp32, from x", "grey", "dashed", [(-REACH, level), (REACH, level)]))
    return plot(f"{format_}: largest error of g over x from -8 to 8 on a logarithmic axis, beside the floor "
                "O",
                f"{format_}: largest error of g over x", OVER_X, errors_axis(format_), lines)


def output_plot(domain: SimpleNamespace, format_: str) -> dict:
    """The same over y: two branches, one for each value of the mask, which meet at y*."""
    bins = [one for one in drawable(domain.curve) if gelu(one.x) <= 1]

    def at(one):
        return gelu(one.x)

    lines = [series("x >= x*", "blue", "line", magnitudes([one for one in bins if one.x >= X_STAR], at)),
             series("x < x*", "violet", "line", magnitudes([one for one in bins if one.x < X_STAR], at)),
             series("O, the floor", "orange", "line", floors([one for one in bins if one.x >= X_STAR], at)),
             series("", "orange", "line", floors([one for one in bins if one.x < X_STAR], at))]
    return plot(f"{format_}: largest error of g over y, the left branch from y* to 0 and the right one from "
                "y* on, beside the floor O", f"{format_}: largest error of g over y",
                {"label": "y", "from": -0.2, "to": 1}, errors_axis(format_), lines)


def branch_plot(domain: SimpleNamespace, format_: str) -> dict:
    """Over the distance of y from y*. There g ~ sqrt(y - y*), so the floor falls as 1 / sqrt of it."""

    def distance(one):
        return gelu(one.x) - Y_STAR

    bins = [one for one in drawable(domain.curve) if abs(one.x - X_STAR) <= 0.4 and distance(one) > 0]
    right, left = [one for one in bins if one.x >= X_STAR], [one for one in bins if one.x < X_STAR]
    shown = [magnitude(one) for one in bins if magnitude(one) > 0] or [0.5, 1]
    near, far = min([1, *map(distance, bins)]), max([0, *map(distance, bins)])
    lines = [series("x >= x*", "blue", "chain", magnitudes(right, distance)),
             series("x < x*", "violet", "chain", magnitudes(left, distance)),
             series("O, the floor", "orange", "line", floors(right, distance)),
             series("", "orange", "line", floors(left, distance)),
             series("max O", "orange", "dashed", [(near, domain.O.max), (far, domain.O.max)])]
    return plot(f"{format_}: largest error of g next to the branch point, over the distance of y from y*, "
                "both axes logarithmic, beside the floor O", f"{format_}: zoomed to the branch point y*",
                {"label": "y - y*", "log": 10},
                {"label": "largest |error of g|", "log": 2, "from": min(1, *shown) / 2, "to": max(shown) * 2},
                lines)


def activation_plot(activation: str, sweeps: list[SimpleNamespace], formats: list[str]) -> dict:
    """A line for each format: the first sweep of each, in the order of the files' names."""
    lines = []
    for format_, colour in zip(formats, ("blue", "green", "orange")):
        first = next((one for one in sweeps if one.format == format_), None)
        points = magnitudes(thinned(first.domains[-1].curve)) if first else []
        lines.append(series(format_, colour, "line", points))
    return plot(f"{activation}: largest error of g over x, one line for each format of y",
                f"{activation}: largest error of g", OVER_X,
                {"label": "largest |error of g|", "log": 2, "from": 2**-36, "to": 2**-4}, lines)


def curves(results: Results) -> list[dict]:
    blocks = []
    for format_ in results.formats:
        sweep = results.sweep_of(format_)
        if not sweep:
            blocks.append(nothing(f"The error curve of {format_}", validate(format_)))
            continue
        widest = sweep.domains[-1]
        signed, clipped = signed_plot(widest, format_)
        caption = (f"y in {format_}: total error T of `{sweep.fit}` over every {widest.x_format} x, least "
                   f"and greatest in each of {len(widest.curve)} bins of x. Blue on the orange floor is as "
                   "good as any function of the stored y can be.")
        if clipped:
            caption += (" The first plot cuts the peak at x* = -0.7518 off: it reaches "
                        f"{scientific(widest.T.bound)}, where no function of the stored y stays under "
                        f"{scientific(widest.O.max)}.")
        blocks.append(figure(caption, validate(format_), [
            signed, magnitude_plot(widest, format_), output_plot(widest, format_),
            branch_plot(widest, format_)]))
    others = {}
    for sweep in results.sweeps:
        if sweep.activation != "gelu":
            others.setdefault(sweep.activation, []).append(sweep)
    if others:
        blocks.append(figure("The other activations: largest total error T over every x, by the format of y.",
                             VALIDATE_ANY,
                             [activation_plot(name, others[name], results.formats)
                              for name in sorted(others)]))
    return blocks
