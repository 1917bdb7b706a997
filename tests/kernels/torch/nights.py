"""Cases of a test that `./outgrad test -L nightly` meets: by day others stand for them."""

import pytest


def at_night(cases):
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly)
        for case in cases]
