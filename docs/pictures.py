"""Draws the pictures of the pages: GELU's derivative over the output y and over the coordinate s, for
how_it_works.md, and what a layer keeps by part, from the committed ledgers, for README.md.

usage: python3 docs/pictures.py FOLDER

The same bytes for the same matplotlib: identifiers come from a fixed salt, and no date is written.
"""

import json
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


STUDIES = pathlib.Path(__file__).parents[1] / "notebooks_data/studies"
FLAG = "ban_recompute_materialized_backward=False"
# Ledger, title, tokens, and which recipes under which names.
LAYERS = (
    ("ledger", "A layer of BERT-Large", {"eager": "eager", "eager + flash": "with flash",
        "compile + flash": "torch.compile", f"compile + flash, {FLAG}": "its private flag",
        "ours + flash": "outgrad"}),
    ("ledger_llama", "A layer of Llama-3-8B", {"eager": "eager, flash", "Liger": "Liger",
        "compile": "torch.compile", f"compile, {FLAG}": "its private flag", "ours": "outgrad"}),
)
# Each part by colour (Okabe and Ito's, which differ for every kind of colour vision), hatch and order.
PARTS = {"as wide as the model": ("#56b4e9", "", "norms, sums, q, k, v, inputs of Linears"),
    "as wide as the MLP": ("#e69f00", "//", "inside the MLP, around its activation"),
    "attention's probabilities": ("#009e73", "..", "attention's probabilities")}


def draw_layer(axes, ledger, title, recipes):
    found = json.loads((STUDIES / f"{ledger}.json").read_text())
    names = list(recipes.values())
    begin = [0.0] * len(names)
    for part, (colour, hatch, label) in PARTS.items():
        width = [found["parts"][recipe].get(part, 0.0) for recipe in recipes]
        axes.barh(names, width, left=begin, color=colour, hatch=hatch, edgecolor="black", linewidth=0.8,
            label=label)
        begin = [b + w for b, w in zip(begin, width, strict=True)]
    for name, total in zip(names, begin, strict=True):
        axes.text(total, name, f" {total:.1f}" if total < 100 else f" {total:.0f}", va="center",
            fontweight="bold" if name == "outgrad" else "normal")
    axes.set(title=f"{title}, {found['length']:,} tokens, bf16", xlim=(0, 1.14 * max(begin)),
        xlabel="MiB kept for the backward pass")
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.spines[["top", "right"]].set_visible(False)


def draw_kept(path):
    """On white, which is readable on a dark page too. Large letters: shrunk to a telephone's width they have
    still eleven pixels."""
    with pyplot.rc_context({"font.size": 15, "axes.titlesize": 16}):
        figure, (*layers, below) = pyplot.subplots(3, figsize=(6.8, 8.6), layout="constrained",
            height_ratios=[5, 5, 1.2])
        for axes, (ledger, title, recipes) in zip(layers, LAYERS, strict=True):
            draw_layer(axes, ledger, title, recipes)
        below.set_axis_off()
        below.legend(*layers[0].get_legend_handles_labels(), loc="center", frameon=False)
        figure.savefig(path, metadata={"Date": None, "Description": description()})
    pyplot.close(figure)


def description():
    """The figures that were drawn, by which a test sees whether the committed picture is of today's
    ledgers."""
    return "; ".join(f"{title}: " + ", ".join(f"{name} {sum(parts[recipe].values()):.3f}" for recipe, name in
        recipes.items()) for ledger, title, recipes in LAYERS
        for parts in [json.loads((STUDIES / f"{ledger}.json").read_text())["parts"]])


def main():
    folder = pathlib.Path(sys.argv[1])
    draw_kept(folder / "kept_bytes.svg")
    draw(folder / "over_y.svg", f, "y = GELU(x)")
    draw(folder / "over_s.svg", s, "s = ±sqrt(y - y*)")


if __name__ == "__main__":
    main()
