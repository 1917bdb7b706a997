"""What patch makes small models of many architectures keep, beside PyTorch: never more.

Each is made of its configuration in Hugging Face's transformers with random weights, in the mode for
training, and is given one batch. `python notebooks_data/studies/architectures.py` prints the table of all;
with --write it writes architectures.json beside this file. A test compares some of the rows with a count of
its own.
"""

import argparse
import itertools
import json
import pathlib
import warnings

import torch
import transformers

import outgrad

RESULT = pathlib.Path(__file__).with_suffix(".json")
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
STORES = ("y+bit", "auto")
BATCH, LENGTH, IMAGE = 2, 32, 32

# Of every configuration that has these.
SMALL = {
    "hidden_size": 64, "d_model": 64, "n_embd": 64, "embed_dim": 64, "dim": 64, "encoder_hidden_size": 64,
    "embedding_size": 64, "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2,
    "encoder_layers": 2, "decoder_layers": 2, "num_decoder_layers": 2, "num_attention_heads": 4, "n_head": 4,
    "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "d_kv": 16, "intermediate_size": 128, "d_ff": 128,
    "d_inner": 128, "n_inner": 128, "ffn_dim": 128, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
    "hidden_dim": 128, "ffn_hidden_size": 128, "vocab_size": 199, "max_position_embeddings": 66,
    "n_positions": 66, "n_ctx": 66, "image_size": IMAGE, "patch_size": 8, "pad_token_id": 1,
    "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0, "num_local_experts": 4,
    "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64, "sliding_window": 16, "query_pre_attn_scalar": 16,
}
_CONVNEXT = {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "patch_size": 4,
    "num_hidden_layers": None}
_SWIN = {"num_heads": [2, 4], "depths": [1, 1], "patch_size": 4, "window_size": 4, "embed_dim": 32,
    "num_attention_heads": None, "num_layers": None, "num_hidden_layers": None}
# Of configurations in which these have other forms; None: not given.
OWN = {
    "convnext": _CONVNEXT,
    "convnextv2": _CONVNEXT,
    "deepseek_v3": {"qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "kv_lora_rank": 16,
        "q_lora_rank": 16, "head_dim": 16, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 16},
    "gptj": {"rotary_dim": 8},
    "hubert": {"conv_dim": [32, 32], "conv_kernel": [10, 3], "conv_stride": [5, 2]},
    "swin": _SWIN,
    "swinv2": _SWIN,
    "wav2vec2": {"conv_dim": [32, 32], "conv_kernel": [10, 3], "conv_stride": [5, 2]},
    "whisper": {"num_mel_bins": 8, "max_source_positions": LENGTH},
}
# Of these a test counts again.
TESTED = ("albert", "bart", "bert", "convnext", "gemma2", "gpt2", "llama", "mobilebert", "modernbert",
    "qwen2_moe", "vit", "wav2vec2")
NAMES = tuple(
    "albert bart beit bert big_bird blenderbot bloom camembert clip_vision_model cohere cohere2 convbert "
    "convnext convnextv2 data2vec-text deberta deberta-v2 deepseek_v3 deit dinov2 dinov3_vit distilbert dpr "
    "electra ernie esm exaone4 falcon falcon_mamba flaubert gemma gemma2 gemma3_text glm gpt2 gpt_bigcode "
    "gpt_neo gpt_neox gpt_oss gptj granite helium hubert ibert layoutlm llama longt5 luke m2m_100 mamba "
    "marian mbart megatron-bert ministral mistral mixtral mobilebert modernbert mpnet mpt mt5 nemotron olmo "
    "olmo2 openai-gpt opt pegasus persimmon phi phi3 poolformer qwen2 qwen2_moe qwen3 qwen3_moe rembert "
    "roberta roformer siglip_vision_model smollm3 squeezebert stablelm starcoder2 swin swinv2 t5 umt5 vit "
    "vit_mae wav2vec2 whisper xglm xlm xlm-roberta yoso".split())


def model_of(name):
    """(a small model of an architecture in training, its example)."""
    kind = transformers.CONFIG_MAPPING[name]
    theirs = kind()
    small = {key: value for key, value in SMALL.items()
        if hasattr(theirs, key) and not isinstance(getattr(kind, key, None), property)} | OWN.get(name, {})
    small = {key: value for key, value in small.items() if value is not None}
    torch.manual_seed(1)
    model = transformers.AutoModel.from_config(kind(**small)).train()
    generator = torch.Generator().manual_seed(2)
    inputs = {}
    if model.main_input_name == "pixel_values":
        channels = getattr(model.config, "num_channels", 3)
        inputs["pixel_values"] = torch.randn(BATCH, channels, IMAGE, IMAGE, generator=generator)
    elif model.main_input_name == "input_values":
        inputs["input_values"] = torch.randn(BATCH, 10 * LENGTH, generator=generator)
    else:
        tokens = torch.randint(3, 199, (BATCH, LENGTH), generator=generator)
        inputs["input_ids"] = tokens
        if model.main_input_name == "input_features":  # of sound, two to a position
            inputs = {"input_features": torch.randn(BATCH, model.config.num_mel_bins, 2 * LENGTH,
                generator=generator)}
        if getattr(model.config, "is_encoder_decoder", False):
            inputs["decoder_input_ids"] = tokens
    return model, inputs


def report_of(name, kind, store):
    """The Report of patching a model of an architecture, in a type."""
    dtype, (model, inputs) = TYPES[kind], model_of(name)
    inputs = {key: x.to(dtype) if x.is_floating_point() else x for key, x in inputs.items()}
    return outgrad.patch(model.to(dtype), inputs, store=store)


def row_of(name):
    """{type: {store: (bytes before, bytes after)}}."""
    found = {"name": name}
    for kind in TYPES:
        said = {store: report_of(name, kind, store) for store in STORES}
        found[kind] = {store: [one.total_before, one.total_after] for store, one in said.items()}
    return found


def written():
    return json.loads(RESULT.read_text())


def show(row):
    cells = [f"{row['name']:16}"]
    for kind, store in itertools.product(TYPES, STORES):
        before, after = row[kind][store]
        cells.append(f"{f'{before:,}':>12}" * (store == STORES[0]) + f"{after / before:8.3f}")
    print("".join(cells), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    columns = "".join(f"{f'{kind}, bytes':>12}{'y+bit':>8}{'auto':>8}" for kind in TYPES)
    print(f"{'':16}{columns}")
    rows = []
    for name in NAMES:
        rows.append(row_of(name))
        show(rows[-1])
    counted = [row[kind][store] for row in rows for kind in TYPES for store in STORES]
    more = sum(after > before for before, after in counted)
    print(f"{len(rows)} architectures, {more} cases with more than PyTorch's classes")
    if options.write:
        lines = ",\n".join(json.dumps(row) for row in rows)
        text = (f'{{"schema": "outgrad.architectures/1", "torch": "{torch.__version__}", '
            f'"transformers": "{transformers.__version__}", "rows": [\n{lines}\n]}}\n')
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
