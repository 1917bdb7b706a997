"""notebooks_data/studies/throughput.py on the CPU with small models, and its search for the largest batch on
a memory that is made up.

What it compiles goes through Inductor's own decompositions and partition, which the flag of "compile + flag"
changes; Inductor's own code, which a C++ compiler takes a minute for, is made in the exhaustive form
alone."""

import functools
import json

import pytest
import throughput
import torch

TINY = ("--device", "cpu", "--tiny", "--modes", "bf16 autocast")


@pytest.fixture
def run(monkeypatch):
    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["throughput.py", *map(str, arguments)])
        return throughput.main()

    return call


@pytest.mark.parametrize("least, per_sequence", [(10.0, 7.0), (500.0, 1.0), (0.0, 33.3)])
@pytest.mark.parametrize("error", [0.97, 1.0, 1.05])
def test_the_largest_batch_is_bracketed(least, per_sequence, error):
    """The line through two small batches is off by a few percent: tries find on which side."""
    room = 2000.0
    tried = []

    def runs(batch):
        tried.append(batch)
        return least + error * per_sequence * batch <= room

    ran, failed = throughput.largest_batch(runs,
        [(4, least + 4 * per_sequence), (8, least + 8 * per_sequence)], room)
    assert ran == 8 or (ran in tried and runs(ran))
    assert failed is None or not runs(failed)
    true = int((room - least) / (error * per_sequence))
    assert ran <= true and (failed is None or true < failed)
    assert true - ran <= max(1, 0.03 * true)
    assert len(tried) <= throughput.TRIES + 2


@pytest.mark.nightly
@pytest.mark.parametrize("backend",
    ["aot_eager_decomp_partition", pytest.param("inductor", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    "models, recipes", [("BERT-Large", "eager + SDPA|ours|eager|ours, norms in bf16|compile + flag"),
    ("GPT-2 medium|RoBERTa-Large", "eager|ours")]
)
def test_all_of_it_runs(run, monkeypatch, capsys, tmp_path, models, recipes, backend):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    file = tmp_path / "throughput.json"
    assert run(*TINY, "--models", models, "--recipes", recipes, "--out", file) == 0
    found = json.loads(file.read_text())
    assert found["schema"] == throughput.SCHEMA and found["complete"] and found["tiny"]
    assert [(row["model"], row["recipe"]) for row in found["rows"]] == [(m, r) for r in recipes.split("|")
        for m in models.split("|")]
    assert not any("failed" in row for row in found["rows"])
    for model in models.split("|"):
        losses = [row["first_loss"] for row in found["rows"] if row["model"] == model]
        assert max(losses) - min(losses) < 0.2, "the same model under all recipes, but for the dropout"
    assert all(row["at_common_batch"]["sequences_per_s"] > 0 for row in found["rows"])
    assert all([at["batch"] for at in row["forward_and_backward"] if at["ms"] > 0] == [2, 4]
        for row in found["rows"])
    in_turn = [(row["what"], row["batch"], [len(times) for times in row["s"].values()])
        for row in found["in_turn"]]
    steps = [throughput.STEPS] * 2
    both = "eager + SDPA|ours" in recipes
    assert (
        in_turn
        == [("forward and backward", 2, steps), ("forward and backward", 4, steps), ("step", 4, steps)]
        * both)
    capsys.readouterr()
    assert run("--show", "--out", file) == 0
    shown = capsys.readouterr().out
    assert (shown.count("ours") == recipes.count("ours") * len(models.split("|"))
        and shown.count(" in turn at ") == 3 * both)


@pytest.mark.nightly
def test_what_it_has_no_time_for_is_said(run, capsys, tmp_path):
    file = tmp_path / "throughput.json"
    assert (
        run(*TINY, "--models", "BERT-Large", "--recipes", "eager|ours", "--seconds", "0.001", "--out", file)
        == 0)
    assert not json.loads(file.read_text())["complete"]
    assert "left out, for want of time: 1 of 2 rows" in capsys.readouterr().out


def test_an_early_end_leaves_recipes_to_compare(run, monkeypatch, tmp_path):
    """All recipes and models of a mode come before the next mode."""
    monkeypatch.setattr(throughput, "measure_at_common_batch",
        lambda row, device, tiny: row.update(failed="unmeasured"))
    file = tmp_path / "throughput.json"
    assert (
        run("--device", "cpu", "--tiny", "--modes", "pure bf16|fp32", "--models", "BERT-Large|GPT-2 medium",
        "--recipes", "eager|ours", "--out", file) == 1)
    rows = [(row["mode"], row["recipe"], row["model"]) for row in json.loads(file.read_text())["rows"]]
    assert rows == [(m, r, model) for m in ("pure bf16", "fp32") for r in ("eager", "ours")
        for model in ("BERT-Large", "GPT-2 medium")]


def test_what_fails_is_a_row_with_its_reason(run, monkeypatch, capsys, tmp_path):
    def broken(*_):
        raise RuntimeError("the reason\nand more")

    monkeypatch.setattr(throughput.Training, "step", broken)
    file = tmp_path / "throughput.json"
    assert run(*TINY, "--models", "BERT-Large", "--recipes", "ours", "--out", file) == 1
    assert json.loads(file.read_text())["rows"][0]["failed"] == "the reason"
    assert "FAILED: the reason" in capsys.readouterr().out
    monkeypatch.setattr(throughput, "in_turn", broken)
    assert run(*TINY, "--models", "BERT-Large", "--recipes", "eager + SDPA|ours", "--out", file) == 1
    assert json.loads(file.read_text())["in_turn"] == [{"model": "BERT-Large", "mode": "bf16 autocast",
        "failed": "the reason"}]
    assert "in turn FAILED: the reason" in capsys.readouterr().out


def test_what_is_refused(run, capsys, tmp_path):
    for arguments, words in ((("--recipes", "fast"), "'fast' is none of"),
            (("--models", "GPT-5"), "'GPT-5' is none of"), (("--modes", "f8"), "'f8' is none of")):
        with pytest.raises(SystemExit) as end:
            run("--device", "cpu", *arguments, "--out", tmp_path / "none.json")
        assert end.value.code == 2 and words in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert run("--out", tmp_path / "none.json") == 3
        assert capsys.readouterr().err == "throughput: PyTorch has no CUDA device\n"
    assert not list(tmp_path.iterdir())
