"""tests/record.py counts what ctest's JUnit says, keeps the runs of other labels, and refuses what is no such
file in one line.

usage: record_test.py REPOSITORY BUILD
"""

import json
import pathlib
import subprocess
import sys
import tempfile

JUNIT = """<?xml version="1.0"?>
<testsuite name="s" time="61.6" timestamp="2026-11-27T14:09:15">
<testcase name="a.b" status="run"/><testcase name="c" status="fail"/>
<testcase name="d" status="notrun"><skipped message="77"/></testcase>
</testsuite>
"""


def main():
    repository = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        record = folder / "nightly.json"

        def run(text, label):
            (folder / "tests.xml").write_text(text)
            command = [sys.executable, repository / "tests/record.py", folder / "tests.xml", label, record]
            return subprocess.run(command, capture_output=True, text=True, check=False)

        for text, said in (("", "tests.xml"), ("<testsuite/>", "holds no test")):
            refused = run(text, "nightly")
            assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused
            assert said in refused.stderr, refused
            assert not record.exists()
        for label in ("nightly", "exhaustive"):
            done = run(JUNIT, label)
            assert done.returncode == 0, done
            assert done.stdout.startswith(f"{label}: 1 passed, 1 failed, 1 skipped"), done
        runs = json.loads(record.read_text())["runs"]
        assert list(runs) == ["nightly", "exhaustive"]
        found = {key: runs["nightly"][key] for key in ("date", "seconds", "passed", "failed", "skipped")}
        assert found == {"date": "2026-11-27", "seconds": 62, "passed": 1, "failed": ["c"],
                         "skipped": ["d"]}, found
        assert run(JUNIT.replace("61.6", "long"), "nightly").returncode == 2
        for damaged in ("{", "[]", '{"schema": "outgrad.tests/1"}'):
            record.write_text(damaged)
            refused = run(JUNIT, "nightly")
            assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused
            assert record.read_text() == damaged, refused
    print("the record of a run is what ctest said of it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
