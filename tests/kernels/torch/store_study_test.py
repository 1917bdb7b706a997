"""The study of stores of notebooks_data/studies: its ways are the stores of outgrad and outgrad_peers, its
runs are pairs, its networks learn, and the summary of the written file follows from its runs."""

import json
import math

import paired
import pytest
import stores
import torch
import torch.nn.functional as F
from nights import at_night

import outgrad_peers

WRITTEN = json.loads(stores.RESULT.read_text())
X = torch.linspace(-6, 6, 48000)
torch.set_num_threads(1)  # as in the study


def activation(way):
    found = stores.Activation()
    found.take(way)
    return found


def derivative(way, x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(activation(way)(x).sum(), x)[0]


def off(way, x=X):
    return derivative(way, x).double() - stores.derivative(x.bfloat16().double())


@pytest.mark.parametrize("degrees", (1, 2, 3, 4, 7, 15, 30))
@pytest.mark.parametrize("inside", (0.95, 1 - 0.05 / 15))
def test_students_quantile_has_its_probability(degrees, inside):
    """The density, integrated over the angle whose tangent is t / sqrt(degrees), where it is cos^(degrees -
    1)."""
    middles = (torch.arange(200000, dtype=torch.float64) + 0.5) * (math.pi / 2 / 200000)
    density = middles.cos() ** (degrees - 1)
    within = middles < math.atan(paired.student(inside, degrees) / math.sqrt(degrees))
    assert (density[within].sum() / density.sum()).item() == pytest.approx(inside, abs=1e-4)


def test_an_interval_is_symmetric_and_grows_with_the_comparisons():
    assert paired.interval([1.0]) is None
    alone, together = paired.interval([1.0, 2.0, 4.0]), paired.interval([1.0, 2.0, 4.0], 15)
    assert alone["mean"] == together["mean"] == pytest.approx(7 / 3)
    assert alone["high"] - alone["mean"] == pytest.approx(4.303 * math.sqrt(7 / 9))
    assert together["low"] < alone["low"] < alone["high"] < together["high"]


def test_the_derivative_is_that_of_pytorch():
    x = X.double().requires_grad_()
    assert (stores.derivative(X.double()) - torch.autograd.grad(F.gelu(x).sum(), x)[0]).abs().max() < 1e-12
    for way in ("exact", "control"):
        assert off(way).abs().max() < 2.0**-8, "bf16 rounds it once"


@pytest.mark.parametrize("way", [way for way in stores.WAYS if way in outgrad_peers.STORES])
def test_a_way_is_the_packages_store_of_this_name(way):
    layer = activation(way)
    assert layer.store == way
    torch.manual_seed(1)
    got = layer(X)
    torch.manual_seed(1)
    want = outgrad_peers.gelu(X.bfloat16(), store=way)
    assert torch.equal(got, want.float())
    assert off(way).abs().max() <= outgrad_peers.bounds("gelu", torch.bfloat16, way).total + 2.0**-8
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        layer(X.requires_grad_())
    assert sum(t.untyped_storage().nbytes() for t in kept) <= 2.2 * X.numel(), "in fp32 nothing is kept"
    assert layer.training and (layer._outgrad_ranges is not None) == (way == "mesa")


def test_every_store_is_a_way():
    others = {"exact", "control", "regelu2", *stores.SHARED}
    assert (set(stores.WAYS)
        == {store for store in outgrad_peers.STORES if outgrad_peers.why_not("gelu", store) is None} | others)
    assert len(set(stores.WAYS)) == len(stores.WAYS)
    layer = activation("parity")
    for way in stores.WAYS:
        layer.take(way)
        assert layer.way == way and (layer.store == way) == (way not in others)
    for way, store in stores.SHARED.items():
        layer.take(way)
        assert layer.store == store and (way, store) in stores.PAIRS


def test_bits_are_shared_while_it_trains_and_at_probes(monkeypatch):
    """The last GELU of the network has a gradient of 0, and so gets one bit, and the other one three."""
    got = []
    monkeypatch.setattr(stores, "SHARE_EVERY", 2)
    monkeypatch.setattr(stores.Digits, "model", lambda _: made())

    def made():
        model = stores.Transformer()
        torch.nn.init.zeros_(model.layers[1].mlp[2].weight).requires_grad_(False)
        model.register_forward_hook(
            lambda *_: got.append([a._outgrad_bits for a in stores.activations(model)]))
        return model

    stores.run(stores.Digits, 1, "actnn:shared:2", 3)
    assert got == [[None, None], *5 * [[3.0, 1.0]]], "two calls to share, three steps, and the validation"
    got.clear()
    stores.run(stores.Digits, 1, "actnn:auto:2", 3)
    assert got == 4 * [[None, None]]
    task = stores.Digits(1)
    torch.manual_seed(1)
    model = made()
    got.clear()
    batch = [t[:32] for t in task.train]
    frozen = model.layers[1].mlp[2].weight.requires_grad_()
    stores.gradient_of(task, model, batch, "actnn:shared:2")
    assert got == [[None, None], [3.0, 1.0]] and frozen.grad is None
    assert [a._outgrad_bits for a in stores.activations(model)] == [None, None]


def test_regelu2s_derivative_is_a_step_at_each_threshold():
    published = json.loads((stores.HERE.parent / "foreign" / "regelu2.json").read_text())
    thresholds = torch.tensor([float(t) for t in published["thresholds"]])
    steps = torch.tensor([float(a) for a in published["increments"]])
    x = X.bfloat16().float()
    torch.testing.assert_close(derivative("regelu2", x), ((x[:, None] > thresholds) * steps).sum(1),
        rtol=2.0**-8, atol=1e-6)


@pytest.mark.parametrize("of_task", [*stores.TASKS[:1], *at_night(stores.TASKS[1:])])
def test_ways_differ_in_gradients_alone_and_probes_leave_no_trace(of_task):
    task = of_task(1)
    torch.manual_seed(1)
    model = task.model()
    batch = [t[:32] for t in task.train]
    layers = stores.activations(model)
    task.loss(model, batch)
    ranges = [a._outgrad_ranges for a in layers]
    found = stores.probe(task, model, batch, [t[-32:] for t in task.train])
    assert all(a._outgrad_ranges is before and a.way == "exact" and a.training
        for a, before in zip(layers, ranges, strict=True))
    distance = {w["way"]: w["relative_l2"] for w in found["ways"]}
    rms = {w["way"]: w["rms"] for w in found["ways"]}
    assert 0 < distance["y+bit"] < distance["code:5"] < distance["code:3"] < distance["regelu2"] < found[
        "other_batch"]
    in_order = [rms[way] for way in ("y+bit", "code:5", "code:4", "code:3", "code:2", "dither:2", "regelu2")]
    assert in_order == sorted(set(in_order))
    losses = {}
    for way in stores.WAYS:
        for a in layers:
            a.take(way)
        losses[way] = task.loss(model, batch).item()
    assert losses["control"] == losses["regelu2"] == losses["exact"]
    of_ours = {losses[way] for way in stores.WAYS if way in outgrad_peers.STORES and way != "parity"}
    assert len(of_ours) == 1 and losses["parity"] not in of_ours
    assert of_ours.pop() == pytest.approx(losses["exact"],
        rel=1e-5), "y is rounded once, from another fp32 value"


def test_parts_have_nothing_in_common_and_seeds_have_other_parts():
    for of_task in stores.TASKS:
        first, again, other = of_task(1), of_task(1), of_task(2)
        assert all(torch.equal(a, b) for a, b in zip(first.held_out, again.held_out, strict=True))
        assert not torch.equal(first.held_out[0], other.held_out[0])
        rows = [{bytes(row) for row in part[0].numpy()} for part in (first.train, first.held_out)]
        repeated = 0.05 if of_task is stores.Text else 0  # the text repeats itself
        assert len(rows[0] & rows[1]) <= repeated * len(rows[1])


@pytest.mark.nightly
def test_a_study_repeats_and_writes_what_it_shows(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(stores, "RESULT", tmp_path / "stores.json")
    few = ("exact", "control", "y+bit", "e4m3+bit", "code:4", "dither:2", "regelu2", "mesa", "actnn:shared:2")
    monkeypatch.setattr(stores, "WAYS", few)
    monkeypatch.setattr(stores, "PROBES", 3)
    names = [task.name for task in stores.TASKS]
    found = stores.study(names, 1, 6, True, few)
    assert json.loads(stores.RESULT.read_text()) == found
    assert [p["step"] for p in found["probes"]] == 3 * [1, 3, 6]
    repeated = stores.run(stores.Regression, 1, "dither:2", 6)[0]
    assert repeated in found["runs"]
    again = stores.study(["digits"], 1, 6, True, few)
    in_order = lambda runs: sorted(runs, key=lambda r: (r["task"], stores.WAYS.index(r["way"])))  # noqa: E731
    assert (in_order(again["runs"]) == in_order(found["runs"])
        and again["configuration"] == found["configuration"])
    some = stores.study(["text", "digits"], 1, 6, True, ["code:4", "e4m3+bit"])
    assert some == json.loads(stores.RESULT.read_text()) and some["runs"] == again["runs"]
    assert (sorted(some["probes"], key=str) == sorted(again["probes"], key=str)
        and some["summary"] == again["summary"])
    elsewhere = [r | {"validation": r["validation"] + (r["way"] == "exact")} for r in again["runs"]]
    stores.RESULT.write_text(json.dumps(again | {"runs": elsewhere}))
    with pytest.raises(SystemExit, match="digits, seed 1: exact ended at .*: train every way anew"):
        stores.study(["digits"], 1, 6, True, ["e4m3+bit"])
    stores.RESULT.write_text(json.dumps(again))
    monkeypatch.setattr("sys.argv", ["stores.py", "--show"])
    stores.main()
    shown = capsys.readouterr().out
    assert all(shown.count(f"  {way} ") == 3 for way in few)
    monkeypatch.setattr("sys.argv", ["stores.py", "--write", "--steps", "5", "--tasks", "text"])
    with pytest.raises(SystemExit):
        stores.main()


def test_the_written_networks_have_learnt():
    """More than what is known without a network: of a text, which character follows which."""
    for task in WRITTEN["configuration"]["tasks"]:
        for row in (r for r in WRITTEN["summary"] if r["task"] == task["name"]):
            assert row["validation"] < task["baseline"] - 0.1


def test_the_written_summary_follows_from_the_written_runs():
    assert stores.summary_of(WRITTEN["runs"], WRITTEN["probes"]) == WRITTEN["summary"]
    wanted = {(t["name"], s, w) for t in WRITTEN["configuration"]["tasks"] for s in t["seeds"]
        for w in stores.WAYS}
    assert ({(r["task"], r["seed"], r["way"]) for r in WRITTEN["runs"]} == wanted
        and len(WRITTEN["runs"]) == len(wanted))
    steps = {t.name: t.steps for t in stores.TASKS}
    assert all(t["steps"] == steps[t["name"]] and len(t["seeds"]) >= 5
        for t in WRITTEN["configuration"]["tasks"])


def test_a_run_that_diverged_is_counted_and_left_out():
    runs = [dict(r) for r in WRITTEN["runs"]]
    lost = next(r for r in runs if (r["task"], r["way"]) == ("regression", "actnn:2"))
    lost["validation"] = None
    row = next(r for r in stores.summary_of(runs, []) if (r["task"], r["way"]) == ("regression", "actnn:2"))
    assert (row["n"], row["diverged"]) == (len(WRITTEN["configuration"]["tasks"][0]["seeds"]) - 1, 1)
