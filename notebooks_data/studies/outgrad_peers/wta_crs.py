"""Rows of a Linear's input as WTA-CRS draws them (Liu et al., "Winner-Take-All Column Row Sampling for Memory
Efficient Adaptation of Language Model", NeurIPS 2023; zirui-ray-liu/WTACRS, commit e114d35), to compare
outgrad's rows (outgrad/rows.py) with.

Row i has a share of all in proportion to |x_i| |dy_i| + 1e-8, dy being the gradient of y that the same sample
had an epoch ago. Of k rows the c with the largest shares are taken surely, where c makes (1 - the sum of
their shares) / (k - c) least; the others are drawn from the rest with replacement, so that some are kept
twice. As published, what is drawn counts for nothing if the sure rows have more than 0.999 of all shares: the
mean of dW' is then not dW, but what the sure rows alone give.
"""

import torch

LEAST_SHARE, DROPS_ABOVE = 1e-8, 0.999


def draw(norms_of_x: torch.Tensor, norms_of_dy: torch.Tensor, k: int,
        generator: torch.Generator | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows are taken, at most k, and by what each is multiplied. norms: of n > k rows, [n]."""
    shares = norms_of_x.double() * norms_of_dy.double() + LEAST_SHARE
    shares, order = (shares / shares.sum()).sort(descending=True)
    mass = torch.cat((shares.new_zeros(1), shares.cumsum(0)))[:k]  # of the c largest
    c = int(((1 - mass) / (k - torch.arange(k, dtype=torch.float64))).argmin())
    sure, factors = order[:c], shares.new_ones(c)
    if mass[c] > DROPS_ABOVE:
        return sure, factors
    drawn = c + torch.multinomial(shares[c:], k - c, replacement=True, generator=generator)
    return torch.cat((sure, order[drawn])), torch.cat((factors,
        (1 - mass[c]) / ((k - c) * shares[drawn])))
