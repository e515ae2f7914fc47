"""Which blocks of a layer Triton computes in few launches.

Each names the fields of its specs that it computes; a layer that sets any other is computed
operation by operation. The caller must also check that all matrices are packed.
"""

from __future__ import annotations

from collections.abc import Collection

from mrs.kernels.native_limits import ACTIVATIONS, is_native
from mrs.layers.attention.spec import Attention
from mrs.layers.known_fields import Known, uses_only
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.moe.spec import Moe

#: An RMS norm with weights.
_RMS_NORM: Known = {"Norm": "eps"}
#: A layer of the style `pre`.
_LAYER: Known = {**_RMS_NORM, "Layer": "mixer feed_forward norm"}
#: Angles come from a table, which knows how frequencies are scaled. Only q, k and v have a bias.
_ATTENTION: Known = {
    **_RMS_NORM,
    "Rope": "dim base scaling interleaved sections interleaved_sections backwards",
    "RopeScaling": "kind values factors long_factors",
    "Attention": "heads kv_heads head_dim scale rope window softcap qk_norm qkv_bias",
}
_MLP: Known = {"Mlp": "intermediate activation"}
#: Experts alone: the choice, the weights and everything around them are computed elsewhere.
_EXPERTS: Known = {
    "Mlp": "intermediate activation bias clamp",
    "Moe": "router expert shared shared_gate latent latent_bias",
}


def fusable_attention(layer: Layer) -> Attention | None:
    """The layer's attention if Triton can compute it, otherwise None."""
    attention = layer.mixer
    if not isinstance(attention, Attention) or attention.rope is None or not _is_ordinary(layer):
        return None
    if not uses_only(attention, _ATTENTION) or not is_native(attention.head_dim):
        return None
    return attention


def fusable_mlp(layer: Layer) -> Mlp | None:
    """The layer's MLP if it can be fused, otherwise None."""
    mlp = layer.feed_forward
    if not isinstance(mlp, Mlp) or not uses_only(mlp, _MLP) or not _is_ordinary(layer):
        return None
    return mlp if mlp.activation in ACTIVATIONS else None


def has_fusable_experts(moe: Moe, activations: Collection[str]) -> bool:
    """Whether Triton, which knows these activations, can compute the experts of a few tokens."""
    is_known = uses_only(moe, _EXPERTS, apart=("router", "shared"))
    return is_known and moe.expert.activation in activations


def _is_ordinary(layer: Layer) -> bool:
    return not layer.feed_forward.has_own_norm and uses_only(
        layer, _LAYER, apart=("mixer", "feed_forward")
    )
