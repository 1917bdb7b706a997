"""What errors say of an argument, and questions to one that may be anything."""

import math
import operator
from typing import Any

import torch


def shown(value: object) -> str:
    """An argument as one line of an error has it."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    is_short = isinstance(value, (float, int, str, type(None), torch.dtype, torch.device))
    return repr(value) if is_short else f"a {type(value).__name__}"


def is_within(value: Any, least: float, most: float = math.inf) -> bool:
    """Whether it is a number in a range. Of what is none, the error would be Python's or PyTorch's."""
    try:
        return bool(least <= value <= most)
    except (TypeError, ValueError, RuntimeError):  # of an array or a tensor too
        return False


def is_flag(value: Any) -> bool:
    """Whether it is True or False, or a number that counts as one of them."""
    return isinstance(value, bool) or is_within(value, 0, 0) or is_within(value, 1, 1)


def is_one_of(value: object, words: Any) -> bool:
    """Whether it is one of these words, none of which an array is compared with."""
    return isinstance(value, str) and value in words


def whole_number(value: Any) -> int | None:
    """An index, None if it is none."""
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        return None
