"""Allocates, shares and frees the caches of running sequences."""

from __future__ import annotations

from collections import abc
from typing import TYPE_CHECKING

from mrs.cache.cache_space import CacheSpace
from mrs.cache.prefix.manager import PrefixCacheManager
from mrs.engine.image_input import chunk_end
from mrs.engine.sequence import Sequence
from mrs.plan.memory.cache_size import CacheSize

if TYPE_CHECKING:
    from mrs.cache.sequence_cache import SequenceCache
    from mrs.model.decoder import Decoder

#: To avoid computing so many tokens again, an extra step or some waiting is worth it.
_WORTH_TOKENS = 32
#: Most states of a prompt that are kept.
_MOST_SNAPSHOTS = 16


class CacheManager:
    """Allocates a cache for each sequence, filled from the prefix cache as far as possible.

    `space`, made for `size`, has the blocks of all of them and of `prefixes`. Without
    `keeps_caches`, every step computes all tokens of its sequences again.
    """

    def __init__(
        self,
        decoder: Decoder,
        prefixes: PrefixCacheManager,
        space: CacheSpace,
        size: CacheSize,
        *,
        keeps_caches: bool = True,
    ) -> None:
        self._decoder = decoder
        self._prefixes = prefixes
        self.space = space
        self._size = size
        self._windows = {pool.window for pool in space.pools}
        self._has_states = space.new().has_states
        self._keeps_caches = keeps_caches

    @property
    def planned_sequences(self) -> int:
        """How many sequences the memory was planned for."""
        return self._size.sequences

    def can_allocate(self, sequences: abc.Iterable[Sequence]) -> bool:
        """Whether all these sequences with their drafts together fit in the planned memory."""
        if self._decoder.spec.attends_both_ways:
            return True  # nothing is cached
        all_of_them = list(sequences)
        return self._size.fits(
            [len(each.token_ids) + len(each.draft) for each in all_of_them],
            shared_blocks=self._shared_blocks(all_of_them),
            windows=self._windows,
        )

    def _shared_blocks(self, sequences: abc.Sequence[Sequence]) -> int:
        """How many fewer blocks the sequences have than they would without sharing any.

        Only whole blocks of layers that keep all tokens count: these stay shared.
        """
        numbers = [n for n, pool in enumerate(self.space.pools) if pool.window is None]
        blocks = [
            block
            for sequence in sequences
            if sequence.cache is not None
            for number in numbers
            for block in sequence.cache.tables[number].whole_blocks(sequence.num_computed_tokens)
        ]
        return len(blocks) - len(set(blocks))

    def used_share(self, sequences: abc.Iterable[Sequence]) -> float:
        """The share of the blocks that sequences have, in the layers where it is largest.

        What only the prefix cache has is free for others. Any thread may ask: the count is then
        that of a moment between two changes.
        """
        tables = [cache.tables for each in sequences if (cache := each.cache) is not None]
        return max(
            (
                len({block for own in tables for block in own[number].held_blocks()}) / pool.count
                for number, pool in enumerate(self.space.pools)
                if pool.count
            ),
            default=0.0,
        )

    def allocate(self, sequence: Sequence) -> None:
        """Give `sequence` a cache.

        Sets `num_computed_tokens` to how many of its tokens the cache has already.
        """
        total_tokens = len(sequence.token_ids)
        # Every hidden state of a prompt is needed to embed or score it: none comes from the cache.
        is_shared = sequence.pooling is None
        sequence.rope_epoch = self._decoder.rope_epoch(total_tokens) if is_shared else None
        hit = None
        if sequence.rope_epoch is not None and sequence.prompt_scores is None:
            keys, images = sequence.prefix_keys, sequence.images
            shared = self._prefixes.shared_tokens(keys, epoch=sequence.rope_epoch, with_files=True)
            limit = chunk_end(images, len(keys) - 1)
            hit = self._prefixes.search_for_matching_cache(
                keys[: limit + 1], epoch=sequence.rope_epoch, leave_last=True
            )
            is_worth_it = shared >= _WORTH_TOKENS + (hit.length if hit else 0)
            sequence.snapshots = self._snapshots(sequence, hit, shared if is_worth_it else 0)
        sequence.num_computed_tokens = hit.length if hit else 0
        if not sequence.num_new_tokens and not sequence.num_preemptions:
            sequence.num_cached_tokens = sequence.num_computed_tokens
        sequence.cache = hit or self.space.new()

    def _snapshots(
        self, sequence: Sequence, hit: SequenceCache | None, shared: int
    ) -> tuple[int, ...]:
        """Where to keep the cache for sequences that begin alike: the length `shared`, if not 0.

        A recurrent state serves only where it was kept. So there are others where messages begin,
        for conversations that part there, and one near the end, for those who ask again. Each
        costs a step and a copy of the state: they are at least a part of the prompt apart.
        """
        tokens, start = sequence.num_prompt_tokens, hit.length if hit else 0
        chosen = {shared}
        if self._has_states and self._prefixes.is_on:
            apart = max(_WORTH_TOKENS, tokens // _MOST_SNAPSHOTS)
            ends = [(tokens - 1) // _WORTH_TOKENS * _WORTH_TOKENS]
            for at in range(ends[0], start, -1):
                if sequence.token_ids[at] in sequence.control_ids and ends[-1] - at >= apart:
                    ends.append(at)
            chosen.update(at for at in ends if at - start >= _WORTH_TOKENS)
        lengths = {chunk_end(sequence.images, min(at, tokens - 1)) for at in chosen}
        return tuple(sorted(at for at in lengths if at > start))

    def is_prefix_being_computed(self, sequence: Sequence, other: Sequence) -> bool:
        """Whether `other` is about to compute many of the first tokens of `sequence`."""
        epoch = self._decoder.rope_epoch(len(sequence.token_ids))
        if sequence.prompt_scores is not None:
            return False
        if epoch is None or epoch != other.rope_epoch or not self._prefixes.is_on:
            return False
        keys, other_keys = sequence.prefix_keys, other.prefix_keys
        common = self._prefixes.shared_tokens(keys, epoch=epoch) + _WORTH_TOKENS
        if other.next_snapshot is not None:
            common = other.next_snapshot
        return (
            min(sequence.num_prompt_tokens, other.num_prompt_tokens) > common
            and keys[:common] == other_keys[:common]
        )

    def store_prefix(self, sequence: Sequence) -> None:
        """Store the computed tokens in the prefix cache; the sequence goes on."""
        if sequence.rope_epoch is not None and sequence.cache is not None:
            tokens = sequence.prefix_keys[: sequence.num_computed_tokens]
            self._prefixes.add_sequence(tokens, sequence.cache, epoch=sequence.rope_epoch)
            if sequence.num_computed_tokens < sequence.num_prompt_tokens:
                self._prefixes.evict_caches()

    def needs_recompute(self, sequence: Sequence) -> bool:
        """Whether the contents of the cache must not be used for the next token."""
        if sequence.cache is None:
            return False
        total_tokens = len(sequence.token_ids)
        return not self._keeps_caches or self._decoder.needs_recompute(sequence.cache, total_tokens)

    def free(self, sequence: Sequence) -> None:
        """Take the cache of a sequence away; the prefix cache stores it if it can be shared."""
        if sequence.cache is None:
            return
        epoch = self._decoder.rope_epoch(max(len(sequence.token_ids), 1))
        if epoch == sequence.rope_epoch and self._prefixes.is_on and sequence.num_computed_tokens:
            self.store_prefix(sequence)
        self.invalidate(sequence)
        self._prefixes.evict_caches()

    def invalidate(self, sequence: Sequence) -> None:
        """Drop a cache whose contents must not be used again."""
        if sequence.cache is not None:
            sequence.cache.release()
        sequence.cache, sequence.num_computed_tokens = None, 0

    def drop_prefixes(self) -> None:
        """Empty the prefix cache in memory."""
        while self._prefixes.drop_oldest():
            pass

    def can_rewind(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether its cache can take up `num_tokens` more than the sequence has, and drop them.

        Rope factors that depend on the length must stay the same.
        """
        epoch = self._decoder.rope_epoch(len(sequence.token_ids) + num_tokens)
        return self._keeps_caches and epoch is not None and epoch == sequence.rope_epoch

    @property
    def has_windows(self) -> bool:
        """Whether blocks are released while a sequence goes on."""
        return any(window is not None for window in self._windows)

    def room(self, sequence: Sequence) -> int:
        """How many of its next tokens are in one block of its cache."""
        return 0 if sequence.cache is None else sequence.cache.room

    def append(self, sequence: Sequence, tokens: int) -> None:
        """Count computed tokens that the `room` of its cache has taken up after a step."""
        self.extend(sequence, tokens)
        sequence.num_computed_tokens += tokens

    def extend(self, sequence: Sequence, tokens: int) -> None:
        """As `append`, but none of the tokens is counted as computed: they are verified first.

        A block may be shared with others that have its first tokens, so that it stays the same.
        """
        if sequence.cache is not None:
            sequence.cache.append(tokens)

    def mark(self, sequence: Sequence) -> None:
        """Let the next `drop_rejected` come back to the tokens that the cache has now."""
        if sequence.cache is not None:
            sequence.cache.mark()

    def drop_rejected(self, sequence: Sequence) -> None:
        """Drop the tokens after the computed ones: those of a draft that were not chosen.

        A recurrent state cannot drop some: it goes back to the mark, and the tokens after that are
        computed again.
        """
        if sequence.cache is not None:
            computed = sequence.cache.rewind_near(sequence.num_computed_tokens)
            sequence.num_computed_tokens = computed

    def rollback(self, sequence: Sequence) -> None:
        """Undo a step that did not end, because some layers may have written its tokens."""
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
        """Wait until the prefix cache has written its files."""
        self._prefixes.close()
