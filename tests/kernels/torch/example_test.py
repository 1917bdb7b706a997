"""The example in PyTorch runs, learns, and keeps fewer bytes with outgrad, at the same loss."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

SOURCES = pathlib.Path(os.environ["OUTGRAD_SOURCE_DIR"])


@pytest.mark.nightly
def test_the_example_trains_a_transformer(tmp_path):
    text = tmp_path / "text"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    done = subprocess.run([sys.executable, SOURCES / "examples/pytorch/train_transformer.py", text, "30"],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = dict(re.findall(r"^(PyTorch|outgrad) +([\d,]+ +[\d.]+)$", done.stdout, re.MULTILINE))
    (theirs, their_loss), (ours, our_loss) = (
        (int(kept.replace(",", "")), float(loss))
        for kept, loss in (rows[name].split() for name in ("PyTorch", "outgrad")))
    assert ours < 0.8 * theirs, done.stdout
    # From about ln 256 = 5.5. Dropout drops as many elements in both, but others.
    assert their_loss < 4 and abs(our_loss - their_loss) < 0.3, done.stdout
