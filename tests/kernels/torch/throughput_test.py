"""notebooks_data/studies/throughput.py on the CPU with small models, and its search for the largest batch on a memory that is made up."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import throughput

STUDY = pathlib.Path(os.environ["OUTGRAD_SOURCE_DIR"]) / "notebooks_data/studies/throughput.py"


def run(*arguments):
    return subprocess.run([sys.executable, str(STUDY), *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("least, per_sequence", [(10.0, 7.0), (500.0, 1.0), (0.0, 33.3)])
@pytest.mark.parametrize("error", [0.97, 1.0, 1.05])
def test_the_largest_batch_is_bracketed(least, per_sequence, error):
    """The line through two small batches is off by a few percent: tries find on which side."""
    room = 2000.0
    tried = []

    def runs(batch):
        tried.append(batch)
        return least + error * per_sequence * batch <= room

    ran, failed = throughput.largest_batch(runs, [(4, least + 4 * per_sequence), (8, least + 8 * per_sequence)], room)
    assert ran == 8 or (ran in tried and runs(ran))
    assert failed is None or not runs(failed)
    true = int((room - least) / (error * per_sequence))
    assert ran <= true and (failed is None or true < failed)
    assert true - ran <= max(1, 0.03 * true)
    assert len(tried) <= throughput.TRIES + 2


def test_all_of_it_runs(tmp_path):
    file = tmp_path / "throughput.json"
    result = run("--device", "cpu", "--tiny", "--models", "BERT-Large|GPT-2 medium", "--modes", "bf16 autocast", "--recipes",
                 "eager + SDPA|ours|eager|ours, norms in bf16|compile + flag", "--out", str(file))  # fmt: skip
    assert result.returncode == 0, result.stderr
    found = json.loads(file.read_text())
    assert found["schema"] == throughput.SCHEMA and found["complete"] and found["tiny"]
    assert len(found["rows"]) == 10 and not any("failed" in row for row in found["rows"])
    for model in ("BERT-Large", "GPT-2 medium"):
        losses = [row["first_loss"] for row in found["rows"] if row["model"] == model]
        assert max(losses) - min(losses) < 0.2, "the same model under all recipes, but for the dropout"
    assert all(row["at_common_batch"]["sequences_per_s"] > 0 for row in found["rows"])
    assert "eager + SDPA" in run("--show", "--out", str(file)).stdout


def test_what_is_refused(tmp_path):
    for arguments, words in ((("--recipes", "fast"), "'fast' is none of"), (("--models", "GPT-5"), "'GPT-5' is none of"), (("--modes", "f8"), "'f8' is none of")):
        result = run("--device", "cpu", *arguments, "--out", str(tmp_path / "none.json"))
        assert result.returncode == 2 and words in result.stderr
    if not __import__("torch").cuda.is_available():
        result = run("--out", str(tmp_path / "none.json"))
        assert (result.returncode, result.stderr.strip().splitlines()[-1]) == (3, "throughput: PyTorch has no CUDA device")
    assert not list(tmp_path.iterdir())
