"""Strangers between, before and behind two sides that have a secret: none learns or becomes one."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from clusters import SECRET, free_port
from test_launch import ASK, TORCH, environment

from mrs.distributed.coordinator import Arrivals, Coordinator
from mrs.distributed.launch import launched
from mrs.distributed.protocol.channel import Channel
from mrs.distributed.protocol.failures import ClusterRefused, PeerFailed
from mrs.distributed.protocol.handshake import Listener, dial, program_version
from mrs.distributed.protocol.messages import (
    PROTOCOL,
    Challenge,
    Goodbye,
    Hello,
    Message,
    Proof,
    Refused,
)
from mrs.distributed.protocol.secret import (
    SessionKeys,
    find_secret,
    new_nonce,
    own_secret,
    stretched,
)
from mrs.errors import ExitCode, UsageError
from support.waiting import until

OTHER = b"another secret of tests"


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener(("127.0.0.1", 0), SECRET)
    yield found
    found.close()


def channel_to(address: tuple[str, int]) -> Channel:
    return Channel(socket.create_connection(address, timeout=60))


def hello(**changes: Any) -> Hello:
    return msgspec.structs.replace(Hello(PROTOCOL, program_version(), new_nonce()), **changes)


@contextmanager
def stranger(answer: Callable[[Channel], None]) -> Iterator[tuple[str, int]]:
    """Somebody who has the port of a coordinator, and answers one connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            channel = Channel(server.accept()[0])
            channel.set_timeout(60)
            with suppress(EOFError, OSError):
                answer(channel)
            channel.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()
        thread.join(60)


def relayed(
    head: tuple[str, int], seen: list[Message], change: Callable[[Message], Message]
) -> Callable[[Channel], None]:
    """Passes a greeting on in both directions, each message through `change`."""

    def relay(worker: Channel) -> None:
        to_head = channel_to(head)
        for source, target in [(worker, to_head), (to_head, worker)] * 2:
            seen.append(source.receive()[0])
            target.send(change(seen[-1]))
        to_head.close()

    return relay


def test_who_has_not_proven_the_secret_sees_nothing_that_depends_on_it(listener: Listener) -> None:
    """So nothing at an open port can be compared with guesses."""
    channel = channel_to(listener.address)
    channel.send(hello())
    challenge, _ = channel.receive()
    assert isinstance(challenge, Challenge)
    assert set(challenge.__struct_fields__) == {"protocol", "program", "nonce"}
    channel.send(Proof(bytes(32)))
    assert channel.receive() == (Refused("the secrets differ"), b"")
    with pytest.raises((EOFError, OSError)):
        channel.receive()
    assert listener.arrived.empty()


def test_a_recorded_greeting_admits_nobody(listener: Listener) -> None:
    seen: list[Message] = []
    with stranger(relayed(listener.address, seen, lambda each: each)) as address:
        dial(address, SECRET).close()
    first, _, proof, _ = seen
    for again in (first, hello()):
        channel = channel_to(listener.address)
        channel.send(again)
        channel.receive()
        channel.send(proof)
        assert channel.receive()[0] == Refused("the secrets differ")
        channel.close()


def test_a_recorded_answer_is_no_head(listener: Listener) -> None:
    seen: list[Message] = []
    with stranger(relayed(listener.address, seen, lambda each: each)) as address:
        dial(address, SECRET).close()

    def replay(channel: Channel) -> None:
        for answer in (seen[1], seen[3]):
            channel.receive()
            channel.send(answer)
        channel.receive()

    with (
        stranger(replay) as address,
        pytest.raises(ClusterRefused, match=r"has another secret: give both sides the same"),
    ):
        dial(address, SECRET)


def test_a_proof_that_is_sent_back_proves_nothing() -> None:
    def reflect(channel: Channel) -> None:
        first, _ = channel.receive()
        assert isinstance(first, Hello)
        channel.send(Challenge(first.protocol, first.program, first.nonce))
        channel.send(channel.receive()[0])
        channel.receive()

    with stranger(reflect) as address, pytest.raises(ClusterRefused, match="has another secret"):
        dial(address, SECRET)


@pytest.mark.parametrize("kind", [Hello, Challenge, Proof])
def test_who_changes_a_greeting_on_the_way_ends_it(kind: type, listener: Listener) -> None:
    """Seals do not protect a greeting: the proofs of both sides do."""

    def change(message: Message) -> Message:
        if not isinstance(message, kind):
            return message
        if isinstance(message, Proof):
            return Proof(bytes(32))
        return msgspec.structs.replace(message, nonce=new_nonce())

    with (
        stranger(relayed(listener.address, [], change)) as address,
        pytest.raises(ClusterRefused, match="has another secret"),
    ):
        dial(address, SECRET)
    assert listener.arrived.empty()


def test_an_older_version_is_named_and_gets_nothing(listener: Listener) -> None:
    channel = channel_to(listener.address)
    channel.send(hello(protocol=PROTOCOL - 1, program="0.0"))
    answer, _ = channel.receive()
    assert isinstance(answer, Refused)
    assert f"worker mrs 0.0 (protocol {PROTOCOL - 1}): install the same version" in answer.reason


def test_a_head_that_claims_an_older_version_gets_no_proof() -> None:
    """The dialer's version was not refused, so the other one cannot have another."""
    got: list[Message] = []

    def downgrade(channel: Channel) -> None:
        channel.receive()
        channel.send(Challenge(PROTOCOL - 1, program_version(), new_nonce()))
        got.append(channel.receive()[0])

    with stranger(downgrade) as address, pytest.raises(ClusterRefused, match="is no coordinator"):
        dial(address, SECRET)
    assert got == []


@pytest.mark.parametrize("nonce", [b"", bytes(31), bytes(33)])
def test_a_nonce_of_another_length_is_refused(nonce: bytes, listener: Listener) -> None:
    """Even if the proof is right."""
    channel = channel_to(listener.address)
    first = hello(nonce=nonce)
    channel.send(first)
    challenge, _ = channel.receive()
    session = SessionKeys(stretched(SECRET), msgspec.msgpack.encode([first, challenge]))
    with suppress(OSError):  # it may be closed already
        channel.send(Proof(session.derived(b"who dials")))
    with pytest.raises((EOFError, OSError)):
        channel.receive()
    assert listener.arrived.empty()


#: The processor time of a guess, and by how much it raises the peak of a process's memory.
#: Linux counts resident memory by batches of pages for each thread, so its peak is a little off.
COUNTED_TO_BYTES = 1 << 20
GUESS = """
import re, time
from pathlib import Path
from mrs.distributed.protocol.secret import stretched
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
before, before_s = peak(), time.process_time()
stretched(b"another secret of tests")
print(time.process_time() - before_s, peak() - before)
"""


@pytest.mark.full
def test_a_guess_costs_scrypt_and_a_greeting_does_not(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", GUESS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    seconds, peak_bytes = map(float, done.stdout.split())
    assert seconds > 0.03
    assert peak_bytes >= (32 << 20) - COUNTED_TO_BYTES

    def refuse(*given: object, **named: object) -> bytes:
        raise AssertionError("scrypt for a greeting")

    monkeypatch.setattr(hashlib, "scrypt", refuse)
    for _ in range(50):
        channel = channel_to(listener.address)
        channel.send(hello())
        channel.receive()
        channel.send(Proof(bytes(32)))
        assert channel.receive()[0] == Refused("the secrets differ")
        channel.close()
    dial(listener.address, SECRET).close()


@pytest.mark.full
def test_refusals_that_nobody_reads_are_few(listener: Listener) -> None:
    for _ in range(100):
        with pytest.raises(ClusterRefused):
            dial(listener.address, OTHER)
    assert listener.refused.qsize() <= 64


def test_proofs_and_keys_of_a_connection_all_differ() -> None:
    key = stretched(SECRET)
    found = {
        SessionKeys(key, transcript).derived(purpose)
        for transcript in (b"a", b"b")
        for purpose in (b"x", b"y")
    }
    assert len(found) == 4


@pytest.mark.parametrize("secret", [b"", b"123456789012345"])
def test_nobody_listens_or_dials_without_a_secret(secret: bytes, listener: Listener) -> None:
    with pytest.raises(UsageError, match="a cluster needs a secret"):
        Listener(("127.0.0.1", 0), secret)
    with pytest.raises(UsageError, match="a cluster needs a secret"):
        dial(listener.address, secret)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, where nothing is yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "mrs" / "cluster-secret"


def test_loopback_has_a_secret_that_only_the_user_can_read(state: Path) -> None:
    with ThreadPoolExecutor(16) as pool:  # all make it at the same time
        found = set(pool.map(lambda _: find_secret("127.0.0.1", {}), range(64)))
    assert len(found) == 1
    assert len(found.pop()) == 64
    assert state.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in state.parent.iterdir()] == ["cluster-secret"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_secret_that_others_can_read_or_write_is_refused(mode: int, state: Path) -> None:
    own_secret()
    state.chmod(mode)
    with pytest.raises(UsageError, match=r"other users may read .*: run: chmod 600"):
        own_secret()


@pytest.mark.parametrize("content", [b"", b"short\n", b"x" * 5000])
def test_a_file_without_a_secret_is_one_line(content: bytes, state: Path) -> None:
    state.parent.mkdir()
    state.write_bytes(content)
    state.chmod(0o600)
    with pytest.raises(UsageError, match=r"only \d characters|too long for a secret"):
        own_secret()


def test_a_pipe_is_no_secret_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UsageError, match="is not a file"):
        find_secret("10.0.0.1", {"MRS_CLUSTER_SECRET_FILE": str(tmp_path / "pipe")})


@pytest.mark.full
def test_another_user_of_the_machine_is_no_worker(state: Path, tmp_path: Path) -> None:
    """Somebody who cannot read the user's folder; both sides say why."""
    listener = Listener(("127.0.0.1", 0), find_secret("127.0.0.1", {}))
    where = f"127.0.0.1:{listener.address[1]}"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "mrs_cli", "worker", "--join", where],
            env=environment(XDG_STATE_HOME=str(tmp_path / "other")),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == ExitCode.USAGE
        assert "has another secret: give both sides the same MRS_CLUSTER_SECRET_FILE" in done.stderr
        assert "127.0.0.1 was refused (the secrets differ)" in listener.refused.get(timeout=60)
        assert listener.arrived.empty()
    finally:
        listener.close()


SEVERAL = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "10.0.0.1"}
SLURM = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "MASTER_ADDR": "10.0.0.1"}


@pytest.mark.few(1)
@pytest.mark.parametrize("rank", ["0", "1"])
def test_ranks_of_several_machines_are_refused_without_a_secret(rank: str, state: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mrs_cli", *ASK],
        env=environment(**{**SEVERAL, "RANK": rank}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.count("\n") == 1
    assert "so a secret is needed" in done.stderr
    assert "name it in MRS_CLUSTER_SECRET_FILE for every process" in done.stderr
    assert not state.exists()


@pytest.mark.parametrize(
    ("variables", "is_one"),
    [
        (SEVERAL, False),
        ({**SEVERAL, "LOCAL_WORLD_SIZE": "2"}, True),
        ({**SEVERAL, "MASTER_ADDR": "127.0.0.1"}, True),
        (SLURM, False),
        ({**SLURM, "SLURM_NNODES": "2"}, False),
        ({**SLURM, "SLURM_NNODES": "1"}, True),
        ({**SLURM, "SLURM_NNODES": "2", "SLURM_STEP_NUM_NODES": "1"}, True),
    ],
)
def test_ranks_of_one_machine_have_the_users_secret(
    variables: dict[str, str], is_one: bool, state: Path
) -> None:
    rank = launched(variables)
    assert rank is not None
    given = {"MRS_CLUSTER_SECRET": SECRET.decode()}
    assert rank.secret(given) == SECRET
    if is_one:
        assert rank.secret({}) == own_secret()
    else:
        with pytest.raises(UsageError, match="a secret is needed"):
            rank.secret({})


def test_the_open_store_has_the_heads_port_and_no_secret() -> None:
    from torch.distributed import TCPStore

    port = free_port()
    head = launched({**TORCH, "RANK": "0", "MASTER_PORT": str(port)})
    other = launched({**TORCH, "MASTER_PORT": str(port)})
    assert head is not None
    assert other is not None
    head.publish(1234)
    reader = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    kept = {key: reader.get(key) for key in reader.list_keys()}
    assert kept["mrs/port"] == b"1234"
    assert not any(own_secret() in value for value in kept.values())
    assert other.find_coordinator() == ("127.0.0.1", 1234)
    for wrong in ("10.6.6.6 1234 secret", "99999", "", "1" * 5000):
        reader.set("mrs/port", wrong)
        with pytest.raises(PeerFailed, match=r"is not a port.*choose another MASTER_PORT"):
            other.find_coordinator()


def test_strangers_that_are_refused_are_one_line_a_second(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """While a coordinator waits for its workers."""
    for _ in range(20):
        with pytest.raises(ClusterRefused):
            dial(listener.address, OTHER)
    until(lambda: listener.refused.qsize() == 20)
    coordinator = Coordinator(
        Arrivals(listener), 0.0, lambda: None, lambda e: Goodbye(), lambda *_: None, is_local=True
    )
    with pytest.raises(PeerFailed, match="1 of 1 workers"):
        coordinator.gather(1)
    said = [each.getMessage() for each in caplog.records]
    assert said == ["127.0.0.1 was refused (the secrets differ); so were 19 more"]
