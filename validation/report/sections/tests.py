"""What the tests came to that are not in every run of the suite: when, where, and which failed."""

from blocks import nothing, red_if, table
from results import Results

COMMAND = "./outgrad test -L nightly -E other_machines"


def tests(results: Results) -> list[dict]:
    rows = []
    for record in results.tests:
        for label, run in record.runs.items():
            machine = f"{run.processor}, {run.cores} cores"
            rows.append([label, run.date, run.commit, machine, f"{run.seconds / 60:.0f}", run.passed,
                         red_if(bool(run.failed), len(run.failed)), len(run.skipped),
                         ", ".join(f"{name} failed" for name in run.failed)])
    if not rows:
        return [nothing("Tests that are not in every run", COMMAND)]
    return [table("The last run of the tests that take long beside the rare things that they guard, but for "
                  "those on pretended machines; every run of the suite has the others.", COMMAND,
                  ["<label", "<on", "<commit", "<machine", "minutes", "passed", "failed",
                   "skipped", "<which"],
                  rows)]
