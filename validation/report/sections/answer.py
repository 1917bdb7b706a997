"""The page that answers: four plots, what is kept in bytes, how fast it is, and what was made when."""

from types import SimpleNamespace

from blocks import (AUDIT, NONE, VALIDATE_ANY, Cell, columns, figure, nothing, paragraph, plot, table,
                    validate)
from figures import series
from results import Results
from sections.curves import OVER_X, errors_axis, floors, magnitudes, thinned
from sections.errors import often_plot
from sections.inputs import KINDS, dates_of, headers_in
from sections.others import FRONT, beside_plot, front_plot
from sections.tuning import figure_of

FORMAT_COLOURS = ("blue", "green", "violet")

# ---- pictures


def formats_plot(results: Results) -> dict:
    """The error of the whole gradient over x, a line for each format, between the floor of the widest and
    what PyTorch has that keeps x."""
    swept = [sweep for format_ in results.formats if (sweep := results.sweep_of(format_))]
    lines = [series(f"y in {sweep.format}", colour, "line", magnitudes(thinned(sweep.domains[-1].curve)))
             for sweep, colour in zip(swept, FORMAT_COLOURS)]
    last = swept[-1]
    lines.append(series(f"least possible, {last.format}", "orange", "line",
                        floors(thinned(last.domains[-1].curve))))
    if from_x := next((one for sweep in swept if (one := sweep.domains[-1].from_x)), None):
        lines.append(series("PyTorch, keeps x", "grey", "dashed", [(x, from_x.T.bound) for x in (-8, 8)]))
    axis = errors_axis("f32") | {"to": 2**-4}
    return plot("Largest error of GELU's gradient over x from -8 to 8, a line for each format of y, beside "
                "the least possible one and PyTorch's", "Error of the gradient over x",
                OVER_X, axis, lines, 300)


def distributions_of(results: Results) -> list[str]:
    return list(dict.fromkeys(one.x for format_ in results.formats if (sweep := results.sweep_of(format_))
                              for one in sweep.domains[-1].under))


def pictures(results: Results) -> list[dict]:
    """The four pictures, or those of them that the results have something for."""
    ours, drawn, missing = results.sweep_of("f32"), [], []
    published = [one for one in results.foreign if (one.activation, one.format) == ("gelu", "f32")]
    if any(map(results.sweep_of, results.formats)):
        drawn.append(("the largest error of GELU's gradient over x", formats_plot(results)))
    else:
        missing.append(nothing("The error of GELU's gradient over x", validate("FORMAT")))
    if ours and published:
        drawn.append(("the same in f32 beside published coefficients", beside_plot([ours, *published])))
    else:
        missing.append(nothing("The error in f32 beside published coefficients",
                               f"{validate('f32')} and {AUDIT}"))
    if front := next((one for one in results.fronts if one.activation == "gelu"), None):
        drawn.append(("the error against the bits that each of our stores and of the published ones keeps "
                      "beyond y (named, where there is room, are those that no other dominates; the appendix "
                      f"names all {len(front.stores)})",
                      front_plot(front, "Bits kept against the error",
                                 lambda one: one.found if one.proven is None else one.proven)))
    else:
        missing.append(nothing("The error against the bits that are kept", FRONT))
    if distributions := distributions_of(results):
        drawn.append(("the error on average, for x of several distributions",
                      often_plot(results, distributions)))
    if not drawn:
        return missing
    for _, one in drawn:
        one["title"] = "In short: " + one["title"]  # the appendix has some of them, too
    caption = "; ".join(words for words, _ in drawn)
    return [figure(f"{caption[0].upper()}{caption[1:]}.", VALIDATE_ANY, [one for _, one in drawn]), *missing]


# ---- bytes


def layer_table(ledger: SimpleNamespace) -> dict:
    name, recipes = next(iter(ledger.layers.items()))
    most = {mode: max(kept[mode] for kept in recipes.values()) for mode in ledger.modes}
    ordered = sorted(recipes.items(), key=lambda one: [-kept for kept in one[1].values()])
    rows = [[recipe, *(f"{kept[mode]:.1f} ({100 * kept[mode] / most[mode]:.0f}%)" for mode in ledger.modes)]
            for recipe, kept in ordered]
    return table(f"A layer of {name}: what it keeps for the backward pass of {ledger.length} tokens, and its "
                 "share of the most.", ledger.command,
                 ["<recipe", *(f"{mode}\nMiB" for mode in ledger.modes)], rows)


def llama_table(ledger: SimpleNamespace) -> dict:
    most = max(ledger.MiB.values())
    rows = [[recipe, f"{kept:.1f} ({100 * kept / most:.0f}%)"]
            for recipe, kept in sorted(ledger.MiB.items(), key=lambda one: -one[1])]
    return table(f"A layer of Llama-3-8B in bf16, {ledger.length} tokens.", ledger.command,
                 ["<recipe", "kept\nMiB"], rows)


def bytes_kept(results: Results) -> list[dict]:
    tables = [*map(layer_table, results.ledgers), *map(llama_table, results.llama_ledgers)]
    if not results.ledgers:
        tables.insert(0, nothing("What a layer keeps for its backward pass",
                                 "python notebooks_data/studies/ledger.py --write"))
    return [columns(tables)]


# ---- speed

LONG, SHORT = 1 << 24, 64  # elements: a large array, and a row, where calls cost more than the arithmetic


def beside_pytorch(study: SimpleNamespace) -> dict:
    """PyTorch's time over ours; below 1 ours is slower."""
    def shown(kind: str, format_: str, elements: int) -> str | Cell:
        for row in study.rows:
            if (row.kind, row.format, row.what) == (kind, format_, "through autograd") \
                    and row.elements == elements:
                middle, low, high = row.times_as_fast
                return Cell(f"{middle:.2f} [{low:.2f}, {high:.2f}]", "bad" if high < 1 else "")
        return NONE

    names = [key for key in dict.fromkeys((row.kind, row.format) for row in study.rows)
             if shown(*key, LONG) is not NONE]
    rows = [[kind, format_, shown(kind, format_, LONG), shown(kind, format_, SHORT)]
            for kind, format_ in names]
    return table(f"Times as fast as PyTorch {study.pytorch} on a CPU ({study.processor}, {study.threads} "
                 "threads), forward and backward through autograd; below 1 PyTorch is faster.",
                 "python notebooks_data/studies/package_speed.py --write",
                 ["<operation", "<format", "16.8 million elements\nratio, 99% interval",
                  "64 elements\nratio, 99% interval"], rows)


def tuned_table(results: Results) -> dict:
    """The fastest kernels of each machine: of a format that was tuned in several sizes, the best of them."""
    rows = {}
    for one in results.tuned:
        if one.kernel in ("gelu_backward", "layernorm_backward") and one.winner:
            rate, share = (figure_of(one.winner, key) for key in ("gb_per_s", "share_of_ceiling"))
            best = rows.setdefault((one.machine, one.kernel), {})
            best[one.format] = max(best.get(one.format, (-1, 0)), (share, rate))
    return table("Bandwidth of the tuned kernels in GB/s, and its share of what a triad or a copy reached in "
                 "the same rounds.", "./outgrad tune",
                 ["<machine", "<kernel", *(f"{one}\nGB/s, share" for one in results.formats)],
                 [[machine, kernel, *(f"{best[one][1]:.4g}, {100 * best[one][0]:.0f}%" if one in best
                                      else NONE for one in results.formats)]
                  for (machine, kernel), best in sorted(rows.items())])


def speed(results: Results) -> list[dict]:
    blocks = [*map(beside_pytorch, results.speeds)]
    if not blocks:
        blocks.append(nothing("Speed beside PyTorch",
                              "python notebooks_data/studies/package_speed.py --write"))
    blocks.append(tuned_table(results) if any(one.winner for one in results.tuned)
                  else nothing("Kernels of this machine", "./outgrad tune"))
    return [columns(blocks)]


# ---- what was made when


def made(results: Results) -> list[dict]:
    """What this run made, what was taken from committed results, of which dates, and what is missing."""
    rows, of_name = [], {"header": headers_in(results)}
    for kind, (name, *_) in KINDS.items():
        of_name[name] = of_name.get(name, []) + results.of_kind[kind]
    for name, items in of_name.items():
        origins = [origin for _, origin in sorted({(one.file, one.origin) for one in items})]
        committed = [origin for origin in origins if origin.startswith("committed")]
        ours = origins.count("this run")
        if origins:
            rows.append([name, ours or NONE, len(committed) or NONE, dates_of(committed),
                         len(origins) - ours - len(committed) or NONE])
    run, blocks = results.run, []
    if run and not run["finished"]:
        blocks.append(paragraph(f"The run of {run['date']} did not finish. A file of it that stands below "
                                "may be of an earlier run.", "bad"))
    if run and run["missing"]:
        blocks.append(paragraph(f"It has not made: {', '.join(run['missing'])}. `./outgrad run` goes on "
                                "where it ended.", "bad"))
    caption = "What this page was made from; the appendix names every file."
    if not run:
        caption += " These results do not state of which run they are (a run leaves that in provenance.json)."
    return [*blocks, table(caption, "./outgrad report",
                           ["<kind of result", f"this run\n{run['date'] if run else 'none is stated'}",
                            "committed", "<of", "of others, or not stated"], rows)]
