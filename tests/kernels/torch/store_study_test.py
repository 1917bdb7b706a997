"""The study of stores of notebooks_data/studies: its emulations keep what they say, its runs are pairs, and the summary of
the written file follows from its runs."""

import json
import math

import paired
import pytest
import stores
import torch
import torch.nn.functional as F

WRITTEN = json.loads(stores.RESULT.read_text())
X = torch.linspace(-6, 6, 48001)
RIGHT = X >= stores.X_STAR


def activation(way):
    found = stores.Activation()
    found.way = way
    return found


def derivative(way, x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(activation(way)(x).sum(), x)[0]


def off(way, x=X):
    return derivative(way, x).double() - stores.derivative(x.double())


@pytest.mark.parametrize("degrees", (1, 2, 3, 4, 7, 15, 30))
@pytest.mark.parametrize("inside", (0.95, 1 - 0.05 / 15))
def test_students_quantile_has_its_probability(degrees, inside):
    """The density, integrated over the angle whose tangent is t / sqrt(degrees), where it is cos^(degrees - 1)."""
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
    assert stores.derivative(torch.tensor(stores.X_STAR).double()).abs() < 1e-8
    assert off("exact").abs().max() < 1e-6
    g = stores.derivative(X.double())
    assert stores.LO <= g.min() < stores.LO + 1e-6 and stores.HI - 1e-6 < g.max() <= stores.HI


def test_the_inverse_is_as_near_as_is_said():
    x = torch.linspace(-30, 9, 400001, dtype=torch.float64)
    y = x * torch.special.ndtr(x)
    assert (stores.derivative_of_output(y, x >= stores.X_STAR) - stores.derivative(x)).abs().max() < 3e-5


def test_bf16_is_off_near_the_minimum_and_nowhere_else():
    error = off("bf16_bit").abs()
    assert 0.01 < error.max() < 0.016
    assert error[(X - stores.X_STAR).abs() > 0.5].max() < 0.006


def test_a_parity_y_says_its_side_and_lies_next_to_f():
    y, f = activation("bf16_parity")(X).detach(), F.gelu(X)
    code = y.view(torch.int32) >> 16
    assert torch.equal(y.bfloat16().float(), y)
    assert torch.equal(torch.where(y < 0, code % 2 == 0, True), RIGHT)
    ulp = torch.exp2(torch.frexp(f).exponent.float() - 8)
    assert ((y - f).abs() <= ulp).all() and torch.equal(y[X >= 0], f[X >= 0].bfloat16().float())
    with torch.no_grad():
        assert torch.equal(activation("bf16_parity")(X), y)
    far = stores.parity(F.gelu(torch.tensor([-0.0, -20.0])), torch.tensor([True, False]))
    assert (far.view(torch.int32) >> 16).bitwise_and(0xFFFF).tolist() == [0x8000, 0x8001]


def test_mxfp8_takes_the_nearest_element_of_its_blocks_scale():
    elements = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float()
    elements = elements[elements.isfinite()].unique()
    y = torch.randn(64, 32, generator=torch.Generator().manual_seed(1)) * torch.logspace(-6, 6, 64)[:, None]
    got = stores.mxfp8(y)
    for block, kept in zip(y, got):
        scale = 2.0 ** (math.floor(math.log2(block.abs().max())) - 8)
        nearest = (block[:, None] / scale - elements).abs().min(1).values
        assert torch.equal((block / scale - kept / scale).abs(), nearest)
    assert torch.equal(stores.mxfp8(torch.zeros(32)), torch.zeros(32))
    halfway = stores.mxfp8(torch.tensor([256.0, 17.0, 19.0, *[0.0] * 29]))  # between 16, 18 and 20: to the even one
    assert halfway[:3].tolist() == [256.0, 16.0, 20.0]


@pytest.mark.parametrize("bits", (2, 3, 4, 5))
def test_a_code_is_off_by_half_a_cell_at_most_and_reaches_it(bits):
    half = (stores.HI - stores.LO) / 2 ** (bits + 1)
    assert 0.99 * half < off(f"code_{bits}").abs().max() < half + 1e-6
    assert len(derivative(f"code_{bits}", X).unique()) == 2**bits


@pytest.mark.parametrize("bits", (2, 3))
@pytest.mark.parametrize("x", (-4.0, -1.4, -0.2, 0.3, 1.4, 5.0))
def test_dither_has_no_bias_and_the_same_rms_everywhere(bits, x):
    torch.manual_seed(1)
    step = (stores.HI - stores.LO) / (2**bits - 1)
    error = off(f"dither_{bits}", torch.full((40000,), x)) / step
    assert error.abs().max() < 0.5 + 1e-5
    assert error.mean().abs() < 5 / math.sqrt(12 * 40000)
    assert error.square().mean().item() == pytest.approx(1 / 12, rel=0.03)


def test_regelu2s_derivative_is_a_step_at_each_threshold():
    published = json.loads((stores.HERE.parent / "foreign" / "regelu2.json").read_text())
    thresholds = torch.tensor([float(t) for t in published["thresholds"]])
    steps = torch.tensor([float(a) for a in published["increments"]])
    torch.testing.assert_close(derivative("regelu2", X), ((X[:, None] > thresholds) * steps).sum(1), rtol=0, atol=1e-6)


def test_mesas_range_runs_and_saturates():
    layer = activation("mesa_8")
    layer(torch.tensor([-1.0, 3.0]).requires_grad_())
    assert layer.range.tolist() == [-1.0, 4.0]
    layer(torch.tensor([-2.0, 6.0]).requires_grad_())
    assert layer.range.tolist() == pytest.approx([-1.1, 4.4])
    x = torch.linspace(-1, 3, 2001)
    assert (stores.mesa(x, -1.0, 4.0) - stores.derivative(x)).abs().max() < 1.14 * 4 / 255  # f'' has at most 0.80
    outside = stores.mesa(torch.tensor([-9.0, 9.0]), -1.0, 4.0)
    torch.testing.assert_close(outside, stores.derivative(torch.tensor([-1.0, 3.0])))


def test_actnn_keeps_four_values_of_x_for_each_256():
    torch.manual_seed(1)
    x = torch.randn(8, 256)
    kept = stores.actnn(x, 2)
    assert all(len(row.unique()) == 4 for row in kept)
    again = torch.stack([stores.actnn(torch.zeros(256).index_fill(0, torch.tensor([0]), -1.0).index_fill(0, torch.tensor([1]), 2.0), 2)])
    thirds = stores.derivative(torch.tensor([-1.0, 0.0, 1.0, 2.0]))
    assert (again[0][:, None] - thirds).abs().min(1).values.max() < 0.01


@pytest.mark.parametrize("of_task", stores.TASKS)
def test_ways_differ_in_gradients_alone_and_probes_leave_no_trace(of_task):
    task = of_task(1)
    torch.manual_seed(1)
    model = task.model()
    batch = [t[:32] for t in task.train]
    layers = stores.activations(model)
    task.loss(model, batch)
    ranges = [a.range.tolist() for a in layers]
    found = stores.probe(task, model, batch, [t[32:64] for t in task.train])
    assert [a.range.tolist() for a in layers] == ranges and all(a.way == "exact" and not a.measuring for a in layers)
    distance = {w["way"]: w["relative_l2"] for w in found["ways"]}
    rms = {w["way"]: w["rms"] for w in found["ways"]}
    assert 0 < distance["bf16_bit"] < distance["code_5"] < distance["code_3"] < distance["regelu2"] < found["other_batch"]
    assert rms["bf16_bit"] < rms["code_5"] < rms["code_4"] < rms["code_3"] < rms["code_2"] < rms["dither_2"] < rms["regelu2"]
    losses = {}
    for way in stores.WAYS:
        for a in layers:
            a.way = way
        losses[way] = task.loss(model, batch).item()
    assert {way for way in stores.WAYS if losses[way] != losses["exact"]} == {"bf16_parity"}


def test_a_study_repeats_and_writes_what_it_shows(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(stores, "RESULT", tmp_path / "stores.json")
    found = stores.study(1, 6, True)
    assert json.loads(stores.RESULT.read_text()) == found
    assert [p["step"] for p in found["probes"]] == 2 * [1, 2, 3, 4, 6]
    repeated = stores.run(stores.Regression, 1, "dither_2", 6)[0]
    assert repeated in found["runs"]
    monkeypatch.setattr("sys.argv", ["stores.py", "--show"])
    stores.main()
    shown = capsys.readouterr().out
    assert all(shown.count(f"  {way} ") == 2 for way in stores.WAYS)


def test_the_written_summary_follows_from_the_written_runs():
    assert stores.summary_of(WRITTEN["runs"], WRITTEN["probes"]) == WRITTEN["summary"]
    wanted = {(t["name"], s, w) for t in WRITTEN["configuration"]["tasks"] for s in t["seeds"] for w in stores.WAYS}
    assert {(r["task"], r["seed"], r["way"]) for r in WRITTEN["runs"]} == wanted and len(WRITTEN["runs"]) == len(wanted)
    steps = {t.name: t.steps for t in stores.TASKS}
    assert all(t["steps"] == steps[t["name"]] and len(t["seeds"]) > 1 for t in WRITTEN["configuration"]["tasks"])


def test_a_run_that_diverged_is_counted_and_left_out():
    runs = [dict(r) for r in WRITTEN["runs"]]
    lost = next(r for r in runs if (r["task"], r["way"]) == ("regression", "actnn_2"))
    lost["validation"] = None
    row = next(r for r in stores.summary_of(runs, []) if (r["task"], r["way"]) == ("regression", "actnn_2"))
    assert (row["n"], row["diverged"]) == (len(WRITTEN["configuration"]["tasks"][0]["seeds"]) - 1, 1)
