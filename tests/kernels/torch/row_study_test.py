"""The study of sampled rows of notebooks_data/studies: its ways are stores of Linears and differ in gradients
alone, and the summary of the written file follows from its runs, which are complete."""

import json

import pytest
import stores
import torch
from sampled_rows import STUDY
from torch import nn

from outgrad import stores as words

WRITTEN = json.loads(STUDY.result.read_text())


@pytest.mark.parametrize("of_task", stores.TASKS)
def test_ways_differ_in_gradients_alone_and_probes_leave_no_trace(of_task):
    task = of_task(1)
    torch.manual_seed(1)
    model, batch = task.model(), [t[:32] for t in task.train]
    found = STUDY.probe(task, model, batch, [t[-32:] for t in task.train], STUDY.ways)
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    assert len(linears) > 2 and all(m.store == "x" for m in linears)
    assert set(found["ways"]) == set(STUDY.ways[2:])
    assert all(0.05 < away < 5 for away in [*found["ways"].values(), found["other_batch"]])
    losses = []
    for way in STUDY.ways:
        STUDY.take(model, way)
        assert {m.store for m in linears} == {way if way in words.OF_LINEARS else "x"}
        losses.append(task.loss(model, batch))
    assert all(torch.equal(losses[0], loss) for loss in losses)


def test_a_short_study_has_every_run_and_repeats_itself():
    found, again = (STUDY.train([stores.Digits], seeds=1, steps=3) for _ in range(2))
    assert found == again
    assert [run["way"] for run in found["runs"]] == list(STUDY.ways)
    ended = {run["way"]: run["validation"] for run in found["runs"]}
    assert ended["rows:30"] != ended["exact"], "the control, and e4m3 beside it, may end where these do"
    assert len(set(found["probes"][0]["ways"].values())) == len(STUDY.ways) - 2
    assert found["probes"] and found["summary"][0]["validation"] == found["runs"][0]["validation"]


def test_the_written_study_is_complete_and_its_summary_follows():
    runs = [(r["task"], r["seed"], r["way"]) for r in WRITTEN["runs"]]
    assert runs == [(task.name, seed, way) for task in stores.TASKS for seed in range(1, task.seeds + 1)
        for way in STUDY.ways]
    assert STUDY.summary_of(WRITTEN["runs"], WRITTEN["probes"]) == WRITTEN["summary"]
