"""outgrad: gradients of transformer layers from their outputs, with proven bounds.

    import outgrad
    report = outgrad.patch(model)      # GELU, LayerNorm, RMSNorm and Dropout of any model
    print(report)
"""

from .attention import attention, softmax_dropout
from .bounds import Bounds, bounds
from .functional import dropout, dropout_add_layer_norm, gelu, layer_norm, linear_gelu, rms_norm, side_channels
from .library import version
from .modules import GELU, Dropout, LayerNorm, RMSNorm
from .patching import Report, patch, unpatch

__version__ = version()
__all__ = [
    "GELU",
    "Bounds",
    "Dropout",
    "LayerNorm",
    "RMSNorm",
    "Report",
    "attention",
    "bounds",
    "dropout",
    "dropout_add_layer_norm",
    "gelu",
    "layer_norm",
    "linear_gelu",
    "patch",
    "rms_norm",
    "side_channels",
    "softmax_dropout",
    "unpatch",
]
