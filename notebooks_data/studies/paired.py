"""Differences of pairs of runs, with Student's interval."""

import functools
import math
import statistics

CONFIDENCE = 0.95


@functools.cache
def student(two_sided, degrees):
    """t with P(|T| <= t) = two_sided, to three places, as tables have it. P is the finite sum of M.
    Abramowitz and I. Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4, over the angle whose
    tangent is t / sqrt(degrees)."""
    odd = degrees % 2

    def probability(angle):
        term, total = (math.cos(angle) if odd else 1.0), 0.0
        for k in range(1 + odd, degrees, 2):
            total += term
            term *= math.cos(angle) ** 2 * k / (k + 1)
        total *= math.sin(angle)
        return 2 / math.pi * (angle + total) if odd else total

    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if probability(middle) < two_sided else (low, middle)
    return round(math.tan(low) * math.sqrt(degrees), 3)


def interval(differences, comparisons=1):
    """The mean and its interval; of so many such intervals all hold together with CONFIDENCE or more
    (Bonferroni). None where there are too few differences."""
    if len(differences) < 2:
        return None
    quantile = student(1 - (1 - CONFIDENCE) / comparisons, len(differences) - 1)
    mean, half = (statistics.fmean(differences),
                  quantile * statistics.stdev(differences) / math.sqrt(len(differences)))
    return {"mean": mean, "low": mean - half, "high": mean + half, "confidence": CONFIDENCE}
