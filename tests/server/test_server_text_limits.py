"""Long texts and long lists are refused before they are read, in little processor time."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from running_server import CHAT, RunningServer

from mrs.process.request_memory import CUT_TEXT_BYTES
from mrs.server import pauses
from mrs.server.http.bodies import decoded_bytes
from mrs.server.http.exchange import Exchange
from mrs.server.replies.response_store import ResponseStore
from mrs.server.schemas.messages_blocks import InputMessage
from mrs.server.schemas.messages_conversation import chat_messages as joined_messages
from mrs.server.schemas.responses_conversation import chat_messages, read_items
from mrs.text import control_tokens
from support.suites import first, suite_of

MB = 10**6
#: What a server that rests calls.
COLLECTORS = ("collect", "freeze", "unfreeze", "get_count")
#: Processor time of a refusal in this process, which also sends the request.
REFUSAL_S = 1.0
WORDS = "hello world " * 400_000
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}


def post(server: RunningServer, path: str, body: Any) -> httpx.Response:
    return send(server, path, json.dumps(body))


def send(server: RunningServer, path: str, content: str) -> httpx.Response:
    return server.http.post(path, content=content, headers={"content-type": "application/json"})


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@contextmanager
def little_work() -> Iterator[None]:
    with no_garbage():
        start_s = time.process_time()
        yield
        assert time.process_time() - start_s < REFUSAL_S


@contextmanager
def no_garbage() -> Iterator[None]:
    """Without a server's walks through what other tests have left."""
    collector = SimpleNamespace(**{name: lambda: (0, 0, 0) for name in COLLECTORS})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pauses, "gc", collector)
        yield


TEXTS = {
    "words": WORDS,
    "spaces": " " * 5 * MB,
    "a": "a" * 5 * MB,
    "marks": "\u0301" * MB,
}


@pytest.mark.few(3)
@pytest.mark.values
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize(
    ("path", "field"),
    [
        (CHAT, "messages"),
        ("/v1/completions", "prompt"),
        ("/v1/messages", "messages"),
        ("/v1/responses", "input"),
        ("/v1/embeddings", "input"),
        ("/tokenize", "prompt"),
        ("/v1/messages/count_tokens", "messages"),
    ],
)
def test_a_text_that_no_context_holds_is_refused_before_it_is_read(
    server: RunningServer, path: str, field: str, text: str
) -> None:
    value: Any = user(text) if field == "messages" else text
    with little_work():
        refused = post(server, path, {"model": "demo", "max_tokens": 1, field: value})
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert f"{len(text.encode())}"[:3] in error["message"]
    assert "2048 tokens" in error["message"]
    if "/messages" not in path:
        assert error["code"] == "context_length_exceeded"


@pytest.mark.full
def test_forty_megabytes_are_not_blamed_on_the_template(server: RunningServer) -> None:
    refused = server.chat(messages="a" * 40 * MB)
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert "truncate_sequence" not in refused.json()["error"]["message"]


def test_a_refused_text_takes_little_memory(server: RunningServer) -> None:
    import resource

    server.chat(messages="warm")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    server.chat(messages=WORDS)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


def test_a_text_of_usual_size_is_counted_to_its_end(server: RunningServer) -> None:
    refused = server.chat(messages="a b c d " * 2048).json()["error"]
    assert refused["code"] == "context_length_exceeded"
    assert "the prompt has 8" in refused["message"]


@pytest.mark.full
def test_texts_that_are_counted_may_exceed_the_context(server: RunningServer) -> None:
    found = post(server, "/tokenize", {"prompt": "a b c d " * 60_000}).json()
    assert found["count"] > 100_000


def test_old_turns_of_a_huge_conversation_are_dropped_before_it_is_rendered(
    server: RunningServer,
) -> None:
    old = [*user(WORDS[: 500 * 1000]), {"role": "assistant", "content": "Yes."}] * 20
    last = user("What is a KV cache?")
    alone = server.chat(messages=last, temperature=0).json()
    with little_work():
        cut = server.chat(messages=[*old, *last], truncate_sequence=True, temperature=0).json()
    assert cut["choices"][0]["message"] == alone["choices"][0]["message"]
    assert cut["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]


def test_definitions_of_tools_count_as_text(server: RunningServer) -> None:
    tool = {"type": "function", "function": {**FUNCTION, "description": "a " * MB}}
    refused = server.chat(messages="Hi", tools=[tool]).json()["error"]
    assert refused["code"] == "context_length_exceeded"


#: Fewer than the commas that a body may have.
MANY_ITEMS = 200_000
MANY: dict[str, tuple[str, Callable[[], dict[str, Any]], str]] = {
    "biases": (CHAT, lambda: {"logit_bias": {str(i): 1 for i in range(MANY_ITEMS)}}, "logit_bias"),
    "messages": (CHAT, lambda: {"messages": user("a") * 80_000}, "messages"),
    "tools": (
        CHAT,
        lambda: {"tools": [{"type": "function", "function": FUNCTION}] * 20_000},
        "tools",
    ),
    "stops": (CHAT, lambda: {"stop": ["a"] * MANY_ITEMS}, "stop"),
    "stop ids": (CHAT, lambda: {"stop_token_ids": [1] * MANY_ITEMS}, "stop_token_ids"),
    "prompts": ("/v1/completions", lambda: {"prompt": ["a"] * MANY_ITEMS}, "prompt"),
    "ids": ("/v1/completions", lambda: {"prompt": [1] * MANY_ITEMS}, "prompt"),
    "inputs": ("/v1/embeddings", lambda: {"input": ["a"] * MANY_ITEMS}, "input"),
    "classified": ("/v1/classify", lambda: {"input": ["a"] * MANY_ITEMS}, "input"),
    "documents": (
        "/v1/rerank",
        lambda: {"query": "a", "documents": ["a"] * MANY_ITEMS},
        "documents",
    ),
    "pairs": ("/score", lambda: {"text_1": "a", "text_2": ["a"] * MANY_ITEMS}, "text_2"),
}


#: The core suite has one kind of list for each of what counts them.
MARKED = [
    pytest.param(name, marks=suite_of(name, ("messages", "tools", "stop ids", "prompts", "inputs")))
    for name in MANY
]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", MARKED)
def test_a_list_of_very_many_items_is_refused_at_once(server: RunningServer, name: str) -> None:
    path, fields, param = MANY[name]
    content = json.dumps(({"messages": "Hi"} if path == CHAT else {}) | fields())
    with little_work():
        refused = send(server, path, content)
    error = refused.json()["error"]
    if refused.status_code == 413:  # it would take more memory than all requests have
        (most_bytes,) = re.findall(r"more than (\d+) bytes of memory", error["message"])
        assert error["code"] == "body_error"
        assert len(content) + decoded_bytes(content.encode()) > int(most_bytes)
        return
    assert refused.status_code == 400, refused.text
    assert error["param"] == param


def test_a_body_of_too_many_items_is_refused_before_it_is_decoded(server: RunningServer) -> None:
    content = json.dumps({"messages": "Hi", "stop_token_ids": [1] * 300_000})
    with little_work():
        refused = send(server, CHAT, content)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("the body has more than 262144 commas")


@pytest.mark.full
def test_very_many_unknown_fields_take_little_time(server: RunningServer) -> None:
    unknown = {f"k{index:07}": 1 for index in range(MANY_ITEMS)}
    content = json.dumps({"messages": "Hi", "max_tokens": 1, **unknown})
    with little_work():
        reply = send(server, CHAT, content)
    assert reply.status_code == 200
    assert reply.headers["x-ignored-fields"].startswith("k0000000, k0000001, ")


def test_other_requests_do_not_wait_while_a_large_body_is_decoded(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, begun, may_end = Exchange.decode, threading.Event(), threading.Event()

    def slow(exchange: Exchange, body: bytes, body_type: Any, *most_signs: int) -> Any:
        begun.set()
        assert may_end.wait(120)
        return decode(exchange, body, body_type, *most_signs)

    monkeypatch.setattr(Exchange, "decode", slow)
    with ThreadPoolExecutor() as threads:
        reply = threads.submit(server.chat, user="a" * MB)
        assert begun.wait(120)
        assert server.http.get("/health", timeout=120).status_code == 200
        may_end.set()
        assert reply.result().status_code == 200


@pytest.mark.full
@pytest.mark.parametrize("text", first(2, ["a", "\u0301", " ", "1", "\n", "ab "]))
def test_the_longest_text_that_is_counted_takes_about_a_second(
    server: RunningServer, text: str
) -> None:
    most = CUT_TEXT_BYTES // len(text.encode())
    with no_garbage():
        start_s = time.process_time()
        found = post(server, "/tokenize", {"prompt": text * most})
        assert time.process_time() - start_s < 2.5
    assert found.json()["count"] > 1000
    refused = post(server, "/tokenize", {"prompt": text * (most + 1)})
    assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_a_conversation_that_is_cut_is_not_tokenized_whole_again_and_again(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: list[int] = []
    encode = control_tokens.encode_ids

    def counting(backend: Any, text: str, **more: bool) -> list[int]:
        whole.append(len(text))
        return encode(backend, text, **more)

    monkeypatch.setattr(control_tokens, "encode_ids", counting)
    turns = [*user("1 " * 1000), {"role": "assistant", "content": "Yes."}] * 250
    reply = server.chat(messages=[*turns, *user("Hi")], truncate_sequence=True)
    assert reply.status_code == 200
    assert sum(whole) < 500_000


@pytest.mark.full
def test_many_items_of_a_response_take_little_time(
    server: RunningServer,
) -> None:
    items = [{"role": "user", "content": "a"}] * 16_000
    with little_work():
        refused = post(server, "/v1/responses", {"input": items})
    assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_a_stored_response_is_decoded_once_for_all_references_to_its_items(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = post(server, "/v1/responses", {"input": "Hi", "max_output_tokens": 2}).json()
    made, calls = ResponseStore.made_with, list[str]()

    def counting(store: ResponseStore, salt: bytes, item_id: str) -> Any:
        calls.append(item_id)
        return made(store, salt, item_id)

    monkeypatch.setattr(ResponseStore, "made_with", counting)
    references = [{"type": "item_reference", "id": first["output"][0]["id"]}] * 20
    body = {"input": [*references, *user("Hi")], "max_output_tokens": 1}
    assert post(server, "/v1/responses", body).status_code == 200
    assert len(calls) == 1


DAMAGED = "data:image/png;base64,@@@"
CONTENT = {
    CHAT: [{"type": "image_url", "image_url": {"url": DAMAGED}}],
    "/tokenize": [{"type": "image_url", "image_url": {"url": DAMAGED}}],
    "/v1/messages": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "@@@"}}
    ],
}


@pytest.mark.parametrize("path", CONTENT)
def test_an_image_is_refused_before_it_is_decoded(server: RunningServer, path: str) -> None:
    """By a model without vision: another error would tell that it was read."""
    body = {"messages": user(CONTENT[path]), "max_tokens": 1}  # type: ignore[arg-type]
    refused = post(server, path, body)
    assert refused.status_code == 400
    assert (
        "this model was loaded without vision or audio support"
        in refused.json()["error"]["message"]
    )


#: Items of /v1/responses of which a row is one message.
ROWS: dict[str, Callable[[int], dict[str, Any]]] = {
    "thoughts": lambda index: {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "x" * 1000}],
    },
    "calls": lambda index: {
        "type": "function_call",
        "call_id": str(index),
        "name": "f",
        "arguments": "{}",
    },
}


@pytest.mark.parametrize("kind", ROWS)
def test_a_row_of_items_becomes_one_message_in_little_processor_time(kind: str) -> None:
    """Joining each to all before it took 6 s for 4,000 thoughts, and minutes for 16,000."""
    items = read_items([ROWS[kind](index) for index in range(8000)])
    start_s = time.thread_time()
    (message,) = chat_messages(None, items)
    assert time.thread_time() - start_s < 2
    assert len(message.tool_calls or ()) == (8000 if kind == "calls" else 0)
    assert len(message.reasoning_content or "") == (8000 * 1001 - 1 if kind == "thoughts" else 0)


def test_a_row_of_messages_becomes_one_in_little_processor_time() -> None:
    """Of /v1/messages: joining each to all before it took 4 s for 16,000."""
    given = msgspec.convert([{"role": "user", "content": "a"}] * 16_000, list[InputMessage])
    start_s = time.thread_time()
    (message,) = joined_messages(None, given)
    assert time.thread_time() - start_s < 1.5
    assert len(message.parts) == 2 * 16_000 - 1
