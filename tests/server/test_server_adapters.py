"""Requests to the server choose an adapter, and are computed in one batch."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from running_server import RunningServer, running, until
from safetensors.torch import load_file

from mrs.errors import DoesNotFit
from mrs.plan.plan import Plan
from mrs.request import AdapterRequest
from mrs.server.settings import ServerSettings
from support.lora_files import Adapter
from support.model_files import DEMO


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    weights = load_file(DEMO / "model.safetensors")
    weights = {name: each.float() for name, each in weights.items()}
    requests = []
    for seed, name in enumerate(("first", "second")):
        adapter = Adapter(weights, ("q_proj", "v_proj", "up_proj"), alpha=30.0, seed=seed)
        folder: Path = adapter.write(tmp_path_factory.mktemp(name))
        requests.append(AdapterRequest(str(folder), name, is_merged=False))
    with running(adapters=tuple(requests), dtype="f32") as made:
        yield made


def reply(server: RunningServer, name: str | None) -> str:
    answer = server.chat(adapter=name, max_tokens=12, temperature=0)
    assert answer.status_code == 200
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def test_each_request_has_its_own_adapter(adapted: RunningServer) -> None:
    names = (None, "first", "second")
    alone = {name: reply(adapted, name) for name in names}
    assert len(set(alone.values())) == 3
    with ThreadPoolExecutor(4) as pool:
        wanted = [*names, *names]
        together = list(pool.map(lambda name: reply(adapted, name), wanted))
    assert together == [alone[name] for name in wanted]


def test_an_adapter_that_is_not_loaded(adapted: RunningServer, server: RunningServer) -> None:
    answer = adapted.chat(adapter="third")
    assert answer.status_code == 400
    assert "no adapter 'third'" in answer.json()["error"]["message"]
    assert server.chat(adapter="first").status_code == 400


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Adapters of the demo model that no server has loaded."""
    weights = load_file(DEMO / "model.safetensors")
    weights = {name: each.float() for name, each in weights.items()}
    modules = ("q_proj", "v_proj", "up_proj")
    return [
        Adapter(weights, modules, alpha=30.0, seed=seed).write(tmp_path / name)
        for seed, name in enumerate(("first", "second"))
    ]


def change(server: RunningServer, action: str, **fields: object) -> httpx.Response:
    return server.http.post(f"/v1/{action}_lora_adapter", json=fields)


def names(server: RunningServer) -> list[str]:
    return [each["id"] for each in server.http.get("/v1/models").json()["data"]]


LOADING = ServerSettings(allow_adapters=True)


@pytest.mark.full
def test_adapters_are_loaded_and_unloaded_while_serving(
    adapted: RunningServer, folders: list[Path]
) -> None:
    with running(LOADING, dtype="f32") as server:
        plain = reply(server, None)
        for name, folder in zip(("first", "second"), folders, strict=True):
            loaded = change(server, "load", lora_name=name, lora_path=str(folder))
            assert loaded.status_code == 200
            assert loaded.text == f"Success: LoRA adapter '{name}' added successfully."
            assert reply(server, name) == reply(adapted, name)
        assert reply(server, None) == plain == reply(adapted, None)
        assert names(server) == ["demo", "first", "second"]
        assert server.http.get("/v1/models/second").json()["parent"] == "demo"
        unloaded = change(server, "unload", lora_name="first")
        assert unloaded.text == "Success: LoRA adapter 'first' removed successfully."
        assert names(server) == ["demo", "second"]
        assert server.chat(adapter="first").status_code == 400
        assert reply(server, "second") == reply(adapted, "second")
        assert change(server, "unload", lora_name="first").status_code == 404


def test_the_name_of_an_adapter_as_model_chooses_it(adapted: RunningServer) -> None:
    wanted = reply(adapted, "first")
    made = adapted.chat(model="first", max_tokens=12, temperature=0).json()
    assert made["choices"][0]["message"]["content"] == wanted
    assert made["model"] == "first"
    body = {"prompt": "The KV", "max_tokens": 8, "temperature": 0}
    texts = {}
    for name in ("demo", "first", "second"):
        reply_of = adapted.http.post("/v1/completions", json={**body, "model": name})
        assert "x-model" not in reply_of.headers
        texts[name] = reply_of.json()["choices"][0]["text"]
    assert len(set(texts.values())) == 3
    message = {"messages": [{"role": "user", "content": "What is a KV cache?"}], "max_tokens": 12}
    message |= {"model": "first", "temperature": 0}
    found = adapted.http.post("/v1/messages", json=message).json()
    assert (found["model"], found["content"][0]["text"]) == ("first", wanted)
    item = {"input": "What is a KV cache?", "max_output_tokens": 12, "temperature": 0}
    response = adapted.http.post("/v1/responses", json={**item, "model": "first"}).json()
    assert (response["model"], response["output"][0]["content"][0]["text"]) == ("first", wanted)


def test_an_adapter_makes_nothing_but_replies(adapted: RunningServer) -> None:
    for path, body in {"/v1/embeddings": {"input": "a"}, "/tokenize": {"prompt": "a"}}.items():
        refused = adapted.http.post(path, json={**body, "model": "first"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
    both = adapted.chat(model="first", adapter="second")
    assert (both.status_code, both.json()["error"]["param"]) == (400, "adapter")


def test_adapters_are_loaded_only_where_that_is_allowed(
    server: RunningServer, folders: list[Path]
) -> None:
    for action in ("load", "unload"):
        fields = {"lora_name": "a", "lora_path": str(folders[0])}
        refused = change(server, action, **fields)
        assert refused.status_code == 403
        assert "--allow-adapter-loading" in refused.json()["error"]["message"]
    with running(ServerSettings(allow_adapters=True, api_keys=("secret",))) as own:
        assert change(own, "load", lora_name="a", lora_path=str(folders[0])).status_code == 401


@pytest.mark.full
def test_what_cannot_be_loaded_is_refused_and_disturbs_nothing(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(LOADING, dtype="f32") as server:
        engine = server.model.engine
        path = str(folders[0])
        cases = [
            ({"lora_name": "a", "lora_path": "/none/such"}, "lora_path"),
            ({"lora_name": "a", "lora_path": str(DEMO)}, "lora_path"),
            ({"lora_name": "", "lora_path": path}, "lora_name"),
            ({"lora_name": "demo", "lora_path": path}, "lora_name"),
            ({"lora_name": "a"}, "lora_path"),
        ]
        for fields, param in cases:
            refused = change(server, "load", **fields)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), fields
        unknown = change(server, "load", lora_name="a", lora_path=path, model="none")
        assert unknown.status_code == 404
        assert server.model.engine is engine
        assert change(server, "load", lora_name="a", lora_path=path).status_code == 200
        again = change(server, "load", lora_name="a", lora_path=path)
        assert again.json()["error"]["code"] == "adapter_loaded"
        fields = {"lora_name": "a", "lora_path": str(folders[1]), "load_inplace": True}
        assert change(server, "load", **fields).status_code == 200
        engine = server.model.engine

        def no_room(plan: Plan) -> None:
            raise DoesNotFit("needs 9.9 GiB of 1 MiB", missing_bytes=1)

        monkeypatch.setattr(Plan, "require_fit", no_room)
        refused = change(server, "load", lora_name="b", lora_path=path)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "lora_path")
        assert refused.json()["error"]["code"] == "does_not_fit"
        assert "9.9 GiB of 1 MiB" in refused.json()["error"]["message"]
        assert server.model.engine is engine
        assert server.chat(adapter="a").status_code == 200


@pytest.mark.full
def test_replies_that_run_end_before_their_adapter_leaves(
    folders: list[Path], slow_steps: None
) -> None:
    with running(LOADING, dtype="f32") as server:
        change(server, "load", lora_name="a", lora_path=str(folders[0]))
        fields = {"adapter": "a", "max_tokens": 40, "ignore_eos": True}
        with ThreadPoolExecutor(2) as pool:
            running_reply = pool.submit(lambda: server.chat(**fields))
            until(lambda: server.stats.running == 1)
            unloaded = pool.submit(lambda: change(server, "unload", lora_name="a"))
            assert unloaded.result().status_code == 200
            assert running_reply.result().json()["usage"]["completion_tokens"] == 40
        assert names(server) == ["demo"]


@pytest.mark.full
def test_adapters_that_are_loaded_at_once_are_all_there(folders: list[Path]) -> None:
    with running(LOADING, dtype="f32") as server, ThreadPoolExecutor(2) as pool:
        pairs = zip(("first", "second"), folders, strict=True)
        jobs = [
            pool.submit(change, server, "load", lora_name=name, lora_path=str(folder))
            for name, folder in pairs
        ]
        assert [job.result().status_code for job in jobs] == [200, 200]
        assert sorted(names(server)) == ["demo", "first", "second"]
