"""A file is replaced as a whole, and only its owner may read it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from mrs.process.files import TEMPORARY_SUFFIX, Staging, read_at_most, replace_file


def test_content_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a file"
    replace_file(path, [b"old, and longer"])
    replace_file(path, [b"new", memoryview(b" one")])
    assert path.read_bytes() == b"new one"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def parts():
        yield b"new"
        [temporary] = set(tmp_path.iterdir()) - {path}
        assert temporary.name.startswith(".file.")
        assert temporary.name.endswith(TEMPORARY_SUFFIX)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_file(path, parts())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "missing" / "file", [b"x"])


def test_the_name_of_a_file_is_on_the_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is synchronized after the rename, for only then the name outlives a power cut."""
    synced: list[tuple[bool, list[str]]] = []
    sync = os.fsync

    def recorded(handle: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(handle).st_mode), os.listdir(tmp_path)))  # noqa: PTH208
        sync(handle)

    monkeypatch.setattr(os, "fsync", recorded)
    replace_file(tmp_path / "file", [b"x"])
    assert [is_folder for is_folder, _ in synced] == [False, True]
    assert "file" not in synced[0][1]
    assert synced[1][1] == ["file"]


def test_the_names_of_staged_files_are_on_the_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    folders = {each.stat().st_ino: each for each in (tmp_path, tmp_path / "in")}
    synced = dict[int, list[str]]()

    def recorded(handle: int) -> None:
        inode = os.fstat(handle).st_ino
        synced[inode] = sorted(each.name for each in folders[inode].iterdir())

    monkeypatch.setattr(os, "fsync", recorded)
    with Staging(tmp_path, "set") as staging:
        for name in ("a", "in/b"):
            staging.path(name).write_bytes(b"new")
        staging.publish(["a", "in/b"])
    names = {folders[inode].name: found for inode, found in synced.items()}
    assert names["in"] == ["b"]
    assert {"a", "in"} <= set(names[tmp_path.name])


def test_a_file_system_that_cannot_synchronize_folders_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "")

    monkeypatch.setattr(os, "fsync", refuses)
    replace_file(tmp_path / "file", [b"x"])
    assert (tmp_path / "file").read_bytes() == b"x"


def test_no_more_is_read_than_allowed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    assert read_at_most(tmp_path / "file", 4) == b"1234"
    with pytest.raises(OSError, match="more than 3 bytes"):
        read_at_most(tmp_path / "file", 3)
    with pytest.raises(OSError, match="more than 1000 bytes"):  # whose size is said to be 0
        read_at_most(Path("/dev/zero"), 1000)


def test_staged_files_get_their_names_together(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with Staging(tmp_path, "set") as staging:
        staging.path("a").write_bytes(b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"
    (tmp_path / ".set.tmp").mkdir()
    (tmp_path / ".set.tmp" / "left").write_bytes(b"by a killed process")
    with Staging(tmp_path, "set") as staging:
        for name in ("a", "in/b"):
            staging.path(name).write_bytes(b"new")
        staging.publish(["a", "in/b"])
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "in"]
    assert (tmp_path / "in" / "b").read_bytes() == (tmp_path / "a").read_bytes() == b"new"
