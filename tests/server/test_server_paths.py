"""Paths as other programs write them, and the names of models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from running_server import DEMO, RunningServer, running

from mrs.server.models.slot import ModelSlot
from mrs.server.routes.app import Spellings
from mrs.server.routes.table import ROUTES
from mrs.server.settings import ServerSettings

CHAT = {"messages": "Hi", "max_tokens": 1}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "Hi", "max_tokens": 1},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 1},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/v1/embeddings": {"input": "Hi"},
    "/tokenize": {"prompt": "Hi"},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "spelling", ["{0}", "{1}", "{0}/", "/{0}", "{1}/?a=b", "{0}?api-version=1"]
)
def test_a_path_is_found_however_programs_write_it(
    server: RunningServer, path: str, spelling: str
) -> None:
    written = spelling.format(path, path.removeprefix("/v1"))
    reply = server.http.post(f"{server.url}{written}", json=BODIES[path])
    assert reply.status_code == 200, reply.text


def test_only_versioned_paths_lose_their_version() -> None:
    spelling = Spellings([each.path for each in ROUTES])
    assert spelling("/models/load/") == "/v1/models/load"
    assert spelling("/models/org/name") == "/v1/models/org/name"
    assert spelling("/rerank") == spelling("/v2/rerank") == "/v1/rerank"
    for path in ("/", "/health", "/page/x.js", "/v1", "/v1/health", "/V1/models", "*", ""):
        assert spelling(path) == path
    assert spelling("//") == "/"


@pytest.mark.parametrize(
    "path",
    ["/V1/chat/completions", "/v1/engines/demo/completions", "/props", "/slots", "/v1/v1/models"],
)
def test_what_there_is_not_is_refused_by_name(server: RunningServer, path: str) -> None:
    reply = server.http.post(path, json=CHAT)
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "unknown_path"
    assert path in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/models", "/v1/models/", "/version", "/health/"])
def test_heads_are_those_of_the_whole_responses(server: RunningServer, path: str) -> None:
    whole, head = server.http.get(path), server.http.head(path)
    assert whole.status_code == head.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == whole.headers["content-length"]


def test_another_method_is_refused_with_those_that_there_are(server: RunningServer) -> None:
    for method, path in [
        ("GET", "/chat/completions"),
        ("OPTIONS", "/v1/score"),
        ("PUT", "/score/"),
    ]:
        reply = server.http.request(method, path)
        assert (reply.status_code, reply.headers["allow"]) == (405, "POST")


def test_a_key_is_needed_in_every_spelling() -> None:
    with running(ServerSettings(api_keys=("secret",))) as server:
        for path in ("/models", "//v1//models", "/v1/models/", "/metrics/", "/plan/"):
            assert server.http.get(f"{server.url}{path}").status_code == 401
        for path in ("/health/", "/docs/", "//ready"):
            assert server.http.get(f"{server.url}{path}").status_code == 200


def test_the_version_has_a_path(server: RunningServer) -> None:
    assert isinstance(server.http.get("/version").json()["version"], str)


@pytest.fixture(scope="module")
def named() -> Iterator[RunningServer]:
    with running(slots=[ModelSlot(DEMO, "house/first", "second")]) as made:
        yield made


def test_each_served_name_is_listed_and_answers(named: RunningServer) -> None:
    listed = [each["id"] for each in named.http.get("/v1/models").json()["data"]]
    assert listed == ["house/first", "second"]
    for name in (*listed, "demo", "default", None, ""):
        reply = named.chat(model=name)
        assert reply.json()["model"] == "house/first"
        assert "x-model" not in reply.headers
    assert named.http.get("/v1/models/second").json()["id"] == "second"


@pytest.mark.parametrize("path", BODIES)
def test_the_first_name_is_in_every_reply(named: RunningServer, path: str) -> None:
    reply = named.http.post(path, json={**BODIES[path], "model": "gpt-4o"})
    assert reply.status_code == 200
    assert reply.headers["x-model"] == "house/first"
    if path != "/tokenize":
        assert reply.json()["model"] == "house/first"
    assert 'model_name="house/first"' in named.http.get("/metrics").text


def test_a_stream_says_which_model_answers(named: RunningServer) -> None:
    reply = named.chat(model="gpt-4o", stream=True)
    assert reply.headers["x-model"] == "house/first"


def test_with_strict_names_another_name_is_not_found() -> None:
    with running(ServerSettings(strict_names=True)) as server:
        for path, body in BODIES.items():
            reply = server.http.post(path, json={**body, "model": "gpt-4o"})
            assert reply.status_code == 404, path
            assert "there is no model 'gpt-4o'" in reply.text
        assert server.chat(model="demo").status_code == 200


def test_one_of_several_models_is_never_taken_for_another() -> None:
    with running(slots=[ModelSlot(DEMO, "one"), ModelSlot(DEMO, "two")]) as server:
        assert server.chat(model="gpt-4o").status_code == 404
        assert server.chat(model="one").status_code == 200


def test_models_have_anthropics_fields_when_they_are_asked_for(named: RunningServer) -> None:
    client = anthropic.Anthropic(base_url=named.url, api_key="any")
    found = client.models.list()
    assert [each.id for each in found.data] == ["house/first", "second"]
    assert (found.has_more, found.first_id, found.last_id) == (False, "house/first", "second")
    assert {each.type for each in found.data} == {"model"}
    assert found.data[1].display_name == "second"
    assert found.data[0].created_at.year >= 2024
    assert client.models.retrieve("second").display_name == "second"
    first = client.models.list(limit=1)
    assert (first.has_more, [each.id for each in first.data]) == (True, ["house/first"])
    assert [each.id for each in first] == ["house/first", "second"]
    before = client.models.list(before_id="second")
    assert [each.id for each in before.data] == ["house/first"]
    assert named.http.get("/v1/models").json().keys() == {"object", "data"}


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=1001", "after_id=none"])
def test_a_part_of_the_list_that_there_is_not(named: RunningServer, query: str) -> None:
    reply = named.http.get(f"/v1/models?{query}", headers={"anthropic-version": "2023-06-01"})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == query.split("=")[0].removesuffix("_id")


def test_the_items_of_a_stored_response_are_listed(server: RunningServer) -> None:
    client = server.openai()
    first = client.responses.create(model="demo", input="Hi", max_output_tokens=4)
    second = client.responses.create(
        model="demo",
        max_output_tokens=4,
        previous_response_id=first.id,
        input=[
            {"role": "user", "content": "What is"},
            {"role": "user", "content": [{"type": "input_text", "text": "a cache?"}]},
        ],
    )
    newest: Any = list(client.responses.input_items.list(second.id))
    oldest: Any = list(client.responses.input_items.list(second.id, order="asc", limit=1))
    assert [each.id for each in oldest] == [each.id for each in newest][::-1]
    assert len({each.id for each in oldest}) == len(oldest) == 3 + len(first.output)
    assert oldest[0].content[0].text == "Hi"
    assert oldest[-1].content[0].text == "a cache?"
    assert server.http.get("/v1/responses/resp_none/input_items").status_code == 404


def test_the_tokens_of_an_input_are_counted_without_a_reply(server: RunningServer) -> None:
    client = server.openai()
    counted = client.responses.input_tokens.count(model="demo", input="What is a KV cache?")
    made = client.responses.create(model="demo", input="What is a KV cache?", max_output_tokens=1)
    assert made.usage is not None
    assert counted.input_tokens == made.usage.input_tokens
    assert counted.object == "response.input_tokens"
