"""A tensor in MXFP8: e4m3 in blocks of 32 that share a power of two (OCP Microscaling Formats 1.0).

Blocks are of neighbours in the order of the elements; the last one may be shorter. Nothing but the decoder
below reads the codes, so the power is the least by which the block's largest finite magnitude becomes at most
448. (kernels/stores/mxfp8.h has the specification's, which may be half of that and saturate what lies between
448 and 512, and loses 2^-3 there.) A block whose largest is below 2^-118 has the least power there is, and
larger relative errors. Infinities count as 448 and NaNs stay NaN; neither has part in the power. Each step is
an operator, as in fp8.py.
"""

import torch

from . import library

BLOCK = 32
LARGEST = torch.finfo(torch.float8_e4m3fn).max
# A scale's bits are biased as the exponent of a float32 is. Added to the bits of a block's largest m 2^k,
# 1 <= m < 2, this takes 8 from the exponent, or 7 where m > 448 / 256.
_TO_SCALE = (1 << 23) - 1 - int((LARGEST / 256 - 1) * 2**23) - (8 << 23)


def _power(exponents: torch.Tensor) -> torch.Tensor:
    """Numbers of float32 with these biased exponents, int32."""
    return (exponents << 23).view(torch.float32)


@library.python_operator("mxfp8_encode", lambda x: (x.new_empty((x.numel(),), dtype=torch.uint8),
    x.new_empty(((x.numel() + BLOCK - 1) // BLOCK,), dtype=torch.uint8)))
def encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes of x in the order of its elements, and the scales of the blocks, one byte each."""
    n = x.numel()
    values = x.float().flatten()
    if n % BLOCK != 0:
        values = torch.nn.functional.pad(values, (0, -n % BLOCK))
    blocks = values.view(-1, BLOCK)
    largest = blocks.abs().nan_to_num_(nan=0.0, posinf=0.0).amax(1)
    scales = largest.view(torch.int32).add_(_TO_SCALE).bitwise_right_shift_(23).clamp_(min=1)
    codes = (blocks / _power(scales)[:, None]).clamp_(-LARGEST, LARGEST)
    codes = codes.to(torch.float8_e4m3fn).flatten().view(torch.uint8)
    return codes if codes.numel() == n else codes[:n].clone(), scales.to(torch.uint8)


@library.python_operator("mxfp8_decode", lambda codes, scales, dtype: torch.empty_like(codes, dtype=dtype))
def decode(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What the codes stand for, rounded to dtype. Beyond dtype's largest number, to where a code may be
    rounded up, it is that number."""
    every = (torch.arange(2**8, dtype=torch.uint8, device="cpu") if codes.device.type == "cpu"
        and codes.numel() > 2**8 else None)
    values = (codes.view(torch.float8_e4m3fn).float() if every is None
        else library.looked_up(every.view(torch.float8_e4m3fn).float(), codes))
    powers = _power(scales.to(torch.int32))
    if len(values) % BLOCK == 0:
        values.view(-1, BLOCK).mul_(powers[:, None])
    else:
        values.mul_(powers.repeat_interleave(BLOCK)[: len(values)])
    most = torch.finfo(dtype).max
    return values.clamp_(-most, most).to(dtype)
