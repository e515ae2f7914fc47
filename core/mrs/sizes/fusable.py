"""Which blocks of a layer (attention, MLP) the native library can compute in one call.

The layer must have the `pre` style, RMS norms and no residual scale. Only q, k and v may have a
bias, and rarer features (sinks, gates, ...) are not supported. The caller must also check that all
matrices are packed.
"""

from __future__ import annotations

from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.delta_net_spec import GatedDeltaNet
from mrs.architecture.mixers.kda_spec import KimiDeltaAttention
from mrs.architecture.mixers.mamba2_spec import Mamba2
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.norm_rope import Norm
from mrs.sizes.attention_workspace import is_native
from mrs.sizes.fused_workspace import ACTIVATIONS, MAX_TAPS


def fusable_attention(layer: Layer) -> Attention | None:
    """The layer's attention if it can be fused, otherwise None."""
    attention = layer.mixer
    if type(attention) is not Attention or attention.rope is None or not _is_ordinary(layer):
        return None
    head_norm = attention.qk_norm or Norm(0.0)
    if not head_norm.learned or attention.clip is not None:
        return None
    if attention.qk_norm_whole or head_norm.kind != "rms" or not is_native(attention.head_dim):
        return None
    if attention.qk_norm_after_rope or attention.query_scale is not None or attention.chunk:
        return None
    if attention.value_norm is not None or attention.values_are_keys:
        return None
    if attention.value_head_dim is not None or attention.value_scale != 1.0:
        return None
    if attention.gated or attention.output_gate or attention.always_causal:
        return None
    return None if attention.sinks or attention.out_bias else attention


def fusable_mlp(layer: Layer) -> Mlp | None:
    """The layer's MLP if it can be fused, otherwise None."""
    mlp = layer.feed_forward
    if not isinstance(mlp, Mlp) or not _is_ordinary(layer):
        return None
    if mlp.cutoff is not None or mlp.gate_scale != 1.0 or mlp.out_scale != 1.0:
        return None
    return mlp if mlp.gated and not mlp.bias and mlp.activation in ACTIVATIONS else None


def is_fusable_mixer(mixer: GatedDeltaNet | KimiDeltaAttention | Mamba2) -> bool:
    """Whether one native call can compute this mixer for a few tokens, in layers of any style."""
    if mixer.kernel_tokens > MAX_TAPS or (mixer.norm is not None and mixer.norm.kind != "rms"):
        return False
    if isinstance(mixer, GatedDeltaNet):
        return mixer.beta_scale == 1.0
    if isinstance(mixer, KimiDeltaAttention):
        return True
    return not (mixer.bias or mixer.out_bias or mixer.multipliers or mixer.shares_group)


def _is_ordinary(layer: Layer) -> bool:
    if layer.output_scale or layer.gated_input or layer.laurel or layer.altup:
        return False
    if layer.feed_forward.has_own_norm or not layer.mixer_norm:
        return False
    is_rms = layer.norm.kind == "rms" and layer.norm.learned
    return is_rms and layer.style == "pre" and layer.residual_scale == 1.0
