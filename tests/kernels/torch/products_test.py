"""The fits of quotients of products (kernels/generated/*_product.h), by a third arithmetic: mpmath's."""

import pathlib
import random
import re
import struct

import pytest

mpmath = pytest.importorskip("mpmath")
mp = mpmath.mp
mp.dps = 40

GENERATED = pathlib.Path(__file__).parents[3] / "kernels" / "generated"


def parts(name, a):
    """f(a) / a and its slope."""
    if name == "gelu":
        return mpmath.ncdf(a), mpmath.npdf(a)
    c = 2 * mpmath.sqrt(2 / mp.pi)
    cube = mpmath.mpf("0.044715")
    u, du = (a, 1) if name == "silu" else (c * (a + cube * a**3), c * (1 + 3 * cube * a * a))
    sigma = 1 / (1 + mpmath.exp(-u))
    return sigma, du * sigma * (1 - sigma)


def value(name, a):
    return a * parts(name, a)[0]


def slope(name, a):
    share, its_slope = parts(name, a)
    return share + a * its_slope


class Fit:
    """A header's constants and rows, and g(s, m) with exact sums, products and roots."""

    def __init__(self, name):
        text = (GENERATED / f"{name}_product.h").read_text()
        self.of = re.search(r'kActivation = "(\w+)"', text)[1]
        for kind, key, number in re.findall(r"constexpr (float|double|int) (k\w+) = ([^;]+);", text):
            given = number.removesuffix("f") if kind == "float" else number
            setattr(self, key, int(given) if kind == "int" else float.fromhex(given))
        rows = re.findall(r"^      \{(.*?)f\}", text, re.MULTILINE)
        self.rows = [[float.fromhex(word) for word in row.split("f, ")] for row in rows]

    def g(self, s, right):
        y = mpmath.mpf(min(s, self.kYMax))
        if not right and y > self.kLeftY:
            y = min(y, mpmath.mpf(0))
            code = struct.unpack("<I", struct.pack("<f", abs(float(y))))[0] >> (23 - self.kLeftBits)
            row = self.kLeftRow + max((code + max(code, self.kLeftKnee) >> 1) - self.kLeftBase, 0)
        else:
            y = mpmath.sqrt(max(y - self.kYHi - self.kYLo, self.kTMin)) * (1 if right else -1)
            row = int(mpmath.nint(y * self.kIndexScale + self.kIndexBias)) % self.kRows
        centre, *c = self.rows[row]
        return mpmath.polyval(c[::-1], y - centre)


@pytest.mark.parametrize("to", ["bf16", "f16"])
@pytest.mark.parametrize("gate", ["silu", "gelu_tanh", "gelu"])
def test_no_function_errs_by_less_and_the_fit_by_little_more(gate, to):
    fit = Fit(f"{gate}_{to}")
    least_at = mpmath.findroot(lambda a: slope(fit.of, a), (-1.4, -0.6), solver="anderson")
    y_star = value(fit.of, least_at)

    # The last s whose ball reaches y* stands for f' from 0 to that at the other end of its ball.
    s = y_star + fit.kRelative * -y_star + fit.kAbsolute
    top = (s + fit.kAbsolute) / (1 + fit.kRelative)
    ends = [mpmath.findroot(lambda a: value(fit.of, a) - top, least_at + side * 0.2) for side in (-1, 1)]
    halves = [abs(slope(fit.of, a)) / 2 for a in ends]
    assert fit.kO <= max(halves) * (1 + mpmath.mpf(2) ** -12)
    assert fit.kO >= max(halves) * (1 - mpmath.mpf(2) ** -12)
    assert fit.kO < fit.kT <= 1.01 * fit.kO

    # Anywhere else: a near the minimum and far from it, s anywhere in its ball.
    draw = random.Random(3)
    worst = 0
    for k in range(600):
        a = least_at + draw.choice((-1, 1)) * mpmath.mpf(2) ** draw.uniform(-14, 5)
        f = value(fit.of, a)
        d = (-1, 1, draw.uniform(-1, 1))[k % 3]
        s = f + d * (fit.kRelative * abs(f) + fit.kAbsolute)
        worst = max(worst, abs(fit.g(s, a > least_at) - slope(fit.of, a)))
    assert 0.9 * fit.kT < worst <= fit.kT
