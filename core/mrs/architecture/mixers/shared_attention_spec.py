"""Attention to the keys and values of an earlier layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mrs.architecture.known_fields import Known, require_only
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mixer import CacheShape, Code, Mixer, Units
from mrs.architecture.norm_rope import Rope
from mrs.architecture.slots import Slot

#: What concerns queries, scores and the output, and keys and values as the other layer has them.
_KNOWN: Known = {
    "Attention": "heads kv_heads head_dim scale rope window softcap qk_norm value_norm "
    "values_are_keys qkv_bias out_bias always_causal"
}


@dataclass(frozen=True)
class SharedAttention(Mixer):
    """Attention like `attention`, whose keys and values are those that layer `layer` has cached.

    It has the weights of queries and output only, although files may have the others too.
    """

    code = Code(
        "mrs.model.shared_attention:SharedAttentionModule",
        "mrs.plan.memory.activations.shared_attention_activations:shared_attention_bytes",
        "mrs.graph.attention_operations:attend_shared",
    )

    attention: Attention
    layer: int
    unused_slots = ("mixer.k", "mixer.v", "mixer.k_norm")

    def __post_init__(self) -> None:
        apart = ("rope", "qk_norm", "value_norm")
        require_only(self.attention, _KNOWN, "attention to another layer's keys", apart=apart)

    @property
    def rope(self) -> Rope | None:  # type: ignore[override]
        return self.attention.rope

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        slots = self.attention.slots(hidden_size)
        return (slot for slot in slots if slot.name not in self.unused_slots)

    @property
    def units(self) -> tuple[Units, ...]:
        return self.attention.units

    def with_units(self, parts: Sequence[range]) -> SharedAttention:
        return replace(self, attention=self.attention.with_units(parts))

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape()

    def cached_multiplications(self, context_tokens: int, image_keys: int) -> int:
        return self.attention.cached_multiplications(context_tokens, image_keys)
