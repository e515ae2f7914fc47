"""Remember what sequences began with, so that those that begin alike need not compute it again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from mrs.cache.media import MediaHashes
from mrs.cache.prefix.disk import PrefixFolder
from mrs.cache.prefix.radix_tree import Node, longest_match, matching
from mrs.cache.prefix.store import PrefixStore
from mrs.cache.sequence_cache import SequenceCache
from mrs.interrupts import interrupts_held


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

    Sequences lie in radix trees over the blocks of their keys and values, so that a look-up costs
    the prompt's length, a common beginning takes memory once, and a hit copies no block but the
    last one, if others wrote to it. `capacity` sequences stay on accelerators, and the ends of 8
    times so many earlier turns serve again where layers keep a window or a state; 0 turns
    everything off. `budget_bytes` says how much a device may have in blocks that no running
    sequence refers to. Beyond either, what was used longest ago is dropped. What is in `folder`
    serves too where it is longer than what is in memory, and everything is kept there. Not for
    several threads at once.
    """

    def __init__(
        self,
        capacity: int,
        *,
        new_cache: Callable[[], SequenceCache],
        budget_bytes: Mapping[torch.device, int] | None = None,
        folder: PrefixFolder | None = None,
    ) -> None:
        self.is_on = capacity > 0
        self._capacity = capacity
        self._new_cache = new_cache
        self._budget_bytes = dict(budget_bytes or {})
        self._folder = folder if self.is_on else None
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
        image_hashes: Sequence[int] | None = None,
        audio_hashes: Sequence[int] | None = None,
        video_hashes: Sequence[int] | None = None,
        era: Hashable = None,
    ) -> None:
        """Store the sequence `tokens`, which are all that `cache` has taken up.

        The caller may go on with the cache, and has to release it. Only sequences of one `era`
        share anything.
        """
        if not self.is_on or not tokens:
            return
        if cache.length != len(tokens):
            raise ValueError(f"a cache of {cache.length} tokens for {len(tokens)}")
        key = _Key(MediaHashes.of(image_hashes, audio_hashes, video_hashes), era)
        with interrupts_held():
            self._store.add(key, tokens, cache)
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

    def evict_caches(self) -> None:
        """Keep the limits: what was used longest ago is dropped."""
        while self._is_over() and self._store.drop_oldest():
            pass

    def evict_all_caches(self) -> int:
        """Forget everything; returns how many sequences there were."""
        return self._store.clear()

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

    def _is_over(self) -> bool:
        held = self._store.own_bytes()
        if len(self) > self._capacity and any(device.type != "cpu" for device in held):
            return True
        return any(held[device] > allowed for device, allowed in self._budget_bytes.items())

    def _matches(
        self, toks: Sequence[int], media: MediaHashes, era: Hashable, limit: int
    ) -> Iterator[_Match]:
        for key, root in self._store.roots.items():
            assert isinstance(key, _Key)
            if key.era == era and key.media.agrees_with(media):
                found = longest_match(root, toks, limit, self._rules)
                if found is not None:
                    yield _Match(*found, key.media)

    def _cache_of(self, match: _Match) -> SequenceCache:
        cache = self._new_cache()
        with interrupts_held():
            cache.adopt(match.length, [node.holding.parts for node in match.path])
        return cache
