"""The study of training of notebooks_data/studies: its ways to GELU's derivative are what they say, its runs
are pairs, and the summary of the written file follows from its runs."""

import json

import pytest
import torch
import torch.nn.functional as F
import training

WRITTEN = json.loads(training.RESULT.read_text())


def derivative(way, x):
    x = x.clone().requires_grad_()
    activation = training.Activation()
    activation.way = way
    y = activation(x)
    assert torch.equal(y, F.gelu(x))
    return torch.autograd.grad(y.sum(), x)[0]


def test_regelu2s_derivative_is_a_step_at_each_threshold():
    published = training.foreign("regelu2")
    thresholds = torch.tensor([float(t) for t in published["thresholds"]])
    steps = torch.tensor([float(a) for a in published["increments"]])
    x = torch.linspace(-6, 6, 4001)
    expected = ((x[:, None] > thresholds) * steps).sum(1)
    torch.testing.assert_close(derivative("regelu2", x), expected, rtol=0, atol=1e-6)


def test_tempos_derivative_is_near_except_in_its_wrong_piece():
    """The published kernel adds the centre of the piece on (0.977, 3) where it should subtract it."""
    x = torch.linspace(-4, 4, 8001)
    y, off = F.gelu(x), (derivative("tempo", x) - derivative("exact", x)).abs()
    wrong = (x > 0) & (y > 0.977) & (y < 3)
    assert off[wrong].max() > 1 > 0.25 > off[~wrong].max()


def test_every_way_computes_the_same_loss():
    """The ways differ in gradients alone, so runs of one seed begin with the same loss."""
    train, _ = training.parts_of("licences")
    torch.manual_seed(1)
    model = training.Model()
    batch = training.windows(train, 4, torch.Generator().manual_seed(2))
    losses = {}
    for way in training.WAYS:
        training.take_way(model, way)
        losses[way] = training.loss_of(model, batch, 3).item()
    assert losses["control"] == losses["tempo"] == losses["regelu2"] == losses["exact"]
    assert losses["ours"] == pytest.approx(losses["exact"], rel=1e-6)


@pytest.mark.nightly
def test_a_run_repeats_and_its_probes_tell_the_ways_apart():
    first, probes = training.run("licences", 1, "exact", 6)
    again, _ = training.run("licences", 1, "exact", 6)
    assert first == again
    assert [p["step"] for p in probes] == [1, 2, 3, 4, 6]
    for p in probes:
        off = {w["way"]: w["relative_l2"] for w in p["ways"]}
        assert off["ours"] < 1e-5 < 1e-3 < off["regelu2"]
        assert 1e-5 < off["tempo"] < p["other_batch"]


def test_the_written_summary_follows_from_the_written_runs():
    assert training.summary_of(WRITTEN["runs"], WRITTEN["probes"]) == WRITTEN["summary"]
    configuration = WRITTEN["configuration"]
    wanted = {(t, s, w) for t in configuration["texts"] for s in configuration["seeds"]
        for w in configuration["ways"]}
    assert ({(r["text"], r["seed"], r["way"]) for r in WRITTEN["runs"]} == wanted
        and len(WRITTEN["runs"]) == len(wanted))


def test_a_run_that_diverged_is_counted_and_left_out():
    runs = [dict(r) for r in WRITTEN["runs"]]
    lost = next(r for r in runs if (r["text"], r["way"]) == ("prose", "tempo"))
    lost["validation_loss"] = None
    row = next(r for r in training.summary_of(runs, []) if (r["text"], r["way"]) == ("prose", "tempo"))
    assert (row["n"], row["diverged"]) == (len(WRITTEN["configuration"]["seeds"]) - 1, 1)
