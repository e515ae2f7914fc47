"""The limit of a prefix cache's folder, failures to write, and processes that share it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from prefix_caches import found, store
from prefix_folders import KIND_NAMES, LONG, MANY_BYTES, files, manager, save
from safetensors import safe_open

from mrs.cache.prefix.disk import LEAST_TOKENS, STALE_S, DiskPrefixCache
from mrs.errors import UsageError
from support.suites import first


def test_the_longest_unused_are_removed_first_and_beginnings_last(tmp_path: Path) -> None:
    first, second, third = ([start, *LONG[1:300]] for start in (1, 2, 3))
    save(tmp_path, "dense", first)
    size = sum(path.stat().st_size for path in files(tmp_path))
    limit = 2 * size + 100
    save(tmp_path, "dense", second, limit=limit)
    assert found(manager(tmp_path), "dense", [*first, 9]) == 300  # used, so it stays
    save(tmp_path, "dense", third, limit=limit)
    assert sum(path.stat().st_size for path in files(tmp_path)) <= limit
    offsets = [found(manager(tmp_path), "dense", [*each, 9]) for each in (first, second, third)]
    assert offsets == [300, 0, 300]
    save(tmp_path, "dense", [4, *LONG[1:40]], limit=limit)
    offsets = [found(manager(tmp_path), "dense", [*each, 9]) for each in (first, third)]
    assert offsets == [256, 300]  # of the one used longest ago its end alone had to go


def test_a_limit_smaller_than_a_sequence_leaves_its_beginning(tmp_path: Path) -> None:
    save(tmp_path, "dense", LONG)
    limit = sum(path.stat().st_size for path in files(tmp_path)) - 1
    for path in files(tmp_path):
        path.unlink()
    save(tmp_path, "dense", LONG, limit=limit)
    assert found(manager(tmp_path), "dense", [*LONG, 3]) == 384
    save(tmp_path, "dense", LONG, limit=0)
    assert not files(tmp_path)


def test_only_its_own_files_are_ever_removed(tmp_path: Path) -> None:
    mine = [tmp_path / name for name in ("notes.txt", "prefix-cache.safetensors", ".prefix-x")]
    for path in mine:
        path.write_text("mine")
        os.utime(path, (1, 1))
    save(tmp_path, "dense", LONG, limit=0)
    assert all(path.read_text() == "mine" for path in mine)


def test_short_sequences_are_not_stored(tmp_path: Path) -> None:
    save(tmp_path, "dense", LONG[: LEAST_TOKENS - 1])
    assert not files(tmp_path)


@pytest.mark.parametrize("name", ["file/folder", "file", "zero\0byte", "~nobody.here/x"])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    path = name if name.startswith("~") else str(tmp_path / name)
    with pytest.raises(UsageError, match="the prefix cache cannot be stored in"):
        DiskPrefixCache(path, "m", MANY_BYTES, key=b"key")


def test_a_full_disk_ends_only_the_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    prefixes = manager(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        store(prefixes, "dense", LONG)
        store(prefixes, "dense", [7, *LONG])
        prefixes.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"cannot write to the prefix cache in {tmp_path} any more: No space left on device"
    ]
    assert not list(tmp_path.iterdir())
    assert found(prefixes, "dense", [*LONG, 9]) == len(LONG)


def test_a_removed_folder_gives_no_hits(tmp_path: Path) -> None:
    folder = tmp_path / "prefixes"
    prefixes = manager(folder)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert found(prefixes, "dense", [*LONG, 9]) == 0
    store(prefixes, "dense", LONG)
    prefixes.close()
    assert found(prefixes, "dense", [*LONG, 9]) == len(LONG)


def program(code: str, *arguments: object) -> list[str]:
    """The command of another process that can import what this module does."""
    start = "import sys; sys.path[:0] = {!r}\n"
    here = [str(Path(__file__).parent), *sys.path]
    return [sys.executable, "-c", start.format(here) + code, *map(str, arguments)]


WRITE_MANY = """
import pathlib, random
from prefix_caches import evict_all, found, store
from prefix_folders import LONG, manager
folder, seed = pathlib.Path(sys.argv[1]), int(sys.argv[2])
chance = random.Random(seed)
prefixes = manager(folder, sys.argv[3], limit=200_000)
for turn in range(20):
    tokens = LONG[: chance.randrange(32, 300)] + [chance.randrange(9) for _ in range(100)]
    offset = found(prefixes, sys.argv[3], tokens)
    evict_all(prefixes)
    store(prefixes, sys.argv[3], tokens)
    evict_all(prefixes)
prefixes.close()
"""


@pytest.mark.full
@pytest.mark.parametrize("kind", first(1, KIND_NAMES))
def test_processes_share_a_folder(tmp_path: Path, kind: str) -> None:
    """Each checks its hits, while the others write, touch and remove the same files."""
    processes = [
        subprocess.Popen(program(WRITE_MANY, tmp_path, seed, kind), stderr=subprocess.PIPE)
        for seed in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors.decode()) == (0, "")
    assert 0 < sum(path.stat().st_size for path in files(tmp_path)) <= 200_000
    assert len(list(tmp_path.iterdir())) == len(files(tmp_path))
    for path in files(tmp_path):
        with safe_open(path, "pt") as file:
            assert file.metadata()["model"] == "a model"


WRITE_SLOWLY = """
import os, pathlib, stat, time
from prefix_folders import LONG, save
calls = iter(range(99))
def wait(handle):
    if stat.S_ISREG(os.fstat(handle).st_mode) and next(calls) == 2:  # a file, no folder
        print("writing", flush=True)
        time.sleep(60)
os.fsync = wait
save(pathlib.Path(sys.argv[1]), "dense", LONG)
"""


@pytest.mark.full
def test_a_process_killed_while_it_writes_leaves_no_half_file(tmp_path: Path) -> None:
    process = subprocess.Popen(program(WRITE_SLOWLY, tmp_path), stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    (left,) = set(tmp_path.iterdir()) - set(files(tmp_path))
    assert left.stat().st_size > 0
    assert found(manager(tmp_path), "dense", [*LONG, 3]) == 256
    save(tmp_path, "dense", LONG)
    assert left.exists()  # for all that is known, it is still being written
    os.utime(left, (time.time() - STALE_S - 1,) * 2)
    save(tmp_path, "dense", [5, *LONG])
    assert not left.exists()
    assert found(manager(tmp_path), "dense", [*LONG, 3]) == len(LONG)


@pytest.mark.full
def test_an_interrupt_at_the_end_skips_the_files_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefixes = manager(tmp_path)
    fsync, main = os.fsync, threading.get_ident()
    begun: list[int] = []

    def slow(handle: int) -> None:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return  # the folder
        begun.append(handle)
        time.sleep(0.3)
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.3)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", slow)
    store(prefixes, "dense", LONG)
    with pytest.raises(KeyboardInterrupt):
        prefixes.close()
    deadline = time.monotonic() + 120
    while not files(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    assert len(begun) == len(files(tmp_path)) == 1
