"""outgrad: gradients of transformer layers from their outputs, with proven bounds.

    import outgrad
    report = outgrad.patch(model)      # GELU, LayerNorm, RMSNorm and Dropout of any model
    print(report)
"""

from . import library  # first, because it names a PyTorch that is too old
from . import exported  # noqa: F401
from .attention import attention, softmax_dropout
from .bounds import Bounds, bounds
from .drift import look_for_drift, on_drift
from .functional import (add_layer_norm, add_rms_norm, dropout, dropout_add_layer_norm, dropout_add_rms_norm,
    elu, gelu, gelu_tanh, layer_norm)
from .functional import (linear_activation, linear_gelu, mish, quick_gelu, rms_norm, side_channels, sigmoid,
    silu, softplus, swish, tanh)
from .gates import activation_dropout, gated, gated_linear
from .library import ACTIVATIONS, version
from .linear import linear
from .modules import ELU, GELU, Dropout, LayerNorm, Linear, Mish, QuickGELU, RMSNorm, SiLU, Softmax, Softplus
from .own import CodedActivation, CodeHeader
from .patching import Report, patch, unpatch
from .relu_squared import ReLUSquared, relu_squared
from .softmax import softmax, softmax_bound

__version__ = version()
__all__ = ["ACTIVATIONS", "ELU", "GELU", "Bounds", "CodeHeader", "CodedActivation", "Dropout", "LayerNorm",
    "Linear", "Mish", "QuickGELU", "RMSNorm", "ReLUSquared", "Report", "SiLU", "Softmax", "Softplus",
    "activation_dropout", "add_layer_norm", "add_rms_norm", "attention", "bounds", "dropout",
    "dropout_add_layer_norm", "dropout_add_rms_norm", "elu", "gated", "gated_linear", "gelu", "gelu_tanh",
    "layer_norm", "linear", "linear_activation", "linear_gelu", "look_for_drift", "mish", "on_drift", "patch",
    "quick_gelu", "relu_squared", "rms_norm", "side_channels", "sigmoid", "silu", "softmax", "softmax_bound",
    "softmax_dropout", "softplus", "swish", "tanh", "unpatch"]

import torch.fx  # noqa: E402  (after what an older PyTorch is told)

for _name in filter(str.islower, __all__):
    torch.fx.wrap(_name)  # a call outgrad.gelu(x) is a node where torch.fx traces, as PyTorch's functions are
