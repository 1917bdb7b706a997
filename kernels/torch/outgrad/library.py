"""Loads the compiled operators, and states the shapes of their results for fake tensors and torch.compile."""

import ctypes
import importlib.util
import pathlib

import torch

LEAST_TORCH = (2, 10)

_version = tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in torch.__version__.split("+")[0].split(".")[:2])
if _version < LEAST_TORCH:
    raise ImportError(f"outgrad needs PyTorch {LEAST_TORCH[0]}.{LEAST_TORCH[1]} or later, this is {torch.__version__}")

_path = next(iter(pathlib.Path(__file__).parent.glob("liboutgrad_torch.*")), None)
if _path is None:
    raise ImportError(f"outgrad: {pathlib.Path(__file__).parent} has no liboutgrad_torch: the package was not built")
torch.ops.load_library(str(_path))

# Called as overloads, because the packet above them searches for the overload at each call.
activation_forward = torch.ops.outgrad.activation_forward.default
activation_backward = torch.ops.outgrad.activation_backward.default
activation_forward_parity = torch.ops.outgrad.activation_forward_parity.default
activation_backward_parity = torch.ops.outgrad.activation_backward_parity.default
activation_forward_code = torch.ops.outgrad.activation_forward_code.default
activation_backward_code = torch.ops.outgrad.activation_backward_code.default
encode_gradients = torch.ops.outgrad.encode_gradients.default
backward_encoded = torch.ops.outgrad.backward_encoded.default
gelu_forward_mxfp8 = torch.ops.outgrad.gelu_forward_mxfp8.default
gelu_backward_mxfp8 = torch.ops.outgrad.gelu_backward_mxfp8.default
activation_forward_fp8 = torch.ops.outgrad.activation_forward_fp8.default
activation_backward_fp8 = torch.ops.outgrad.activation_backward_fp8.default
softmax_forward_code = torch.ops.outgrad.softmax_forward_code.default
softmax_backward_code = torch.ops.outgrad.softmax_backward_code.default
bias_gelu_forward = torch.ops.outgrad.bias_gelu_forward.default
bias_gelu_backward = torch.ops.outgrad.bias_gelu_backward.default
norm_forward = torch.ops.outgrad.norm_forward.default
norm_backward = torch.ops.outgrad.norm_backward.default
norm_forward_of_sum = torch.ops.outgrad.norm_forward_of_sum.default
norm_backward_of_sum = torch.ops.outgrad.norm_backward_of_sum.default
norm_forward_8bit = torch.ops.outgrad.norm_forward_8bit.default
norm_backward_8bit = torch.ops.outgrad.norm_backward_8bit.default
dropout = torch.ops.outgrad.dropout.default

# outgrad_format of kernels/c/outgrad.h.
FORMATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
# outgrad_fp8 of kernels/c/outgrad.h.
FP8 = {"e4m3": 0, "e5m2": 1}

_c = ctypes.CDLL(str(_path))
# seed_at(seed, offset): what torch.randint(0, 2**62, (1,)) draws on a CUDA device whose generator has this seed and stands at this offset.
seed_at = _c.outgrad_torch_seed
seed_at.argtypes, seed_at.restype = (ctypes.c_uint64, ctypes.c_uint64), ctypes.c_int64
_c.outgrad_torch_version.restype = _c.outgrad_torch_activation.restype = ctypes.c_char_p



def _catalogue():
    names = []
    while (name := _c.outgrad_torch_activation(len(names))) is not None:
        names.append(name.decode())
    return tuple(names)


# The activations of kernels/activations.h, in the order of outgrad_activation.
ACTIVATIONS: tuple[str, ...] = _catalogue()

# The CUDA run-time compiler is in a package that PyTorch depends on. It is loaded with the first kernel, like libcuda.
if torch.version.cuda is not None and (_nvidia := importlib.util.find_spec("nvidia")) is not None:
    _folders = sorted({str(path.parent).encode() for root in _nvidia.submodule_search_locations for path in pathlib.Path(root).glob("*/lib/libnvrtc.so*")})
    _c.outgrad_torch_nvrtc_folders((ctypes.c_char_p * len(_folders))(*_folders), len(_folders))

# The activations with a minimum, for which a bit says on which side of it x was.
MASKED = tuple(name for index, name in enumerate(ACTIVATIONS) if _c.outgrad_torch_masked(index) == 1)


def fit_of(activation, dtype, kind=0, bits=0):
    """The name of the fit that a backward pass runs, its header's SHA-256, and its bounds (kA + kB, kK, kT, kR, kBias).
    kind and bits: of a store (stores.py)."""
    name, sha256, bounds = ctypes.c_char_p(), ctypes.c_char_p(), (ctypes.c_double * 5)()
    if _c.outgrad_torch_fit(ACTIVATIONS.index(activation), FORMATS[dtype], kind, bits, ctypes.byref(name), ctypes.byref(sha256), bounds) != 0:
        raise ValueError(f"no fit of {activation} for {dtype}")
    return name.value.decode(), sha256.value.decode(), tuple(bounds)


def fp8_error(activation, fp8, scale, bits):
    """The proven bound of an activation's gradient from y in 8 bits at this scale, with 0 to 2 bits beside it."""
    error = ctypes.c_double()
    if _c.outgrad_torch_fp8_error(ACTIVATIONS.index(activation), fp8, ctypes.c_float(scale), bits, ctypes.byref(error)) != 0:
        raise ValueError(f"no y in 8 bits of {activation} at a scale of {scale}")
    return error.value


# Longer rows of softmax have no codes.
MOST_SOFTMAX = 2**23


def softmax_error(n, total=0.0, spread=0.0, largest=0.0):
    """For a row of n elements with codes: (relative error of p', the largest p with code 0, the bound of sum |dx - ds|, where
    total is sum |ds|, spread the largest less the least dy, and largest the greatest |dy|)."""
    found = tuple(ctypes.c_double() for _ in range(3))
    if _c.outgrad_torch_softmax(ctypes.c_int64(n), *map(ctypes.c_double, (total, spread, largest)), *map(ctypes.byref, found)) != 0:
        raise ValueError(f"softmax has codes for rows of 1 to 2^23 elements, not of {n}")
    return tuple(one.value for one in found)


def softmax_values():
    """What the 256 codes of softmax's output stand for."""
    values = (ctypes.c_float * 256)()
    _c.outgrad_torch_softmax_values(values)
    return tuple(values)


def version() -> str:
    return _c.outgrad_torch_version().decode()


def _floats(like, *size):
    return like.new_empty(size, dtype=torch.float32)


def _contiguous(like):
    return torch.empty_like(like, memory_format=torch.contiguous_format)


def _mask(x, masked=True):
    return x.new_empty(((x.numel() + 31) // 32 if masked else 0,), dtype=torch.int32)


def _octets(x, count):
    return x.new_empty((count,), dtype=torch.uint8)


@torch.library.register_fake("outgrad::activation_forward")
def _(x, activation):
    return _contiguous(x), _mask(x, ACTIVATIONS[activation] in MASKED)


@torch.library.register_fake("outgrad::activation_forward_parity")
def _(x, activation):
    return _contiguous(x)


@torch.library.register_fake("outgrad::activation_backward_parity")
def _(dy, y, activation):
    return _contiguous(dy)


@torch.library.register_fake("outgrad::activation_forward_code")
def _(x, activation, bits, seed):
    return _contiguous(x), _octets(x, (x.numel() * bits + 7) // 8)


@torch.library.register_fake("outgrad::activation_backward_code")
def _(dy, codes, activation, bits, seed):
    return _contiguous(dy)


@torch.library.register_fake("outgrad::encode_gradients")
def _(g, lo, hi, bits, seed):
    return _octets(g, (g.numel() * bits + 7) // 8)


@torch.library.register_fake("outgrad::backward_encoded")
def _(dy, codes, lo, hi, bits, seed):
    return _contiguous(dy)


@torch.library.register_fake("outgrad::gelu_forward_mxfp8")
def _(x):
    return _octets(x, x.numel()), _octets(x, (x.numel() + 31) // 32), _mask(x)


@torch.library.register_fake("outgrad::gelu_backward_mxfp8")
def _(dy, codes, scales, mask):
    return _contiguous(dy)


@torch.library.register_fake("outgrad::activation_forward_fp8")
def _(x, scale, activation, fp8, bits):
    return _octets(x, x.numel()), _octets(x, (x.numel() * bits + 7) // 8)


@torch.library.register_fake("outgrad::activation_backward_fp8")
def _(dy, codes, parts, scale, activation, fp8, bits):
    return _contiguous(dy)


@torch.library.register_fake("outgrad::softmax_forward_code")
def _(x, columns):
    return _contiguous(x), _octets(x, x.numel())


@torch.library.register_fake("outgrad::softmax_backward_code")
def _(dy, codes, columns):
    return _contiguous(dy)


@torch.library.register_fake("outgrad::bias_gelu_forward")
def _(x, bias):
    return _contiguous(x), _mask(x)


@torch.library.register_fake("outgrad::bias_gelu_backward")
def _(dy, y, mask, columns, like=None):
    return _contiguous(dy), y.new_empty(columns, dtype=torch.float32 if like is None else like.dtype)


@torch.library.register_fake("outgrad::activation_backward")
def _(dy, y, mask, activation):
    return _contiguous(dy)


@torch.library.register_fake("outgrad::norm_forward")
def _(x, columns, gamma, beta, eps, rms, side_channels, seen=None, tau=0.0):
    rows = x.numel() // columns
    return _contiguous(x), _floats(x, rows), _floats(x, rows, 0 if side_channels is None else side_channels.numel())


def _gradients_of_parameters(dy, columns, gamma, beta, with_dgamma, with_dbeta):
    model = gamma if gamma is not None else beta
    dtype = torch.float32 if model is None else model.dtype
    return tuple(dy.new_empty(columns if wanted else 0, dtype=dtype) for wanted in (with_dgamma, with_dbeta))


@torch.library.register_fake("outgrad::norm_backward")
def _(dy, y, columns, gamma, beta, rstd, rms, side_channels, side_x_hat, with_dgamma, with_dbeta, tau=0.0):
    return _contiguous(dy), *_gradients_of_parameters(dy, columns, gamma, beta, with_dgamma, with_dbeta)


@torch.library.register_fake("outgrad::norm_forward_of_sum")
def _(x, residual, columns, gamma, beta, eps, rms, side_channels, seed, p, with_z, seen=None, tau=0.0):
    return *norm_forward(x, columns, gamma, beta, eps, rms, side_channels), _contiguous(x) if with_z else x.new_empty(0)


@torch.library.register_fake("outgrad::norm_backward_of_sum")
def _(dy, y, dz_next, columns, gamma, beta, rstd, rms, side_channels, side_x_hat, with_dgamma, with_dbeta, seed, p, tau=0.0):
    dx = dy.new_empty(0) if seed is None else _contiguous(dy)
    return _contiguous(dy), dx, *_gradients_of_parameters(dy, columns, gamma, beta, with_dgamma, with_dbeta)


@torch.library.register_fake("outgrad::norm_forward_8bit")
def _(x, columns, gamma, beta, eps, rms, side_channels, store):
    y, rstd, x_hat = norm_forward(x, columns, gamma, beta, eps, rms, side_channels)
    # The bytes of scales in the order of outgrad_norm_store: a float for all, a byte for 32 elements, two floats for 64.
    scales = (4, x.numel() // 32, x.numel() // 64 * 8)[store]
    return y, _octets(x, x.numel()), _octets(x, scales), rstd, x_hat


@torch.library.register_fake("outgrad::norm_backward_8bit")
def _(dy, codes, scales, columns, gamma, beta, rstd, rms, side_channels, side_x_hat, with_dgamma, with_dbeta, store):
    return _contiguous(dy), *_gradients_of_parameters(dy, columns, gamma, beta, with_dgamma, with_dbeta)


@torch.library.register_fake("outgrad::dropout")
def _(x, seed, p):
    return _contiguous(x)
