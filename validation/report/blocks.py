"""What a section of the page consists of: paragraphs, headings, definitions, tables and figures.

Text is plain, and the templates escape it for HTML and for Markdown. Two marks are understood, because both
languages can show them: `code` between backticks, and a power as 2^-26.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Cell(NamedTuple):
    text: str
    tone: str = ""  # good, bad or muted


NONE = Cell("-", "muted")


def red_if(bad: bool, text: str | int) -> Cell:
    return Cell(str(text), "bad" if bad else "")


class Column(NamedTuple):
    name: str
    note: str  # below the name: the unit, or how the figures were established
    left: bool  # words are aligned left, figures right


def column(described: str) -> Column:
    """A name, with a note after the end of its line; a < before it if the column has words."""
    name, _, note = described.removeprefix("<").partition("\n")
    return Column(name, note, described.startswith("<"))


def table(caption: str, command: str, columns: Iterable[str],
          rows: Iterable[Iterable[str | int | Cell]]) -> dict:
    """`command` makes every figure in it. A long table is folded on the screen, and complete on paper."""
    cells = [[one if isinstance(one, Cell) else Cell(str(one)) for one in row] for row in rows]
    return {"kind": "table", "caption": caption, "command": command, "columns": list(map(column, columns)),
            "rows": cells}


def columns(blocks: list[dict]) -> dict:
    """Blocks beside one another, as many as the page's width allows."""
    return {"kind": "columns", "blocks": blocks}


def figure(caption: str, command: str, plots: list[dict]) -> dict:
    """Plots side by side, as many as the page's width allows."""
    return {"kind": "figure", "caption": caption, "command": command, "plots": plots}


def plot(title: str, heading: str, x: dict, y: dict, series: list[dict], height: int = 275) -> dict:
    """Its sizes are pixels at 100%: as wide as a telephone's screen has room for, so that it is only enlarged,
    and no letter is ever smaller than it is drawn."""
    return {"title": title, "heading": heading, "x": x, "y": y, "series": series, "width": 330,
            "height": height}


def lines_axis(names: list[str]) -> dict:
    """An axis with a line for each name, the first at the top."""
    ticks = [(len(names) - i, name) for i, name in enumerate(names)]
    return {"from": 0.3, "to": len(names) + 0.7, "ticks": ticks}


def paragraph(text: str, tone: str = "") -> dict:
    return {"kind": "paragraph", "text": text, "tone": tone}


def heading(text: str) -> dict:
    return {"kind": "heading", "text": text}


def definitions(items: dict[str, str]) -> dict:
    return {"kind": "definitions", "items": list(items.items())}


def nothing(what: str, command: str) -> dict:
    """Stands for a value that was not measured, and names the command that measures it."""
    return paragraph(f"{what}: not measured; `{command}` makes it.", "muted")


def validate(format_: str) -> str:
    return f"./outgrad validate --activation gelu --format {format_}"


VALIDATE_ANY = "./outgrad validate --activation NAME --format FORMAT"
VALIDATE_AND_CHECK = VALIDATE_ANY + " and ./outgrad check HEADER"
AUDIT = "./outgrad validate --foreign notebooks_data/foreign/NAME.json --format FORMAT"
