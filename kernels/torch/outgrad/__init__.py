"""outgrad: gradients of transformer layers from their outputs, with proven bounds.

    import outgrad
    report = outgrad.patch(model)      # GELU, LayerNorm, RMSNorm and Dropout of any model
    print(report)
"""

from .attention import attention, softmax_dropout
from .bounds import Bounds, bounds
from .functional import (
    dropout,
    dropout_add_layer_norm,
    elu,
    gelu,
    gelu_tanh,
    layer_norm,
    linear_gelu,
    mish,
    quick_gelu,
    rms_norm,
    side_channels,
    sigmoid,
    silu,
    softplus,
    swish,
    tanh,
)
from .library import version
from .modules import ELU, GELU, Dropout, LayerNorm, Mish, QuickGELU, RMSNorm, SiLU, Softplus
from .patching import Report, patch, unpatch

__version__ = version()
__all__ = [
    "ELU",
    "GELU",
    "Bounds",
    "Dropout",
    "LayerNorm",
    "Mish",
    "QuickGELU",
    "RMSNorm",
    "Report",
    "SiLU",
    "Softplus",
    "attention",
    "bounds",
    "dropout",
    "dropout_add_layer_norm",
    "elu",
    "gelu",
    "gelu_tanh",
    "layer_norm",
    "linear_gelu",
    "mish",
    "patch",
    "quick_gelu",
    "rms_norm",
    "side_channels",
    "sigmoid",
    "silu",
    "softmax_dropout",
    "softplus",
    "swish",
    "tanh",
    "unpatch",
]
