"""Renders a report, outgrad.report/1, as one self-contained HTML page and as Markdown. What they say stands in the file; here it gets its form.

usage: page.py FOLDER     reads FOLDER/report.json, writes FOLDER/index.html and FOLDER/report.md
"""

import json
import pathlib
import re
import sys

try:
    import jinja2
    from markupsafe import Markup, escape

    import figures
except ImportError as missing:
    print(f"{sys.executable}: {missing}", file=sys.stderr)
    sys.exit(3)

MARK = r"`([^`]*)`|\^(-?[0-9]+(?:\.[0-9]+)*)"  # `code`, and a power as 2^-26


def html(text):
    def shown(mark):
        return f"<code>{mark[1]}</code>" if mark[1] is not None else f"<sup>{mark[2].replace('-', '−')}</sup>"

    return Markup(re.sub(MARK, shown, str(escape(text))))


def markdown(text):
    def shown(mark):
        if mark[1] is not None:
            return f"`{mark[1].replace('|', '/')}`"  # a table cell ends at a bar, in code too
        return mark[0] if mark[2] else "\\" + mark[0]

    return re.sub(MARK + r"|[\\`*_\[\]<>|#~]", shown, text)


def main():
    folder = pathlib.Path(sys.argv[1])
    page = json.loads((folder / "report.json").read_text("utf-8"))["page"]
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent), autoescape=lambda name: name.startswith("page.html"),
                                     undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters |= {"html": html, "markdown": markdown, "svg": lambda plot, number: Markup(figures.svg(plot, f"plot{number}")),
                            "anchor": lambda title: re.sub("[^a-z0-9]", "-", title.lower()), "clause": lambda text: re.split("[.:;]", text)[0]}
    environment.globals |= {"colours": figures.COLOURS}
    for name in ("index.html", "report.md"):
        template = environment.get_template(f"page{pathlib.Path(name).suffix}.j2")
        (folder / name).write_text(template.render(page), "utf-8")


if __name__ == "__main__":
    main()
