"""python -m outgrad report: what it says of models of Hugging Face, of a model of one's own, and of what it
cannot use."""

import copy
import json
import re

import pytest
import torch
import transformers
from nights import at_night
from torch import nn

import outgrad
from outgrad import __main__ as command
from outgrad import report

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    "vocab_size": 97, "max_position_embeddings": 66}


@pytest.fixture
def folder(tmp_path):
    """A folder with the configuration of a small BERT."""
    transformers.BertConfig(**SMALL).save_pretrained(tmp_path)
    return tmp_path


def own_model():
    """For MODULE:FUNCTION."""
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16)), torch.empty(4, 8)


@pytest.mark.parametrize("name", ["bert", "whisper",
    *at_night(["gpt2", "vit", "convnext", "t5", "clip"])])
def test_kinds_of_models_are_known_by_name(name):
    found = report.of(name, batch=1, length=64)
    for total, components in ((found.total_before, found.components_before),
            (found.total_after, found.components_after)):
        assert total == sum(components.values())
    assert found.total_after < found.total_before


# Of models as they are published, with the most of eager PyTorch's bytes that a layer may keep in bf16.
LAYERS = {
    "gemma": ({"hidden_size": 2048, "intermediate_size": 16384, "num_attention_heads": 8,
    "num_key_value_heads": 1, "head_dim": 256}, 0.46),
    "gemma2": ({"hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256}, 0.51),
    "gemma3_text": ({"hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256}, 0.40),
    "olmo2": ({"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
    "num_key_value_heads": 32}, 0.47),
    "nemotron": ({"hidden_size": 4096, "intermediate_size": 16384, "num_attention_heads": 32,
    "num_key_value_heads": 8}, 0.62),
    "mixtral": ({"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_local_experts": 8}, 0.70),
    "t5": ({"d_model": 1024, "d_ff": 2816, "num_heads": 16, "d_kv": 64, "feed_forward_proj": "gated-gelu"},
    0.46),
}


@pytest.mark.parametrize("name", LAYERS)
def test_what_a_layer_keeps(name, tmp_path):
    sizes, most = LAYERS[name]

    def of(layers):
        file = tmp_path / f"{layers}.json"
        file.write_text(json.dumps({"model_type": name, "vocab_size": 512, "num_layers": layers,
            "num_hidden_layers": layers, "max_position_embeddings": 4096, **sizes}))
        return report.of(str(file), length=512)

    one, two = of(1), of(2)
    before, after = two.total_before - one.total_before, two.total_after - one.total_after
    assert before > 0 and most - 0.02 <= after / before <= most


@pytest.mark.parametrize("kind, store, most",
    [("fp32", "y+bit", 0.59), ("bf16", "y+bit", 0.60), ("bf16", "parity", 0.58)])
def test_what_convnext_keeps(kind, store, most):
    """In bf16 the bits beside y of GELU are 2% of all; parity carries it in y."""
    said = report.of("convnext", kind=kind, store=store)
    assert most - 0.02 <= said.total_after / said.total_before <= most


def test_bytes_of_a_layer_of_bert_large_are_those_of_the_ledger():
    """The whole way through Hugging Face's model, fused attention included: a layer more keeps what the
    ledger says."""
    import ledger

    config = transformers.BertConfig(hidden_size=1024, num_attention_heads=16, intermediate_size=4096,
        max_position_embeddings=512)
    kept = []
    for layers in (1, 2):
        one = copy.deepcopy(config)
        one.num_hidden_layers = layers
        with report.fake("cuda", torch.bfloat16):
            model = transformers.BertForMaskedLM(one).train()
            tokens = torch.zeros(1, 512, dtype=torch.int64)
            with report._FusedAttention():
                kept.append(outgrad.patch(model, {"input_ids": tokens, "labels": tokens}))
    written = json.loads(ledger.RESULT.read_text())["layers"]["BERT-Large, RoBERTa-Large"]
    for name, side in (("eager + flash", "total_before"), ("ours + flash", "total_after")):
        got = (getattr(kept[1], side) - getattr(kept[0], side)) / ledger.MIB
        assert abs(got - written[name]["pure bf16"]) < 0.01


def test_a_configuration_and_a_model_of_ones_own(folder, monkeypatch, capsys, tmp_path):
    command.main(["report", str(folder), "--batch", "2", "--length", "32", "--modules"])
    text = capsys.readouterr().out
    assert re.match(
        r"\d+ modules patched, 1 left alone; kept for the backward pass: [\d,]+ bytes before, [\d,]+ after",
        text)
    assert "bert.encoder.layer.1.intermediate.intermediate_act_fn" in text and "gelu_bf16" in text
    assert re.search(r"^component +MiB before +after$", text, re.MULTILINE)
    (tmp_path / "of_mine.py").write_text("import torch\nfrom torch import nn\ndef make():\n"
        "    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), torch.empty(4, 8)\n")
    monkeypatch.chdir(tmp_path)
    command.main(["report", "of_mine:make", "--type", "fp32"])
    text = capsys.readouterr().out
    assert text.startswith("1 modules patched, 0 left alone") and "GELU" in text and "bert" not in text


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nonsense"], "nonsense: neither a file or folder"),
        (["bert", "--length", "513"], "bert: a length of 513, where the model has 512 positions"),
        (["bert", "--batch", "0"], "0 is no positive whole number"),
        (["bert", "--length", "5e2"], "5e2 is no positive whole number"),
        (["bert", "--type", "fp8"], "invalid choice: 'fp8'"),
        (["no_such_module:make"], "no_such_module:make: No module named"),
        (["json:make"], "json:make: module 'json' has no attribute 'make'"),
        (["os:getcwd"], "os:getcwd: gives a str, where (model, example) is needed"),
        (["os:name"], "os:name: gives a str, where (model, example) is needed"),
        (["torch.nn:Sequential"], "torch.nn:Sequential: gives a Sequential, where (model, example) is"),
        (["bert", "--store", "silly"], "error: outgrad.patch: store: 'silly' is no store"),
        (["eomt"], "eomt: transformers has no model for a EomtConfig"),
        (["univnet"], "univnet: a UnivNetModel cannot be run on tokens, images or Whisper's sound: "),
    ],
)
def test_what_cannot_be_used_is_one_clear_line_and_status_2(arguments, why, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["report", *arguments])
    assert ended.value.code == 2
    assert why in capsys.readouterr().err.splitlines()[-1]


def test_a_file_that_is_no_configuration_is_named(tmp_path, capsys):
    for content in (b"", b"{", b"[]", b"\xff\xfe", b'{"model_type": 3}'):
        file = tmp_path / "config.json"
        file.write_bytes(content)
        for given in (file, tmp_path):
            with pytest.raises(SystemExit) as ended:
                command.main(["report", str(given)])
            assert ended.value.code == 2
            assert f"{given}: no configuration of a model" in capsys.readouterr().err


def test_bars_and_the_picture(tmp_path, capsys):
    found = outgrad.patch(*own_model())
    assert found.components_before.keys() >= {"GELU", "LayerNorm"}
    lines = report.bars(found, width=10).splitlines()
    assert len(lines) == 1 + len({*found.components_before, *found.components_after})
    assert (max(len(re.findall("[#.]+$", line)[0]) if re.search("[#.]+$", line) else 0 for line in lines[1:])
        == 10)
    pytest.importorskip("matplotlib")
    report.plot(found, tmp_path / "bytes.svg", "mine")
    assert "MiB kept" in (tmp_path / "bytes.svg").read_text()


def test_without_matplotlib_the_extra_that_has_it_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        command.main(["report", "bert", "--plot", str(tmp_path / "bytes.svg")])
    assert ended.value.code == 3 and not list(tmp_path.iterdir())
    assert capsys.readouterr().err == ("python -m outgrad: --plot: matplotlib is not installed; "
        "the extra plot has it: pip install 'outgrad[plot]'\n")


def test_progress_is_shown_on_a_terminal_when_a_pass_takes_long(monkeypatch, capsys):
    from outgrad import patching

    clock = iter(range(0, 1000, 3))
    monkeypatch.setattr(patching.time, "monotonic", lambda: next(clock))
    outgrad.patch(*own_model())
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(patching.sys.stderr, "isatty", lambda: True, raising=False)
    outgrad.patch(*own_model())
    assert "forward pass before: 2 of 4 modules" in capsys.readouterr().err
