"""No request lets all others wait for long, because one thread has the interpreter."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from running_server import CHAT, RunningServer, running, until

from mrs.server import pauses, serve


@pytest.fixture(autouse=True, scope="module")
def _servers_collect() -> Iterator[None]:
    """As they do outside of tests: see `conftest.py`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pauses, "gc", gc)
        patch.setattr(serve, "collect", pauses.collect)
        yield
    gc.freeze()


class Node:
    """What only a collection frees, once it is linked to itself."""

    def __init__(self) -> None:
        self.link = self


def full_collections(seen: list[int]) -> Any:
    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            seen.append(1)

    return note


@pytest.mark.full
def test_no_request_makes_python_collect_all_objects() -> None:
    seen: list[int] = []
    note = full_collections(seen)
    with running() as server:
        until(lambda: server.server.models.default.is_loaded)
        gc.callbacks.append(note)
        try:
            held = [[] for _ in range(500_000)]  # type: ignore[var-annotated]
            assert server.http.post("/tokenize", json={"prompt": "hi"}).status_code == 200
        finally:
            gc.callbacks.remove(note)
        assert held
    assert len(seen) <= 2  # those of a server that rests


@pytest.mark.full
def test_a_server_leaves_models_out_of_later_collections() -> None:
    gc.unfreeze()
    with running():
        until(lambda: gc.get_freeze_count() > 0)


def test_garbage_is_collected_while_the_server_rests() -> None:
    async def is_freed() -> bool:
        task = asyncio.ensure_future(pauses.collect(lambda: False, lambda: 0, 0.01))
        node = Node()
        gone = weakref.ref(node)
        gc.collect(1)  # it is among the oldest now
        del node
        for _ in range(500):
            gc.collect(1)
            await asyncio.sleep(0.02)
            if gone() is None:
                break
        task.cancel()
        return gone() is None

    gc.freeze()
    with pauses.short_pauses():
        assert asyncio.run(is_freed())


def test_what_is_no_garbage_is_not_looked_at_again() -> None:
    async def left() -> int:
        task = asyncio.ensure_future(pauses.collect(lambda: False, lambda: 0, 0.01))
        frozen = gc.get_freeze_count()
        kept = [Node() for _ in range(1000)]
        for _ in range(100):
            gc.collect(1)  # they are among the oldest now
            await asyncio.sleep(0.02)
            if gc.get_freeze_count() >= frozen + len(kept):
                break
        task.cancel()
        return gc.get_freeze_count() - frozen

    gc.freeze()
    with pauses.short_pauses():
        assert asyncio.run(left()) >= 1000


def test_garbage_is_collected_at_the_latest_after_some_time() -> None:
    async def collected(latest_s: float) -> int:
        seen: list[int] = []
        note = full_collections(seen)
        gc.callbacks.append(note)
        task = asyncio.ensure_future(pauses.collect(lambda: True, lambda: 0, 0.01, latest_s))
        for _ in range(10):
            gc.collect(1)
            await asyncio.sleep(0.02)
        task.cancel()
        gc.callbacks.remove(note)
        return len(seen)

    gc.freeze()
    with pauses.short_pauses():
        # The server of other tests may collect, too, at the end of a second in which it rested.
        assert asyncio.run(collected(latest_s=100.0)) <= 1
        assert asyncio.run(collected(latest_s=0.0)) > 1


@pytest.mark.full
def test_a_server_leaves_the_interpreter_as_it_was() -> None:
    before = (gc.get_threshold(), sys.getswitchinterval())
    with running() as server:
        assert server.http.get("/health").status_code == 200
        assert sys.getswitchinterval() < 0.001
    until(lambda: (gc.get_threshold(), sys.getswitchinterval()) == before)
    assert gc.get_freeze_count() == 0


def test_bodies_have_as_many_commas_as_a_context_can_use(server: RunningServer) -> None:
    body = b'{"messages":"hi","max_tokens":1,"x":"%s"}'
    assert server.http.post(CHAT, content=body % (b"," * 200_000)).status_code == 200
    refused = server.http.post(CHAT, content=body % (b"," * 300_000))
    assert refused.status_code == 400
    assert "commas" in refused.json()["error"]["message"]
