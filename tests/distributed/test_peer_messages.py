"""Messages of a peer that has the secret and lies: each is one line that names it and the field."""

from __future__ import annotations

import math
import queue
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import msgspec
import pytest

from mrs.distributed.coordinator import Member
from mrs.distributed.pipeline import _answer, _require_caches, receive_hidden
from mrs.distributed.protocol.channel import _LENGTHS, Channel, Damaged
from mrs.distributed.protocol.failures import PeerFailed, PeerReported
from mrs.distributed.protocol.link import FROM_COORDINATOR, FROM_WORKER, Expected, Link
from mrs.distributed.protocol.messages import (
    Assignment,
    Beat,
    Connect,
    Connected,
    DeviceReport,
    Failed,
    Goodbye,
    Hidden,
    Join,
    LayerCacheInfo,
    LinkSpeed,
    Message,
    Ready,
    Rejoin,
    Step,
)
from mrs.distributed.shard import plan_hash, require_consistent
from mrs.distributed.worker import _require_addresses
from mrs.errors import ExitCode, MrsError

REPORT = DeviceReport("cpu", "CPU", 1 << 30, 1e9)


class Sides(NamedTuple):
    """Two ends of a connection, and the raw socket of the first."""

    raw: socket.socket
    liar: Channel
    own: Channel


@pytest.fixture
def sides() -> Iterator[Sides]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        raw = socket.create_connection(server.getsockname())
        found = Sides(raw, Channel(raw), Channel(server.accept()[0]))
    yield found
    found.liar.close()
    found.own.close()


def ended(sides: Sides, expected: Expected) -> queue.SimpleQueue[MrsError]:
    """A link of the own side, and why it has ended."""
    ends: queue.SimpleQueue[MrsError] = queue.SimpleQueue()
    Link(sides.own, "the peer", lambda link, error: ends.put(error), expected)
    return ends


def send_raw(channel: Channel, body: bytes) -> None:
    head = _LENGTHS.pack(len(body), 0) + body
    seal = channel._seal(b"", channel._sent, head, None)
    channel._sent += 1
    channel._socket.sendall(head + seal)


BAD_OF_WORKER: list[tuple[Message, str]] = [
    (Goodbye(), "a Goodbye cannot be read .*Invalid value"),
    (Rejoin("x", 1.0), "a Rejoin cannot be read"),
    (Ready(-1, []), r"a Ready cannot be read .*\$\.weight_bytes"),
    (Ready(1, [LayerCacheInfo("blocks", -5)]), r"a Ready .*size_bytes"),
    (Ready(1, [LayerCacheInfo("blocks", 5, window=0)]), r"a Ready .*window"),
    (Connected(LinkSpeed(0.1, 0.0)), r"a Connected .*\$\.right\.bytes_per_s"),
    (Connected(LinkSpeed(math.nan, 1.0)), r"a Connected .*\$\.right\.latency_s"),
    (Connected(None, math.inf), r"a Connected .*\$\.sum_s"),
    (Beat("x" * 5000), r"a Beat .*\$\.doing"),
]
BAD_OF_HEAD: list[tuple[Message, str]] = [
    (Ready(1, []), "a Ready cannot be read .*Invalid value"),
    (Rejoin("x", math.nan), r"a Rejoin .*\$\.within_s"),
    (Connect([("h", 70_000)], None), r"a Connect .*\$\.group\[0\]\[1\]"),
]


@pytest.mark.parametrize(
    ("message", "words", "expected"),
    [
        *((*each, FROM_WORKER) for each in BAD_OF_WORKER),
        *((*each, FROM_COORDINATOR) for each in BAD_OF_HEAD),
    ],
)
def test_a_value_out_of_range_ends_a_link_in_one_line(
    message: Message, words: str, expected: Expected, sides: Sides
) -> None:
    ends = ended(sides, expected)
    sides.liar.send(message)
    error = ends.get(timeout=30)
    assert isinstance(error, Damaged)
    assert error.exit_code == ExitCode.PEER_FAILED
    with pytest.raises(Damaged, match=f"^the peer, at the start: {words}"):
        raise error
    assert str(error).isprintable()


BOMBS = [
    b"\x82\xa4type\xa5Ready\xa6caches\xdd\xff\xff\xff\xff",
    b"\x82\xa4type\xa4Beat\xa5doing\xc6\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff\xa4type\xa4Beat",
    b"\x82\xa1x" + b"\x91" * 100_000 + b"\xc0\xa4type\xa4Beat",
    b"\x91" * 100_000,
    b"\x82\xa4type\xa4Beat\xa5doing\xa2\xff\xfe",
    b"\x82\xa4type\xa4Beat\xa5doing\xd4\x01\x00",
    b"\x81\xa4type\xa4Exit",
    b"\x81\xa4type\xa9a\nb\x1b[31mc",
    b"",
]


@pytest.mark.parametrize("body", BOMBS)
def test_what_is_no_message_ends_a_link_in_one_line(body: bytes, sides: Sides) -> None:
    ends = ended(sides, FROM_WORKER)
    before = peak_bytes()
    send_raw(sides.liar, body)
    error = ends.get(timeout=30)
    assert isinstance(error, Damaged)
    assert "cannot be read" in str(error)
    assert str(error).isprintable()
    assert peak_bytes() - before < 32 << 20


def peak_bytes() -> int:
    """The most memory that this process has had, as the system says."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) << 10


def test_a_frame_takes_memory_only_as_it_arrives(sides: Sides) -> None:
    """One of 64 MiB and one of 4 GiB of hidden states are announced, of which little comes."""
    before = peak_bytes()
    ends = ended(sides, FROM_COORDINATOR)
    sides.raw.sendall(_LENGTHS.pack(FROM_COORDINATOR.most_bytes, 0) + bytes(1000))
    sides.raw.shutdown(socket.SHUT_WR)
    ends.get(timeout=30)
    assert peak_bytes() - before < 16 << 20


def test_lengths_beyond_what_is_expected_are_refused_before_they_are_read(sides: Sides) -> None:
    ends = ended(sides, FROM_WORKER)
    sides.raw.sendall(_LENGTHS.pack(FROM_WORKER.most_bytes + 1, 0))
    with pytest.raises(Damaged, match=r"the peer, at the start: a frame of .* bytes is too long"):
        raise ends.get(timeout=30)
    sides.raw.sendall(struct.pack("<IQ", 20, 1 << 40))


def test_messages_that_nobody_takes_do_not_fill_the_memory(sides: Sides) -> None:
    ends = ended(sides, FROM_WORKER)
    before, caches = peak_bytes(), [LayerCacheInfo("blocks", 5)] * 1000
    with suppress(OSError):  # the connection is closed by the one that is to notice it
        for _ in range(100_000):
            sides.liar.send(Ready(1, caches))
            if not ends.empty():
                break
    with pytest.raises(Damaged, match="more messages than are taken, with one more Ready"):
        raise ends.get(timeout=30)
    assert peak_bytes() - before < 64 << 20


@pytest.mark.parametrize(("sent", "code"), [(0, 6), (99, 6), (-1, 6), (4, 4)])
def test_a_peer_that_fails_is_never_a_success(sent: int, code: int, sides: Sides) -> None:
    ends = ended(sides, FROM_WORKER)
    sides.liar.send(Failed("it\nhas\x1b[31m failed\u2028again", sent))
    error = ends.get(timeout=30)
    assert isinstance(error, PeerReported)
    assert (str(error), error.exit_code) == ("it has [31m failed again", code)


def test_a_message_that_does_not_come_is_named(sides: Sides) -> None:
    link = Link(sides.own, "rank 1", lambda link, error: None, FROM_WORKER)
    with pytest.raises(PeerFailed, match=r"^rank 1 has sent no Ready within 0\.1 s, at the start$"):
        link.take(Ready, 0.1)


@pytest.mark.full
def test_a_frame_that_comes_slowly_has_a_limit_as_a_whole(sides: Sides) -> None:
    sides.own.set_limit(0.5)
    sides.raw.sendall(_LENGTHS.pack(4000, 0))
    has_ended = threading.Event()

    def drip() -> None:
        while not has_ended.wait(0.05):
            sides.raw.sendall(b"x")

    dripping = threading.Thread(target=drip)
    dripping.start()
    with pytest.raises(TimeoutError):
        sides.own.receive()
    has_ended.set()
    dripping.join()


def test_a_neighbours_message_names_it(sides: Sides) -> None:
    sides.own.name = "rank 3"
    sides.liar.send(Hidden(7, 2), memoryview(bytes(32)))
    with pytest.raises(Damaged, match=r"^rank 3: Hidden\(number=7, rows=2\) instead of 2 rows"):
        receive_hidden(sides.own, 8, (2, 4))
    sides.liar.send(Hidden(8, 2), memoryview(bytes(36)))
    with pytest.raises(Damaged, match=r"^rank 3: a frame of \d+ and 36 bytes is too long"):
        receive_hidden(sides.own, 8, (2, 4))


GOOD = Assignment(
    1, 2, b"{}", 1, 2, "F32", "F32", 8, 1, 8, 8, None, "", "", group_size=1, plan_hash=""
)


def changed(**values: Any) -> Assignment:
    """An assignment whose hash is right."""
    given = msgspec.structs.replace(GOOD, **values)
    return msgspec.structs.replace(given, plan_hash=plan_hash(given))


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (changed(rank=2), "rank"),
        (changed(world=3, group_size=2), "group_size"),
        (changed(end=1), "end"),
        (changed(first=0), "first"),
        (changed(group_size=2), "first"),
        (GOOD, "plan_hash"),
        (msgspec.structs.replace(changed(), end=3), "plan_hash"),
    ],
)
def test_an_assignment_that_contradicts_itself_names_the_field(
    wrong: Assignment, field: str
) -> None:
    """Other layers with the hash of those that are loaded would be computed with these."""
    require_consistent(changed())
    with pytest.raises(Damaged, match=f"an assignment's '{field}' contradicts"):
        require_consistent(wrong)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("group_size", 0), ("group_size", -1), ("rank", 0), ("world", 1), ("first", -1)),
        *(("tokens", 0), ("chunk_tokens", -1), ("block_tokens", 0), ("pool_blocks", -1)),
        *(("sequences", 1 << 40), ("request", bytes((1 << 20) + 1)), ("dense", "x" * 300)),
    ],
)
def test_an_assignment_out_of_range_is_not_read(name: str, value: Any) -> None:
    body = msgspec.msgpack.encode(msgspec.structs.replace(GOOD, **{name: value}))
    with pytest.raises(msgspec.ValidationError, match=rf"\$\.{name}"):
        msgspec.msgpack.decode(body, type=Assignment)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("free_bytes", -1), ("bytes_per_s", 0.0), ("bytes_per_s", math.nan)),
        *(("memory_nodes", 0), ("label", "gpu"), ("label", "cpu\n"), ("held_bytes", 1 << 61)),
    ],
)
def test_a_device_that_no_machine_has_is_not_read(name: str, value: Any) -> None:
    report = msgspec.structs.replace(REPORT, **{name: value})
    body = msgspec.msgpack.encode(Join("w", "cpu", report, 1))
    with pytest.raises(msgspec.ValidationError, match=rf"\$\.device\.{name}"):
        msgspec.msgpack.decode(body, type=Join)


def test_too_many_entries_of_a_byte_each_are_not_read() -> None:
    """Each of them would take some hundred bytes."""
    step = Step(1, [], [], b"", None, [1] * ((1 << 20) + 1))
    with pytest.raises(msgspec.ValidationError, match=r"length <= 1048576 - at `\$\.wanted`"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(step), type=Step)


def member(link: Any = None, layers: int = 2) -> Member:
    given = cast(Link, SimpleNamespace(take=lambda kind, limit_s: link))
    return Member(given, Join("w", "cpu", REPORT, 1), "::1", rank=1, layers=range(layers))


BLOCKS, STATE = LayerCacheInfo("blocks", 64), LayerCacheInfo("state", 64)


@pytest.mark.parametrize(
    "caches",
    [
        [],
        [BLOCKS],
        [BLOCKS] * 9,
        [BLOCKS, LayerCacheInfo("shared", 0, owner=1)],
        [STATE, LayerCacheInfo("shared", 0, owner=0)],
        [BLOCKS, LayerCacheInfo("blocks", 0)],
    ],
)
def test_caches_that_no_layers_have_are_refused(caches: list[LayerCacheInfo]) -> None:
    _require_caches(member(), [BLOCKS, LayerCacheInfo("shared", 0, owner=0)])
    with pytest.raises(Damaged, match=r"^rank 1 \(w at ::1\): a Ready's 'caches' contradicts"):
        _require_caches(member(), caches)


def test_the_speed_of_a_link_that_is_not_there_is_refused() -> None:
    speed = LinkSpeed(0.1, 1e9)
    assert _answer(member(Connected(speed)), 1, 1).right == speed
    with pytest.raises(Damaged, match="a Connected's 'right'"):
        _answer(member(Connected()), 1, 1)
    with pytest.raises(Damaged, match="a Connected's 'right'"):
        _answer(member(Connected(speed)), 2, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        Connect([("127.0.0.1", 1)], None),
        Connect([], ("127.0.0.1", 1)),
        Connect([], ("example.org", 80)),
        Connect([], ("127.0.0.1", 0)),
    ],
)
def test_a_worker_dials_only_the_addresses_that_it_needs(wrong: Connect) -> None:
    own = changed(world=3) if wrong.right and wrong.right[0] != "127.0.0.1" else GOOD
    own = changed(world=3) if wrong.right == ("127.0.0.1", 0) else own
    with pytest.raises(Damaged, match=r"a Connect"):
        _require_addresses(wrong, own)
