"""What one can choose from: fronts of cost and error, and how near to optimal the fits are."""

import math
from types import SimpleNamespace

from blocks import Cell, figure, nothing, paragraph, plot, red_if, table
from figures import series
from results import Results
from rounding import power_of_two, rounded_up, three_digits_up

TABLE_SIZES = ((0, "no table", "green"), (256, "to 256 bytes", "blue"), (2048, "to 2 KiB", "orange"),
               (math.inf, "more", "red"))


def pareto_plot(front: SimpleNamespace) -> dict:
    """Work against the error that tells fits apart: A + B in f32, and R where T is enumerated over 16 bits.

    Each order of table sizes has a colour, and the bytes stand beside the point.
    """
    single = front.format == "f32"
    lines, below = [], -1
    for most, label, colour in TABLE_SIZES:
        points = [(one.work, error, str(one.table_bytes)) for one in front.points
                  if below < one.table_bytes <= most
                  and (error := one.a_plus_b if single else one.regret) > 0]
        lines.append(series(label, colour, "dots", [point[:2] for point in points],
                            notes=[point[2] for point in points]))
        below = most
    return plot(f"{front.activation} in {front.format}: work in operations against "
                f"{'A + B' if single else 'the regret R'}",
                f"{front.format}: {'A + B, certified' if single else 'R, enumerated'}",
                {"label": "work, operations of all kinds"},
                {"label": "A + B" if single else "R", "log": 2}, lines)


def is_table(point: SimpleNamespace) -> bool:
    """Has no A and B: its file has R in their place."""
    return point.class_ == "oracle"


def ends_of(front: SimpleNamespace) -> list:
    points = front.points
    ratios = [one.total / one.oracle for one in points if one.oracle > 0]
    bounds = [one.a_plus_b for one in points if not is_table(one)]
    works, sizes = [one.work for one in points], [one.table_bytes for one in points]
    return [front.activation, front.format, front.tried, len(points), f"{min(works)} to {max(works)}",
            f"{min(sizes)} to {max(sizes)}",
            power_of_two(min(bounds)) if bounds else "-",
            rounded_up(min(ratios), 4) if ratios else "-",
            power_of_two(min(one.regret for one in points)) if ratios else "-",
            "g is a polynomial in y: one fit has no error of its own" if front.exact else ""]


def points_table(front: SimpleNamespace) -> dict:
    rows, how = [], "bounded" if front.format == "f32" else "enumerated"
    for one in front.points:
        enumerated = one.oracle > 0
        rows.append([one.name, one.class_, one.work, one.depth, one.operations, one.table_bytes,
                     "-" if is_table(one) else power_of_two(one.a_plus_b),
                     rounded_up(one.total / one.oracle, 4) if enumerated else "-",
                     power_of_two(one.regret) if enumerated else "-"])
    return table(f"The front of gelu in {front.format}, out of {front.tried} candidates.",
                 f"./outgrad pareto --activation {front.activation} --format {front.format}",
                 ["<fit", "<class", "work", "depth", "fma, add, mul", "table\nbytes", "A + B\ncertified",
                  f"T / O\n{how}", f"R\n{how}"], rows)


def pareto(results: Results) -> list[dict]:
    if not results.pareto:
        return [nothing("Fronts of cost and error", "./outgrad pareto --activation gelu --format bf16")]
    blocks = [paragraph(
        "Of the fits of an activation and format these are worth choosing from: each is cheaper or more "
        "exact than any other by more than half a bit of A + B or R, or 1% of T. Work counts every "
        "operation from y to g, loads among them, as the evaluator itself performs them; depth counts those "
        "that wait for one another. Every point stands with its specification in the file.")]
    rows = []
    for activation in sorted({front.activation for front in results.pareto}):
        fronts = [front for front in results.pareto if front.activation == activation]
        rows += map(ends_of, fronts)
        if plots := [pareto_plot(front) for front in fronts if not front.exact and len(front.points) > 1]:
            blocks.append(figure(f"{activation}: work against error; the number at a point is the bytes of "
                                 "its table, where there is room for it.",
                                 f"./outgrad pareto --activation {activation} --format FORMAT", plots))
    blocks.append(table("Every front by its ends: the cheapest point and what the best point of each kind "
                        "reaches.",
                        "./outgrad pareto --activation ACTIVATION --format FORMAT",
                        ["<activation", "<format", "tried", "points", "work\nleast to most",
                         "table bytes\nleast to most", "A + B\nleast", "T / O\nleast", "R\nleast",
                         "<remark"], rows))
    return blocks + [points_table(front) for front in results.pareto if front.activation == "gelu"]


# ---- coefficients


def ratio_text(ratio: float) -> str:
    """If g is almost a polynomial of the fit's degree, what is left is rounding: a few digits are enough."""
    return rounded_up(ratio, 3) if ratio < 100 else three_digits_up(ratio)


def distance_row(fit: SimpleNamespace) -> list:
    """How far the piece with the greatest certified error is from the least possible."""
    worst = max(fit.pieces, key=lambda piece: piece.certified, default=None)
    certified, least = (worst.certified, worst.lower_bound) if worst and worst.certified > 0 else (0, 0)
    known = fit.kind == "backward" and least > 0
    return [fit.name, len(fit.pieces), fit.class_, power_of_two(certified),
            power_of_two(least) if known else "-", ratio_text(certified / least) if known else "-",
            f"`{fit.spec_sha256[:16]}`"]


def proof_row(proof: SimpleNamespace) -> list:
    row = [proof.name]
    for name in "ABTG":
        files = [one for one in proof.bounds if one.bound == name]
        proven = sum(one.outcome == "proven" for one in files)
        row += [red_if(proven < len(files), f"{proven} of {len(files)}" if files else "-"),
                power_of_two(max(one.claim for one in files)) if files else "-"]
    assumed, unlisted = len(proof.assumptions.names), len(proof.assumptions.unlisted)
    beyond = Cell(f"{assumed}, {unlisted} beyond the list", "bad") if unlisted else assumed
    return [*row, beyond, f"{proof.cpu_s:.0f}", proof.coq]


def cost_rows(results: Results) -> list[list]:
    headers = results.headers
    rows = [[one.name, "backward", one.format, one.degree, one.rows, one.operations, one.bytes,
             power_of_two(one.A)] for one in headers["backward"]]
    rows += [[one.name, "forward", "all", f"{one.degree} and {one.tail_degree}",
              f"{one.rows} + {one.tail_rows}", "-", one.bytes, f"{power_of_two(one.A)} of f"]
             for one in headers["forward"]]
    return rows + [[one.name, "forward", one.format, "4", one.rows, "-", one.bytes,
                    f"{power_of_two(one.A)} of f, {power_of_two(one.A_core)} in the core"]
                   for one in headers["rounded"]]


def coefficients(results: Results) -> list[dict]:
    blocks = []
    if rows := cost_rows(results):
        blocks.append(table(
            "Cost of an element: operations are fma + add + mul, beside one square root in the backward; "
            "tables are fp32.",
            "./outgrad emit FIT.json",
            ["<header", "<kind", "<y in", "degree", "rows", "operations", "table\nbytes", "A\ncertified"],
            rows))
    if results.fits:
        blocks.append(table(
            "How near to optimal a fit is, in its worst piece: the certified error, and the least that any "
            "polynomial of this degree can have there, by de la Vallée Poussin's bound. The forward's error "
            "is that of its fp32 coefficients, not of its degree.", "./outgrad fit SPEC.json",
            ["<fit", "pieces", "<class", "certified\nworst piece", "least possible\nsame piece", "ratio",
             "<spec sha256"],
            map(distance_row, results.fits)))
    else:
        blocks.append(nothing("Fits", "./outgrad fit SPEC.json"))
    if results.proofs:
        blocks.append(table(
            "Who proves these bounds: the fitter and `check` all of them, by ball arithmetic; Coq, as "
            "theorems about the exact functions and the deployed operations, what stands here. Files "
            "accepted, of those asked for, and the greatest claim among them: a file for A of each row, one "
            "for each case of a row's B, for T those that run the kernels at every number of the format, or "
            "for all real x, and for the error at every y of fp32 one for each span of y.",
            results.commands["proofs"],
            ["<fit", "A, rows", "A", "B, cases", "B", "T, files", "T", "every y,\nfiles", "every y",
             "assumed\naxioms and operations",
             "processor\ns", "<Coq"], map(proof_row, results.proofs)))
    return blocks
