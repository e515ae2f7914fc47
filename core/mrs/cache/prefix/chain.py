"""The files that hold the beginning of one prompt, and the cache that can be made of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mrs.cache.prefix.block_file import Outline, check_fits, read_exported, read_outline
from mrs.cache.prefix.snapshot import Exported, restore
from mrs.cache.sequence_cache import SequenceCache
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
        found = [self._exported(outline) for outline in outlines]
        whole = [each for each in found if each is not None]
        if len(whole) < len(found):
            return False
        restore(cache, whole, length)
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

    def _exported(self, outline: Outline) -> Exported | None:
        try:
            return read_exported(outline, self._key)
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
    """Whether a file has what every layer of `cache` needs of it to go on from `length`."""
    return all(
        layer.serves(outline.start, outline.end, first, length)
        for layer, first in zip(cache.layers, outline.firsts, strict=True)
    )
