"""Bounds as text, rounded up so that what is shown is a bound; the same figures as requirements.cpp has."""

import math
from fractions import Fraction

# A decimal that is exact in binary64 but for its last bits, such as 1.05, is not shown as the next one.
NEAR = Fraction(1, 10**9)
NEAR_THREE_DIGITS = Fraction(1, 10**12)


def rounded_up(bound: float, decimals: int) -> str:
    """With a given number of decimals."""
    if not math.isfinite(bound):
        return f"{bound:g}"
    scaled = Fraction(bound) * 10**decimals
    nearest = round(scaled)
    units = nearest if abs(scaled - nearest) <= NEAR * abs(scaled) else math.ceil(scaled)
    return f"{'-' * (bound < 0)}{decimal(abs(units), decimals)}"


def decimal(units: int, decimals: int) -> str:
    """So many units of the last decimal: 1234 with two decimals is 12.34."""
    whole, rest = divmod(units, 10**decimals)
    return f"{whole}.{rest:0{decimals}}" if decimals else str(whole)


def power_of_two(bound: float) -> str:
    """2^-26.24, with an exponent of two decimals: the least such that is not below the bound."""
    if not 0 < bound < math.inf:
        return "0" if bound == 0 else rounded_up(bound, 0)
    mantissa, exponent = bound.as_integer_ratio()
    # The least power of two that is not below bound^100 has 100 times the exponent.
    hundredths = (mantissa**100 - 1).bit_length() - 100 * (exponent.bit_length() - 1)
    if hundredths % 100 == 0 and Fraction(bound) == Fraction(2) ** (hundredths // 100):
        return f"2^{hundredths // 100}"
    return f"2^{'-' * (hundredths < 0)}{decimal(abs(hundredths), 2)}"


def three_digits_up(bound: float) -> str:
    """Three significant digits."""
    if not 0 < bound < math.inf:
        return "0" if bound == 0 else rounded_up(bound, 0)
    step = Fraction(10) ** (int(f"{bound:.17e}".partition("e")[2]) - 2)
    return f"{float(step * math.ceil(Fraction(bound) / step * (1 - NEAR_THREE_DIGITS))):.3g}"


def scientific(value: float) -> str:
    """Three significant digits, rounded to nearest; only for values that are not bounds."""
    return f"{value:.3g}"


def grouped(count: int) -> str:
    """A count of many, with commas: 65,536."""
    return f"{count:,}"
