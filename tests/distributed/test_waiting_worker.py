"""A worker that waits for its neighbours: what it says when they do not come."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from clusters import SECRET

from mrs.distributed import worker
from mrs.distributed.protocol.channel import Channel
from mrs.distributed.protocol.failures import PeerFailed, words_for
from mrs.distributed.protocol.handshake import Listener, dial
from mrs.distributed.worker import WorkerSettings, _Session


@pytest.fixture
def sides() -> Iterator[tuple[_Session, Channel]]:
    """A worker's session, and the coordinator's end of its connection."""
    listener = Listener(("127.0.0.1", 0), SECRET)
    settings = WorkerSettings(listener.address, SECRET)
    session = _Session(settings, dial(listener.address, SECRET))
    head = listener.arrived.get(timeout=60)
    assert head is not None
    yield session, head
    session.close()
    head.close()
    listener.close()


@pytest.mark.full
def test_a_neighbour_that_does_not_come_has_words(
    sides: tuple[_Session, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "SILENCE_S", 0.1)
    with pytest.raises(OSError, match=r"another worker has not connected within 0\.2 s") as raised:
        sides[0]._attached()
    reason = sides[0]._reason(raised.value)
    assert isinstance(reason, PeerFailed)
    assert "another worker has not connected" in str(reason)


def test_a_head_that_leaves_ends_the_wait(sides: tuple[_Session, Channel]) -> None:
    """The wait itself would end with another error."""
    session, head = sides
    head.close()
    with pytest.raises(EOFError):
        session._attached()
    assert "(rank 0) has ended" in str(session._reason(EOFError()))


def test_a_connection_that_comes_after_the_end_is_closed(sides: tuple[_Session, Channel]) -> None:
    session, head = sides
    other = Listener(("127.0.0.1", 0), SECRET)
    head.close()
    assert session._has_ended.wait(60)
    channel = session._kept(dial(other.address, SECRET))
    with pytest.raises(OSError, match="Bad file descriptor"):
        channel.send(worker.Connected())
    other.close()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PeerFailed("rank 1 has ended"), "rank 1 has ended"),
        (FileNotFoundError(2, "No such file or directory", "x.gguf"), "No such file .*: x.gguf"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_errors_are_words(error: Exception, words: str) -> None:
    assert re.fullmatch(words, words_for(error))


def test_an_exception_without_words_says_where_it_was() -> None:
    def fails() -> None:
        raise AssertionError

    with pytest.raises(AssertionError) as raised:
        fails()
    assert words_for(raised.value).startswith("internal error: AssertionError in fails, line ")
