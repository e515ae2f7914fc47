"""How much memory this process may use, cgroup limits included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


class HostMemory(NamedTuple):
    total_bytes: int
    available_bytes: int


class _Limit(NamedTuple):
    """A cgroup's limit, the bytes that count against it, and those that the kernel can reclaim."""

    limit_bytes: int
    used_bytes: int
    reclaimable_bytes: int


def host_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> HostMemory:
    """Total and available bytes: those of the machine, within every limit that applies.

    Available are all bytes that this process may have without swapping: the free ones and those
    that it has already. File pages that are charged to a cgroup count as available, because the
    kernel drops them first. The two folders exist on Linux; on other systems psutil answers.
    """
    total, available = _machine_memory(proc)
    own_bytes = held_bytes(proc)
    available = min(total, available + own_bytes)
    for limit in _limits(proc, cgroup):
        free = limit.limit_bytes - limit.used_bytes + limit.reclaimable_bytes + own_bytes
        total = min(total, limit.limit_bytes)
        available = min(available, max(0, min(free, limit.limit_bytes)))
    return HostMemory(total, available)


def held_bytes(proc: Path = PROC) -> int:
    """Memory of this process that `host_memory` counts as available; 0 if that is not known."""
    return _numbers(proc / "self" / "status").get("RssAnon:", 0) * 1024


def resident_bytes(proc: Path = PROC) -> int:
    """Memory of this process that is in use now, as the system counts it."""
    status = _numbers(proc / "self" / "status")
    if "VmRSS:" in status:
        return status["VmRSS:"] * 1024
    import psutil

    return int(psutil.Process().memory_info().rss)


def peak_resident_bytes(proc: Path = PROC) -> int | None:
    """The maximum of `resident_bytes` so far; None if the system does not count it."""
    peak = _numbers(proc / "self" / "status").get("VmHWM:")
    return None if peak is None else peak * 1024


def forget_peak(proc: Path = PROC) -> None:
    """Reset `peak_resident_bytes`, if the system can do that (Linux can)."""
    with suppress(OSError):
        (proc / "self" / "clear_refs").write_text("5")


def _machine_memory(proc: Path) -> HostMemory:
    info = _numbers(proc / "meminfo")
    if "MemTotal:" in info and "MemAvailable:" in info:
        return HostMemory(info["MemTotal:"] * 1024, info["MemAvailable:"] * 1024)
    import psutil

    memory = psutil.virtual_memory()
    return HostMemory(memory.total, memory.available)


def _limits(proc: Path, cgroup: Path) -> Iterator[_Limit]:
    """The limits of this process' control groups and of all groups above them."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers:
            for root in (cgroup, cgroup / "unified"):
                yield from filter(None, map(_limit_v2, _upwards(root, path)))
        elif "memory" in controllers.split(","):
            yield from filter(None, map(_limit_v1, _upwards(cgroup / "memory", path)))


def _upwards(root: Path, path: str) -> Iterator[Path]:
    """The folders of the group and of all groups above it; a container may lack some of them."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for depth in range(len(parts), -1, -1):
        yield root.joinpath(*parts[:depth])


def _limit_v2(folder: Path) -> _Limit | None:
    limits = [_number(folder / name) for name in ("memory.max", "memory.high")]
    known = [limit for limit in limits if limit is not None]
    used = _number(folder / "memory.current")
    if not known or used is None:
        return None
    stat = _numbers(folder / "memory.stat")
    names = ("active_file", "inactive_file", "slab_reclaimable")
    return _Limit(min(known), used, sum(stat.get(name, 0) for name in names))


def _limit_v1(folder: Path) -> _Limit | None:
    limit = _number(folder / "memory.limit_in_bytes")
    used = _number(folder / "memory.usage_in_bytes")
    if limit is None or used is None:
        return None
    stat = _numbers(folder / "memory.stat")
    names = ("total_active_file", "total_inactive_file")
    return _Limit(limit, used, sum(stat.get(name, 0) for name in names))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """The number in a file; None if there is no file or no number (`max` means no limit)."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _numbers(path: Path) -> dict[str, int]:
    """The first number after each name; every line starts with a name."""
    rows = (line.split() for line in _text(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}
