"""Records what a run of the tests that are not in every run came to, for the report: when, of what commit, on
which machine, how many tests.

usage: record.py JUNIT LABEL RECORD    JUNIT is what `ctest --output-junit` wrote of a run with `-L LABEL`.
RECORD, by convention notebooks_data/tests/nightly.json, has the last run of each label (schema
outgrad.tests/1); a run of which a test failed is recorded as such.
"""

import json
import os
import pathlib
import platform
import subprocess
import sys
import xml.etree.ElementTree as xml

SCHEMA = "outgrad.tests/1"
ROOT = pathlib.Path(__file__).resolve().parent.parent


def git(root, *words):
    done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def provenance(root=ROOT):
    """Of which commit a result is, with a + where files were changed since, and of which machine."""
    changed = "+" if git(root, "status", "--porcelain", "--untracked-files=no") else ""
    return {"commit": git(root, "rev-parse", "--short", "HEAD") + changed, "processor": processor(),
            "cores": os.cpu_count()}


def read(record, schema, rows):
    """A record, whose rows have names; a new one where there is none. Raises OSError or ValueError."""
    known = json.loads(record.read_text("utf-8")) if record.exists() else {"schema": schema, rows: {}}
    if not isinstance(known, dict) or known.get("schema") != schema or not isinstance(known.get(rows), dict):
        raise ValueError(f"the record is not of schema {schema}")
    return known


def write(record, known):
    fresh = record.with_suffix(".new")
    fresh.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
    fresh.replace(record)


def outcome(case):
    """ctest writes run, fail, notrun (skipped) or disabled."""
    return {"run": "passed", "fail": "failed"}.get(case.get("status"), "skipped")


def main():
    if len(sys.argv) != 4:
        print("usage: record.py JUNIT LABEL RECORD", file=sys.stderr)
        return 2
    junit, label, record = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    try:
        suite = xml.parse(junit).getroot()
        seconds = round(float(suite.get("time", 0)))
        known = read(record, SCHEMA, "runs")
    except (OSError, xml.ParseError, ValueError, OverflowError) as error:
        print(f"outgrad: {junit}, {record}: {error}", file=sys.stderr)
        return 2
    names = {kind: [] for kind in ("passed", "failed", "skipped")}
    for case in suite.iter("testcase"):
        names[outcome(case)].append(case.get("name"))
    if not any(names.values()):
        print(f"outgrad: {junit}: holds no test", file=sys.stderr)
        return 2
    known["runs"][label] = {
        "date": suite.get("timestamp", "")[:10],
        **provenance(),
        "seconds": seconds,
        "passed": len(names["passed"]),
        "failed": sorted(names["failed"]),
        "skipped": sorted(names["skipped"]),
    }
    write(record, known)
    run = known["runs"][label]
    print(f"{label}: {run['passed']} passed, {len(run['failed'])} failed, {len(run['skipped'])} skipped, at "
          f"{run['commit']} on {run['date']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
