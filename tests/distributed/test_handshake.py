"""Who may join: both sides prove the secret, and say in one line why they do not fit."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from clusters import SECRET

from mrs.distributed import worker
from mrs.distributed.protocol import handshake
from mrs.distributed.protocol.channel import Channel, Damaged
from mrs.distributed.protocol.failures import ClusterRefused, CoordinatorLeft, PeerFailed
from mrs.distributed.protocol.handshake import Listener, dial, parse_address
from mrs.distributed.protocol.link import Link
from mrs.distributed.protocol.messages import Beat, Connect, Goodbye
from mrs.distributed.protocol.secret import FILE_VARIABLE, VARIABLE, find_secret, own_secret
from mrs.distributed.worker import WorkerSettings
from mrs.errors import UsageError

OTHER = b"another secret of tests"


@pytest.fixture
def listener():
    found = Listener(("127.0.0.1", 0), SECRET)
    yield found
    found.close()


def test_messages_pass_both_ways_with_their_data(listener: Listener) -> None:
    dialed = dial(listener.address, SECRET)
    accepted = listener.arrived.get(timeout=60)
    assert accepted is not None
    accepted.most_data_bytes = 8
    dialed.send(Beat("x"), memoryview(b"12345678"))
    assert accepted.receive() == (Beat("x"), b"12345678")
    accepted.send(Goodbye())
    assert dialed.receive() == (Goodbye(), b"")
    dialed.close()
    with pytest.raises(EOFError):
        accepted.receive()
    accepted.close()


def test_the_address_of_a_closed_listener_can_be_read() -> None:
    """A link may end, and close the listener, before its address is sent to the coordinator."""
    listener = Listener(("127.0.0.1", 0), SECRET)
    address = listener.address
    listener.close()
    assert listener.address == address


def test_another_secret_is_refused_on_both_sides(listener: Listener) -> None:
    with pytest.raises(ClusterRefused, match="has another secret"):
        dial(listener.address, OTHER)
    assert "the secrets differ" in listener.refused.get(timeout=60)


def test_another_version_is_refused_on_both_sides(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = iter(["9.9", "0.1"])  # the dialer asks first
    monkeypatch.setattr(handshake, "program_version", lambda: next(versions))
    with pytest.raises(
        ClusterRefused, match=r"coordinator runs mrs 0\.1 .* worker mrs 9\.9 .*same"
    ):
        dial(listener.address, SECRET)
    assert "install the same version" in listener.refused.get(timeout=60)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n" * 4, b"\xff" * 64, b""])
def test_strangers_are_dropped_without_taking_memory(listener: Listener, sent: bytes) -> None:
    stranger = socket.create_connection(listener.address, timeout=60)
    with stranger, suppress(OSError):  # it may be reset before all is sent
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(100) == b""
    assert listener.arrived.empty()


def test_a_changed_or_repeated_frame_is_noticed() -> None:
    def pair() -> tuple[socket.socket, Channel, Channel]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            left = socket.create_connection(server.getsockname())
            right = server.accept()[0]
        sender, receiver = Channel(left), Channel(right)
        sender.open(b"a", b"b")
        receiver.open(b"b", b"a")
        return left, sender, receiver

    raw, sender, receiver = pair()
    sender.send(Beat("1"))
    assert receiver.receive()[0] == Beat("1")
    _, changed, other = pair()
    changed.open(b"c", b"b")
    changed.send(Beat("1"))
    with pytest.raises(Damaged, match="wrong seal"):
        other.receive()
    sender._sent = 0  # the first frame again
    sender.send(Beat("1"))
    with pytest.raises(Damaged, match="wrong seal"):
        receiver.receive()
    raw.sendall(b"\xff" * 12)
    with pytest.raises(Damaged, match="too long"):
        receiver.receive()


def test_data_longer_than_planned_is_refused_before_it_is_read(listener: Listener) -> None:
    dialed = dial(listener.address, SECRET)
    accepted = listener.arrived.get(timeout=60)
    assert accepted is not None
    accepted.most_data_bytes = 7

    def send() -> None:
        with suppress(OSError):  # the other side may close the connection first
            dialed.send(Beat("x"), memoryview(b"12345678"))

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(Damaged, match="too long"):
        accepted.receive()
    sender.join(120)


def test_a_port_in_use_is_one_line(listener: Listener) -> None:
    with pytest.raises(
        UsageError,
        match=r"cannot listen on 127\.0\.0\.1, port \d+ \([^()]+\): .*choose another one",
    ):
        Listener(listener.address, SECRET)


def test_other_machines_need_a_secret(tmp_path: Path) -> None:
    assert find_secret("127.0.0.1", {}) == find_secret("localhost", {}) == own_secret()
    with pytest.raises(UsageError, match="other machines can reach 0\\.0\\.0\\.0"):
        find_secret("0.0.0.0", {})
    with pytest.raises(UsageError, match="only 5 characters"):
        find_secret("10.0.0.1", {VARIABLE: "short"})
    assert find_secret("10.0.0.1", {VARIABLE: SECRET.decode()}) == SECRET
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    file.chmod(0o644)
    with pytest.raises(UsageError, match="other users may read"):
        find_secret("10.0.0.1", {FILE_VARIABLE: str(file)})
    file.chmod(0o600)
    assert find_secret("10.0.0.1", {FILE_VARIABLE: str(file)}) == SECRET


def test_addresses_are_read() -> None:
    assert parse_address("10.0.0.1:80", "--join") == ("10.0.0.1", 80)
    assert parse_address("[::1]:80", "--join") == ("::1", 80)
    for text in ("10.0.0.1", ":80", "host:port", "host:99999"):
        with pytest.raises(UsageError, match="--join"):
            parse_address(text, "--join")


def test_steps_that_wait_do_not_hide_why_a_link_has_ended(listener: Listener) -> None:
    dialed = dial(listener.address, SECRET)
    accepted = listener.arrived.get(timeout=60)
    assert accepted is not None
    accepted.send(Connect([], None))
    accepted.send(Goodbye())
    link = Link(dialed, "the coordinator", lambda link, error: None)
    assert isinstance(link.reason(60), CoordinatorLeft)
    link.close()
    accepted.close()


def test_a_tunnel_without_a_head_behind_it_is_dialed_again() -> None:
    """It accepts a connection, and closes it: an OSError, as if nobody listened."""
    with socket.create_server(("127.0.0.1", 0)) as tunnel:
        closing = threading.Thread(target=lambda: tunnel.accept()[0].close())
        closing.start()
        with pytest.raises(OSError, match=r"it closes the connection|reset"):
            dial(tunnel.getsockname(), SECRET)
        closing.join(60)


def test_a_program_of_another_kind_is_no_head() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection = server.accept()[0]
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.recv(1 << 16)
            connection.close()

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(ClusterRefused, match="is no coordinator of this program"):
            dial(server.getsockname(), SECRET)
        answering.join(60)


def test_a_program_that_says_nothing_is_no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator could not have the port: a worker would wait for it forever."""
    monkeypatch.setattr(handshake, "GREETING_S", 0.1)
    monkeypatch.setattr(worker, "_DIAL_AGAIN_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        settings = WorkerSettings((host, port), SECRET)
        answers = rf"{host}:{port} does not answer as a coordinator.*--listen"
        with pytest.raises(PeerFailed, match=answers):
            worker._dialed(settings, lambda text: None, None, has_met=False)
