"""Draws plots that are given as data: those of the report's page (outgrad.report/1, validation/README.md) and
those of the notebooks.

A plot has a `heading`, axes `x` and `y`, and `series`; on the page a `title`, `width` and `height` too. What
is not there is left open:
  axis    label; log, the base of a logarithmic one; from, to; ticks, [[place, name], ...]
  series  label, in the legend; colour, of COLOURS; mark, of MARKS, or band, interval, steps; x, y, low, high;
          notes, beside the points
"""

import io
import math
import re
from xml.etree import ElementTree

import matplotlib
import numpy
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator
from matplotlib.transforms import blended_transform_factory, offset_copy

# On white paper and light screens; on dark ones. tests/validation/report/figures_test.py computes that readers
# without red or green cones (deuteranopia, protanopia) tell any two apart, and that each stands out from its
# paper. `line` and `ink` are those of grids and words.
COLOURS = {"blue": ("#0f3bff", "#21678c"), "pale": ("#179de1", "#20dbff"), "orange": ("#ec6200", "#f4a113"),
           "red": ("#8c090d", "#e6001a"), "green": ("#348d65", "#3a9168"), "violet": ("#6c0973", "#d039e6"),
           "grey": ("#6b7280", "#8a94a0"), "line": ("#e0e4e8", "#30363d"), "ink": ("#1c2128", "#e8ecf0")}
GREY, LINE, INK = (COLOURS[name][0] for name in ("grey", "line", "ink"))
VARIABLES = {light: f"var(--plot-{name})" for name, (light, _) in COLOURS.items()}
# With every colour goes a dash, a marker and a hatch of its own: a plot reads the same without colours.
DASHES = {"blue": "-", "orange": (0, (5, 2)), "green": (0, (6, 2, 1.5, 2)), "red": (0, (1.5, 1.5)),
          "violet": (0, (8, 2, 1.5, 2, 1.5, 2)), "pale": (0, (3, 1.5)), "grey": (0, (2, 3)), "ink": (0, (12, 2))}
MARKERS = {"blue": "o", "orange": "s", "green": "^", "red": "D", "violet": "v", "pale": "P", "grey": "x",
           "ink": "*"}
HATCHES = {"blue": "", "pale": "", "orange": "////", "red": "xxxx"}
MARKERS_A_LINE = 7
POINT = {"linestyle": "", "markersize": 5, "markeredgewidth": 0.8}
# How a series is drawn: its colour gives what is not here.
MARKS = {"line": {}, "dashed": {"marker": ""}, "chain": {"markevery": 1, "markersize": 3.5}, "dots": POINT,
         "small dots": POINT | {"markersize": 3},
         "rings": POINT | {"markersize": 6, "markerfacecolor": "none", "marker": "o"},
         "squares": POINT | {"marker": "s", "markersize": 7},
         "ticks": POINT | {"marker": "|", "markersize": 11, "markeredgewidth": 3.5}}
LETTER = 11  # px: the least size of letters, for a picture is never shown smaller than it is drawn
LETTER_WIDTH = 0.61 * LETTER  # of the widest of the usual sans-serif fonts, on average
LEAST_AREA = 165  # px: the height of what is drawn, however long the legend
LONGEST_NAME = 27  # letters beside an axis
SVG = "{http://www.w3.org/2000/svg}"
ElementTree.register_namespace("", SVG[1:-1])
SUPERSCRIPTS = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"


def shortened(name):
    return name if len(name) <= LONGEST_NAME else name[:LONGEST_NAME - 1] + "…"


def scale(axes, name, given):
    """Gives the axis x or y what is given of it; returns the names of its ticks."""
    axis, base, ends = getattr(axes, name + "axis"), given.get("log"), [given.get("from"), given.get("to")]
    axis.set_label_text(given.get("label", ""), color=INK)
    if base:
        getattr(axes, f"set_{name}scale")("log", base=base)
        axis.set_major_formatter(lambda value, _: str(base) + str(round(math.log(value, base))).translate(
            str.maketrans("-0123456789", SUPERSCRIPTS)))
        axis.set_minor_formatter(NullFormatter())
        least, most = axis.get_data_interval()
        if 0 < least <= most < math.inf:  # an open end is at a power, so that a tick stands there
            powers = (base ** math.floor(math.log(least, base) - 0.2),
                      base ** math.ceil(math.log(most, base) + 0.2))
            ends = [power if end is None else end for end, power in zip(ends, powers)]
    else:
        axis.set_major_formatter("{x:g}")
    if given.get("ticks"):
        places, names = zip(*given["ticks"])
        axis.set_ticks(places, ["\n".join(map(shortened, one.split("\n"))) for one in names])
    if given.get("ticks") or base == 2:
        axis.set_minor_locator(NullLocator())
    getattr(axes, f"set_{name}lim")(ends)
    return axis.get_major_formatter().format_ticks(axis.get_majorticklocs())


def draw_series(axes, one, order, baseline):
    """One series. Of a line, the markers of one series stand beside those of another."""
    x, y, low, high = (numpy.array(one.get(key, ()), float) for key in ("x", "y", "low", "high"))
    label, name, mark = one.get("label", ""), one["colour"], one["mark"]
    # matplotlib leaves out of a legend what begins with _; a word joiner has no width.
    look = {"color": COLOURS[name][0], "label": "\u2060" * label.startswith("_") + label, "zorder": order}
    filled = {"color": None, "facecolor": look["color"], "edgecolor": INK, "hatch": HATCHES.get(name),
              "linewidth": 0}
    if mark == "band":
        axes.fill_between(x, low, high, **look | filled)
    elif mark == "steps":
        axes.stairs(y, x, baseline=baseline, fill=True, **look | filled)
    elif mark == "interval":
        axes.errorbar(x, y, xerr=(x - low, high - x), fmt=MARKERS[name], markersize=4.5, capsize=3,
                      linewidth=1.2, **look)
    else:
        step = max(1, len(x) // MARKERS_A_LINE)
        of_colour = {"linestyle": DASHES.get(name, "-"), "marker": MARKERS.get(name, ""), "markersize": 4.5,
                     "markevery": (order * step // 5 % step, step), "linewidth": 1.3}
        if "linestyle" in MARKS[mark]:
            del of_colour["markevery"]
        axes.plot(x, y, **of_colour | MARKS[mark] | look)


def draw(axes, plot):
    """Draws the plot on axes of matplotlib, its legend below them. Returns the room, in points, that words
    take to their left and below."""
    for order, one in enumerate(plot["series"], start=3):
        draw_series(axes, one, order, plot.get("y", {}).get("from"))
        if one.get("notes"):
            axes.margins(x=0.09)
    x_names, y_names = (scale(axes, name, plot.get(name, {})) for name in ("x", "y"))
    left = 12 + LETTER_WIDTH * max(map(len, y_names), default=0) + 17 * bool(axes.get_ylabel())
    below = 20 + 13 * max((name.count("\n") for name in x_names), default=0) + 17 * bool(axes.get_xlabel())
    axes.set_title(plot.get("heading", ""), color=INK, fontsize=LETTER + 1, y=1)  # y: no search for a place
    axes.grid(color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", color=GREY, labelcolor=INK, labelsize=LETTER)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    if labels := axes.get_legend_handles_labels()[1]:
        columns = int(plot.get("width", 460) / (LETTER_WIDTH * max(map(len, labels)) + 46))
        columns = max(1, min(len(labels), columns))
        # A picture of its own has its legend in its middle, not in that of the axes, which names push aside.
        across = axes.figure.transFigure if "width" in plot else axes.transAxes
        middle = blended_transform_factory(across, axes.transAxes)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0),
                    bbox_transform=offset_copy(middle, axes.figure, y=-below, units="points"),
                    ncol=columns, fontsize=LETTER, labelcolor=INK, frameon=False, borderaxespad=0,
                    handlelength=2.6, columnspacing=1.2)
        below += 10 + 17 * math.ceil(len(labels) / columns)
    return left, below


# ---- words that do not overlap


def overlap(one, other):
    """Whether two boxes (left, bottom, right, top) share a place."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def thin_ticks(axes):
    """Takes the names off ticks that stand too near to the one before."""
    for axis, k in ((axes.xaxis, 0), (axes.yaxis, 1)):
        least, most = sorted(axis.get_view_interval())
        slack = 1e-9 * abs(most - least)
        places = [place for place in axis.get_majorticklocs() if least - slack <= place <= most + slack]
        names, kept, end = axis.get_major_formatter().format_ticks(places), [], -math.inf
        for place, name in zip(places, names):
            at = axes.transData.transform((place, place))[k]
            half = LETTER_WIDTH * max(map(len, name.split("\n"))) / 2 if k == 0 else LETTER / 2
            fits = not name or at - half > end + 3
            kept.append(name if fits else "")
            end = at + half if name and fits else end
        axis.set_ticks(places, kept)


def place_notes(axes, plot):
    """Writes the notes beside their points where there is room: beside no other word and on no point."""
    points = [(*axes.transData.transform(place), one, note)
              for one in plot["series"] for *place, note in zip(one["x"], one["y"],
                                                                one.get("notes") or len(one["x"]) * [""])]
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y, *_ in points]
    inside = axes.get_window_extent()
    for x, y, _, note in points:
        width, height = LETTER_WIDTH * len(note), LETTER + 2
        for dx, dy in ((6, -5), (-6 - width, -5), (-width / 2, 7), (-width / 2, -8 - height), (5, 5),
                       (5, -5 - height), (-5 - width, 5), (-5 - width, -5 - height)):
            box = (x + dx, y + dy, x + dx + width, y + dy + height)
            within = (box[0] >= inside.x0 and box[2] <= inside.x1 + 8
                      and box[1] >= inside.y0 and box[3] <= inside.y1)
            if note and within and not any(overlap(box, other) for other in taken):
                taken.append(box)
                axes.annotate(note, (x + dx, y + dy + 3), xycoords="figure pixels", fontsize=LETTER, color=INK)
                break


def series(label, colour, mark, points, **more):
    """A series of points (x, y)."""
    x, y = zip(*points) if (points := list(points)) else ((), ())
    return {"label": label, "colour": colour, "mark": mark, "x": x, "y": y, **more}


def svg(plot, name):
    """The picture as an <svg> element of the page: `name` tells its ids from another's, its title names it,
    its colours and letters are the page's."""
    text, width, height = io.StringIO(), plot["width"], plot["height"]
    with matplotlib.rc_context(matplotlib.rcParamsDefault | {"svg.fonttype": "none", "svg.hashsalt": name,
                                                             "text.parse_math": False, "font.size": LETTER,
                                                             "hatch.linewidth": 0.6}):
        figure = Figure((width / 72, height / 72), dpi=72)  # a point of the picture is a pixel at 100%
        left, below = draw(figure.add_subplot(), plot)
        height = max(height, LEAST_AREA + below + 24)
        figure.set_size_inches(width / 72, height / 72)
        # matplotlib's own layout would draw everything twice. Words that take more than their share are cut
        # off.
        figure.subplots_adjust(min(left / width, 0.7), min(below / height, 0.6), 1 - 20 / width,
                               1 - 24 / height)
        figure.axes[0].yaxis.label.set_verticalalignment("center")
        figure.axes[0].yaxis.set_label_coords(9 / width, 0.5, blended_transform_factory(
            figure.transFigure, figure.axes[0].transAxes))  # the room for it; ticks' names end beside it
        thin_ticks(figure.axes[0])
        place_notes(figure.axes[0], plot)
        for patch in (figure.patch, figure.axes[0].patch):
            patch.set_visible(False)
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    root = ElementTree.fromstring(text.getvalue())
    root.remove(root[0])  # its style would hold for the whole page; page.css has what it says
    root.attrib = {"viewBox": root.get("viewBox"), "role": "img", "aria-labelledby": name + "-title"}
    root.insert(0, title := ElementTree.Element(SVG + "title", {"id": name + "-title"}))
    title.text = plot["title"]
    for element in root.iter():
        element.tail = None
        element.text = (element.text or "").strip()
        # the font's own raised figures are too small
        if exponent := re.search(f"[{SUPERSCRIPTS}]+$", element.text):
            element.text = element.text[:exponent.start()]
            small = ElementTree.SubElement(element, SVG + "tspan", {"dy": "-4"})
            small.text = exponent[0].translate(str.maketrans(SUPERSCRIPTS, "−0123456789"))
        given, element.attrib = element.attrib, {}
        for key, value in given.items():
            if key == "style":
                value = re.sub("#[0-9a-f]{6}", lambda colour: VARIABLES[colour[0]],
                               re.sub(r"font: (\S+)[^;]*", r"font-size: \1", value))
            elif key != "id":
                value = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}",
                               value).strip().replace("\n", "")
            if not (key == "id" and element.tag == SVG + "g") and not value.startswith("rotate(-0 "):
                element.set(key.removeprefix("{http://www.w3.org/1999/xlink}"), value)
    return ElementTree.tostring(root, "unicode")
