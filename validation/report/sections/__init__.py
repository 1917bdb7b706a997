"""The sections of the page in order: what each is called, what makes it, and the results that it shows. Those
of the appendix are folded on the screen and left out on paper."""

from results import Results
from sections import (
    answer,
    choice,
    coverage,
    curves,
    errors,
    inputs,
    norms,
    others,
    studies,
    summary,
    tests,
    tuning,
)

ANSWER = (
    ("Four pictures", answer.pictures, ("sweeps", "foreign", "fronts")),
    ("What is kept", answer.bytes_kept, ("ledgers", "llama_ledgers")),
    ("Speed", answer.speed, ("speeds", "tuned")),
    ("What was made when", answer.made, ()))
APPENDIX = (
    ("Error curves", curves.curves, ("sweeps",)),
    ("T against O", errors.limits, ("sweeps", "backward", "tables")),
    ("What to choose from", choice.pareto, ("pareto",)),
    ("Channel stability", norms.channels, ("stability",)),
    ("Norm bounds under attack", norms.attack, ("attacks",)),
    ("Sweep coverage", coverage.coverage, ("sweeps", "foreign")),
    ("Errors as x have them", errors.often, ("sweeps", "foreign")),
    ("Beside others", others.others, ("foreign", "quantisers")),
    ("Bits kept against the error of the gradient", others.bits,
     ("fronts", "store_sweeps", "product_sweeps")),
    ("Bytes kept", studies.bytes_kept, ("ledgers",)),
    ("Training", studies.training, ("training",)),
    ("Requirements", summary.requirements, ()),
    ("Errors, kept apart", errors.kept_apart, ("backward", "sweeps")),
    ("Forward", errors.forward, ("sweeps",)),
    ("Coefficients and cost", choice.coefficients, ("backward", "fits")),
    ("Tuning", tuning.tuning, ()),
    ("Tests beside the suite", tests.tests, ("tests",)),
    ("Inputs", inputs.inputs, ()))


def page(results: Results) -> dict:
    """Title, verdict, key figures and summary first, then the sections that answer, then the appendix."""
    def made(sections: tuple) -> list[dict]:
        return [{"title": title, "blocks": inputs.origins(results, kinds) + make(results)}
                for title, make, kinds in sections]

    by = f" By {results.made_by}." if results.made_by else ""
    return {"title": "outgrad: accuracy report",
            "lead": "Gradients of GELU, LayerNorm and RMSNorm from their outputs, and how wrong they can "
                    f"be.{by}",
            "verdict": summary.verdict(results), "key_figures": summary.key_figures(results),
            "summary": [summary.matrix(results), summary.other_matrix(results)],
            "remarks": summary.remarks(results), "sections": made(ANSWER), "appendix": made(APPENDIX)}
