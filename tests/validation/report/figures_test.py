"""The plots of the report: colours that everybody tells apart, and with each a dash, a marker and a legend of its
own; words that do not overlap.

usage: figures_test.py REPOSITORY BUILD. Exit status 77 (skipped) without matplotlib.
"""

import itertools
import math
import os
import re
import shutil
import sys
import unittest
from pathlib import Path
from xml.etree import ElementTree

sys.dont_write_bytecode = True
REPOSITORY = Path(sys.argv[1]).resolve()
sys.path.insert(0, str(REPOSITORY / "validation/report"))
try:
    import matplotlib  # noqa: F401
except ImportError as missing:
    other = shutil.which(os.environ.get("OUTGRAD_PYTHON") or "/usr/bin/python3")  # as the report takes it
    if other and other != sys.executable:
        os.execv(other, [other, *sys.argv])
    print("skipped:", missing)
    sys.exit(77)

import figures  # noqa: E402
from blocks import plot  # noqa: E402

# What a reader sees who lacks a kind of cones, on linear RGB, at severity 1: G. M. Machado, M. M. Oliveira,
# L. A. F. Fernandes, A Physiologically-based Model for Simulation of Color Vision Deficiency, IEEE TVCG 15(6),
# 2009, table 1.
DEUTERANOPIA = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
                (-0.011820, 0.042940, 0.968881))
PROTANOPIA = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))
NORMAL = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
TO_XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750),
          (0.0193339, 0.1191920, 0.9503041))  # sRGB, IEC 61966-2-1
WHITE = (0.95047, 1.0, 1.08883)  # D65
# CIEDE2000; 1 is just noticeable side by side, and 10 is told apart at a glance.
LEAST_DIFFERENCE = {"normal": 17, "deuteranopia": 15, "protanopia": 12}
PAPERS = {"light": "#ffffff", "dark": "#0f1319"}  # --paper of page.css
SERIES = [name for name in figures.COLOURS if name != "line"]


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector)) for row in matrix]


def linear(colour: str) -> list[float]:
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def lab(rgb: list[float]) -> tuple[float, float, float]:
    def f(t):
        return math.cbrt(t) if t > (6 / 29) ** 3 else t / (3 * (6 / 29) ** 2) + 4 / 29

    x, y, z = (f(a / b) for a, b in zip(times(TO_XYZ, [min(max(one, 0), 1) for one in rgb]), WHITE))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def ciede2000(one, other) -> float:
    """G. Sharma, W. Wu, E. N. Dalal, The CIEDE2000 Color-Difference Formula, Color Res. Appl. 30(1), 2005."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean7 = ((math.hypot(a1, b1) + math.hypot(a2, b2)) / 2) ** 7
    g = (1 - math.sqrt(mean7 / (mean7 + 25**7))) / 2
    c1, c2 = math.hypot(a1 * (1 + g), b1), math.hypot(a2 * (1 + g), b2)
    h1, h2 = (math.degrees(math.atan2(b, a * (1 + g))) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = 0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    if turn == -180:
        turn = 180
    dl, dc, dh = l2 - l1, c2 - c1, 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2))
    l, c = (l1 + l2) / 2, (c1 + c2) / 2
    h = h1 + h2 if c1 * c2 == 0 else (h1 + turn / 2) % 360
    t = (1 - 0.17 * math.cos(math.radians(h - 30)) + 0.24 * math.cos(math.radians(2 * h))
         + 0.32 * math.cos(math.radians(3 * h + 6)) - 0.2 * math.cos(math.radians(4 * h - 63)))
    sl, sc, sh = 1 + 0.015 * (l - 50) ** 2 / math.sqrt(20 + (l - 50) ** 2), 1 + 0.045 * c, 1 + 0.015 * c * t
    rt = (-2 * math.sqrt(c**7 / (c**7 + 25**7))
          * math.sin(math.radians(60 * math.exp(-(((h - 275) / 25) ** 2)))))
    return math.sqrt((dl / sl) ** 2 + (dc / sc) ** 2 + (dh / sh) ** 2 + rt * dc / sc * dh / sh)


def contrast(one: str, other: str) -> float:
    """WCAG 2.1, of relative luminances."""
    dark, light = sorted(times(TO_XYZ, linear(colour))[1] for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def drawn(**more) -> ElementTree.Element:
    given = {"title": "a title", "heading": "a heading", "x": {"label": "x"}, "y": {"label": "y"},
             "series": [figures.series("one", "blue", "line", [(0, 1), (1, 2)])]}
    return ElementTree.fromstring(figures.svg(plot(**given | more), "plot"))


def texts(root: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in root.iter(figures.SVG + "text")]


class Colours(unittest.TestCase):
    def test_the_difference_is_that_of_the_published_pairs(self):
        for one, other, expected in (
                ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
                ((50, 2.5, 0), (50, 0, -2.5), 4.3065), ((50, 2.5, 0), (73, 25, -18), 27.1492),
                ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
                ((6.7747, -0.2908, -2.4247), (5.8714, -0.0985, -2.2286), 0.6377),
                ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082)):
            self.assertAlmostEqual(ciede2000(one, other), expected, places=4)

    def test_everybody_tells_any_two_apart(self):
        for look, paper in enumerate(PAPERS):
            for name, matrix in (("normal", NORMAL), ("deuteranopia", DEUTERANOPIA), ("protanopia", PROTANOPIA)):
                seen = {one: lab(times(matrix, linear(figures.COLOURS[one][look]))) for one in SERIES}
                least = min((ciede2000(seen[a], seen[b]), a, b) for a, b in itertools.combinations(SERIES, 2))
                self.assertGreaterEqual(least[0], LEAST_DIFFERENCE[name], f"{paper}, {name}: {least}")

    def test_blue_and_purple_as_they_were_would_be_refused(self):
        seen = [lab(times(DEUTERANOPIA, linear(colour))) for colour in ("#1f5fa8", "#7644a3")]
        self.assertLess(ciede2000(*seen), LEAST_DIFFERENCE["deuteranopia"])

    def test_each_stands_out_from_its_paper(self):
        sheet = (REPOSITORY / "validation/report/page.css").read_text()
        self.assertEqual([one if len(one) == 7 else one + one[1:] for one in
                          re.findall(r"--paper: (#[0-9a-f]+)", sheet)], list(PAPERS.values()))
        for look, paper in enumerate(PAPERS.values()):
            for name in SERIES:  # 3: graphical objects (1.4.11); 4.5: words (1.4.3)
                least = 4.5 if name == "ink" else 3
                self.assertGreaterEqual(contrast(figures.COLOURS[name][look], paper), least, name)

    def test_each_has_a_dash_and_a_marker_of_its_own(self):
        for looks in (figures.DASHES, figures.MARKERS):
            self.assertEqual(set(looks), set(SERIES))
            self.assertEqual(len(set(looks.values())), len(SERIES))


class Words(unittest.TestCase):
    def test_notes_are_written_where_there_is_room(self):
        def noted(points, notes):
            return texts(drawn(series=[figures.series("s", "blue", "dots", points, notes=notes)]))

        self.assertIn("first", noted([(0, 0), (1, 1)], ["first", "second"]))
        self.assertIn("second", noted([(0, 0), (1, 1)], ["first", "second"]))
        crowd = [(i / 1000, i / 1000) for i in range(200)] + [(1, 1)]
        self.assertLess(sum(one.startswith("note") for one in noted(crowd, [f"note {i}" for i in range(201)])), 30)

    def test_ticks_that_stand_too_near_have_no_name(self):
        ticks = [(i / 100, f"a tick {i}") for i in range(101)]
        shown = [one for one in texts(drawn(x={"ticks": ticks, "label": "x"})) if one.startswith("a tick")]
        self.assertLess(len(shown), 6)
        self.assertGreater(len(shown), 2)

    def test_long_names_are_shortened(self):
        long = "n" * 200
        self.assertNotIn(long, texts(drawn(y={"ticks": [(1, long), (2, "two")]})))

    def test_no_letter_is_smaller_than_the_least(self):
        text = ElementTree.tostring(drawn(y={"label": "y", "log": 2}), "unicode")
        sizes = [float(size) for size in re.findall(r"font-size: ([0-9.]+)px", text)]
        self.assertGreaterEqual(min(sizes), figures.LETTER)

    def test_a_long_legend_leaves_room_for_the_plot(self):
        lines = [figures.series("a series with quite a long name", colour, "line", [(0, 1), (1, 2)])
                 for colour in SERIES]
        root = drawn(series=lines)
        self.assertGreaterEqual(float(root.get("viewBox").split()[3]), figures.LEAST_AREA + 17 * len(lines))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
