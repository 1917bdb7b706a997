"""The ledger of notebooks_data/studies: that its count is right where the figures are known, that it says
today what ledger.json says, and that our layers keep no more than was promised."""

import functools
import json

import ledger
import ledger_llama
import pytest
from nights import at_night

WRITTEN = json.loads(ledger.RESULT.read_text())
BERT = WRITTEN["layers"]["BERT-Large, RoBERTa-Large"]
GPT2 = WRITTEN["layers"]["GPT-2 medium"]
modes = pytest.mark.parametrize("mode", ledger.MODES)


@modes
def test_bert_large_as_pytorch_keeps_it(mode):
    """Known figures of Hugging Face's eager layer: a ledger that got them wrong would say nothing of ours."""
    got = ledger.of_layer(ledger.EAGER, mode)
    assert abs(got - {"fp32": 69.008, "bf16 autocast": 49.008, "pure bf16": 37.008}[mode]) < 0.001
    assert round(got, 3) == BERT["eager"][mode]


@pytest.mark.parametrize("before", [False, True])
@modes
def test_layers_of_bert_roberta_and_gpt2_keep_no_more_than_was_promised(mode, before):
    """BERT-Large and RoBERTa-Large have one layer; GPT-2 medium is as wide, with its norms before the
    sums."""
    ours, theirs = (ledger.of_layer(recipe, mode, before=before)
        for recipe in (ledger.OURS_FLASH, ledger.EAGER_FLASH))
    print(f"{mode}, norms {'before' if before else 'after'} the sums: {ours:.3f} MiB, PyTorch with flash "
        f"{theirs:.3f}")
    assert ours <= {"fp32": 20.29, "bf16 autocast": 16.29, "pure bf16": 10.29}[mode] < theirs
    written = GPT2 if before else BERT
    assert (round(ours, 3), round(theirs, 3)) == (written["ours + flash"][mode],
        written["eager + flash"][mode])


@pytest.mark.nightly
@modes
def test_a_compiled_layer_keeps_no_more_than_was_promised(mode):
    """Through AOTAutograd's min-cut partition, which could keep what the backward pass is to make again."""
    got = ledger.of_layer(ledger.OURS_FLASH, mode, ledger.kept_compiled)
    print(f"{mode}, compiled: {got:.3f} MiB")
    assert got <= {"fp32": 20.29, "bf16 autocast": 16.29, "pure bf16": 10.29}[mode]
    assert round(got, 3) == BERT["ours + flash, compiled"][mode]


def test_norms_in_autocasts_type_keep_as_little_as_pure_bf16():
    got = ledger.of_layer(ledger.OURS_FLASH_BF16_NORMS, "bf16 autocast")
    assert got <= 10.29
    assert round(got, 3) == BERT["ours + flash, bf16 norms"]["bf16 autocast"]


@pytest.mark.parametrize(("recipe", "most", "written"), [
    (ledger.OURS_ROWS, 8.3, "ours + flash, rows:30, code:4, norms in e4m3"),
    (ledger.OURS_ROWS_E4M3, 6.8, "ours + flash, rows:30+e4m3, code:4, norms in e4m3"),
])
def test_rows_of_a_linears_input_keep_no_more_than_was_promised(recipe, most, written):
    """By hand, in arrays of a sequence and a layer's width: query, key, value and the attention's result, the
    norms' codes, which rows in e4m3 need not keep again, the GELU's codes, and the rows."""
    got = ledger.of_layer(recipe, "pure bf16")
    rows = 0.3 * 7 if recipe is ledger.OURS_ROWS else 0.3 * 5 / 2
    assert got == pytest.approx(4 + 1 / 32 + 2 * 0.5 + 1 + rows, abs=0.01)
    assert got <= most and round(got, 3) == BERT[written]["pure bf16"]


def test_the_fallback_of_attention_keeps_one_array_of_probabilities():
    """Where no fused attention applies: the softmax's output, without what dropout left of it or its mask."""
    got = ledger.of_layer(ledger.OURS_SOFTMAX, "pure bf16")
    assert got <= 18.26
    assert round(got, 3) == BERT["ours, attention from the softmax's output"]["pure bf16"]


@pytest.mark.parametrize("model", ["BERT-Large", *at_night(["RoBERTa-Large", "GPT-2 medium"])])
def test_the_largest_batch_is_what_the_ledger_says(model):
    for name, recipe in (("eager + flash", ledger.EAGER_FLASH), ("ours + flash", ledger.OURS_FLASH)):
        kept, state = ledger.of_model(recipe, "pure bf16", model)
        written = WRITTEN["models"][model][name]["pure bf16"]
        assert (kept, state) == (written["kept"], written["state"])
        assert written["batch"] == {str(gib): (gib * 2**30 - state) // kept for gib in ledger.MEMORIES}


def test_a_model_keeps_its_layers_and_its_ends():
    """RoBERTa-Large in pure bf16 has 24 layers, and beside them by hand the embeddings and the head."""
    kept, state = ledger.of_model(ledger.OURS_FLASH, "pure bf16", "RoBERTa-Large")
    layer = ledger.of_layer(ledger.OURS_FLASH, "pure bf16") * ledger.MIB
    array = 2 * ledger.LENGTH * 1024
    ends = kept - 24 * layer
    # The norm after the embeddings, the first layer's input, what the head's GELU and norm give; the logits'
    # logarithms.
    assert 4 * array <= ends - 2 * ledger.LENGTH * 50265 <= 5 * array
    elements = state / 8
    assert 354e6 < elements < 357e6


def test_no_memory_is_a_batch_of_none():
    assert ledger.largest_batch(1, 2**20, 2**30 + 1) == 0
    assert ledger.largest_batch(2, 2**29, 2**30) == 2


LLAMA = json.loads(ledger_llama.RESULT.read_text())["MiB"]


@pytest.mark.parametrize("recipe",
    [pytest.param(name, marks=pytest.mark.nightly if "compile" in name else ())
    for name in ledger_llama.RECIPES])
def test_a_layer_of_llama(recipe):
    assert round(ledger_llama.kept(*ledger_llama.RECIPES[recipe]), 3) == LLAMA[recipe]


def test_a_layers_parts_by_hand():
    """Of BERT-Large in MiB: arrays as wide as the model are 1, the MLP's 4, GELU's bits 1/4; eager attention
    keeps 16 arrays of 512 x 512 twice, and a mask of bytes."""
    eager, ours = WRITTEN["parts"]["eager"], WRITTEN["parts"]["ours + flash"]
    assert eager["attention's probabilities"] == 16 * 512**2 * (2 + 2 + 1) / 2**20
    assert (eager["as wide as the MLP"], ours["as wide as the MLP"]) == (8, 4.25)
    # q, k, v, attention's result, and y of two norms; the rest is small
    assert 6 <= ours["as wide as the model"] <= 6.04
    llama = json.loads(ledger_llama.RESULT.read_text())["parts"]
    assert (llama["eager"]["as wide as the MLP"], llama["ours"]["as wide as the MLP"]) == (4 * 112, 2 * 112)


@pytest.mark.parametrize("recipe", [*WRITTEN["parts"]])
def test_parts_sum_to_the_layer(recipe):
    assert sum(WRITTEN["parts"][recipe].values()) == pytest.approx(BERT[recipe]["pure bf16"], abs=0.002)


def test_parts_are_counted_as_written():
    for name, recipe in (("eager", ledger.EAGER), ("ours + flash", ledger.OURS_FLASH)):
        got = ledger.parts(functools.partial(ledger.of_layer, recipe, "pure bf16"), ledger.kept_eager,
            ledger.WIDTHS)
        assert got == WRITTEN["parts"][name]


@pytest.mark.nightly
def test_all_parts_are_counted_as_written():
    assert ledger.parts_table() == WRITTEN["parts"]
    assert ledger_llama.parts_table() == json.loads(ledger_llama.RESULT.read_text())["parts"]


def test_a_layer_of_llama_by_hand():
    """In MiB: arrays of 4,096 tokens with the layer's width and with the MLP's, and what is small."""
    wide, inner = 32, 112
    attention = 2 * wide + 2 * wide / 4 + 4096 * 32 * 4 / 2**20  # q, result; k, v; sums of exponentials
    rotations = 2 * 4096 * 128 * 2 / 2**20 / 3  # cos and sin, of three sequences together
    rms = 2 * 4096 * 4 / 2**20
    norm = 2 * wide + wide + wide  # x in fp32; x^ and y in bf16
    beside = attention + rotations + rms
    assert abs(LLAMA["eager"] - (2 * norm + 4 * inner + beside)) < 0.001
    assert abs(LLAMA["ours"] - (2 * wide + 2 * inner + beside)) < 0.001
    assert LLAMA["ours"] <= 369.5
    of_output, of_codes = LLAMA["ours, the gated pair from its output"], LLAMA["ours, the gated pair in e4m3"]
    assert abs(of_output - (LLAMA["ours"] + inner / 16)) < 0.001 and of_output <= 376.5
    assert abs(of_codes - (LLAMA["ours"] - inner)) < 0.001 and of_codes <= 257.5
