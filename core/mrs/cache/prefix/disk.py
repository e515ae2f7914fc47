"""The prefix cache on disk: a folder of files, for later and for concurrent processes."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from mrs.cache.prefix.block_file import encode, read_header
from mrs.cache.prefix.chain import DAMAGED, BlockChain, block_ranges
from mrs.cache.prefix.snapshot import Exported
from mrs.cache.sequence_cache import SequenceCache
from mrs.errors import UsageError
from mrs.process.files import TEMPORARY_SUFFIX, replace_file
from mrs.process.interrupts import interrupts_held

#: Shorter sequences are computed as fast as they are read.
LEAST_TOKENS = 32
#: A temporary file that nobody has written to for so long was left by a process that died.
STALE_S = 600.0
_NAME = re.compile(r"prefix-([0-9a-f]{16})-([0-9]{1,9})-[0-9a-f]{32}\.safetensors")
_HOST = torch.device("cpu")
_logger = logging.getLogger(__name__)


class _Fresh(NamedTuple):
    """A file that is to be written."""

    path: Path
    exported: Exported
    tokens: Sequence[int]


class DiskPrefixCache:
    """Files of a block of tokens each, named after all tokens of the sequence up to their last.

    A name is made of hashes of the model and of the tokens, and of their number: a look-up lists
    the folder and opens only files of its prompt. Hashes of names and of contents are made with
    `key`: files of another key are ignored. `model` names all that the values depend on, except
    the tokens. Files appear whole or not at all, and one that is damaged is removed. All
    files in the folder together take at most `limit_bytes`: those used longest ago go first.
    Writing happens in a thread of its own. Other processes may use the same folder, several
    threads may not.
    """

    def __init__(self, path: str, model: str, limit_bytes: int, *, key: bytes) -> None:
        """Raises UsageError if the folder cannot be made or written to."""
        self._path = _usable(path)
        self._model = model
        self._key = key
        self._mark = hashlib.blake2b(model.encode(), digest_size=8, key=key).hexdigest()
        self._limit_bytes = limit_bytes
        self._listed_ns = -1
        self._names: dict[int, set[str]] = {}
        self._writer: threading.Thread | None = None
        self._is_stopped = False

    def shared_tokens(self, key: Hashable, tokens: Sequence[int]) -> int:
        """How many tokens of the beginning are in files, even if a search cannot use them."""
        return max(self._chain(key, tokens).ends, default=0)

    def load(
        self,
        key: Hashable,
        tokens: Sequence[int],
        *,
        most: int,
        beyond: int,
        new_cache: Callable[[], SequenceCache],
    ) -> SequenceCache | None:
        """A cache of the first tokens, more than `beyond` and at most `most` of them.

        Only sequences of the same `key` count.
        """
        chain = self._chain(key, tokens)
        cache: SequenceCache | None = None
        for end in chain.ends:
            if min(end, most) <= beyond:
                break
            cache = cache or new_cache()
            # Files have the rests of a block that they end in.
            length = end if end <= most else cache.whole(most)
            if length <= beyond or block_ranges(end)[-1][0] >= length:
                continue
            if chain.fill(cache, end, length):
                _touch(chain.paths(end))
                return cache
        return None

    def save(self, key: Hashable, tokens: Sequence[int], cache: SequenceCache) -> None:
        """Write the contents of `cache`, whose tokens are `tokens`, to files.

        What no file has yet is copied now and written by a thread.
        """
        if len(tokens) < LEAST_TOKENS or self._is_stopped:
            return
        self._wait()
        ranges = block_ranges(len(tokens))
        names = self._named(key, tokens, [end for _, end in ranges])
        known = self._listed()
        partial = [layer for layer in cache.layers if not layer.keeps_all]
        fresh: list[_Fresh] = []
        for start, end in ranges:
            path, block_tokens = self._path / names[end], tokens[start:end]
            is_there = names[end] in known.get(end, ())
            # What the other layers have is the same in every file of these tokens.
            if is_there and not any(layer.export(start, end) for layer in partial):
                continue
            exported = Exported.of(cache, start, end, _HOST)
            if not (is_there and self._is_covered(path, exported, block_tokens)):
                fresh.append(_Fresh(path, exported, block_tokens))
        paths = [self._path / names[end] for _, end in ranges]
        # No daemon: at its end the program waits for the thread. A Ctrl-C must not come while it
        # starts, because a thread that has not started cannot be joined.
        with interrupts_held():
            self._writer = threading.Thread(target=self._write, args=(fresh, paths))
            self._writer.start()

    def close(self) -> None:
        """Wait until everything is written; an interruption leaves the rest out."""
        try:
            self._wait()
        finally:
            self._is_stopped = True

    def _wait(self) -> None:
        if self._writer is not None:
            self._writer.join()

    def _chain(self, key: Hashable, tokens: Sequence[int]) -> BlockChain:
        known = self._listed()
        ends = sorted(end for end in known if end <= len(tokens))
        names = self._named(key, tokens, ends)
        files = {end: self._path / name for end, name in names.items() if name in known[end]}
        return BlockChain(files, tokens, self._model, self._key)

    def _named(self, key: Hashable, tokens: Sequence[int], ends: Sequence[int]) -> dict[int, str]:
        """The name of the file that ends at each of `ends`, which rise."""
        running = hashlib.blake2b(f"{self._model} {key!r} ".encode(), digest_size=16, key=self._key)
        names, start = {}, 0
        for end in ends:
            running.update("".join(f"{token} " for token in tokens[start:end]).encode())
            names[end] = f"prefix-{self._mark}-{end}-{running.hexdigest()}.safetensors"
            start = end
        return names

    def _listed(self) -> dict[int, set[str]]:
        """This model's files by their ends, read again whenever the folder has changed."""
        try:
            changed_ns = self._path.stat().st_mtime_ns
            if changed_ns != self._listed_ns:
                names = [path.name for path in self._path.iterdir()]
                self._listed_ns, self._names = changed_ns, {}
                for match in filter(None, map(_NAME.fullmatch, names)):
                    if match[1] == self._mark:
                        self._names.setdefault(int(match[2]), set()).add(match[0])
        except OSError:
            self._listed_ns, self._names = -1, {}
        return self._names

    def _is_covered(self, path: Path, exported: Exported, tokens: Sequence[int]) -> bool:
        """Whether an existing file has all that would be written."""
        try:
            return read_header(path, exported.start, tokens, self._model).covers(exported)
        except (*DAMAGED, OSError):
            return False

    def _write(self, fresh: Sequence[_Fresh], paths: Sequence[Path]) -> None:
        try:
            for path, exported, tokens in fresh:
                if self._is_stopped:
                    return
                replace_file(path, encode(path.name, exported, tokens, self._model, self._key))
            _touch(paths)
            self._shrink()
        except OSError as error:
            self._is_stopped = True
            reason = error.strerror or error
            _logger.warning(
                "cannot write to the prefix cache in %s any more: %s", self._path, reason
            )

    def _shrink(self) -> None:
        """Remove the files used longest ago, and temporary ones of processes that died."""
        stale_before = time.time() - STALE_S
        files: list[tuple[float, int, str]] = []
        with os.scandir(self._path) as entries:
            for entry in entries:
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if _NAME.fullmatch(entry.name):
                        files.append((status.st_mtime_ns, status.st_size, entry.path))
                    elif _is_temporary(entry.name) and status.st_mtime < stale_before:
                        Path(entry.path).unlink()
        over_bytes = sum(size for _, size, _ in files) - self._limit_bytes
        for _, size_bytes, path in sorted(files):
            if over_bytes <= 0:
                break
            with suppress(OSError):
                Path(path).unlink()
            over_bytes -= size_bytes


def _usable(path: str) -> Path:
    """The folder, made if it is not there; UsageError where no file can be made in it."""
    try:
        folder = Path(path).expanduser()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            _warn_of_others(folder)
            return folder
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"the prefix cache cannot be stored in {path}", where=reason) from error


def _warn_of_others(folder: Path) -> None:
    if hasattr(os, "getuid") and folder.stat().st_mode & 0o022:
        _logger.warning(
            "other users may write to %s: they can delete files of the prefix cache, "
            "but not change them (chmod go-w prevents that)",
            folder,
        )


def _touch(paths: Sequence[Path]) -> None:
    """Count the files of a sequence as used now, the first ones last: all others need them."""
    now_ns = time.time_ns()
    for number, path in enumerate(paths):
        with suppress(OSError):
            os.utime(path, ns=(now_ns - 1000 * number,) * 2)


def _is_temporary(name: str) -> bool:
    return name.startswith(".prefix-") and name.endswith(TEMPORARY_SUFFIX)
