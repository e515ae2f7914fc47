"""The caches of running sequences: where they come from, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mrs.block_sizes import BLOCK_TOKENS, blocks_of
from mrs.cache.prefix import PrefixCacheManager
from mrs.cache.prefix_folder import PrefixFolder
from mrs.model.decoder import Decoder
from mrs.run.generation import Generation
from mrs.run.shown import chunk_end

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
        self.space = decoder.new_space(planned_tokens, chunk_tokens, sequences=planned_seqs)
        self._planned_tokens = planned_tokens
        self._planned_seqs = planned_seqs
        self.prefixes = PrefixCacheManager(
            prefix_cache_n,
            new_cache=self.space.new,
            budget_bytes=prefix_budget_bytes,
            folder=prefix_folder,
        )

    @property
    def planned_ids(self) -> int:
        """Tokens that all running sequences together may have, in whole blocks."""
        return self.whole_blocks(self._planned_tokens) * self._planned_seqs

    def whole_blocks(self, tokens: int) -> int:
        """Tokens of the blocks that so many tokens of a sequence take."""
        return blocks_of(tokens) * BLOCK_TOKENS

    def open(self, generation: Generation) -> None:
        """Give a sequence its cache."""
        total_tokens = len(generation.ids)
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
        generation.cache = hit.normal if hit else self.space.new()

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
        if generation.era is not None and generation.cache is not None:
            tokens = generation.keys[: generation.fed]
            self.prefixes.add_sequence(tokens, generation.cache, era=generation.era)

    def close(self, generation: Generation) -> None:
        """Take back the cache of a sequence that is over."""
        if generation.cache is None:
            return
        era = self._decoder.era(max(len(generation.ids), 1))
        if era == generation.era and self.prefixes.is_on and generation.fed:
            self.remember(generation)
        self.renew(generation)
        self.prefixes.evict_caches()

    def renew(self, generation: Generation) -> None:
        """Take away a cache whose contents are not to be used again."""
        if generation.cache is not None:
            generation.cache.release()
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
