"""Multi-head latent attention to chosen tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mrs.architecture.mixers.mixer import CacheShape, Code
from mrs.architecture.mixers.mla_spec import LatentAttention
from mrs.architecture.norm_rope import Norm
from mrs.architecture.slots import Slot, norm_slots


@dataclass(frozen=True)
class Indexer:
    """Chooses the `top_k` tokens that a token attends to (DeepSeek Sparse Attention).

    The score of an earlier token is sum_h(weight_h * relu(q_h * k)) over `heads` with queries and
    one common key of `head_dim` values; the weights come from a linear map. The rope of the
    attention rotates the first values of each, in pairs that are adjacent if `interleaved`. `norm`
    is applied to keys.
    """

    heads: int
    head_dim: int
    top_k: int
    interleaved: bool
    norm: Norm


@dataclass(frozen=True)
class IndexedAttention(LatentAttention):
    """MLA to the tokens that an indexer chooses, whose keys are cached, too.

    The indexer's queries come from the latent vector of queries. If it `lends_choice`, the layers
    after it attend to the same tokens, up to the next layer with an indexer.
    """

    code = Code(
        "mrs.model.indexed_attention:IndexedAttentionModule",
        "mrs.plan.memory.activations.indexed_attention_activations:indexed_attention_bytes",
    )

    indexer: Indexer = field(kw_only=True)
    lends_choice: bool = field(default=False, kw_only=True)
    cache_count = 2

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        indexer = self.indexer
        yield from super().slots(hidden_size)
        rows = indexer.heads * indexer.head_dim
        yield Slot("mixer.index_q", (rows, self.q_lora_rank or hidden_size))
        yield Slot("mixer.index_k", (indexer.head_dim, hidden_size))
        yield from norm_slots("mixer.index_norm", indexer.head_dim, indexer.norm)
        yield Slot("mixer.index_weights", (indexer.heads, hidden_size), "vector")

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape((*super().cache_shape.token_rows, self.indexer.head_dim))

    def cached_multiplications(self, context_tokens: int, image_keys: int) -> int:
        indexer = self.indexer
        scores = indexer.heads * indexer.head_dim * context_tokens
        chosen = min(context_tokens, indexer.top_k)
        return scores + super().cached_multiplications(chosen, image_keys)


@dataclass(frozen=True)
class BorrowedChoiceAttention(LatentAttention):
    """MLA to the `top_k` tokens that the last layer with an indexer has chosen.

    Files may have an indexer for it all the same.
    """

    code = Code(
        "mrs.model.indexed_attention:BorrowedChoiceAttentionModule",
        "mrs.plan.memory.activations.indexed_attention_activations:borrowed_choice_bytes",
    )

    top_k: int = field(kw_only=True)
    unused_slots = ("mixer.index_q", "mixer.index_k", "mixer.index_norm", "mixer.index_weights")

    def cached_multiplications(self, context_tokens: int, image_keys: int) -> int:
        return super().cached_multiplications(min(context_tokens, self.top_k), image_keys)
