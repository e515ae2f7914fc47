"""Hostile requests of all kinds against a server in a process of its own, seen from outside."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from running_server import RunningServer

from support.hostile.server import ROOM, Server, planned_bytes, server_within
from support.hostile.suite import hostile_requests
from support.hostile.trial import Neighbour, Outcome, Strangers
from support.suites import first

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux says of processes"),
]

#: One second, and room for a slower or busy machine.
REFUSAL_S = 2.0
#: The other half of the kinds, or of their values, has its turn with another seed.
REQUESTS = {"demo": (60, 2), "demo-vision": (40, 5)}


class Trial:
    """A server after all requests, and what came of each."""

    def __init__(self, server: Server, model: str, limit_bytes: int) -> None:
        self.server, self.limit_bytes = server, limit_bytes
        count, seed = REQUESTS[model]
        strangers, requests = Strangers(server), hostile_requests(count, seed)
        self.neighbour = Neighbour(server.address, tokens=8)
        self.neighbour.ask()  # its answer alone
        half = count // 2
        self.alone = list(strangers.alone(islice(requests, half)))
        together = list(requests)
        with self.neighbour.asking():
            self.together = strangers.at_once(together, 4)

    @property
    def outcomes(self) -> list[Outcome]:
        return self.alone + self.together


@pytest.fixture(scope="module", params=first(1, REQUESTS))
def trial(request: pytest.FixtureRequest) -> Iterator[Trial]:
    limit_bytes = int(planned_bytes(request.param) * (1 + ROOM))
    with server_within(limit_bytes, request.param) as server:
        yield Trial(server, request.param, limit_bytes)


def test_every_hostile_request_has_a_proper_answer(trial: Trial) -> None:
    assert [f"{each.name}: {each.fault}" for each in trial.outcomes if each.fault] == []
    assert "Traceback" not in trial.server.log()


def test_no_refusal_takes_more_than_its_processor_time(trial: Trial) -> None:
    refused = {each.name: each.processor_s for each in trial.alone if each.is_refusal}
    assert len(refused) > 5
    assert {name: used_s for name, used_s in refused.items() if used_s > REFUSAL_S} == {}


def test_the_server_stays_within_its_planned_memory(trial: Trial) -> None:
    assert trial.server.is_alive
    assert trial.server.kills == 0
    assert trial.server.peak_bytes() <= trial.limit_bytes


def test_a_neighbour_gets_the_same_answers_in_company(trial: Trial) -> None:
    assert {200} <= set(trial.neighbour.statuses) <= {200, 429, 503}
    assert len(trial.neighbour.answers) == 1


def test_threads_that_read_requests_leave_the_processor_to_replies(server: RunningServer) -> None:
    server.http.post("/tokenize", json={"prompt": "a " * 50_000})
    stats = (each.read_text() for each in Path("/proc/self/task").glob("*/stat"))
    nice = [int(each.rpartition(")")[2].split()[16]) for each in stats]
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert own in nice
    assert max(nice) == 19
