"""Draws the two pictures of how_it_works.md: GELU's derivative over the output y, and over the coordinate s.

usage: python3 docs/pictures.py FOLDER

The same bytes for the same matplotlib: identifiers come from a fixed salt, and no date is written.
"""

import math
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "outgrad", "svg.fonttype": "path", "font.size": 11,
                            "axes.grid": True, "grid.alpha": 0.3})
from matplotlib import pyplot  # noqa: E402  (the backend is chosen first)


def cdf(x):
    return math.erfc(-x / math.sqrt(2)) / 2


def f(x):
    return x * cdf(x)


def slope(x):
    return cdf(x) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def minimum():
    low, high = -2.0, 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return low


X_STAR = minimum()
Y_STAR = f(X_STAR)
LEFT = [-6 + (X_STAR + 6) * i / 400 for i in range(401)]
RIGHT = [X_STAR + (3 - X_STAR) * i / 400 for i in range(401)]


def s(x):
    return math.copysign(math.sqrt(max(f(x) - Y_STAR, 0.0)), x - X_STAR)


def draw(path, coordinate, label):
    figure, axes = pyplot.subplots(figsize=(6, 3.4), layout="constrained")
    for xs, style, bit in ((LEFT, "--", 0), (RIGHT, "-", 1)):
        axes.plot([coordinate(x) for x in xs], [slope(x) for x in xs], style, label=f"mask bit {bit}")
    axes.plot([coordinate(X_STAR)], [0], "ko", markersize=4, label="the minimum x*")
    axes.set(xlabel=label, ylabel="GELU'(x)")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main():
    folder = pathlib.Path(sys.argv[1])
    draw(folder / "over_y.svg", f, "y = GELU(x)")
    draw(folder / "over_s.svg", s, "s = ±sqrt(y - y*)")


if __name__ == "__main__":
    main()
