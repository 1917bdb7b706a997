"""What a layer keeps for its backward pass: the words for it, and which activation and type has which.

An activation:

    y+bit      the output y, and one bit an element for an activation with a minimum: the default
    parity     y alone, whose lowest bit says the side of the minimum; float16 and bfloat16 (float32 falls
               back to y+bit)
    code:K     a code of f'(x) of K bits, 1 to 8; neither x nor y
    dither:K   a code of K bits, 2 or 3, rounded at random, so that its mean is f'(x); neither x nor y, but a
               seed
    e4m3       y in e4m3 with one scale a tensor, and with +bit or +2bits one or two bits an element beside
               it; activations with a minimum. e5m2, e5m2+bit and e5m2+2bits likewise
    mxfp8+bit  y in MXFP8 and one bit: 1.156 bytes an element; gelu alone

A norm keeps y, or in its place y in 8 bits:

    y          the output y, which the next layer also keeps: the default
    e4m3       y in e4m3 with one scale for the tensor: 1 byte an element
    mxfp8      y in MXFP8: 1.031 bytes an element
    int8       y in 8-bit integers, in groups of 64 with a zero point and a step: 1.125 bytes an element

kernels/c/outgrad.h states the contract of each.

A Linear keeps x in its own type, or in e4m3 or e5m2 with one scale a tensor, or of the rows of x as many in
a hundred as rows:1 to rows:99 say, drawn at random (linear.py, rows.py); with +e4m3 or +e5m2 these are in 8
bits. A softmax keeps its output p, or its logarithm in codes of 8 bits (softmax.py). A gated pair keeps both
of its factors, or its product and one factor, or both factors in 8 bits (gates.py).
"""

import collections.abc

import torch

from . import library
from .arguments import is_one_of, shown

DEFAULT = "y+bit"
# In place of a store, of patch alone: the one with the fewest bytes (auto.py), of activations, norms and
# gated pairs.
AUTO = "auto"
# What each word means: a store of the C library, and the bits of its code or beside it.
STORES = {
    DEFAULT: ("y", 0),
    "parity": ("y with its branch", 0),
    **{f"code:{bits}": ("code", bits) for bits in range(1, 9)},
    **{f"dither:{bits}": ("code", bits) for bits in (2, 3)},
    "mxfp8+bit": ("mxfp8", 0),
    **{name + beside: (name, bits) for name in library.FP8
    for bits, beside in enumerate(("", "+bit", "+2bits"))},
}
# What norms keep: the y of the next layer, or y in 8 bits.
DEFAULT_OF_NORMS = "y"
OF_NORMS = (DEFAULT_OF_NORMS, *library.NORM_STORES)
# What a Linear keeps in place of x: of how many rows in a hundred (None: of all), and in which of library.FP8
# (None: in x's type).
OF_LINEARS: dict[str, tuple[int | None, str | None]] = {
    **{of: (None, of) for of in library.FP8},
    **{f"rows:{percent}" + (f"+{of}" if of else ""): (percent, of)
    for of in (None, *library.FP8) for percent in range(1, 100)},
}
# What gated pairs keep.
DEFAULT_OF_PAIRS, OUTPUT, MXFP8 = "recompute", "output", "mxfp8"
OF_PAIRS = (DEFAULT_OF_PAIRS, OUTPUT, *library.FP8, MXFP8)
# What modules keep that are no activations; the first is the default.
OTHERS = {"linear": ("x", *OF_LINEARS), "softmax": ("p", "log2:8"), "norm": OF_NORMS, "gated": OF_PAIRS}
_WORDS = (
    "y+bit, parity, code:1 to code:8, dither:2, dither:3, mxfp8+bit, e4m3, e4m3+bit, e4m3+2bits and the same "
    "with e5m2")
WORDS_OF_LINEARS = f"{', '.join(library.FP8)}, rows:1 to rows:99, and these with +e4m3 or +e5m2"


def is_dithered(store: str) -> bool:
    return store.startswith("dither:")


def is_scaled(store: str) -> bool:
    """Whether it keeps y at one scale of the tensor."""
    return library.STORES[STORES[store][0]].takes_scale


def why_not(activation: str, store: object) -> str | None:
    """Why an activation cannot have this store; None if it can."""
    if not isinstance(store, str) or store not in STORES:
        return f"{shown(store)} is no store; there are {_WORDS}"
    if store == "parity" and activation not in library.MASKED:
        return f"{activation} has no minimum, so its y needs no parity: y+bit keeps y alone"
    if store == "mxfp8+bit" and activation != "gelu":
        return f"{activation} has no mxfp8+bit, gelu alone has it"
    if is_scaled(store) and activation not in library.MASKED:
        return f"{activation} has no minimum, and {store} is there for activations that have one"
    return None


def why_not_other(kind: str, store: object) -> str | None:
    """Why a kind of modules of OTHERS cannot have this store; None if it can."""
    if not isinstance(store, str) or store not in OTHERS[kind]:
        words = f"x, {WORDS_OF_LINEARS}" if kind == "linear" else ", ".join(OTHERS[kind])
        return f"{shown(store)} is no store of {kind}; there are {words}"
    return None


def why_not_pair(store: object) -> str:
    """Why a gated pair that cannot have this store cannot have it."""
    if not isinstance(store, str) or store not in OF_PAIRS:
        return f"store is {shown(store)}, none of {', '.join(OF_PAIRS)}"
    return f"store is {store!r}, which pairs of {', '.join(library.PRODUCTS)} have in float16 and bfloat16"


def for_pair(store: str, activation: str, dtype: torch.dtype) -> str:
    """The store that a pair of this activation and type gets."""
    has_it = activation in library.PRODUCTS and dtype != torch.float32
    return store if has_it or store != OUTPUT else DEFAULT_OF_PAIRS


def for_type(store: str, dtype: torch.dtype) -> str:
    """The store that arrays of this type get: parity needs 16 bits, so that float32 falls back to y+bit."""
    return DEFAULT if store == "parity" and dtype == torch.float32 else store


def by_kind(store: str | collections.abc.Mapping[str, str]) -> dict[str, str]:
    """{activation or one of OTHERS: store} of what patch was given: one store for all activations, of which
    auto is for norms and gated pairs, too, or a mapping; raises ValueError if it names what there is not.
    Whether an activation can have its store is only asked of those that a model has."""
    named = store if isinstance(store, collections.abc.Mapping) else dict.fromkeys(library.ACTIVATIONS, store)
    if is_one_of(store, (AUTO,)):
        named = {**named, "norm": AUTO, "gated": AUTO}
    for kind, one in named.items():
        if kind not in library.ACTIVATIONS and kind not in OTHERS:
            raise ValueError(f"outgrad.patch: store names {kind!r}, which is none of "
                f"{', '.join((*library.ACTIVATIONS, *OTHERS))}")
        if is_one_of(one, (AUTO,)) and (kind in ("norm", "gated") or kind not in OTHERS):
            continue
        if not isinstance(one, str) or one not in OTHERS.get(kind, STORES):
            raise ValueError(
                f"outgrad.patch: store: {why_not_other(kind, one) if kind in OTHERS else why_not(kind, one)}")
    return {**dict.fromkeys(library.ACTIVATIONS, DEFAULT),
        **{kind: words[0] for kind, words in OTHERS.items()}, **named}
