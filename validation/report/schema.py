"""What the schemas of result files are made of.

A schema is a function of a JSON value and its place that gives what is needed of it, or calls refuse().
"""

import math
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

Read = Callable[[Any, str], Any]


class Refusal(Exception):
    """What is wrong with a file: the place in it, and why."""

    def __init__(self, place: str, why: str):
        super().__init__(f"{place or 'top level'}: {why}")


def refuse(place: str, why: str) -> NoReturn:
    raise Refusal(place, why)


def quoted(text: str) -> str:
    """A text of a file, without the marks of our own texts and without control characters."""
    return re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]", " ", text.replace("`", "'"))


# ---- values


def text(value, place: str) -> str:
    if not isinstance(value, str):
        refuse(place, "is not a string")
    return quoted(value)


def boolean(value, place: str) -> bool:
    if not isinstance(value, bool):
        refuse(place, "is not true or false")
    return value


def count(value, place: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        refuse(place, "is not a count")
    return value


def real(value, place: str) -> float:
    """A number; "inf", "-inf" and "nan" stand for what JSON has no word for."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if value in ("inf", "-inf", "nan"):
        return float(value)
    refuse(place, "is not a number")


def finite(value, place: str) -> float:
    if not math.isfinite(found := real(value, place)):
        refuse(place, "is not finite")
    return found


def amount(value, place: str) -> float:
    """A figure that is finite and not negative."""
    if not 0 <= (found := real(value, place)) < math.inf:
        refuse(place, "is not a bound")
    return found


def bound(value, place: str) -> float:
    """Null where nothing holds."""
    return math.inf if value is None else real(value, place)


def hex_bound(value, place: str) -> float:
    """A finite hex float in a string that is not negative."""
    if not re.fullmatch(r"0x(?=\.?[0-9a-fA-F])[0-9a-fA-F]*\.?[0-9a-fA-F]*(p[+-]?[0-9]+)?",
                        text(value, place)):
        refuse(place, "is not a finite hex float")
    try:
        return float.fromhex(value)
    except OverflowError:
        refuse(place, "is not a finite hex float")


# ---- schemas of several values


def maybe(read: Read) -> Read:
    """None for null."""
    return lambda value, place: None if value is None else read(value, place)


def absent(read: Read, default=None) -> Read:
    """A member that may be missing."""

    def read_if_there(value, place: str):
        return read(value, place)

    read_if_there.default = default
    return read_if_there


def every(read: Read, size: int | None = None, some: bool = False) -> Read:
    """A list of such values: of a certain size, or of some at least."""

    def read_all(value, place: str) -> list:
        if not isinstance(value, list):
            refuse(place, "is not an array")
        if size is not None and len(value) != size:
            refuse(place, f"has {len(value)} elements where {size} are expected")
        if some and not value:
            refuse(place, "is empty")
        return [read(one, f"{place}[{i}]") for i, one in enumerate(value)]

    return read_all


def shape(**members: Read) -> Read:
    """An object with these members; others are passed over. class_ is the key class."""

    def read_members(value, place: str) -> SimpleNamespace:
        found = SimpleNamespace()
        for name, read in members.items():
            key = name.rstrip("_")
            if isinstance(value, dict) and key in value:
                setattr(found, name, read(value[key], f"{place}.{key}" if place else key))
            elif isinstance(value, dict) and hasattr(read, "default"):
                setattr(found, name, read.default)
            else:
                refuse(place, f"'{key}' is missing")
        return found

    return read_members


def members_of(read: Read) -> Read:
    """An object with keys of any name, in the order of their names."""

    def read_values(value, place: str) -> dict:
        if not isinstance(value, dict):
            refuse(place, "is not an object")
        return {quoted(key): read(value[key], f"{place}.{key}") for key in sorted(value)}

    return read_values
