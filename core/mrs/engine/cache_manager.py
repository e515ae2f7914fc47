"""The caches of running sequences: where they come from, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mrs.cache.prefix import PrefixCacheManager
from mrs.cache.prefix_folder import PrefixFolder
from mrs.cache.sequence import SequenceCache
from mrs.engine.multimodal import chunk_end
from mrs.engine.sequence import Generation
from mrs.model.decoder import Decoder

#: Room for a reply, where several sequences share what was planned for.
_REPLY_TOKENS = 256
#: Tokens that are worth a step of their own, or waiting for, if they need not be computed again.
_WORTH_TOKENS = 32


class CachePool:
    """Opens a cache for each sequence, from what past ones left if they began alike.

    What was planned are the caches of `planned_seqs` sequences of `planned_tokens` each.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        planned_tokens: int,
        planned_seqs: int,
        chunk_tokens: int,
        prefix_cache_n: int,
        prefix_budget_bytes: Mapping[torch.device, int],
        prefix_folder: PrefixFolder | None = None,
    ) -> None:
        self._decoder = decoder
        self._planned_tokens = planned_tokens
        self._planned_seqs = planned_seqs
        self._chunk_tokens = chunk_tokens
        self._capacity_tokens = planned_tokens
        self.prefixes = PrefixCacheManager(
            prefix_cache_n,
            new_cache=self._new_cache,
            budget_bytes=prefix_budget_bytes,
            folder=prefix_folder,
        )

    @property
    def planned_ids(self) -> int:
        """Tokens that all running sequences together may have."""
        return self._planned_tokens * self._planned_seqs

    def open(self, generation: Generation, others: int) -> None:
        """Give a sequence its cache, beside `others` that have one."""
        total_tokens = len(generation.ids)
        self._capacity_tokens = self._planned_tokens
        if others >= self._planned_seqs:
            self._capacity_tokens = min(total_tokens + _REPLY_TOKENS, self._planned_tokens)
        generation.era = self._decoder.era(total_tokens)
        hit = None
        if generation.era is not None:
            keys, images = generation.keys, generation.images
            shared = self.prefixes.shared_tokens(keys, era=generation.era, with_files=True)
            limit = chunk_end(images, len(keys) - 1)
            hit = self.prefixes.search_for_matching_cache(
                keys[: limit + 1], era=generation.era, leave_last=True
            )
            worth = shared >= _WORTH_TOKENS + (hit.offset if hit else 0)
            checkpoint = chunk_end(images, min(shared, generation.prompt_tokens - 1))
            generation.checkpoint = checkpoint if worth else 0
        generation.fed = hit.offset if hit else 0
        if not generation.new_tokens:
            generation.cached_tokens = generation.fed
        self.prefixes.limit_live(max(self._planned_seqs - others - 1, 0))
        generation.cache = hit.normal if hit else self._new_cache()

    def is_awaited(self, generation: Generation, other: Generation) -> bool:
        """Whether `other` is about to compute a good part of what `generation` begins with."""
        era = self._decoder.era(len(generation.ids))
        if era is None or era != other.era or not self.prefixes.is_on:
            return False
        common = self.prefixes.shared_tokens(generation.keys, era=era) + _WORTH_TOKENS
        if other.fed < other.checkpoint:
            common = other.checkpoint
        return (
            min(generation.prompt_tokens, other.prompt_tokens) > common
            and generation.keys[:common] == other.keys[:common]
        )

    def remember(self, generation: Generation) -> None:
        """Let other sequences begin like this one, which goes on."""
        self._store(generation, live=False)

    def close(self, generation: Generation) -> None:
        """Take back the cache of a sequence that is over."""
        cache = generation.cache
        if cache is None:
            return
        era = self._decoder.era(max(len(generation.ids), 1))
        if era == generation.era and self.prefixes.is_on and generation.fed:
            self._store(generation, live=True)
        else:
            self.prefixes.forget(cache)
        generation.cache, generation.fed = None, 0
        self.prefixes.evict_caches()

    def put_aside(self, generation: Generation) -> None:
        """Take the cache of a sequence that waits until there is room again."""
        self.close(generation)
        self.prefixes.limit_live(0)
        self.prefixes.evict_caches()

    def renew(self, generation: Generation) -> None:
        """Take away a cache whose contents are not to be used again."""
        if generation.cache is not None:
            self.prefixes.forget(generation.cache)
        generation.cache, generation.fed = None, 0

    def recover(self, generation: Generation) -> None:
        """Undo a step that was interrupted, of which some layers may have seen the tokens."""
        cache, length = generation.cache, min(generation.fed, len(generation.ids) - 1)
        if cache is None:
            return
        if cache.has_states or not cache.can_rewind_to(length):
            self.renew(generation)
        else:
            cache.rewind(length)
            generation.fed = length

    def _store(self, generation: Generation, *, live: bool) -> None:
        if generation.era is None or generation.cache is None:
            return
        self.prefixes.add_sequence(
            generation.keys[: generation.fed], generation.cache, era=generation.era, live=live
        )

    def _new_cache(self) -> SequenceCache:
        return self._decoder.new_cache(self._capacity_tokens, self._chunk_tokens)
