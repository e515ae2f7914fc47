"""Several models: loaded on demand, unloaded for others, and never while they answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from running_server import CHAT, DEMO, RunningServer, load, running, until

import mrs.plan.coexistence
from mrs.errors import DoesNotFit, NotReadable
from mrs.events import LoadProgress
from mrs.plan.coexistence import fits_beside_others, reserved_bytes
from mrs.request import ModelSource, PagedRequest, RunRequest, ServerLoad
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader
from mrs.server.models.room import for_many_sequences, models_to_unload
from mrs.server.models.slot import ModelSlot
from mrs.server.settings import ServerSettings
from mrs.units import MIB
from support.model_files import write_demo_like_model


def plan_with(limit_mib: int, **fields: Any) -> Any:
    return ModelLoader(limited(limit_mib, **fields)).plan


def limited(limit_mib: int, **fields: Any) -> RunRequest:
    return replace(DEMO, devices=(f"cpu={limit_mib}MiB",), **fields)


@pytest.fixture(scope="module")
def one_mib() -> int:
    """A limit of memory that one model fits in, and two do not."""
    return int(plan_with(4096).breakdowns[0].needed_bytes // MIB + 8)


@pytest.fixture(scope="module")
def one_served_mib() -> int:
    """As `one_mib`, with the least memory for the requests to a server."""
    return int(plan_with(64, server=ServerLoad()).breakdowns[0].needed_bytes // MIB + 8)


class Loads:
    """Loads models, and notes which of them were loaded at the same time."""

    def __init__(self) -> None:
        self.made: list[LoadedModel] = []
        self.most_at_once = 0

    def __call__(self, request: RunRequest, on_progress: Any, memory: Any) -> LoadedModel:
        self.made.append(load(request, on_progress, memory))
        self.most_at_once = max(self.most_at_once, sum(not each.is_closed for each in self.made))
        return self.made[-1]


def two(limit_mib: int, load: Callable[..., Any] = load, **settings: Any) -> Any:
    slots = [ModelSlot(limited(limit_mib), "first"), ModelSlot(limited(limit_mib), "second")]
    return running(ServerSettings(**settings), load, slots=slots)


def post(server: RunningServer, action: str, model: str) -> httpx.Response:
    return server.http.post(f"/v1/models/{action}", json={"model": model})


def status(server: RunningServer, model: str) -> str:
    return str(post(server, "status", model).json()["status"])


def test_the_rule_of_a_fit_leaves_room_for_one_more_layer(one_mib: int) -> None:
    one = plan_with(one_mib)
    layer_mib = (one.layer_bytes[0] + one.kv_bytes[0]) / MIB
    assert one.fits
    assert fits_beside_others(one)
    tight = plan_with(int(one.breakdowns[0].needed_bytes / MIB + layer_mib / 2) + 1)
    assert tight.fits
    assert not fits_beside_others(tight) or layer_mib < 1
    reserved = tuple(reserved_bytes([one]).items())
    assert reserved
    assert not plan_with(one_mib, reserved_bytes=reserved).fits


def test_models_leave_until_the_next_one_fits(one_mib: int) -> None:
    def leaving(limit_mib: int, count: int) -> int:
        loaded = [plan_with(limit_mib, max_models=4)] * count
        request = limited(limit_mib, max_models=4)
        return models_to_unload(request, loaded, lambda each: ModelLoader(each).plan)

    assert leaving(one_mib, 0) == 0
    assert leaving(one_mib, 1) == 1
    assert leaving(2 * one_mib, 1) == 0
    assert [leaving(one_mib + 60, count) for count in (1, 4)] == [0, 3]
    with pytest.raises(DoesNotFit):
        leaving(one_mib // 2, 1)


@pytest.mark.full
def test_alternating_requests_are_all_answered(
    one_served_mib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[bool] = []
    predict = mrs.plan.coexistence.predict_fit

    def noting(*arguments: Any) -> Any:
        answers.append(predict(*arguments).fits)
        return predict(*arguments)

    monkeypatch.setattr(mrs.plan.coexistence, "predict_fit", noting)
    loads = Loads()
    with two(one_served_mib + 4, loads) as server, ThreadPoolExecutor(6) as clients:
        names = ["first", "second"] * 3

        def ask(name: str) -> Any:
            return server.chat(model=name, max_tokens=6, ignore_eos=True).json()

        for reply, name in zip(clients.map(ask, names), names, strict=True):
            assert reply["model"] == name
            assert reply["usage"]["completion_tokens"] == 6
            assert reply["choices"][0]["finish_reason"] == "length"
        assert loads.most_at_once == 1
        assert 2 <= len(loads.made) <= 6
        states = {status(server, "first"), status(server, "second")}
        assert states == {"loaded", "unloaded"}
    assert not any(answers)
    assert all(model.is_closed for model in loads.made)


def test_a_model_is_planned_for_many_sequences_in_half_of_the_free_memory(one_mib: int) -> None:
    def sequences(limit_mib: int, **fields: Any) -> int:
        request = limited(limit_mib, **fields)
        found = for_many_sequences(request, lambda each: ModelLoader(each).plan)
        assert found == replace(request, max_batch_size=found.max_batch_size)
        return found.max_batch_size

    assert sequences(4096) == DEMO.max_seqs
    assert sequences(4096, max_batch_size=2) == 2
    assert sequences(4096, paged=PagedRequest(context_tokens=4096)) == 1
    assert sequences(one_mib) == sequences(one_mib // 2) == 1
    free_mib = 20
    assert sequences(one_mib - 8 + free_mib) == 2
    assert sequences(one_mib - 8 + free_mib, max_models=2) == 1


@pytest.mark.full
def test_replies_that_run_at_once_have_memory_for_their_tokens() -> None:
    """Together they have more than a sequence of the planned length."""
    with running() as server, ThreadPoolExecutor(4) as threads:
        body = {"max_tokens": 550, "ignore_eos": True}
        asked = threads.map(lambda n: server.chat(messages=f"Hi {n}", **body), range(4))
        assert {each.json()["usage"]["completion_tokens"] for each in asked} == {550}
        assert server.stats.preempted == 0


def test_two_that_fit_stay_loaded(one_served_mib: int) -> None:
    loads = Loads()
    with two(2 * one_served_mib, loads) as server:
        for name in ("first", "second", "first", "default", ""):
            assert server.chat(model=name).status_code == 200
        ready = server.http.get("/ready").json()
        assert [each["status"] for each in ready["models"]] == ["loaded", "loaded"]
        text = server.http.get("/metrics").text
        assert 'mrs:num_requests_running{model_name="second"}' in text
    assert len(loads.made) == 2


@pytest.mark.full
@pytest.mark.usefixtures("slow_steps")
def test_a_reply_is_complete_before_its_model_makes_room(one_served_mib: int) -> None:
    loads = Loads()
    with two(one_served_mib, loads) as server, ThreadPoolExecutor(2) as clients:
        long = clients.submit(server.chat, model="first", max_tokens=30, ignore_eos=True)
        until(lambda: server.stats.running == 1)
        refused = post(server, "unload", "first")
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "model_busy"
        body = {"model": "second", "messages": "Hi", "max_tokens": 2, "stream": True}
        text = server.http.post(CHAT, json={**body, "return_progress": True}).text
        assert long.result().json()["usage"]["completion_tokens"] == 30
        *chunks, done, _ = text.split("\n\n")
        read = [json.loads(each.removeprefix("data: ")) for each in chunks]
        shares = [each["load_progress"] for each in read if not each["choices"]]
        assert shares
        assert all(0 <= share <= 1 for share in shares)
        assert read[len(shares)]["choices"][0]["delta"]["role"] == "assistant"
        assert done == "data: [DONE]"
        assert loads.most_at_once == 1


def test_a_model_that_does_not_load_leaves_the_others(one_served_mib: int) -> None:
    def failing(request: RunRequest, on_progress: Any, memory: Any) -> LoadedModel:
        if request.seed == 7:
            raise NotReadable("the file is broken")
        return load(request, on_progress, memory)

    slots = [ModelSlot(DEMO, "good"), ModelSlot(replace(DEMO, seed=7), "bad")]
    with running(load=failing, slots=slots) as server:
        for _ in range(2):
            reply = server.chat(model="bad")
            assert reply.status_code == 500
            assert reply.headers["x-should-retry"] == "false"
            assert reply.json()["error"]["code"] == "model_load_failed"
            assert "the file is broken" in reply.json()["error"]["message"]
            stream = server.chat(model="bad", stream=True, return_progress=True).text
            assert "the file is broken" in stream
            assert stream.endswith("data: [DONE]\n\n")
        found = post(server, "status", "bad").json()
        assert (found["status"], found["requests"]) == ("failed", 0)
        assert "broken" in found["error"]
        assert server.chat(model="good").status_code == 200


def test_the_list_and_each_model_have_a_path(server: RunningServer) -> None:
    [listed] = server.http.get("/v1/models").json()["data"]
    assert server.http.get(f"/v1/models/{listed['id']}").json() == listed
    assert server.http.get("/v1/models/org/none").json()["error"]["code"] == "model_not_found"
    assert server.http.get("/v1/models/").json()["data"] == [listed]


def test_models_are_unloaded_and_loaded_by_hand(server: RunningServer) -> None:
    with running() as own:
        assert post(own, "unload", "demo").json()["status"] == "unloaded"
        assert post(own, "unload", "demo").json()["status"] == "unloaded"
        assert own.http.get("/ready").status_code == 200
        assert own.chat().status_code == 200
        assert post(own, "reload", "demo").json()["status"] == "loaded"
        for action in ("load", "unload", "reload", "status"):
            unknown = post(own, action, "nothing")
            assert unknown.status_code == 404
            assert "demo" in unknown.json()["error"]["message"]
            unnamed = own.http.post(f"/v1/models/{action}", json={})
            assert (unnamed.status_code, unnamed.json()["error"]["param"]) == (400, "model")


@pytest.mark.full
def test_a_model_that_nobody_uses_is_unloaded_after_a_while() -> None:
    with running(ServerSettings(keep_alive_s=0.2)) as server:
        until(lambda: status(server, "demo") == "unloaded")
        assert server.chat().status_code == 200
        until(lambda: status(server, "demo") == "unloaded")


def test_clients_name_new_models_only_where_that_is_allowed() -> None:
    def find(name: str) -> RunRequest:
        if name != "new":
            raise NotReadable(f"there is no {name}")
        return replace(DEMO, source=ModelSource("demo", "safetensors"))

    with running(ServerSettings(allow_load=True), find=find) as server:
        assert server.chat(model="new").status_code == 404, "only /v1/models/load adds models"
        assert post(server, "load", "other").status_code == 400
        assert post(server, "load", "new").json()["status"] == "loaded"
        assert server.chat(model="new").json()["model"] == "new"
        assert [each["id"] for each in server.http.get("/v1/models").json()["data"]] == [
            "demo", "new",
        ]  # fmt: skip
    with running(find=find) as server:
        assert post(server, "load", "new").status_code == 404


@pytest.fixture
def stuck() -> Iterator[tuple[RunningServer, threading.Event]]:
    """A server whose second model is being loaded until the event is set."""
    goes_on = threading.Event()

    def slowly(request: RunRequest, on_progress: Any, memory: Any) -> LoadedModel:
        if request.seed == 7:
            on_progress(LoadProgress("cpu", 25, 100))
            assert goes_on.wait(60)
        return load(request, on_progress, memory)

    slots = [ModelSlot(DEMO, "first"), ModelSlot(replace(DEMO, seed=7), "second")]
    with running(ServerSettings(max_queue=2), slowly, slots=slots) as server:
        yield server, goes_on
        goes_on.set()


@pytest.mark.full
def test_requests_that_wait_for_a_model_are_few_and_may_leave(
    stuck: tuple[RunningServer, threading.Event],
) -> None:
    server, goes_on = stuck
    second = server.server.models.named("second")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(server.url + CHAT, json={"messages": "Hi", "model": "second"}, timeout=0.5)
    until(lambda: not second.waiting)
    with ThreadPoolExecutor(2) as clients:
        waiting = [clients.submit(server.chat, model="second") for _ in range(2)]
        until(lambda: len(second.waiting) == 2)
        full = server.chat(model="second")
        assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
        assert server.chat(model="first").status_code == 200, "others answer meanwhile"
        found = server.http.get("/ready").json()["models"][1]
        assert (found["status"], found["progress"], found["requests"]) == ("loading", 0.25, 2)
        goes_on.set()
        assert [each.result().status_code for each in waiting] == [200, 200]


@pytest.mark.full
def test_unloaded_memory_returns_to_the_system(tmp_path: Path) -> None:
    folder = write_demo_like_model(
        tmp_path, "llama", hidden_size=512, intermediate_size=6144, num_hidden_layers=6
    )
    big = RunRequest(ModelSource(str(folder), "safetensors"), cpu=True)
    process = psutil.Process()
    with running(slots=[ModelSlot(DEMO, "small"), ModelSlot(big, "big")]) as server:
        assert post(server, "load", "big").json()["status"] == "loaded"
        assert server.chat(model="big").status_code == 200
        post(server, "unload", "big")
        small = process.memory_info().rss
        assert post(server, "load", "big").json()["status"] == "loaded"
        assert server.chat(model="big").status_code == 200
        grown = process.memory_info().rss - small
        weights = sum(server.server.models.named("big").model.plan.weight_bytes().values())
        assert grown > 0.9 * weights > 90 * MIB
        assert post(server, "unload", "big").json()["status"] == "unloaded"
        assert process.memory_info().rss - small < 0.1 * weights
