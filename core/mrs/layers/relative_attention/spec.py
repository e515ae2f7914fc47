"""Attention of an encoder whose scores depend on how far a key is from the query."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from mrs.layers.attention.spec import EncoderAttention
from mrs.layers.known_fields import SETTLED, Known, require_only
from mrs.layers.mixer import Code, ShardAxis
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots

#: All that attention of an encoder has, and what of it is computed here.
_ALL_FIELDS = f"{SETTLED['EncoderAttention']} key_bias"
_FIELDS = "heads kv_heads head_dim scale rope qkv_bias out_bias"


_OF_POSITIONS = "span buckets most_distance position_keys position_queries own_maps norm"


class RelativeAttention(EncoderAttention):
    """Attention with an addend of each score. All layers read the same table, by distance.

    Each head has keys of its own, and there is neither a window nor rope. Several processes do not
    share the heads.
    """

    KNOWN: ClassVar[Known]

    def __post_init__(self) -> None:
        require_only(self, self.KNOWN, "attention by distance", apart=("rope", "norm"))
        assert self.kv_heads == self.heads

    @abstractmethod
    def shared_slots(self, hidden_size: int) -> Iterator[Slot]:
        """The table, and what belongs to it."""

    @property
    def shard_axes(self) -> tuple[ShardAxis, ...]:
        return ()


@dataclass(frozen=True)
class BiasedAttention(RelativeAttention):
    """score = scale * (query · key) + bias[bucket of the distance, head], as in MPNet and T5."""

    KNOWN: ClassVar[Known] = {"BiasedAttention": f"{_FIELDS} buckets"}
    code = Code(
        "mrs.layers.relative_attention.module:BiasedAttentionModule",
        operations="mrs.graph.attention_operations:attend",
        fields=f"{_ALL_FIELDS} buckets",
        paths="planned",
    )

    buckets: int = 32

    def shared_slots(self, hidden_size: int) -> Iterator[Slot]:
        yield Slot("distances", (self.buckets, self.heads), "dense")


@dataclass(frozen=True)
class DisentangledAttention(RelativeAttention):
    """score = scale * (query · key + query · K r + Q r · key), as in DeBERTa (arXiv 2006.03654).

    r is the vector of the distance in a table of 2 * `span` rows, after the `norm` if there is one;
    distances are in `buckets`, if there are any, of which the last begin at `most_distance`. The
    second addend is there if there are `position_keys`, the third if there are `position_queries`.
    K and Q are the maps of keys and queries, or have weights of their own with `own_maps`.
    """

    KNOWN: ClassVar[Known] = {
        "DisentangledAttention": f"{_FIELDS} {_OF_POSITIONS}",
        "Norm": "eps kind bias learned",
    }
    code = Code(
        "mrs.layers.relative_attention.module:DisentangledAttentionModule",
        operations="mrs.graph.attention_operations:attend",
        fields=f"{_ALL_FIELDS} {_OF_POSITIONS}",
        paths="planned",
    )

    span: int = 512
    buckets: int = 0
    most_distance: int = 512
    position_keys: bool = True
    position_queries: bool = True
    own_maps: bool = False
    norm: Norm | None = None

    @property
    def maps(self) -> tuple[str, ...]:
        """The slots of K and of Q, as far as they are there."""
        wanted = {"k": self.position_keys, "q": self.position_queries}
        prefix = "mixer.position_" if self.own_maps else "mixer."
        return tuple(prefix + name for name, is_there in wanted.items() if is_there)

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        yield from super().slots(hidden_size)
        for name in self.maps if self.own_maps else ():
            yield Slot(name, (self.key_size, hidden_size), bias=True)

    def shared_slots(self, hidden_size: int) -> Iterator[Slot]:
        yield Slot("distances", (2 * self.span, hidden_size), "dense")
        if self.norm is not None:
            yield from norm_slots("distances_norm", hidden_size, self.norm)
