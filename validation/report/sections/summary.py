"""The first screen: the verdict, the key figures, every requirement by format, and what is only reported."""

import math

from blocks import AUDIT, Cell, definitions, heading, paragraph, table, validate
from results import Results
from rounding import rounded_up, three_digits_up
from sections.errors import SYMBOLS

TONES = {"PASS": "good", "FAIL": "bad"}
MARKS = {"PASS": "✓\u00a0", "FAIL": "✗\u00a0"}


def tone_of(verdict: str) -> str:
    return TONES.get(verdict, "muted")


def is_or_are(n: int) -> str:
    return "is" if n == 1 else "are"


def total_errors(results: Results) -> list[tuple[str, str]]:
    """T of GELU's default fits, over the widest x that was swept, by the format of y."""
    return [(one, three_digits_up(sweep.domains[-1].T.bound)) for one in results.formats
            if (sweep := results.sweep_of(one))]


def outcome(holding: int, failing: int, reported: int, missing: int) -> str:
    judged, unmeasured = holding + failing, f"; {missing} {is_or_are(missing)} not measured"
    if failing:
        said = f"{failing} of {judged} requirements {'does' if failing == 1 else 'do'} not hold"
    elif judged:
        said = f"all {judged} requirements {'that were measured ' if missing else ''}hold"
    elif reported:
        said = f"{reported} {'figure is' if reported == 1 else 'figures are'} reported; nothing here has a limit"
    else:
        return "nothing was measured"
    return said + unmeasured * bool(missing)


def verdict(results: Results) -> dict:
    """T first, then how many requirements hold, fail and were not measured."""
    counts = dict.fromkeys(("PASS", "FAIL", "reported", "not measured"), 0)
    for row in results.requirements:
        counts[row["verdict"]] += 1
    holding, failing, reported, missing = counts.values()
    said, totals = outcome(*counts.values()), total_errors(results)
    first = "T ≤ " + ", ".join(f"{total} in {one}" for one, total in totals) + ": " if totals else ""
    headline = first + said if first else said[0].upper() + said[1:]
    meaning = ("T is the largest error of GELU's whole gradient, over every input and with y stored in that "
               "format. " if totals else "")
    unfinished = bool(results.run and not results.run["finished"])
    late = f"The run of {results.run['date']} did not finish. " if unfinished else ""
    detail = (f"{late}{meaning}{holding} hold, {failing} fail, {reported} {is_or_are(reported)} reported "
              f"without a limit, {missing} not measured.")
    open_ends = missing or unfinished or not holding + failing
    return {"headline": headline, "detail": detail,
            "tone": "bad" if failing else "muted" if open_ends else "good"}


def judged(row: dict) -> Cell:
    """The figure and its limit, with a mark that shows without colour whether the limit holds."""
    tone, shown = tone_of(row["verdict"]), row["shown"]
    if shown["found"] is None:
        return Cell("not measured", tone)
    limit = f" ≤\u00a0{shown['at_most']}" if shown["at_most"] else ""
    return Cell(MARKS.get(row["verdict"], "") + shown["found"] + limit, tone)


def matrix(results: Results) -> dict:
    """Every requirement on one format, with the formats side by side."""
    lines = {}
    for row in results.requirements:
        if row["format"] in results.formats:
            # "max T / max O, all bf16 x" for bf16 and "..., all f16 x" for f16 share a line.
            name = row["requirement"].replace(f"all {row['format']} x", "all x of the format", 1)
            lines.setdefault(name,
                             dict.fromkeys(results.formats, Cell("", "muted")))[row["format"]] = judged(row)
    return table("What must hold and what was found: upper bounds, rounded up.", "./outgrad report",
                 ["<requirement", *(f"{one}\nfound, at most" for one in results.formats)],
                 [[name, *cells.values()] for name, cells in lines.items()])


def listed(rows: list[dict]) -> str:
    texts = []
    for row in rows:
        found, limit = row["shown"]["found"], row["shown"]["at_most"]
        texts.append(f"{row['format']} {row['requirement']}" + (f" {found}" if found else "") +
                     (f", not {limit}" if found and limit else ""))
    return "; ".join(texts) + "."


def other_matrix(results: Results) -> dict:
    return table("What must hold beyond one format.", "./outgrad report", ["<requirement", "found\nat most"],
                 [[f"{row['format']}: {row['requirement']}", judged(row)] for row in results.requirements
                  if row["format"] not in results.formats])


def remarks(results: Results) -> list[dict]:
    """The letters, then what holds, fails, is only reported and was not measured."""
    rows = results.requirements
    with_verdict = {kind: [row for row in rows if row["verdict"] == kind] for kind in
                    ("PASS", "FAIL", "reported", "not measured")}
    holding = with_verdict["PASS"]
    ways = []
    for way in ("certified", "exhaustive", "counted", "searched", "proven"):
        if n := sum(row["established"] == way for row in holding):
            ways.append(f"{n} {way}")
    holds = f"{len(holding)} requirements: {', '.join(ways)}." if holding else "Nothing was shown to hold."
    blocks = [heading("The letters"), definitions(SYMBOLS), heading("What holds"), paragraph(holds)]
    # GELU's T opens the page.
    with_verdict["reported"] = [row for row in with_verdict["reported"] if row["kind"] != "number"
                                or row["format"] == "own"]
    for what, kind in (("What fails", "FAIL"), ("What is only reported", "reported"),
                       ("What was not measured", "not measured")):
        if with_verdict[kind]:
            blocks += [heading(what), paragraph(listed(with_verdict[kind]), tone_of(kind))]
    return blocks


# ---- the few figures that people look for


def tile(figure: str, what: str, note: str, command: str, tone: str = "") -> dict:
    return {"figure": figure, "what": what, "note": note, "command": command, "tone": tone}


def stated(results: Results, origin: str) -> str:
    return f"; {origin}" if results.made_by else ""


def largest_errors(results: Results) -> list[dict]:
    """The error of the whole gradient, and beside it what one has that keeps x; then T / O at its worst."""
    swept = [(one, sweep) for one in results.formats if (sweep := results.sweep_of(one))]
    if not swept:
        return []
    totals = total_errors(results)
    notes = ["in " + ", ".join(f"{one} {total}" for one, total in totals[1:])] if totals[1:] else []
    ours = results.sweep_of("f32")
    if ours and ours.domains[-1].from_x:
        notes.append(f"PyTorch's from x {three_digits_up(ours.domains[-1].from_x.T.bound)}")
    if results.made_by:
        notes.append(", ".join(sorted({sweep.origin for _, sweep in swept})))
    first, figure = totals[0]
    tiles = [tile(figure, f"T, the largest error of GELU's gradient, y in {first}", "; ".join(notes),
                  validate("FORMAT"))]
    worst, ratio = None, 0.0
    for _, sweep in swept:
        for domain in sweep.domains:
            if not domain.T_over_O <= ratio:
                worst, ratio = sweep, domain.T_over_O
    if worst:
        note = f"1 is the limit that storing y sets; worst in {worst.format}{stated(results, worst.origin)}"
        tiles.append(tile(rounded_up(ratio, 4), "largest T / O of GELU's default fits (O: the least possible T)", note,
                          validate("FORMAT")))
    return tiles


def patterns_swept(results: Results) -> list[dict]:
    """What this run has swept is one figure; what was committed, or swept before, is another, and says so."""
    patterns = {}
    for sweep in results.sweeps + results.foreign:
        run = "committed" if sweep.origin.startswith("committed") else sweep.origin  # without date and commit
        patterns[run] = patterns.get(run, 0) + sum(domain.counts.patterns for domain in sweep.domains)
    if not patterns:
        return []
    shown = "this run" if "this run" in patterns else min(patterns)
    note = "ours and others'" + (f", {shown}" if results.made_by else "")
    for run in sorted(patterns.keys() - {shown}):
        note += f"; {run}: {patterns[run] / 1e9:.1f} × 10^9"
    figure = f"{patterns[shown] / 1e9:.1f} × 10^9"
    return [tile(figure, "inputs swept, every pattern counted", note, validate("FORMAT"))]


def worst_published(results: Results) -> list[dict]:
    ours = results.sweep_of("f32")
    theirs = [one for one in results.foreign if (one.activation, one.format) == ("gelu", "f32")]
    if not ours or not theirs:
        return []
    worst = max(theirs, key=lambda one: one.domains[0].T.bound)
    note = f"ours over the same x: {three_digits_up(ours.domains[-1].T.bound)}{stated(results, worst.origin)}"
    what = f"largest error of {worst.fit}, as published"
    return [tile(three_digits_up(worst.domains[0].T.bound), what, note, AUDIT)]


def key_figures(results: Results) -> dict:
    tiles = largest_errors(results) + patterns_swept(results) + worst_published(results)
    for attack in results.attacks:
        what = f"norm bounds broken in {attack.evaluations / 1e9:.2g} × 10^9 attacks"
        tightness = f"median bound / error found {rounded_up(attack.median_tightness, 2)}"
        tiles.append(tile(f"{attack.violations:.0f}", what, tightness + stated(results, attack.origin),
                          results.commands["attack"], "bad" if attack.violations > 0 else ""))
    for training in results.training:
        ends = [one for one in training.summary
                if one.way == "ours" and one.difference and one.difference.mean is not None]
        if ends:
            largest = max(ends, key=lambda one: math.fabs(one.difference.mean))
            seeds = len(training.configuration.seeds)
            note = f"worst text: {largest.text}; {seeds} seeds{stated(results, training.origin)}"
            tiles.append(tile(f"{largest.difference.mean:+.2g}", "final loss against exact gradients", note,
                              training.command))
    return {"tiles": tiles, "commands": list(dict.fromkeys(one["command"] for one in tiles))}


def requirements(results: Results) -> list[dict]:
    return [table(
        "What must hold, format by format, each with the command that makes its figure. Figures are upper "
        'bounds and rounded up; "certified" is proved by ball arithmetic and stands in the header, '
        '"exhaustive" and "counted" are over every bit pattern of x, "searched" is what an attack could not '
        "refute.", "./outgrad report",
        ["<format", "<requirement", "at most", "found", "<verdict", "<of", "<established", "<made by"],
        [[row["format"], row["requirement"], row["shown"]["at_most"] or "-", row["shown"]["found"] or "-",
          Cell(row["verdict"], tone_of(row["verdict"])), row["from"], row["established"],
          f"`{row['command']}`"]
         for row in results.requirements])]
