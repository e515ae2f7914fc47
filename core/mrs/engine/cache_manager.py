"""The caches of running sequences: where they come from, and what becomes of them."""

from __future__ import annotations

from collections import abc

from mrs.cache.prefix import PrefixCacheManager
from mrs.cache.space import CacheSpace
from mrs.engine.image_input import chunk_end
from mrs.engine.sequence import Sequence
from mrs.model.decoder import Decoder
from mrs.sizes.blocks import blocks_of

#: As many tokens are worth a step of their own, or waiting for, if they are not computed again.
_WORTH_TOKENS = 32


class CacheManager:
    """Allocates a cache for each sequence, filled from the prefix cache as far as possible.

    The planned memory holds caches of `planned_seqs` sequences of `planned_tokens` each.
    `space` is where they all, and those of `prefixes`, have their blocks. Without `keeps_caches`,
    all tokens of a sequence are computed again at every step.
    """

    def __init__(
        self,
        decoder: Decoder,
        prefixes: PrefixCacheManager,
        space: CacheSpace,
        *,
        planned_tokens: int,
        planned_seqs: int,
        keeps_caches: bool = True,
    ) -> None:
        self._decoder = decoder
        self._prefixes = prefixes
        self.space = space
        self._planned_tokens = planned_tokens
        self._planned_seqs = planned_seqs
        self._keeps_caches = keeps_caches

    @property
    def prefix_bytes(self) -> int:
        """Bytes that the prefix cache holds."""
        return self._prefixes.nbytes

    def can_allocate(self, sequences: abc.Iterable[Sequence]) -> bool:
        """Whether all these sequences together fit in the planned memory."""
        num_blocks = sum(blocks_of(len(each.token_ids)) for each in sequences)
        return num_blocks <= blocks_of(self._planned_tokens) * self._planned_seqs

    def allocate(self, sequence: Sequence) -> None:
        """Give `sequence` a cache.

        Sets `num_computed_tokens` to how many of its tokens the cache holds already.
        """
        total_tokens = len(sequence.token_ids)
        sequence.rope_epoch = self._decoder.era(total_tokens)
        hit = None
        if sequence.rope_epoch is not None:
            keys, images = sequence.prefix_keys, sequence.images
            shared = self._prefixes.shared_tokens(keys, era=sequence.rope_epoch, with_files=True)
            limit = chunk_end(images, len(keys) - 1)
            hit = self._prefixes.search_for_matching_cache(
                keys[: limit + 1], era=sequence.rope_epoch, leave_last=True
            )
            is_worth_it = shared >= _WORTH_TOKENS + (hit.offset if hit else 0)
            snapshot_at = chunk_end(images, min(shared, sequence.num_prompt_tokens - 1))
            sequence.snapshot_at = snapshot_at if is_worth_it else 0
        sequence.num_computed_tokens = hit.offset if hit else 0
        if not sequence.num_new_tokens and not sequence.num_preemptions:
            sequence.num_cached_tokens = sequence.num_computed_tokens
        sequence.cache = hit.normal if hit else self.space.new()

    def is_prefix_being_computed(self, sequence: Sequence, other: Sequence) -> bool:
        """Whether `other` is about to compute a good part of what `sequence` begins with."""
        epoch = self._decoder.era(len(sequence.token_ids))
        if epoch is None or epoch != other.rope_epoch or not self._prefixes.is_on:
            return False
        keys, other_keys = sequence.prefix_keys, other.prefix_keys
        common = self._prefixes.shared_tokens(keys, era=epoch) + _WORTH_TOKENS
        if other.num_computed_tokens < other.snapshot_at:
            common = other.snapshot_at
        return (
            min(sequence.num_prompt_tokens, other.num_prompt_tokens) > common
            and keys[:common] == other_keys[:common]
        )

    def store_prefix(self, sequence: Sequence) -> None:
        """Let other sequences begin like this one, which goes on."""
        if sequence.rope_epoch is not None and sequence.cache is not None:
            tokens = sequence.prefix_keys[: sequence.num_computed_tokens]
            self._prefixes.add_sequence(tokens, sequence.cache, era=sequence.rope_epoch)

    def needs_recompute(self, sequence: Sequence) -> bool:
        """Whether what the cache holds must not be used for the next token."""
        if sequence.cache is None:
            return False
        total_tokens = len(sequence.token_ids)
        return not self._keeps_caches or self._decoder.is_outdated(sequence.cache, total_tokens)

    def free(self, sequence: Sequence) -> None:
        """Take back the cache of a sequence, for the prefix cache if it can be shared."""
        if sequence.cache is None:
            return
        epoch = self._decoder.era(max(len(sequence.token_ids), 1))
        if epoch == sequence.rope_epoch and self._prefixes.is_on and sequence.num_computed_tokens:
            self.store_prefix(sequence)
        self.invalidate(sequence)
        self._prefixes.evict_caches()

    def preempt(self, sequence: Sequence) -> None:
        """Free the cache of a sequence that waits until there is space again."""
        self.free(sequence)

    def invalidate(self, sequence: Sequence) -> None:
        """Drop a cache whose contents must not be used again."""
        if sequence.cache is not None:
            sequence.cache.release()
        sequence.cache, sequence.num_computed_tokens = None, 0

    def rollback(self, sequence: Sequence) -> None:
        """Undo a step that did not end, after which some layers' caches hold its tokens."""
        cache = sequence.cache
        length = min(sequence.num_computed_tokens, len(sequence.token_ids) - 1)
        if cache is None:
            return
        if cache.has_states or not cache.can_rewind_to(length):
            self.invalidate(sequence)
        else:
            cache.rewind(length)
            sequence.num_computed_tokens = length

    def close(self) -> None:
        """Wait for what the prefix cache still has to write to files."""
        self._prefixes.close()
