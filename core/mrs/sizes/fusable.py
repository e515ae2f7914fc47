"""Which halves of layers the native library computes in one call each.

They are those of ordinary layers, of the `pre` style with root-mean-square norms, whose matrices
have no biases but those of queries, keys and values, and whose parts have no rarer features.
Besides, all matrices are packed.
"""

from __future__ import annotations

from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.norm_rope import Norm
from mrs.sizes.attention import is_native
from mrs.sizes.fused_layer import ACTIVATIONS


def fusable_attention(layer: Layer) -> Attention | None:
    """The layer's attention, if it is of that kind."""
    part = layer.mixer
    if not isinstance(part, Attention) or part.rope is None or not _is_ordinary(layer):
        return None
    head_norm = part.qk_norm or Norm(0.0)
    if part.qk_norm_whole or head_norm.kind != "rms" or not is_native(part.head_dim):
        return None
    return None if part.sinks or part.gated or part.out_bias else part


def fusable_feed_forward(layer: Layer) -> Mlp | None:
    """The layer's feed-forward part, if it is of that kind."""
    part = layer.feed_forward
    if not isinstance(part, Mlp) or not _is_ordinary(layer):
        return None
    return part if part.gated and not part.bias and part.activation in ACTIVATIONS else None


def _is_ordinary(layer: Layer) -> bool:
    return layer.style == "pre" and layer.residual_scale == 1.0 and layer.norm.kind == "rms"
