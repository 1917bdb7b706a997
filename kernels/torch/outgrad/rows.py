"""Some rows of a Linear's input, drawn so that what is computed of them has the mean of what all rows give.

dW = sum over rows i of g_i with g_i = dy_i^T x_i. Of n rows k are drawn, row i with the probability p_i, and
those rows x_i / p_i are kept: dW' = sum of dy_i^T (x_i / p_i) over the rows drawn. Its mean is dW.

Probabilities. p_i = min(1, w_i / t), where t is such that they sum to k. The weights w_i are |x_i| (L2), or
that times what the caller gives. The c rows with p_i = 1 are those of WTA-CRS (Liu et al., NeurIPS 2023): the
c largest, where c makes (1 - the sum of their shares of all weights) / (k - c) least.

The draw. The other rows lie on a line in their order, row i with the length p_i. The line is cut into K = k -
c pieces of length 1. In each piece its rows, and what is handed to it, play for one place in the sample: the
ordered pivotal method (Deville and Tille, Biometrika 1998), which is Deville's systematic sampling (Chauvet,
Bernoulli 2012). No row is drawn twice, k is fixed, and neighbours in the line, which often are neighbours in
a text, seldom come together. The variance is never above that of drawing with replacement, as WTA-CRS does
(Chauvet and Ruiz-Gazen, Statistics & Probability Letters 2017).

The variance of one element of dW', with v_i = g_i / p_i for its part of row i. Let row s cross the end of
piece j, with the length a before the end and b behind it (0, 0 if none does); let h be the row that is handed
to the piece, which brings the length b- of the row that crossed the end before. R is h or one of the rows
inside of the piece, with a probability in proportion to its length. Then with the probability q = a / (1 - b)
s is drawn and R is handed on, and otherwise R is drawn and s is handed on. So

    Var = sum over j of  (1 - a)^2 E[Var(v_R | h)] + a (1 - a - b) E[(v_s - v_R)^2],

where the first two moments of v_R follow from those of v_h, and those of what is handed on by q. Drawing with
replacement has sum g_i^2 / p_i - (sum g_i)^2 / K over these rows. Over all of dW, in Frobenius' norm,

    E |dW' - dW|^2 <= (sum of w_i) (sum of |dy_i|^2 |x_i|^2 / w_i) / k,

apart from roundings: of weights, below, of x_i / p_i to its type, and of the product. In float16 x / p is
infinite, and with it dW', where |x| exceeds 65504 p; in 8 bits dW' is NaN where |x| exceeds 2^127 p.

Bits. Weights are integers, computed so that no sum depends on its order, and random numbers are those of
Philox (kernels/dropout.h) for a seed and the piece's number. So each device draws the same rows for a seed
and an x. Each probability is exact to 2^-51: p_i is a quotient of these integers, and what is kept is divided
by that quotient. As the weights only say how often a row is drawn, their own roundings add no bias.
"""

import torch

from . import library

_WORD = 2**32 - 1
_MOST_BITS = 30  # of a weight
# A row's largest element becomes a number in [2^11, 2^12), and squares become integers of up to 24 bits. Each
# of them is a float32, and each sum of 2^29 of them a float64.
_BITS_OF_LARGEST = 12


def _words(seed: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
    """The words of Philox4x32-10 for the key seed and the counters 0 .. count - 1, four int64 of seed's shape
    but the last axis, which has `count`. Upper halves are kept clear only where a product or a caller reads
    them."""
    low, high = seed, seed >> 32
    a = torch.arange(count, device=seed.device)
    b = c = d = torch.zeros_like(a)
    for _ in range(10):
        even, odd = (a & _WORD) * 0xD2511F53, (c & _WORD) * 0xCD9E8D57
        a, b, c, d = (odd >> 32) ^ b ^ low, odd, (even >> 32) ^ d ^ high, even
        low, high = low + 0x9E3779B9, high + 0xBB67AE85
    return tuple(word & _WORD for word in (a, b, c, d))


def _fraction(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """A float64 in [0, 1) with 53 random bits."""
    return ((first << 21) ^ (second >> 11)).double() * 2.0**-53


def weights_of(x: torch.Tensor, given: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Of x, [n, columns]: for each row |x_i|, times given[i], in integers of up to 30 bits, all of which the
    largest has. A row that is not 0 has at least 1. Then 0.0, float64, or NaN if an element of x or of
    `given` is no finite number, or one of `given` is negative."""
    exponent = torch.linalg.vector_norm(x, torch.inf, 1).float().view(torch.int32) >> 23
    # a power of two, by its bits; rows that have no element of 2^-100 or more may weigh more than they should
    scale = ((253 + _BITS_OF_LARGEST - exponent.clamp(27, 254)) << 23).view(torch.float32)
    squares = (x.float() * scale[:, None]).square_().ceil_().sum(1, dtype=torch.float64)
    norms = squares.sqrt() / scale.double()
    if given is not None:
        norms *= given.reshape(-1).double()
    no_number = (norms.sqrt() * 0).sum()
    norms = norms.nan_to_num(0.0, 0.0, 0.0)
    bits = min(_MOST_BITS, 62 - 2 * x.shape[0].bit_length())  # so that int64 has the sum of n^2 weights
    weights = (norms / norms.max().clamp(min=torch.finfo(norms.dtype).tiny) * 2.0**bits).ceil().long()
    return torch.maximum(weights, (squares > 0).long()), no_number


def draw(weights: torch.Tensor, seed: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """k of the rows with these weights, int64, [..., k], and 1 / p_i of each in float64.

    weights: int64, [n]. seed: int64, [..., 1]. k: 1 to n. Rows of weight 0 are drawn only where the others
    are fewer than k, and count as drawn surely.
    """
    place = torch.arange(k, device=weights.device)
    order = weights.argsort(descending=True, stable=True)[:k]
    largest = weights[order]
    rest = weights.sum() - largest.cumsum(0) + largest  # of this row and all after it
    sure = largest * (k - place) > rest
    pieces = k - sure.sum()
    # All lengths are times `piece`, which is what a piece of length 1 then has.
    piece = rest.take(k - pieces)
    lengths = weights.scatter(0, order, largest.masked_fill(sure, 0)) * pieces
    ends = lengths.cumsum(0)

    def row_at(point: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(ends, point, right=True).clamp_(max=len(ends) - 1)

    end = (place + 1) * piece
    crossing = row_at(end)
    before = torch.where(place + 1 < pieces, end - (ends - lengths)[crossing], 0)
    behind = torch.where(before > 0, ends[crossing] - end, 0)
    handed = torch.cat((behind.new_zeros(1), behind[:-1]))
    words = _words(seed, k)
    at = torch.minimum((_fraction(*words[:2]) * (piece - before)).long(), piece - before - 1)
    crosses = _fraction(*words[2:]) * (piece - behind) < before
    stays, inside = at < handed, row_at(place * piece + at)
    # Whom a piece hands on: one of its own, or the one that was handed to it, and so that of the last piece
    # that handed on one of its own.
    own = torch.where(crosses, inside, crossing)
    last = torch.where(crosses & stays, -1, place).cummax(-1).values
    to_next = own.gather(-1, last)
    to_it = torch.cat((to_next[..., :1], to_next[..., :-1]), -1)
    drawn = torch.where(crosses, crossing, torch.where(stays, to_it, inside))
    played = (place < pieces) & (piece > 0)
    index = torch.where(played, drawn, order[(place - pieces) % k])
    return index, torch.where(played, piece.double() / lengths[index], 1.0)


@library.python_operator("sampled_rows", lambda x, given, seed, k, dtype: (
    x.new_empty((k, x.shape[1]), dtype=dtype), x.new_empty((k,), dtype=torch.int32)))
def sample(x: torch.Tensor, given: torch.Tensor | None, seed: torch.Tensor, k: int,
        dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """k rows of x, [n, columns], each over its probability, rounded once to dtype, [k, columns]; and which
    they are, int32, [k]. If an element of x is no finite number, or one of `given` no weight, all is NaN."""
    if x.numel() == 0:
        return x.new_empty((k, x.shape[1]), dtype=dtype), torch.arange(k, dtype=torch.int32, device=x.device)
    weights, no_number = weights_of(x, given)
    index, over = draw(weights, seed, k)
    return (x[index].float() * (over + no_number).float()[:, None]).to(dtype), index.int()
