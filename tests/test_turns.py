"""Turns of clients: nobody waits for more than one turn of each other client."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import pytest

from mrs.process.turns import Client, Shares, Turns, crowding
from mrs.process.work import Abandoned, TurnLock, Work, doing


@dataclass(eq=False)
class Request:
    client: Client


def requests(*clients: Client) -> list[Request]:
    return [Request(each) for each in clients]


def served(turns: Turns, waiting: Sequence[Request], most: int = 100) -> list[Client]:
    """The clients of the next `most` turns."""
    left, found = list(waiting), []
    while left and len(found) < most:
        first = turns.in_order(left)[0]
        left.remove(first)
        turns.take(first.client)
        found.append(first.client)
    return found


def many(*parts: Hashable, count: int = 100) -> list[Client]:
    """As many connections."""
    return [(*parts, port) for port in range(count)]


def test_one_that_comes_after_a_hundred_has_the_next_turn() -> None:
    turns, crowd = Turns(), requests(*many("key", "here"))
    assert served(turns, crowd, most=3) == many("key", "here", count=3)
    late = ("other key", "here", 1)
    assert served(turns, [*crowd[3:], Request(late)], most=1) == [late]


def test_keys_have_turns_whatever_the_number_of_their_addresses() -> None:
    spread = [("key", address, 1) for address in range(50)]
    mine = many("other key", "here", count=3)
    found = served(Turns(), requests(*spread, *mine), most=6)
    assert [client[0] for client in found] == ["key", "other key"] * 3


def test_addresses_of_a_key_have_turns_whatever_the_number_of_their_connections() -> None:
    found = served(Turns(), requests(*many("", "a", count=50), ("", "b", 1), ("", "c", 1)), most=5)
    assert [client[1] for client in found] == ["a", "b", "c", "a", "a"]


def test_requests_of_a_client_stay_in_their_order() -> None:
    turns, waiting = Turns(), requests(*[("key", "here", 1)] * 5)
    assert turns.in_order(waiting) == waiting
    nobody = requests((), (), ())
    assert turns.in_order(nobody) == nobody


def test_turns_cannot_be_saved_up() -> None:
    turns, crowd = Turns(), requests(*many("busy", ""))
    served(turns, [*crowd, *requests(("idle", "", 1))], most=20)
    late = requests(*many("idle", ""))
    found = served(turns, [*crowd[20:], *late], most=6)
    assert [client[0] for client in found] == ["idle", "busy"] * 3


def test_who_sends_one_request_after_another_does_not_starve_who_waits() -> None:
    turns, crowd = Turns(), requests(*many("waits", ""))
    served(turns, crowd, most=1)
    found = []
    for port in range(10):
        quick = Request(("quick", "", port))
        (client,) = served(turns, [*crowd, quick], most=1)
        if client != quick.client:
            crowd = [each for each in crowd if each.client != client]
        found.append(client[0])
    assert found.count("waits") == 5


def test_a_full_queue_is_left_by_the_last_of_whoever_has_most() -> None:
    waiting = requests(*many("a", "x", count=2), *many("a", "y", count=5), ("b", "x", 1))
    assert crowding(waiting, ("c", "x", 1)) is waiting[6]
    assert crowding(waiting, ("b", "x", 2)) is waiting[6]
    assert crowding(waiting, ("a", "z", 1)) is waiting[6]


def test_whoever_has_most_in_a_full_queue_gets_no_more() -> None:
    waiting = requests(*many("a", "x", count=4), *many("b", "x", count=3))
    assert crowding(waiting, ("a", "x", 9)) is None
    assert crowding(waiting, ("b", "x", 9)) is None  # it would have as many then
    assert crowding(waiting, ("c", "x", 9), added=4) is None
    assert crowding([], ("c", "x", 9)) is None


def test_threads_get_a_lock_in_the_turns_of_their_clients() -> None:
    lock, order, threads = TurnLock(), list[str](), list[threading.Thread]()

    def hold(work: Work) -> None:
        with doing(work), lock:
            order.append(str(work.client[0]))

    lock.__enter__()
    for count, client in enumerate([("a",), ("a",), ("a",), ("b",)], start=1):
        threads.append(threading.Thread(target=hold, args=(Work(client),)))
        threads[-1].start()
        while len(lock._waiting) < count:
            threads[-1].join(0.001)
    lock.__exit__(None, None, None)
    for each in threads:
        each.join(20)
    assert order == ["a", "b", "a", "a"]


def test_a_thread_whose_work_is_abandoned_waits_for_no_lock() -> None:
    lock, work, ended = TurnLock(), Work(), list[BaseException]()

    def wait() -> None:
        with doing(work):
            try:
                with lock:
                    raise AssertionError
            except Abandoned as error:
                ended.append(error)

    lock.__enter__()
    thread = threading.Thread(target=wait)
    thread.start()
    while not lock._waiting:
        thread.join(0.001)
    work.abandon()
    thread.join(20)
    assert len(ended) == 1
    lock.__exit__(None, None, None)
    with lock:
        pass
    with pytest.raises(Abandoned), doing(work), lock:
        raise AssertionError


def taken_by(shares: Shares, client: Client, most: int) -> int:
    """What a client gets that takes all that it can."""
    amount = 0
    while shares.have_room(client, most, 1):
        shares.add(client, 1)
        amount += 1
    return amount


def test_whoever_takes_all_that_it_can_leaves_some_to_others() -> None:
    shares = Shares()
    hogs = [taken_by(shares, ("", f"10.0.0.{number}"), 4096) for number in range(5)]
    assert hogs == [3072, 768, 192, 48, 12]
    assert shares.have_room(("", "neighbour"), 4096, 3)
    assert shares.total == sum(hogs)


def test_what_is_given_back_is_free_again() -> None:
    shares = Shares()
    alone = taken_by(shares, ("", "a"), 1000)
    shares.add(("", "a"), -alone)
    assert shares.total == 0
    assert taken_by(shares, ("", "b"), 1000) == alone
