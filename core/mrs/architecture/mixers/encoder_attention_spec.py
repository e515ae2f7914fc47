"""Softmax attention of an encoder: in both directions, without a cache."""

from __future__ import annotations

from dataclasses import dataclass

from mrs.architecture.known_fields import Known, require_only
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mixer import CacheShape, Code

#: Scores depend on nothing but queries and keys.
_KNOWN: Known = {
    "EncoderAttention": "heads kv_heads head_dim scale rope window qk_norm qk_norm_whole "
    "qk_norm_by_head clip value_norm values_are_keys qkv_bias out_bias gated output_gate "
    "gates_heads value_scale"
}


@dataclass(frozen=True)
class EncoderAttention(Attention):
    """Attention of each token to all tokens of its sequence, also to later ones.

    With a `window`, a token attends to those that are less than `window` positions away. All
    tokens of a sequence are computed together, so that nothing is cached.
    """

    code = Code(
        "mrs.model.encoder_attention:EncoderAttentionModule",
        "mrs.plan.memory.activations.attention_activations:attention_bytes",
    )

    def __post_init__(self) -> None:
        require_only(
            self, _KNOWN, "attention of an encoder", apart=("rope", "qk_norm", "value_norm")
        )

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape()
