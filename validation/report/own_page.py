"""Makes the page and the picture of functions of one's own, from own.json (outgrad.own/1).

usage: own_page.py FOLDER     reads FOLDER/own.json, writes FOLDER/index.html, report.md and own.svg

The page is the report's (page.html.j2) with other sections; the plots are drawn by figures.py. Exit status 3
if this Python lacks a module.
"""

import json
import math
import re
import sys
from pathlib import Path

try:
    import figures
    import page
    from blocks import Cell, definitions, figure, paragraph, plot, table
    from figures import series
    from rounding import power_of_two, three_digits_up
except ImportError as missing:
    print(f"{sys.executable}: {missing}", file=sys.stderr)
    sys.exit(3)

SYMBOLS = {
    "T": "the largest |g - f'(x)| over all x that are stored as some y: the error of the gradient",
    "O": "the least T that any function of what is stored can have",
    "R": "the largest distance of g from the middle of the f' that one stored y stands for",
    "A": "the largest error of the polynomials, before rounding in fp32",
    "B": "what rounding in fp32 adds", "AB": "A and B together, on the worst row",
    "K": "what the rounding of y* in the constants adds, next to the minimum"}
METHODS = {
    "A": ("Taylor models in balls (FLINT/Arb)", "Chebyshev interpolation in MPFR intervals"),
    "B": ("the kernel's steps in balls", "an error analysis a priori, and enumeration next to the minimum"),
    "AB": ("the kernel's steps in balls", "row by row, from A and B"),
    "K": ("balls", "branch and bound"),
    "T": ("enumeration of every stored y", "enumeration, each preimage isolated by interval Newton steps"),
    "O": ("enumeration of every stored y", "the same enumeration"),
    "R": ("enumeration of every stored y", "the same enumeration")}
BRANCHES = {True: ("blue", "right of the minimum (bit 1)"), False: ("orange", "left of the minimum (bit 0)")}


def both(bound: float) -> str:
    return f"{three_digits_up(bound)} ({power_of_two(bound)})"


def bound_of(own: dict) -> tuple[str, float]:
    """The figure that the page opens with."""
    return own["headline"]["name"], own["headline"]["bound"]


def is_relative(own: dict) -> bool:
    return own["accuracy"].startswith("rel")


def place(own: dict) -> str:
    worst = own["worst"]
    if not worst:
        return "not stated"
    return f"y = {float(worst['y']):.9g}" + (f", bit {worst['m']:d}" if own["masked"] else "")


def named(own: dict, m: bool) -> tuple[str, str]:
    return BRANCHES[m] if own["masked"] else ("blue", "g")


# ---- plots

# What is left of the minimum has no room beside y up to 8. In the coordinate of the polynomials, s = sqrt(y -
# y*) with the sign of the branch, both branches are one curve; the axis has the names of y all the same.


def lowest(own: dict) -> float:
    return min(branch["y"][0] for branch in own["branches"])


def at(own: dict, y: float, m: bool) -> float:
    if not own["masked"]:
        return y
    s = math.sqrt(max(y - lowest(own), 0))
    return s if m else -s


def over_y(own: dict) -> dict:
    if not own["masked"]:
        return {"label": "y = f(x)"}
    low, high = lowest(own), max(branch["y"][-1] for branch in own["branches"])
    steps = [y for y in (0.25, 1, 2, 4, 8, 16, 32) if y < high]
    ticks = [(at(own, 0, False), "0"), (0, f"{low:.2g}")]
    ticks += [(at(own, y, True), f"{y:g}") for y in [0] + steps]
    return {"label": "y = f(x), at ±√(y − y*)", "ticks": ticks}


def curve(own: dict, branch: dict, values: list[float]) -> list[tuple[float, float]]:
    return [(at(own, y, branch["m"]), value) for y, value in zip(branch["y"], values)]


def gradient(own: dict) -> dict:
    """What is computed, and where the rows of the table meet."""
    lines, ends = [], []
    for branch in own["branches"]:
        colour, label = named(own, branch["m"])
        points = curve(own, branch, branch["g"])
        lines.append(series(label, colour, "line", points))
        rows = zip(points[1:], branch["row"][1:], branch["row"])
        ends += [point for point, row, before in rows if row != before]
    if ends:
        lines.append(series(f"a row begins ({own['rows']} in all)", "grey", "dots", ends))
    return plot(f"{own['name']}: the gradient over y", "g(y), which is f'(x)", over_y(own), {"label": "g"},
                lines)


def error(own: dict) -> dict:
    """The largest error of each bin, on a scale that shows small ones."""
    lines, least, ends = [], 2**-40, []
    for branch in own["branches"]:
        colour, label = named(own, branch["m"])
        magnitudes = [max(abs(low), abs(high), least) for low, high in zip(branch["low"], branch["high"])]
        lines.append(series(f"|g - f'|, {label}" if own["masked"] else "|g - f'|", colour, "line",
                            curve(own, branch, magnitudes)))
        ends += [at(own, branch["y"][end], branch["m"]) for end in (0, -1)]
        if not own["sampled"]:
            halves = [max(half, least) for half in branch["half"]]
            lines.append(series(f"unavoidable, {label}" if own["masked"] else "unavoidable",
                                "green" if branch["m"] else "violet", "dashed", curve(own, branch, halves)))
    name, bound = bound_of(own)
    beside = ", without storing y" if own["sampled"] else ""
    if not (own["sampled"] and is_relative(own)):
        lines.append(series(f"{name} <= {three_digits_up(bound)}{beside}", "red", "dashed",
                            [(min(ends), bound), (max(ends), bound)]))
    heading = "error, at samples of x" if own["sampled"] else "error, over every stored y"
    return plot(f"{own['name']}: the error over y", heading, over_y(own), {"label": "error", "log": 2},
                lines)


def intervals(own: dict) -> dict:
    """Each stored y stands for a range of f': the bars. No g can be in the middle of two of them."""
    rows = own["around_worst"]
    bars = {key: [] for key in ("x", "y", "low", "high")}
    for line, row in enumerate(rows):
        for key, value in (("x", (row["least"] + row["most"]) / 2), ("y", line), ("low", row["least"]),
                           ("high", row["most"])):
            bars[key].append(value)
    ticks = [(line, f"{row['y']:.5g}") for line, row in enumerate(rows) if line % 4 == 2]
    return plot(f"{own['name']}: what the stored y next to the worst stand for", "the f' of one stored y",
                {"label": "f'"}, {"label": "stored y", "ticks": ticks},
                [{"label": "range and middle", "colour": "blue", "mark": "interval", **bars},
                 series("g", "red", "squares", [(row["g"], line) for line, row in enumerate(rows)])])


def plots(own: dict) -> list[dict]:
    return [gradient(own), error(own)] + ([intervals(own)] if own["around_worst"] else [])


def picture(own: dict) -> str:
    """The plots, one below the other, as one file that needs nothing else."""
    title = f"{own['name']}: f(x) = {own['function']}, y in {own['format']}"
    letter = 6.5  # of size 12
    drawn, below, across = [], 40, 20 + letter * len(title)
    for number, one in enumerate(plots(own)):
        # Programs that draw SVG, unlike browsers, seldom know variables.
        text = figures.svg(one, f"plot{number}")
        for name, (light, _) in figures.COLOURS.items():
            text = text.replace(f"var(--plot-{name})", light)
        width, height = map(float, re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', text).groups())
        place_in = f'<svg x="0" y="{below}" width="{width:g}" height="{height:g}"'
        drawn.append(re.sub("<svg", place_in, text, count=1))
        below, across = below + math.ceil(height) + 10, max(across, width)
    escaped = title.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{across:.0f}" height="{below}" '
            f'viewBox="0 0 {across:.0f} {below}" font-family="sans-serif" stroke-linejoin="round">'
            f'<title>{escaped}</title>'
            f'<rect width="100%" height="100%" fill="white"/><text x="10" y="20" font-size="12" '
            f'textLength="{letter * len(title):.0f}" lengthAdjust="spacingAndGlyphs">{escaped}</text>'
            + "".join(drawn) + "</svg>\n")


# ---- page


def verdict(functions: list[dict]) -> dict:
    failed = [own["name"] for own in functions if own["verdict"] != "holds"]
    if failed:
        return {"headline": f"{len(failed)} of {len(functions)} do not hold: {', '.join(failed)}",
                "detail": "The sections below say which claim, and where.", "tone": "bad"}
    name, bound = bound_of(functions[0])
    headline = f"{name} <= {both(bound)}: every claim holds" if len(functions) == 1 else (
        f"Every claim of {len(functions)} functions holds")
    return {"headline": headline, "tone": "good",
            "detail": "Each claim was proven by the fitter, and anew by `check`, which shares no code with "
                      "it and reads the header alone."}


def tiles(own: dict) -> list[dict]:
    name, bound = bound_of(own)
    kind = "a table" if own["kind"] == "table" else f"{own['rows']} rows of degree {own['degree']}"
    meant = "the largest error" if name == "T" else (
        "of the polynomials alone" if is_relative(own) else "from the exact f' of the stored y")
    shown = ((three_digits_up(bound), f"{name}, {meant}", power_of_two(bound)),
             (place(own), "worst input", "the largest such error that was found"),
             (str(own["operations"]), "operations from y to g", kind),
             (str(own["bytes"]), "bytes of table", f"y in {own['format']}"))
    return [{"figure": figure_, "what": what, "note": note, "tone": ""} for figure_, what, note in shown]


def check(own: dict) -> str:
    return f"./outgrad check {own['file']}"


def overview(functions: list[dict]) -> dict:
    rows = []
    for own in functions:
        name, bound = bound_of(own)
        holds = own["verdict"] == "holds"
        rows.append([own["name"], own["function"], own["format"], f"{name} <= {both(bound)}", place(own),
                     own["operations"], own["bytes"], Cell(own["verdict"], "good" if holds else "bad")])
    columns = ["<name", "<f(x)", "<y in", "<bound", "<worst input", "operations", "bytes", "<verdict"]
    return table("The functions, and what was proven of each.", "./outgrad check HEADER", columns, rows)


def proofs(own: dict) -> dict:
    rows = []
    for finding in own["findings"]:
        name, good = finding["name"], finding["verdict"] == "holds"
        fitter, checker = METHODS.get(name, ("", finding["why"]))
        claim = both(finding["claim"]) if finding.get("claim") is not None else "-"
        rows.append([name, claim, fitter, Cell(finding["verdict"], "good" if good else "bad"),
                     checker if good else finding["why"]])
    columns = ["<claim", "<at most", "<the fitter proves it by", "<check", "<check's method"]
    return table("Who proves what. Sollya and Gappa are a third witness of A and B: "
                 "`./outgrad certify FIT --run`.", check(own), columns, rows)


def section(own: dict) -> dict:
    limit = f", for |x| <= {own['x_limit']:g}" if own["x_limit"] else ""
    if own["format"] == "mxfp8":
        limit += ", in blocks whose largest |y| is below 2^12"
    if own["around_worst"]:
        shown = ("The gradient as it is computed from y; how far it is from f' at worst; and the ranges of "
                 "f' that the stored y next to the worst stand for.")
    else:
        shown = ("The gradient as it is computed from y, and its error at samples of x: in f32 the stored y "
                 "are too many to list, and the bound is proven.")
    meanings = {name.replace("AB", "A + B"): text for name, text in SYMBOLS.items() if name in own["claims"]}
    if is_relative(own):
        meanings["A"] += ", relative to g"
    blocks = [paragraph(f"f(x) = `{own['function']}`, y in {own['format']}{limit}."),
              figure(shown, f"./outgrad plot {own['file']}", plots(own)), proofs(own), definitions(meanings)]
    return {"title": own["name"], "blocks": blocks}


def described(functions: list[dict]) -> dict:
    alone = len(functions) == 1
    title = functions[0]["name"] if alone else f"{len(functions)} functions of one's own"
    return {"title": f"outgrad: {title}",
            "lead": "The derivative f'(x) from the stored output y = f(x), and how wrong it can be.",
            "verdict": verdict(functions),
            "key_figures": {"tiles": tiles(functions[0]) if alone else [],
                            "commands": [check(functions[0])] if alone else []},
            "summary": [] if alone else [overview(functions)], "remarks": [],
            "sections": list(map(section, functions)), "appendix": []}


def main() -> int:
    folder = Path(sys.argv[1])
    functions = json.loads((folder / "own.json").read_text("utf-8"))["functions"]
    if "verdict" not in functions[0]:
        (folder / "own.svg").write_text(picture(functions[0]), "utf-8")
        return 0
    page.render(described(functions), folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
