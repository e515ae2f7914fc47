"""Log-probabilities of prompts and replies, and where their tokens are in the text."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import httpx
import pytest
from running_server import CHAT, RunningServer, noting_thread

from mrs.engine.reply_events import ReplyEvents
from mrs.events import TokenLogprob
from mrs.server.endpoints import chat, completions
from mrs.server.schemas.completion_response import text_logprobs

PATH = "/v1/completions"
CONTROLS = (b"<|im_start|>", b"<|im_end|>")
TEXT = "The KV cache holds keys — 🦙 and naïve values."


def complete(server: RunningServer, **fields: Any) -> httpx.Response:
    return server.http.post(PATH, json={"prompt": TEXT, "temperature": 0, **fields})


def choice_of(server: RunningServer, **fields: Any) -> Any:
    reply = complete(server, **fields)
    assert reply.status_code == 200, reply.text
    (choice,) = reply.json()["choices"]
    return choice


def ids_of(server: RunningServer, text: str = TEXT) -> list[int]:
    found: list[int] = server.http.post("/tokenize", json={"prompt": text}).json()["tokens"]
    return found


def as_bytes(token: str) -> bytes:
    """The bytes of a token as OpenAI names it."""
    if not token.startswith("bytes:"):
        return token.encode()
    return bytes(int(each, 16) for each in token.removeprefix("bytes:").split("\\x")[1:])


def test_an_echo_has_the_log_probabilities_of_the_prompt(server: RunningServer) -> None:
    choice = choice_of(server, echo=True, logprobs=2, max_tokens=3, ignore_eos=True)
    found, ids = choice["logprobs"], ids_of(server)
    lists = [found[name] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")]
    assert {len(each) for each in lists} == {len(ids) + 3}
    assert found["token_logprobs"][0] is None
    assert found["top_logprobs"][0] is None
    assert all(len(top) in (1, 2) for top in found["top_logprobs"][1:])
    assert choice["text"].startswith(TEXT)


def test_each_token_of_an_echo_is_as_likely_as_after_the_tokens_before_it(
    server: RunningServer,
) -> None:
    ids = ids_of(server)
    found = choice_of(server, echo=True, logprobs=1, max_tokens=0)["logprobs"]
    for length in (1, 2, 5, len(ids) - 1):
        asked = choice_of(server, prompt=ids[:length], logprobs=20, max_tokens=1)["logprobs"]
        (top,) = asked["top_logprobs"]
        name, logprob = found["tokens"][length], found["token_logprobs"][length]
        if name in top:
            assert logprob == pytest.approx(top[name], abs=1e-4)
        else:
            assert logprob <= min(top.values()) + 1e-4
        best = max(top.values())
        assert max(found["top_logprobs"][length].values()) == pytest.approx(best, abs=1e-4)


def test_a_prompt_alone_has_no_generated_token(server: RunningServer) -> None:
    reply = complete(server, echo=True, logprobs=1, max_tokens=0).json()
    assert reply["choices"][0]["text"] == TEXT
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 0
    assert complete(server, max_tokens=0).json()["choices"][0]["text"] == ""


@pytest.mark.parametrize("given", ["text", "ids"])
def test_tokens_make_up_the_text_where_their_offsets_say(server: RunningServer, given: str) -> None:
    """Parts of a character begin where it begins; control tokens are no part of a reply's text."""
    prompt = TEXT if given == "text" else ids_of(server)
    choice = choice_of(server, prompt=prompt, echo=True, logprobs=0, max_tokens=5, ignore_eos=True)
    found, text = choice["logprobs"], choice["text"]
    pieces = [as_bytes(token) for token in found["tokens"]]
    assert any(token.startswith("bytes:") for token in found["tokens"])
    before = b""
    for piece, offset in zip(pieces, found["text_offset"], strict=True):
        assert offset == len(before.decode("utf-8", "ignore"))
        before += b"" if piece in CONTROLS else piece
    assert before.decode() == text


def test_a_stream_brings_the_prompt_with_its_log_probabilities(server: RunningServer) -> None:
    fields = {"echo": True, "logprobs": 1, "max_tokens": 4, "n": 2}
    whole = complete(server, **fields).json()["choices"]
    client = server.openai()
    merged: list[dict[str, Any]] = [{"text": "", "tokens": [], "offsets": []} for _ in whole]
    for chunk in client.completions.create(
        model="demo", prompt=TEXT, temperature=0, stream=True, **fields
    ):
        for choice in chunk.choices:
            into = merged[choice.index]
            into["text"] += choice.text
            if choice.logprobs is not None:
                into["tokens"] += choice.logprobs.tokens or []
                into["offsets"] += choice.logprobs.text_offset or []
    for found, choice in zip(merged, whole, strict=True):
        assert found["text"] == choice["text"]
        assert found["tokens"] == choice["logprobs"]["tokens"]
        assert found["offsets"] == choice["logprobs"]["text_offset"]


def test_several_prompts_are_echoed_with_their_own(server: RunningServer) -> None:
    texts = ["The KV cache", "What is a model?"]
    fields = {"echo": True, "logprobs": 1, "max_tokens": 0}
    several = complete(server, prompt=texts, n=2, **fields).json()["choices"]
    for index, text in enumerate(texts):
        alone = choice_of(server, prompt=text, **fields)["logprobs"]
        for choice in several[2 * index : 2 * index + 2]:
            assert choice["text"] == text
            assert choice["logprobs"]["tokens"] == alone["tokens"]
            assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(
                alone["token_logprobs"][1:], abs=1e-4
            )


def test_vllms_prompt_logprobs_have_ranks_by_token_id(server: RunningServer) -> None:
    echo = choice_of(server, echo=True, logprobs=1, max_tokens=0)["logprobs"]
    found = choice_of(server, prompt_logprobs=2, max_tokens=1)["prompt_logprobs"]
    ids = ids_of(server)
    assert found[0] is None
    for token_id, entry, logprob in zip(
        ids[1:], found[1:], echo["token_logprobs"][1:], strict=True
    ):
        own = entry[str(token_id)]
        assert own["logprob"] == pytest.approx(logprob, abs=1e-4)
        assert sorted(each["rank"] for each in entry.values())[:2] == [1, 2]
        assert len(entry) == (2 if own["rank"] <= 2 else 3)
        assert isinstance(own["decoded_token"], str)


def test_a_chat_has_the_log_probabilities_of_its_rendered_prompt(server: RunningServer) -> None:
    reply = server.chat(prompt_logprobs=0, max_tokens=1).json()
    assert len(reply["prompt_logprobs"]) == reply["usage"]["prompt_tokens"]
    assert all(len(entry) == 1 for entry in reply["prompt_logprobs"][1:])
    assert "prompt_logprobs" not in server.chat(max_tokens=1).json()
    refused = server.chat(prompt_logprobs=0, stream=True)
    assert refused.json()["error"]["param"] == "prompt_logprobs"


@pytest.mark.parametrize("path", ["chat", "completion"])
def test_the_token_that_ends_a_reply_is_among_its_log_probabilities(
    server: RunningServer, path: str
) -> None:
    """As in vLLM: programs that cut off what was generated count on it."""
    if path == "chat":
        reply = server.chat(logprobs=True, max_tokens=100, temperature=0).json()
        found = [each["token"] for each in reply["choices"][0]["logprobs"]["content"]]
    else:
        rendered = "<|user|>Hi<|end|><|assistant|>"
        reply = complete(server, prompt=rendered, logprobs=0, max_tokens=200).json()
        found = reply["choices"][0]["logprobs"]["tokens"]
    assert reply["usage"]["completion_tokens"] == len(found)
    if reply["choices"][0]["finish_reason"] == "stop":
        assert found[-1]


def test_control_tokens_have_names_and_bytes(server: RunningServer) -> None:
    """No two of them are the same empty text among the likeliest tokens."""
    reply = server.chat(logprobs=True, top_logprobs=20, max_tokens=40, ignore_eos=True).json()
    content = reply["choices"][0]["logprobs"]["content"]
    for each in [top for entry in content for top in [entry, *entry["top_logprobs"]]]:
        assert each["token"]
        assert each["bytes"]
        assert bytes(each["bytes"]).decode("utf-8", "replace") == each["token"]


def test_parts_of_characters_have_keys_of_their_own() -> None:
    top = ((b"\xe2\x80", -0.5), (b"\xe2\x81", -1.0), (b"a", -2.0), (b"\xff", -3.0))
    found = text_logprobs([TokenLogprob(b"\xe2\x80", -0.5, top, 3)], 10)
    assert found is not None
    assert found.tokens == ["bytes:\\xe2\\x80"]
    assert found.top_logprobs == [
        {"bytes:\\xe2\\x80": -0.5, "bytes:\\xe2\\x81": -1.0, "a": -2.0, "bytes:\\xff": -3.0}
    ]
    assert found.text_offset == [13]


def test_of_tokens_with_the_same_bytes_the_likeliest_is_kept() -> None:
    found = text_logprobs([TokenLogprob(b"a", -0.5, ((b"a", -0.5), (b"a", -9.0)))])
    assert found is not None
    assert found.top_logprobs == [{"a": -0.5}]
    assert math.isclose(found.token_logprobs[0] or 0, -0.5)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (PATH, {"prompt": TEXT, "logprobs": 5, "echo": True}),
        (PATH, {"prompt": TEXT, "logprobs": 5, "echo": True, "stream": True}),
        (PATH, {"prompt": TEXT, "prompt_logprobs": 5}),
        (CHAT, {"messages": TEXT, "prompt_logprobs": 5}),
        (CHAT, {"messages": TEXT, "logprobs": True, "top_logprobs": 5}),
    ],
)
def test_log_probabilities_are_written_in_turns_and_not_on_the_event_loop(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any]
) -> None:
    """Those of a long prompt take a second, in which nobody else would be answered."""
    threads: list[str] = []
    noting = partial(noting_thread, threads)
    monkeypatch.setattr(ReplyEvents, "prompt_logprobs", noting(ReplyEvents.prompt_logprobs))
    for module in (chat, completions):
        monkeypatch.setattr(module, "prompt_logprobs", noting(module.prompt_logprobs))
    monkeypatch.setattr(chat, "logprobs_of", noting(chat.logprobs_of))
    reply = server.http.post(path, json={"max_tokens": 2, **fields})
    assert reply.status_code == 200, reply.text
    assert threads
    assert all(name.startswith("mrs-request") for name in threads)
