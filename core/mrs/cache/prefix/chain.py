"""The block files of one prompt, and the cache that can be made of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mrs.cache.prefix.block_file import BlockHeader, check_fits, read_exported, read_header
from mrs.cache.prefix.snapshot import Exported, restore
from mrs.cache.sequence_cache import SequenceCache
from mrs.errors import NotReadable

#: Sequences are cut here, so that those that begin alike share files.
BLOCK_TOKENS = 128
#: What reading a file raises that is none of ours, or no longer.
DAMAGED = (ValueError, LookupError, RecursionError, NotReadable)
_logger = logging.getLogger(__name__)


def block_ranges(tokens: int) -> list[tuple[int, int]]:
    """The first token and the end of each file of a sequence of `tokens` tokens."""
    return [(start, min(start + BLOCK_TOKENS, tokens)) for start in range(0, tokens, BLOCK_TOKENS)]


class BlockChain:
    """Block files of `tokens`, or of their beginning, by their ends.

    A file that cannot be used is removed, and the search goes on without it.
    """

    def __init__(
        self, files: dict[int, Path], tokens: Sequence[int], model: str, key: bytes
    ) -> None:
        self._files = files
        self._tokens = tokens
        self._model = model
        self._key = key
        self._headers: dict[int, BlockHeader] = {}

    @property
    def ends(self) -> list[int]:
        """Ends of files before which no file is missing, the furthest first."""
        ends = sorted(self._files, reverse=True)
        return [end for end in ends if all(e in self._files for _, e in block_ranges(end))]

    def paths(self, end: int) -> list[Path]:
        """The files up to `end`, in order."""
        return [self._files[each] for _, each in block_ranges(end)]

    def fill(self, cache: SequenceCache, end: int, length: int) -> bool:
        """Make the empty `cache` one of `length` tokens, if the files up to `end` suffice."""
        headers: list[BlockHeader] = []
        # The last file comes first: if a state is missing, it is missing there.
        for start, stop in reversed(block_ranges(end)):
            header = self._header(start, stop, cache)
            if header is None or not _serves(header, cache, length):
                return False
            headers.insert(0, header)
        contents = [self._exported(header) for header in headers]
        whole = [each for each in contents if each is not None]
        if len(whole) < len(contents):
            return False
        restore(cache, whole, length)
        return True

    def _header(self, start: int, end: int, cache: SequenceCache) -> BlockHeader | None:
        path = self._files.get(end)
        if path is None or end in self._headers:
            return self._headers.get(end)
        try:
            header = read_header(path, start, self._tokens[start:end], self._model)
            check_fits(header, cache)
        except (*DAMAGED, OSError) as error:
            self._remove(end, error)
            return None
        self._headers[end] = header
        return header

    def _exported(self, header: BlockHeader) -> Exported | None:
        try:
            return read_exported(header, self._key)
        except (*DAMAGED, OSError) as error:
            self._remove(header.end, error)
            return None

    def _remove(self, end: int, error: Exception) -> None:
        """Go on without a file, and delete it unless the system refused to read it."""
        path = self._files.pop(end)
        self._headers.pop(end, None)
        if isinstance(error, DAMAGED):
            _logger.info("%s is removed: %s", path, error)
            with suppress(OSError):
                path.unlink()


def _serves(header: BlockHeader, cache: SequenceCache, length: int) -> bool:
    """Whether every layer of `cache` can go on from `length` with what a file has."""
    return all(
        layer.serves(header.start, header.end, first, length)
        for layer, first in zip(cache.layers, header.first_tokens, strict=True)
    )
