"""Errors of every kind go from process to process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

from mrs.distributed.protocol.channel import Damaged
from mrs.distributed.protocol.failures import RejoinAsked
from mrs.engine.sampling.candidates import NoProbabilities
from mrs.engine.sequence import DeadlineExceeded, QueueFull
from mrs.errors import BadIndex, ContextFull, DoesNotFit, MrsError, NoRoom, TextTooLong
from mrs.process.work import Abandoned
from mrs.source.http_client import Unreachable
from mrs_cli.exit import OutOfMemory

#: Those whose arguments are not the parts of the message, and some that other modules define.
ERRORS = [
    ContextFull(5, 3),
    TextTooLong(9, 7, 3, can_be_cut=True),
    DoesNotFit("what", missing_bytes=7, where="where", hint="hint"),
    QueueFull(4),
    NoRoom("what"),
    Abandoned(),
    BadIndex("row", 3, 2, where="where"),
    DeadlineExceeded(),
    NoProbabilities(),
    RejoinAsked("what", 2.5),
    Damaged("what"),
    Unreachable("what", where="where"),
    OutOfMemory("what", hint="hint"),
]


def kinds(kind: type[MrsError]) -> Iterator[type[MrsError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from kinds(each)


def test_every_error_can_be_pickled() -> None:
    others = {kind for kind in kinds(MrsError) if kind.__module__.startswith("mrs")}
    others -= {type(error) for error in ERRORS}
    for error in [*ERRORS, *(kind("what", where="where", hint="hint") for kind in others)]:
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            copy = pickle.loads(pickle.dumps(error, protocol))
            assert type(copy) is type(error)
            assert (str(copy), vars(copy)) == (str(error), vars(error))
