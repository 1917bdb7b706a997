"""What sampled rows do to training: the three small networks of stores.py, whose Linears keep in place of
their input what outgrad.Linear's store of this name keeps.

    python notebooks_data/studies/sampled_rows.py [--write]
    python notebooks_data/studies/sampled_rows.py --show

The first trains and prints a summary, with --write it also writes ../training/sampled_rows.json. The second
prints the summary of that file. Tasks, batches, pairs of runs and intervals are those of stores.py; GELUs are
PyTorch's in all ways. Beside where training ended stands what a way does at the same weights and batch along
the run of `exact`: the median distance of the gradient by all parameters from the exact one (relative, L2),
one draw at each probe.
"""

from torch import nn

import outgrad
import stores
from ways import Study


def take(model, way):
    """Gives all Linears of a model the store of this name."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.__class__ = outgrad.Linear
            module.store = "x" if way in ("exact", "control") else way


STUDY = Study(stores.RESULT.with_name("sampled_rows.json"), "outgrad.row_training/1",
              "python notebooks_data/studies/sampled_rows.py --write",
              ("exact", "control", "rows:30", "rows:30+e4m3"), take)

if __name__ == "__main__":
    STUDY.main(__doc__)
