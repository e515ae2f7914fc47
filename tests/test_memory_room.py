"""Work that shares memory waits for room, or says that there is none."""

from __future__ import annotations

import threading

import pytest

from mrs.errors import NoRoom
from mrs.process.memory_room import MemoryRoom


class Owner:
    pass


def test_what_does_not_fit_now_is_refused_and_fits_later() -> None:
    room = MemoryRoom(10)
    with room.taken(6, "tests"):
        with pytest.raises(NoRoom, match=r"all memory for tests is in use: try again later"):
            room.take(5, "tests")
        room.take(4, "tests")
    room.take(6, "tests")
    assert room.used_bytes == 10


def test_what_never_fits_does_not_wait() -> None:
    with pytest.raises(NoRoom):
        MemoryRoom(10).take(11, "tests", wait_s=1000)


def test_waiting_ends_as_soon_as_others_give_back() -> None:
    room = MemoryRoom(10)
    room.take(10, "tests")
    threading.Timer(0.05, room.give_back, (10,)).start()
    room.take(10, "tests", wait_s=30)


def test_a_larger_room_lets_waiting_work_in() -> None:
    room = MemoryRoom(1)
    room.most_bytes = 100
    room.take(100, "tests")


def test_an_owner_gives_back_when_it_is_gone() -> None:
    room, owner = MemoryRoom(10), Owner()
    room.take(10, "tests")
    room.give_back_with(owner, 10)
    assert room.used_bytes == 10
    del owner
    assert room.used_bytes == 0


def test_without_a_limit_everything_has_room() -> None:
    room = MemoryRoom()
    assert room.fits(2**60)
    room.take(2**60, "tests")
