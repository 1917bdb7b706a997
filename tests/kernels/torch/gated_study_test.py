"""The study of gated pairs of notebooks_data/studies: its networks have a gated pair in the place of each
activation, its ways are stores that differ in gradients alone, and the summary of the written file follows
from its runs, which are complete."""

import json

import pytest
import stores
import torch
from gated_pairs import STUDY, GatedLinear

WRITTEN = json.loads(STUDY.result.read_text())


@pytest.mark.parametrize(("of_task", "ungated"), list(zip(STUDY.tasks, stores.TASKS, strict=True)))
def test_ways_differ_in_gradients_alone_and_probes_leave_no_trace(of_task, ungated):
    task = of_task(1)
    torch.manual_seed(1)
    model, batch = task.model(), [t[:32] for t in task.train]
    pairs = [m for m in model.modules() if isinstance(m, GatedLinear)]
    assert len(pairs) == len(stores.activations(ungated(1).model())) and not stores.activations(model)
    found = STUDY.probe(task, model, batch, [t[-32:] for t in task.train])
    assert all(m.way == "exact" for m in pairs)
    assert found["ways"]["recompute"] < 1e-3 < found["ways"]["e4m3"] < 0.3 < found["other_batch"]
    assert found["ways"]["recompute"] < found["ways"]["output"] < found["ways"]["e4m3"]
    losses = []
    for way in STUDY.ways:
        STUDY.take(model, way)
        losses.append(task.loss(model, batch).item())
    assert losses[2:] == [losses[2]] * (len(STUDY.ways) - 2), "all of outgrad's have one forward pass"
    assert losses[0] == losses[1] == pytest.approx(losses[2], abs=1e-4), "PyTorch's has another SiLU"


def test_a_short_study_has_every_run_and_repeats_itself():
    found, again = (STUDY.train([STUDY.tasks[1]], seeds=1, steps=3, processes=k) for k in (1, 2))
    assert found == again
    assert [run["way"] for run in found["runs"]] == list(STUDY.ways)
    assert found["probes"] and found["summary"][0]["validation"] == found["runs"][0]["validation"]


def test_the_written_study_is_complete_and_its_summary_follows():
    runs = [(r["task"], r["seed"], r["way"]) for r in WRITTEN["runs"]]
    assert runs == [(task.name, seed, way) for task in STUDY.tasks for seed in range(1, task.seeds + 1)
        for way in STUDY.ways]
    assert STUDY.summary_of(WRITTEN["runs"], WRITTEN["probes"]) == WRITTEN["summary"]
