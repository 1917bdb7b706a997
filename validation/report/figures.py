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
from matplotlib.transforms import offset_copy

# On white paper and light screens; on dark ones. Told apart by brightness too, so that they survive a grey
# printer and the common kinds of colour blindness.
COLOURS = {"blue": ("#1f5fa8", "#79b8ff"), "pale": ("#7aa6d6", "#3d6ea8"), "orange": ("#d98200", "#ffb14a"),
           "red": ("#b3261e", "#ff8a80"), "green": ("#1b7f4d", "#5fd08f"), "violet": ("#7644a3", "#c9a3f5"),
           "grey": ("#59636e", "#a3adb8"), "line": ("#e0e4e8", "#30363d"), "ink": ("#333333", "#d5dbe1")}
GREY, LINE, INK = (COLOURS[name][0] for name in ("grey", "line", "ink"))
VARIABLES = {light: f"var(--plot-{name})" for name, (light, _) in COLOURS.items()}
POINTS = {"linestyle": "", "marker": "o", "markersize": 4.5, "markeredgewidth": 0}
MARKS = {"line": {}, "thick": {"linewidth": 2.4}, "dashed": {"linestyle": (0, (4, 3))},
         "dotted": {"linestyle": (0, (1.5, 2))}, "dash-dotted": {"linestyle": (0, (6, 2, 1.5, 2))},
         "chain": {"marker": "o", "markersize": 2.4},
         "dots": POINTS, "small dots": POINTS | {"markersize": 2.6}, "specks": POINTS | {"markersize": 1.2},
         "squares": POINTS | {"marker": "s", "markersize": 7},
         "rings": POINTS | {"markeredgewidth": 0.9, "markerfacecolor": "none"},
         "ticks": POINTS | {"marker": "|", "markersize": 10, "markeredgewidth": 3.5}}
SVG = "{http://www.w3.org/2000/svg}"
ElementTree.register_namespace("", SVG[1:-1])
SUPERSCRIPTS = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"


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
        axis.set_ticks(*zip(*given["ticks"]))
    if given.get("ticks") or base == 2:
        axis.set_minor_locator(NullLocator())
    getattr(axes, f"set_{name}lim")(ends)
    return axis.get_major_formatter().format_ticks(axis.get_majorticklocs())


def draw(axes, plot):
    """Draws the plot on axes of matplotlib, its legend below them. Returns the room, in points, that words
    take to their left and below."""
    for order, one in enumerate(plot["series"], start=3):
        x, y, low, high = (numpy.array(one.get(key, ()), float) for key in ("x", "y", "low", "high"))
        label, colour, mark = one.get("label", ""), COLOURS[one["colour"]][0], one["mark"]
        # matplotlib leaves out of a legend what begins with _; a word joiner has no width.
        look = {"color": colour, "label": "\u2060" * label.startswith("_") + label, "zorder": order}
        if mark == "band":
            axes.fill_between(x, low, high, linewidth=0, **look)
        elif mark == "steps":
            axes.stairs(y, x, baseline=plot["y"]["from"], fill=True, **look)
        elif mark == "interval":
            axes.errorbar(x, y, xerr=(x - low, high - x), fmt="o", markersize=4.5, capsize=3,
                          linewidth=1.2, **look)
        else:
            axes.plot(x, y, **{"linewidth": 1.2, **MARKS[mark], **look})
        if one.get("notes"):
            axes.margins(x=0.09)
        for note, *place in zip(one.get("notes", ()), x, y):
            axes.annotate(note, place, (3, 2), textcoords="offset points", fontsize=9, color=colour)
    x_names, y_names = (scale(axes, name, plot.get(name, {})) for name in ("x", "y"))
    left = 14 + 6.2 * max(map(len, y_names), default=0) + 15 * bool(axes.get_ylabel())
    below = 22 + 12 * max((name.count("\n") for name in x_names), default=0) + 16 * bool(axes.get_xlabel())
    axes.set_title(plot.get("heading", ""), color=INK, fontsize=11, y=1)  # y: no search for a place
    axes.grid(color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", color=GREY, labelcolor=INK, labelsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    if labels := axes.get_legend_handles_labels()[1]:
        columns = max(1, min(len(labels), int(plot.get("width", 460) / (6 * max(map(len, labels)) + 40))))
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0),
                    bbox_transform=offset_copy(axes.transAxes, axes.figure, y=-below, units="points"),
                    ncol=columns, fontsize=10, labelcolor=INK, frameon=False, borderaxespad=0,
                    handlelength=1.5)
        below += 8 + 15 * math.ceil(len(labels) / columns)
    return left, below


def series(label, colour, mark, points, **more):
    """A series of points (x, y)."""
    x, y = zip(*points) if (points := list(points)) else ((), ())
    return {"label": label, "colour": colour, "mark": mark, "x": x, "y": y, **more}


def svg(plot, name):
    """The picture as an <svg> element of the page: `name` tells its ids from another's, its title names it,
    its colours and letters are the page's."""
    text, width, height = io.StringIO(), plot["width"], plot["height"]
    with matplotlib.rc_context(matplotlib.rcParamsDefault | {"svg.fonttype": "none", "svg.hashsalt": name,
                                                             "text.parse_math": False, "font.size": 11}):
        figure = Figure((width / 72, height / 72), dpi=72)  # a point of the picture is a pixel at 100%
        left, below = draw(figure.add_subplot(), plot)
        # matplotlib's own layout would draw everything twice. Words that take more than their share are cut
        # off.
        figure.subplots_adjust(min(left / width, 0.6), min(below / height, 0.6), 1 - 12 / width,
                               1 - 22 / height)
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
        # on a telephone those letters would be too small
        if exponent := re.search(f"[{SUPERSCRIPTS}]+$", element.text):
            element.text = element.text[:exponent.start()]
            small = ElementTree.SubElement(element, SVG + "tspan", {"dy": "-4", "style": "font-size: 8px"})
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
