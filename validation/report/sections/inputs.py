"""What the report was made from: how many files of each kind, and of which run each is."""

from collections import Counter

from blocks import paragraph, table
from results import Results
from schema import quoted
from sections.norms import shown_path

# Kinds of files, what the table calls one, and what the sentence calls one and several.
KINDS = {
    "fits": ("fit", "fit with its certificate", "fits with their certificates"),
    "sweeps": ("sweep", "exhaustive sweep", "exhaustive sweeps"),
    "store_sweeps": ("sweep", "sweep of codes and of y with its branch",
                     "sweeps of codes and of y with its branch"),
    "foreign": ("audit", "sweep of others' coefficients", "sweeps of others' coefficients"),
    "quantisers": ("audit", "audit of a quantiser", "audits of quantisers"),
    "fronts": ("front of bits", "front of bits and errors", "fronts of bits and errors"),
    "stability": ("stability", "stability analysis", "stability analyses"),
    "attacks": ("attack", "search against the norms' bounds", "searches against the norms' bounds"),
    "certificates": ("attack", "attack on the certificates", "attacks on the certificates"),
    "proofs": ("proof", "run of Coq", "runs of Coq"),
    "pareto": ("front", "front", "fronts"),
    "ledgers": ("ledger", "", ""),
    "llama_ledgers": ("ledger", "", ""),
    "speeds": ("speed", "", ""),
    "training": ("training", "training study", "training studies"),
    "tests": ("tests", "record of tests", "records of tests"),
    "tuned": ("tuning", "tuned problem", "tuned problems")}


def headers_in(results: Results) -> list:
    return [one for kind in ("backward", "tables", "forward", "rounded", "codes")
            for one in results.headers[kind]]


def inputs(results: Results) -> list[dict]:
    headers = headers_in(results)
    counts = [(len(headers) - len(results.headers["codes"]), "coefficient header", "coefficient headers")]
    counts += [(len(results.of_kind[kind]), one, several) for kind, (_, one, several) in KINDS.items()]
    sources = ", ".join(f"{n} {one if n == 1 else several}" for n, one, several in counts if n and one)
    rows = []
    for name, items in [("header", headers),
                        *((name, results.of_kind[kind]) for kind, (name, *_) in KINDS.items())]:
        for item in items:
            file = shown_path(item.file)
            if not rows or rows[-1][1] != file:
                rows.append([name, file, item.origin])
    return [paragraph(f"{sources}. The command named below every table and plot writes the files that it "
                      "shows.", "muted"),
            table("What this report was made from.", "./outgrad report", ["<kind", "<file", "<of"], rows),
            *(paragraph(f"Warning: {warning}", "bad") for warning in results.warnings)]


def origins(results: Results, kinds: tuple[str, ...]) -> list[dict]:
    """A line that says of which runs the files are, where they are not all of this run."""
    files = Counter(item.origin for kind in kinds
                    for item in (results.of_kind.get(kind) or results.headers.get(kind, ())))
    if not results.made_by or files.keys() <= {"this run"}:
        return []
    text = ", ".join(f"{origin} ({n} {'file' if n == 1 else 'files'})" for origin, n in sorted(files.items()))
    return [paragraph(f"This section was made from: {quoted(text)}.", "muted")]
