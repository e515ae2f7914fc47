"""Prefix caches with a folder, and the files that they write into it."""

from __future__ import annotations

from pathlib import Path

from prefix_caches import KINDS, store

from mrs.cache.prefix.chain import BLOCK_TOKENS
from mrs.cache.prefix.disk import DiskPrefixCache
from mrs.cache.prefix.manager import PrefixCacheManager

KIND_NAMES = list(KINDS)
LONG = [1 + (number * 7) % 50 for number in range(3 * BLOCK_TOKENS + 20)]
MANY_BYTES = 1 << 30


def manager(
    folder: Path, kind: str = "dense", model: str = "a model", limit: int = MANY_BYTES
) -> PrefixCacheManager:
    """A manager whose memory is empty, like that of a process that has just begun."""
    return PrefixCacheManager(
        4, new_cache=KINDS[kind], folder=DiskPrefixCache(str(folder), model, limit, key=b"key")
    )


def save(folder: Path, kind: str, tokens: list[int], **options: object) -> None:
    """Store a sequence in the folder, as another process would."""
    prefixes = manager(folder, kind, **options)
    store(prefixes, kind, tokens)
    prefixes.close()


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("prefix-*.safetensors"))


def file_of(folder: Path, end: int) -> Path:
    (path,) = folder.glob(f"prefix-*-{end}-*.safetensors")
    return path
