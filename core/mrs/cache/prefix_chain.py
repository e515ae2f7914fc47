"""The files that hold the beginning of one prompt, and the cache that can be made of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mrs.cache.images import ImageCache
from mrs.cache.layer import LayerCache, TokenCache
from mrs.cache.prefix_file import Outline, check_fits, read_holding, read_outline
from mrs.cache.prefix_parts import Holding, fill
from mrs.cache.sequence import SequenceCache
from mrs.cache.shared import SharedCache
from mrs.errors import NotReadable

#: Sequences are cut here, so that those that begin alike share files.
BLOCK_TOKENS = 128
#: What reading a file raises that is none of ours, or no longer.
DAMAGED = (ValueError, LookupError, RecursionError, NotReadable)
_logger = logging.getLogger(__name__)


def stretches(tokens: int) -> list[tuple[int, int]]:
    """Where the files of a sequence of so many tokens begin and end."""
    return [(start, min(start + BLOCK_TOKENS, tokens)) for start in range(0, tokens, BLOCK_TOKENS)]


class PrefixChain:
    """Files by the token that they end before, all of them for a beginning of `tokens`.

    A file that cannot be used is removed, and the others are looked through as without it.
    """

    def __init__(
        self, files: dict[int, Path], tokens: Sequence[int], model: str, key: bytes
    ) -> None:
        self._files = files
        self._tokens = tokens
        self._model = model
        self._key = key
        self._outlines: dict[int, Outline] = {}

    @property
    def ends(self) -> list[int]:
        """Ends up to which no file is missing, the furthest first."""
        ends = sorted(self._files, reverse=True)
        return [end for end in ends if all(e in self._files for _, e in stretches(end))]

    def paths(self, end: int) -> list[Path]:
        """The files up to `end`, in order."""
        return [self._files[each] for _, each in stretches(end)]

    def fill(self, cache: SequenceCache, end: int, length: int) -> bool:
        """Let the empty `cache` see `length` tokens if the files up to `end` suffice for it."""
        outlines: list[Outline] = []
        # The last one tells soonest: a state would be there.
        for stretch in reversed(stretches(end)):
            outline = self._outline(*stretch, cache)
            if outline is None or not _serves(outline, cache, length):
                return False
            outlines.insert(0, outline)
        holdings = [self._holding(outline, cache) for outline in outlines]
        whole = [held for held in holdings if held is not None]
        if len(whole) < len(holdings):
            return False
        fill(cache, whole, length)
        return True

    def _outline(self, start: int, end: int, cache: SequenceCache) -> Outline | None:
        path = self._files.get(end)
        if path is None or end in self._outlines:
            return self._outlines.get(end)
        try:
            outline = read_outline(path, start, self._tokens[start:end], self._model)
            check_fits(outline, cache)
        except (*DAMAGED, OSError) as error:
            self._remove(end, error)
            return None
        self._outlines[end] = outline
        return outline

    def _holding(self, outline: Outline, cache: SequenceCache) -> Holding | None:
        try:
            return read_holding(outline, cache, self._key)
        except (*DAMAGED, OSError) as error:
            self._remove(outline.end, error)
            return None

    def _remove(self, end: int, error: Exception) -> None:
        """Go on without a file, and delete it unless the system refused to read it."""
        path = self._files.pop(end)
        self._outlines.pop(end, None)
        if isinstance(error, DAMAGED):
            _logger.info("%s is removed: %s", path, error)
            with suppress(OSError):
                path.unlink()


def _serves(outline: Outline, cache: SequenceCache, length: int) -> bool:
    """Whether a file holds what every layer of `cache` needs of it to go on from `length`."""
    return all(
        _serves_layer(outline, index, layer, length) for index, layer in enumerate(cache.layers)
    )


def _serves_layer(outline: Outline, index: int, layer: LayerCache, length: int) -> bool:
    first = outline.firsts[index]
    if isinstance(layer, TokenCache):
        needed = 0 if layer.reach is None else max(0, length - layer.reach)
        held_from = outline.end if first is None else first
        return outline.end <= needed or held_from <= max(outline.start, needed)
    if isinstance(layer, ImageCache):
        return first == outline.start
    if isinstance(layer, SharedCache):
        return True
    is_last = outline.end >= length
    return not is_last or (outline.end == length and outline.has_state(index))
