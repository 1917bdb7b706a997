"""What training keeps for its backward pass, and the effect of other gradients on training."""

from types import SimpleNamespace

from blocks import NONE, Cell, figure, lines_axis, nothing, paragraph, plot, red_if, table
from figures import series
from results import Results
from rounding import scientific

# ---- bytes


def by_bytes(recipes: dict, amount) -> list[tuple[str, dict]]:
    """What keeps most comes first."""
    return sorted(recipes.items(), key=lambda one: [-amount(figure) for figure in one[1].values()])


def layers_table(ledger: SimpleNamespace) -> dict:
    rows = [[name, recipe, *(f"{mib:.3f}" for mib in kept.values())]
            for name, recipes in ledger.layers.items() for recipe, kept in by_bytes(recipes, float)]
    return table(f"What a layer keeps for the backward pass of a sequence of {ledger.length} tokens, in MiB: "
                 "counted by storage, parameters apart, on tensors that have no values.", ledger.command,
                 ["<layer", "<recipe", *(f"{mode}\nMiB" for mode in ledger.modes)], rows)


def models_table(ledger: SimpleNamespace) -> dict:
    rows = []
    for name, recipes in ledger.models.items():
        for recipe, figures in by_bytes(recipes, lambda figure: figure.kept):
            row = [name, recipe]
            for one in figures.values():
                row += [f"{one.kept / 2**20:.1f}", " / ".join(str(one.batch[gib]) for gib in ledger.memories)]
            rows.append(row)
    columns = ["<model", "<recipe"]
    for mode in ledger.modes:
        columns += [f"{mode}\nMiB", f"largest batch\n{mode}, {' / '.join(ledger.memories)} GiB"]
    return table("What a whole model keeps for a sequence, in MiB, and the largest batch: by arithmetic, "
                 "from what weights, gradients and Adam's moments leave of a memory, not by a measurement.",
                 ledger.command, columns, rows)


def bytes_kept(results: Results) -> list[dict]:
    if not results.ledgers:
        return [nothing("What training keeps for its backward pass",
                        "python notebooks_data/studies/ledger.py --write")]
    return [make(ledger) for ledger in results.ledgers for make in (layers_table, models_table)]


# ---- training

LINES = ("ink", "grey", "blue", "red", "orange", "violet", "green", "pale")


def mean_losses(study: SimpleNamespace, text: str, way: str) -> list[tuple[float, float]] | None:
    """The mean over the seeds by step, where none of them had diverged; None if there are no runs."""
    runs = [run.loss for run in study.runs if (run.text, run.way) == (text, way)]
    if not runs:
        return None
    return [(step, sum(losses) / len(runs)) for step, *losses in zip(study.loss_steps, *runs)
            if None not in losses]


def training_plot(study: SimpleNamespace, text: str) -> dict:
    curves = [(way, points) for way in study.configuration.ways
              if (points := mean_losses(study, text, way)) is not None]
    lines = [series(way, colour, "line", points) for colour, (way, points) in zip(LINES, curves)]
    return plot(f"Mean training loss over the steps, a line for each way to take gradients, text: {text}",
                f"training loss, {text}", {"label": "step"},
                {"label": "nats per hidden byte"}, lines)


def has_interval(one: SimpleNamespace) -> bool:
    return one.difference is not None and None not in (one.difference.low, one.difference.high)


def difference_plot(study: SimpleNamespace) -> dict:
    """The end of training: differences from the runs with exact gradients, with their intervals."""
    ways = [one for one in study.summary if has_interval(one) and one.difference.mean is not None]
    names = lines_axis([f"{one.way}, {one.text}" for one in ways])
    points = [(one.difference.mean, line) for one, (line, _) in zip(ways, names["ticks"])]
    ends = series("difference, interval", "blue", "interval", points, low=[one.difference.low for one in ways],
                  high=[one.difference.high for one in ways])
    return plot("Validation loss at the end, difference from exact gradients with its interval, way by way",
                "validation loss less that of exact", {"label": "nats per hidden byte"}, names,
                [series("exact", "grey", "dashed", [(0, names["from"]), (0, names["to"])]), ends],
                max(190, 90 + 17 * len(ways)))


def summary_row(one: SimpleNamespace) -> list:
    def shown(holder: SimpleNamespace | None, key: str, form: str) -> str | Cell:
        value = getattr(holder, key) if holder else None
        return NONE if value is None else format(value, form)

    interval = f"[{one.difference.low:+.2g}, {one.difference.high:+.2g}]" if has_interval(one) else NONE
    return [one.text, one.way, one.n, red_if(one.diverged > 0, one.diverged),
            shown(one.validation_loss, "mean", ".4f"), shown(one.difference, "mean", "+.2g"), interval,
            shown(one.relative_l2, "median", ".3g"), shown(one.relative_l2, "greatest", ".3g")]


def training(results: Results) -> list[dict]:
    if not results.training:
        return [nothing("The effect of these gradients on training",
                        "python notebooks_data/studies/training.py --write")]
    blocks = []
    for study in results.training:
        setup, model = study.configuration, study.configuration.model
        lead = (f"A masked language model of {model.layers} layers of width {model.width}, "
                f"{model.parameters} parameters, {setup.steps} steps from {len(setup.seeds)} seeds, the "
                "forward pass the same for every way to take gradients.")
        if noise := sorted(probe.other_batch for probe in study.probes if probe.other_batch is not None):
            lead += (f" The exact gradient of another batch lies {scientific(noise[len(noise) // 2])} away "
                     "in relative L2: what one batch is off by anyhow.")
        confidence = next((one.difference.confidence for one in reversed(study.summary) if one.difference), 0)
        blocks += [
            paragraph(lead),
            figure("Training loss, mean over the seeds; a line ends where a run of its way diverged.",
                   study.command,
                   [*(training_plot(study, text) for text in setup.texts), difference_plot(study)]),
            table("The end of training: validation loss in nats per hidden byte, its difference from the "
                  f"runs with exact gradients paired by seed, with a {100 * confidence:g}% interval, and how "
                  "far the gradient of all parameters lies from the exact one at the same weights.",
                  study.command,
                  ["<text", "<gradients", "runs ended", "diverged", "validation loss\nmean",
                   "difference\nfrom exact", "interval", "gradient's distance\nmedian, relative L2",
                   "gradient's distance\ngreatest"],
                  map(summary_row, study.summary))]
    return blocks
