"""Makes the report's page, as one HTML file and as Markdown, from report.json and the results that it names.

usage: page.py FOLDER     reads FOLDER/report.json, writes FOLDER/index.html and FOLDER/report.md

Paths in report.json are relative to the current folder. Exit status 2 and a line "file: place: why" if a
result is damaged; 3 if this Python lacks a module.
"""

import json
import re
import sys
from pathlib import Path

try:
    import jinja2
    from markupsafe import Markup, escape

    import figures
    import sections
    from results import DamagedFile, Results
except ImportError as missing:
    print(f"{sys.executable}: {missing}", file=sys.stderr)
    sys.exit(3)

MARK = r"`([^`]*)`|\^(-?[0-9]+(?:\.[0-9]+)*)"  # `code`, and a power as 2^-26


def html(text: str) -> Markup:
    def shown(mark: re.Match) -> str:
        if mark[1] is not None:
            return f"<code>{mark[1]}</code>"
        return f"<sup>{mark[2].replace('-', '−')}</sup>"

    return Markup(re.sub(MARK, shown, str(escape(text))))


def markdown(text: str) -> str:
    def shown(mark: re.Match) -> str:
        if mark[1] is not None:
            return f"`{mark[1].replace('|', '/')}`"  # a table cell ends at a bar, in code too
        return mark[0] if mark[2] else "\\" + mark[0]

    return re.sub(MARK + r"|[\\`*_\[\]<>|#~]", shown, text)


# A table that its box has no room for is set closer, its cells wrapping between words, and where there is no
# room for that as cards, a row a card, so that no figure is ever cut. What a table needs is reckoned from its
# letters, in the widest of the usual fonts at 13 px, or 12 where it is set closer.
LETTER, PADDING, LONG_WORDS, STEP = 8.3, 18, 24, 20
CLOSE_LETTER, CLOSE_PADDING, BROKEN_WORD = 7.7, 6, 16


def letters(text: str) -> float:
    """How many letters wide a text is: an exponent is set smaller, and a mark not at all."""
    exponents = sum(len(mark[2]) for mark in re.finditer(MARK, text) if mark[2])
    return len(text) - text.count("`") - text.count("^") - exponents / 4


def needed_width(table: dict) -> int:
    """In pixels, in steps of STEP. Words wrap at LONG_WORDS letters, figures do not, heads between words."""
    width = 0
    for i, column in enumerate(table["columns"]):
        head = max(map(len, f"{column.name} {column.note}".split()), default=0)
        cells = max((letters(row[i].text) for row in table["rows"]), default=0)
        width += LETTER * max(head, min(cells, LONG_WORDS) if column.left else cells) + PADDING
    return -int(-width // STEP) * STEP


def longest_word(table: dict, column: int) -> float:
    """In letters; in the first column longer ones than BROKEN_WORD are broken."""
    head = table["columns"][column]
    words = f"{head.name} {head.note} {' '.join(row[column].text for row in table['rows'])}".split()
    longest = max(map(letters, words), default=0)
    return longest if column > 0 else min(longest, BROKEN_WORD)


def close_width(table: dict) -> int:
    """The same where cells wrap."""
    width = sum(CLOSE_LETTER * longest_word(table, i) + CLOSE_PADDING for i in range(len(table["columns"])))
    return -int(-width // STEP) * STEP


def tables_in(blocks: list[dict]) -> list[dict]:
    inner = [table for block in blocks if block["kind"] == "columns" for table in tables_in(block["blocks"])]
    return [block for block in blocks if block["kind"] == "table"] + inner


def widths(page: dict) -> dict[str, list[int]]:
    blocks = page["summary"] + page["remarks"]
    blocks += [block for section in page["sections"] + page["appendix"] for block in section["blocks"]]
    return {name: sorted(set(map(width, tables_in(blocks)))) for name, width in WIDTHS.items()}


WIDTHS = {"wide": needed_width, "close": close_width}


def render(page: dict, folder: Path) -> None:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=lambda name: name.startswith("page.html"),
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters |= {
        "html": html, "markdown": markdown, "svg": lambda plot,
        number: Markup(figures.svg(plot, f"plot{number}")),
        "anchor": lambda title: re.sub("[^a-z0-9]", "-", title.lower()),
        "clause": lambda text: re.split("[.:;]", text)[0], "longest_word": longest_word, **WIDTHS}
    environment.globals |= {"colours": figures.COLOURS, "widths": widths(page)}
    for name in ("index.html", "report.md"):
        template = environment.get_template(f"page{Path(name).suffix}.j2")
        (folder / name).write_text(template.render(page), "utf-8")


def main() -> int:
    folder = Path(sys.argv[1])
    try:
        results = Results(json.loads((folder / "report.json").read_text("utf-8")))
    except DamagedFile as damaged:
        print(*str(damaged).splitlines(), file=sys.stderr)
        return 2
    render(sections.page(results), folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
