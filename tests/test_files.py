"""A file is replaced as a whole, and only its owner may read it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from mrs.files import TEMPORARY_SUFFIX, replace_file


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
