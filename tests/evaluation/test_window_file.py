"""What is done of an evaluation is found again, and what is damaged is not believed."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from mrs.errors import UsageError
from mrs.run.evaluation.window_file import KEPT_S, delete_old, folder, size_bytes, window_file

SHAPE = (3, 2)


def write(count: int) -> None:
    with window_file("one", SHAPE, "f4") as file:
        for number in range(count):
            file.append(np.full(SHAPE, number, np.float32))


def test_windows_are_found_again() -> None:
    write(4)
    assert (folder() / "one").stat().st_size == size_bytes(4, SHAPE, "f4")
    with window_file("one", SHAPE, "f4") as file:
        assert file.count == 4
        assert [float(file[index][2, 1]) for index in range(4)] == [0, 1, 2, 3]
        file.append(np.full(SHAPE, 9, np.float32))
        assert float(file[4][0, 0]) == 9


@pytest.mark.parametrize("cut", [1, 4, 20, 28])
def test_a_window_that_was_being_written_is_dropped(cut: int) -> None:
    write(3)
    path = folder() / "one"
    os.truncate(path, path.stat().st_size - cut)
    with window_file("one", SHAPE, "f4") as file:
        assert file.count == 2
    assert path.stat().st_size == size_bytes(2, SHAPE, "f4")


def test_a_damaged_window_and_those_after_it_are_dropped() -> None:
    write(4)
    path = folder() / "one"
    content = bytearray(path.read_bytes())
    content[size_bytes(1, SHAPE, "f4") + 5] ^= 1
    path.write_bytes(content)
    with window_file("one", SHAPE, "f4") as file:
        assert file.count == 1


def test_two_processes_do_not_write_the_same_file() -> None:
    pytest.importorskip("fcntl")
    with (
        window_file("one", SHAPE, "f4"),
        pytest.raises(UsageError, match="another process"),
        window_file("one", SHAPE, "f4"),
    ):
        pass


def test_what_nobody_goes_on_with_is_deleted() -> None:
    write(1)
    with window_file("old", SHAPE, "f4"):
        pass
    long_ago = time.time() - KEPT_S - 60
    os.utime(folder() / "old", (long_ago, long_ago))
    delete_old()
    assert [each.name for each in folder().iterdir()] == ["one"]
