"""Remember what sequences began with, so that those that begin alike need not compute it again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from mrs.cache.media import MediaHashes
from mrs.cache.paged_prefix import PagedRecurrentPrefixes
from mrs.cache.prefix_folder import PrefixFolder
from mrs.cache.prefix_parts import State, fill
from mrs.cache.prefix_search import longest_match
from mrs.cache.prefix_store import PrefixStore, Stored
from mrs.cache.prefix_tree import Node, matching
from mrs.cache.sequence import SequenceCache

_HOST = torch.device("cpu")


@dataclass(frozen=True)
class MatchingCache:
    """A cache that has seen the first `offset` tokens of a prompt.

    `toks` are the prompt's other tokens; the last `images_to_keep` of its images (audios, videos)
    still have to be encoded.
    """

    normal: SequenceCache
    toks: list[int]
    offset: int
    images_to_keep: int = 0
    audios_to_keep: int = 0
    videos_to_keep: int = 0


class _Key(NamedTuple):
    """Sequences that may share memory: their media, and what else the memory depends on."""

    media: MediaHashes
    era: Hashable


class _Match(NamedTuple):
    path: list[Node]
    length: int
    media: MediaHashes


class PrefixCacheManager:
    """Keeps the caches of past sequences and finds the longest beginning of a new one among them.

    Sequences lie in radix trees, so that a look-up costs the prompt's length and a common
    beginning takes memory once. The sequence stored last keeps its cache whole: a prompt that
    goes on from its end gets that very cache, others a copy of what they share.
    `n_on_device` sequences stay on their devices, those used longer ago move to the host's
    memory; 0 turns everything off. `budget_bytes` says how much may be held on a device besides
    live caches: sequences move away from an accelerator that holds more, and are dropped from the
    host. What is in `folder` serves too where it is longer than what is in memory, and everything
    is kept there. Not for several threads at once.
    """

    def __init__(
        self,
        n_on_device: int,
        no_prefix_cache: bool = False,
        has_paged_attention: bool = False,
        *,
        new_cache: Callable[[], SequenceCache],
        budget_bytes: Mapping[torch.device, int] | None = None,
        folder: PrefixFolder | None = None,
    ) -> None:
        self._n_on_device = n_on_device
        self._is_off = no_prefix_cache or n_on_device == 0
        self._is_paged = has_paged_attention
        self._new_cache = new_cache
        self._budget_bytes = dict(budget_bytes or {})
        self._folder = folder if self.is_on else None
        self._store = PrefixStore(tail_capacity=8 * max(n_on_device, 1))
        self._paged_recurrent = PagedRecurrentPrefixes(8 * max(n_on_device, 1))
        self._reaches: frozenset[int] = frozenset()
        self._has_states = False

    @property
    def is_on(self) -> bool:
        """Whether anything is remembered at all."""
        return not (self._is_off or self._is_paged)

    def __len__(self) -> int:
        """How many sequences are stored; one that is the beginning of another does not count."""
        return len(self._store.sequences)

    @property
    def nbytes(self) -> int:
        """Bytes held on all devices, besides those of live caches."""
        return self._store.own_bytes().total()

    def add_sequence(
        self,
        tokens: Sequence[int],
        cache: SequenceCache,
        *,
        image_hashes: Sequence[int] | None = None,
        audio_hashes: Sequence[int] | None = None,
        video_hashes: Sequence[int] | None = None,
        era: Hashable = None,
        live: bool = True,
    ) -> None:
        """Store the sequence `tokens`, which `cache` has seen.

        With `live` the cache is given away. Otherwise the caller goes on with it, and must not
        rewind it to before the end of `tokens`.
        Only sequences of one `era` share anything.
        """
        if not self.is_on or not tokens:
            return
        if cache.length != len(tokens):
            raise ValueError(f"a cache of {cache.length} tokens for {len(tokens)}")
        self._reaches, self._has_states = cache.reaches, cache.has_states
        key = _Key(MediaHashes.of(image_hashes, audio_hashes, video_hashes), era)
        self._store.add(key, tokens, cache, live=live)
        if self._folder is not None:
            self._folder.save(key, tokens, cache)

    def search_for_matching_cache(
        self,
        toks: Sequence[int],
        image_hashes: Sequence[int] | None = None,
        audio_hashes: Sequence[int] | None = None,
        video_hashes: Sequence[int] | None = None,
        *,
        era: Hashable = None,
        leave_last: bool = False,
    ) -> MatchingCache | None:
        """The longest beginning of `toks` that can be had without computing.

        Sequences whose images, audios or videos differ are passed over, as are lengths to which
        they cannot be rewound. There is no hit where no token would be left to compute; with
        `leave_last`, the last token is left.
        """
        media = MediaHashes.of(image_hashes, audio_hashes, video_hashes)
        limit = len(toks) - leave_last
        found = max(
            self._matches(toks, media, era, limit), key=lambda match: match.length, default=None
        )
        held = 0 if found is None else found.length
        if filed := self._filed(_Key(media, era), toks, limit, beyond=held):
            return filed
        if found is None or found.length == len(toks):
            return None
        self._store.touch(found.path[-1])
        return MatchingCache(
            normal=self._cache_of(found),
            toks=list(toks[found.length :]),
            offset=found.length,
            images_to_keep=max(0, len(media.images) - len(found.media.images)),
            audios_to_keep=max(0, len(media.audios) - len(found.media.audios)),
            videos_to_keep=max(0, len(media.videos) - len(found.media.videos)),
        )

    def shared_tokens(
        self, toks: Sequence[int], *, era: Hashable = None, with_files: bool = False
    ) -> int:
        """How many tokens `toks` shares with a stored sequence without media.

        They may be more than can be had: then remembering the state after just these tokens will
        serve the next sequence that begins so. `with_files` looks into the folder, too.
        """
        key = _Key(MediaHashes(), era)
        root = self._store.roots.get(key)
        shared = matching(root, toks)[1] if root else 0
        if with_files and self._folder is not None:
            shared = max(shared, self._folder.shared_tokens(key, toks))
        return shared

    def limit_live(self, count: int) -> None:
        """Let at most `count` stored sequences keep a whole cache with its spare room."""
        live = [s.live for s in self._store.sequences.values() if s.live is not None]
        for cache in live[: max(len(live) - count, 0)]:
            self._store.release(cache)

    def forget(self, cache: SequenceCache) -> None:
        """Keep nothing alive of a cache that is not gone on with."""
        self._store.release(cache)

    def evict_caches(self) -> int:
        """Keep the limits: what was used longest ago moves to the host, and in the end is dropped.

        Returns how many sequences were moved.
        """
        on_device = [s for s in self._store.sequences.values() if s.on_device]
        moved = 0
        for stored in on_device:
            if len(on_device) - moved <= self._n_on_device and not self._is_over(accelerators=True):
                break
            self._store.move(stored, _HOST)
            moved += 1
        while self._is_over(accelerators=False) and self._store.drop_oldest():
            pass
        return moved

    def evict_all_caches(self) -> int:
        """Forget everything; returns how many sequences there were."""
        self._paged_recurrent.clear()
        return self._store.clear()

    def add_paged_recurrent_prefix(self, key: Sequence[int], snapshots: Sequence[State]) -> None:
        """Remember recurrent states after the blocks with the hashes `key` of a paged cache."""
        if self._is_paged and not self._is_off:
            self._paged_recurrent.add(key, snapshots)

    def get_paged_recurrent_prefix(self, key: Sequence[int]) -> tuple[State, ...] | None:
        """The recurrent states after the blocks with the hashes `key`."""
        return self._paged_recurrent.get(key)

    def close(self) -> None:
        """Wait for what is still to be written to the folder."""
        if self._folder is not None:
            self._folder.close()

    def _filed(
        self, key: _Key, toks: Sequence[int], limit: int, *, beyond: int
    ) -> MatchingCache | None:
        """A hit in the folder that is longer than `beyond` tokens."""
        if self._folder is None:
            return None
        most = min(limit, len(toks) - 1)
        cache = self._folder.take(key, toks, most=most, beyond=beyond, new_cache=self._new_cache)
        if cache is None:
            return None
        return MatchingCache(cache, list(toks[cache.length :]), cache.length)

    def _is_over(self, *, accelerators: bool) -> bool:
        held = self._store.own_bytes()
        return any(
            held[device] > allowed
            for device, allowed in self._budget_bytes.items()
            if (device != _HOST) == accelerators
        )

    def _matches(
        self, toks: Sequence[int], media: MediaHashes, era: Hashable, limit: int
    ) -> Iterator[_Match]:
        for key, root in self._store.roots.items():
            assert isinstance(key, _Key)
            if key.era == era and key.media.agrees_with(media):
                found = longest_match(root, toks, limit, self._reaches, self._has_states)
                if found is not None:
                    yield _Match(*found, key.media)

    def _cache_of(self, match: _Match) -> SequenceCache:
        stored = self._live_beyond(match)
        if stored is not None:
            return self._store.take_live(stored, match.length)
        cache = self._new_cache()
        fill(cache, [node.holding for node in match.path], match.length)
        return cache

    def _live_beyond(self, match: _Match) -> Stored | None:
        """A stored sequence whose whole cache is cheaper to rewind than the match is to copy."""
        for stored in reversed(self._store.sequences.values()):
            if (
                stored.live is not None
                and stored.node.end <= 2 * match.length
                and match.path[-1] in stored.node.lineage()
                and stored.live.can_rewind_to(match.length)
            ):
                return stored
        return None
