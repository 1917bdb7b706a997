"""tests/record.py counts what ctest's JUnit says, keeps the runs of other labels, and refuses what is no such
file in one line. tests/first_commands.py runs each command in a clone of its own, and records failures too.

usage: record_test.py REPOSITORY BUILD
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

JUNIT = """<?xml version="1.0"?>
<testsuite name="s" time="61.6" timestamp="2026-11-27T14:09:15">
<testcase name="a.b" status="run"/><testcase name="c" status="fail"/>
<testcase name="d" status="notrun"><skipped message="77"/></testcase>
</testsuite>
"""

WRAPPER = """#!/bin/sh
mkdir build || exit 4
head -c 3145728 /dev/zero >build/all
[ -x "$OUTGRAD_TORCH" ] || exit 5
[ "$1" != check ] || exit 3
echo 'Total Test time (real) = 12.50 sec'
"""


def first_commands(repository, folder):
    for name in ("record.py", "first_commands.py"):
        (folder / "tests").mkdir(exist_ok=True)
        shutil.copy(repository / "tests" / name, folder / "tests")
    (folder / "outgrad").write_text(WRAPPER)
    (folder / "outgrad").chmod(0o755)
    for words in (["init", "--quiet"], ["add", "."],
                  ["-c", "user.name=n", "-c", "user.email=e", "commit", "--quiet", "-m", "m"]):
        subprocess.run(["git", "-C", folder, *words], check=True)
    record = folder / "first_commands.json"
    (folder / "python").symlink_to(sys.executable)

    def run(*words):
        command = [sys.executable, folder / "tests/first_commands.py", "./python", record, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)

    assert run("no").returncode == 2 and not record.exists()
    absent = [sys.executable, folder / "tests/first_commands.py", "absent/python", record, "run"]
    refused = subprocess.run(absent, stderr=subprocess.PIPE, text=True, check=False)
    assert (refused.returncode, refused.stderr.count("\n"), record.exists()) == (2, 1, False), refused
    assert "absent/python" in refused.stderr, refused
    assert run("run", "test").returncode == 0, "each has a clone of its own"
    assert run("check").returncode == 1
    rows = json.loads(record.read_text())["commands"]
    assert [(name, row["status"], row["MiB"], row.get("suite_seconds")) for name, row in rows.items()] == [
        ("run", 0, 3.0, 12), ("test", 0, 3.0, 12), ("check", 3, 3.0, None)], rows
    assert rows["test"]["command"] == "./outgrad test"
    record.write_text("[]")
    refused = run("run")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused


def main():
    repository = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        first_commands(repository, pathlib.Path(name))
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
