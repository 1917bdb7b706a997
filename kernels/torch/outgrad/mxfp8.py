"""A tensor in MXFP8: e4m3 in blocks of 32 that share a power of two (OCP Microscaling Formats 1.0).

Blocks are of neighbours in the order of the elements; the last one may be shorter. Nothing but the decoder
below reads the codes, so the power is the least by which the block's largest finite magnitude becomes at most
448. (kernels/stores/mxfp8.h has the specification's, which may be half of that and saturate what lies between
448 and 512, and loses 2^-3 there.) A block whose largest is below 2^-118 has the least power there is, and
larger relative errors. Infinities count as 448 and NaNs stay NaN; neither has part in the power. Each step is
an operator, as in fp8.py.
"""

import torch

BLOCK = 32
LARGEST = torch.finfo(torch.float8_e4m3fn).max
_BIAS = 127  # of E8M0, the type of a scale


def _power(exponents: torch.Tensor) -> torch.Tensor:
    """2^e in float32, for -126 <= e <= 127."""
    return (exponents.to(torch.int32) + _BIAS << 23).view(torch.float32)


@torch.library.custom_op("outgrad::mxfp8_encode", mutates_args=())
def encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes of x in the order of its elements, and the scales of the blocks, one byte each."""
    n = x.numel()
    blocks = torch.nn.functional.pad(x.float().flatten(), (0, -n % BLOCK)).view(-1, BLOCK)
    mantissa, exponent = torch.frexp(blocks.abs().nan_to_num_(nan=0.0, posinf=0.0).amax(1))
    # a largest m 2^k, 1/2 <= m < 1, is at most 448 2^e for e = k - 9 if m <= 448 / 512
    exponent = (exponent - 9 + (mantissa > LARGEST / 512)).clamp_(min=1 - _BIAS)
    blocks *= _power(-exponent)[:, None]
    codes = blocks.clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn).flatten().view(torch.uint8)
    return codes if codes.numel() == n else codes[:n].clone(), (exponent + _BIAS).to(torch.uint8)


@encode.register_fake
def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x.new_empty((x.numel(),), dtype=torch.uint8),
        x.new_empty(((x.numel() + BLOCK - 1) // BLOCK,), dtype=torch.uint8))


@torch.library.custom_op("outgrad::mxfp8_decode", mutates_args=())
def decode(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What the codes stand for, rounded to dtype. Beyond dtype's largest number, to where a code may be
    rounded up, it is that number."""
    values = codes.view(torch.float8_e4m3fn).float()
    powers = _power(scales.to(torch.int32) - _BIAS)
    most = torch.finfo(dtype).max
    return values.mul_(powers.repeat_interleave(BLOCK)[: len(values)]).clamp_(-most, most).to(dtype)


@decode.register_fake
def _(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_like(codes, dtype=dtype)
