"""The prefix cache: sequences that begin like earlier ones need not compute that again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

import torch

from mrs.cache.prefix.disk import DiskPrefixCache
from mrs.cache.prefix.radix_tree import longest_match, matching
from mrs.cache.prefix.store import PrefixStore
from mrs.cache.sequence_cache import SequenceCache


class PrefixCacheManager:
    """Keeps the caches of past sequences and finds the longest beginning of a new one among them.

    Sequences lie in radix trees over the blocks of their keys and values, so that a look-up costs
    the prompt's length, a common beginning takes memory once, and a hit copies no block but the
    last one, if others wrote to it. `capacity` sequences stay on accelerators, and the ends of 8
    times so many earlier turns serve again where layers keep a window or a state; 0 turns
    everything off. `budget_bytes` says how much a device may have in blocks that no running
    sequence refers to; with `has_pool`, how much it may have outside of blocks, because a pool's
    blocks are allocated anyway. Beyond either, what was used longest ago is dropped. All sequences
    are also written to `folder`, which serves where it has a longer beginning than memory. Not for
    several threads at once.
    """

    def __init__(
        self,
        capacity: int,
        *,
        new_cache: Callable[[], SequenceCache],
        budget_bytes: Mapping[torch.device, int] | None = None,
        folder: DiskPrefixCache | None = None,
        has_pool: bool = False,
    ) -> None:
        self.is_on = capacity > 0
        self._capacity = capacity
        self._new_cache = new_cache
        self._budget_bytes = dict(budget_bytes or {})
        self._folder = folder if self.is_on else None
        self._has_pool = has_pool
        self._rules = [part.rules for part in new_cache().parts]
        self._store = PrefixStore(8 * max(capacity, 1), self._rules)

    def __len__(self) -> int:
        """How many sequences are stored; one that is the beginning of another does not count."""
        return len(self._store.sequences)

    @property
    def nbytes(self) -> int:
        """Bytes on all devices that no running sequence refers to."""
        return self._store.own_bytes().total()

    def add_sequence(
        self,
        tokens: Sequence[int],
        cache: SequenceCache,
        *,
        epoch: Hashable = None,
    ) -> None:
        """Store the sequence `tokens`; `cache` has all of its keys, values and states.

        The caller may go on with the cache, and has to release it. Only sequences of one `epoch`
        share anything. An image's tokens must be its own, a hash of it for example: placeholder
        tokens are alike whatever image they stand for.
        """
        if not self.is_on or not tokens:
            return
        if cache.length != len(tokens):
            raise ValueError(f"a cache of {cache.length} tokens for {len(tokens)}")
        self._store.add(epoch, tokens, cache)
        if self._folder is not None:
            self._folder.save(epoch, tokens, cache)

    def search_for_matching_cache(
        self, tokens: Sequence[int], *, epoch: Hashable = None, leave_last: bool = False
    ) -> SequenceCache | None:
        """A new cache of the longest beginning of `tokens` that need not be computed, if any.

        Lengths to which a stored sequence cannot be rewound are passed over. There is no hit where
        no token would be left to compute; with `leave_last`, the last token is left.
        """
        limit = len(tokens) - leave_last
        root = self._store.roots.get(epoch)
        match = longest_match(root, tokens, limit, self._rules) if root else None
        path, length = match or ([], 0)
        if self._folder is not None:
            most = min(limit, len(tokens) - 1)
            cache = self._folder.load(
                epoch, tokens, most=most, beyond=length, new_cache=self._new_cache
            )
            if cache is not None:
                return cache
        if not path or length == len(tokens):
            return None
        self._store.touch(path[-1])
        cache = self._new_cache()
        cache.adopt(length, [node.snapshot.parts for node in path])
        return cache

    def shared_tokens(
        self, tokens: Sequence[int], *, epoch: Hashable = None, with_files: bool = False
    ) -> int:
        """How many tokens `tokens` shares with a stored sequence.

        A search may find fewer, for want of a state. If the state after just these tokens is
        stored, the next sequence that begins so finds them all. `with_files` counts those in the
        folder, too.
        """
        root = self._store.roots.get(epoch)
        shared = matching(root, tokens)[1] if root else 0
        if with_files and self._folder is not None:
            shared = max(shared, self._folder.shared_tokens(epoch, tokens))
        return shared

    def evict_caches(self) -> None:
        """Drop what was used longest ago until the limits are met.

        Of very many sequences, several are dropped before bytes are counted again.
        """
        while self._has_too_many() and self.drop_oldest():
            pass
        while self._holds_too_much():
            for _ in range(1 + len(self) // 64):
                if not self.drop_oldest():
                    return

    def drop_oldest(self) -> bool:
        """Drop what was used longest ago; False if there is nothing."""
        return self._store.drop_oldest()

    def close(self) -> None:
        """Wait until everything is written to the folder."""
        if self._folder is not None:
            self._folder.close()

    def _has_too_many(self) -> bool:
        is_on_cpu = all(device.type == "cpu" for device in self._store.most_bytes)
        return len(self) > self._capacity and not is_on_cpu

    def _holds_too_much(self) -> bool:
        return self._exceeds(self._store.most_bytes) and self._exceeds(
            self._store.own_bytes(with_blocks=not self._has_pool)
        )

    def _exceeds(self, held: Counter[torch.device]) -> bool:
        return any(held[device] > allowed for device, allowed in self._budget_bytes.items())
