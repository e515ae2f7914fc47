"""Token ids in the forms of vLLM and llama.cpp, and bodies in unusual ones."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest
from running_server import RunningServer

TEXT = "naïve — 🦙<|im_end|>"


def tokens(server: RunningServer, **fields: Any) -> Any:
    reply = server.http.post("/tokenize", json=fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_pieces_are_texts_or_bytes_of_parts_of_characters(server: RunningServer) -> None:
    plain = tokens(server, content=TEXT)
    found = tokens(server, content=TEXT, with_pieces=True)["tokens"]
    assert [each["id"] for each in found] == plain["tokens"]
    pieces = [each["piece"] for each in found]
    assert any(isinstance(each, list) for each in pieces)
    whole = b"".join(bytes(x) if isinstance(x, list) else x.encode() for x in pieces)
    assert whole.decode() == TEXT
    assert pieces[-1] == "<|im_end|>"


def test_texts_of_tokens_come_beside_them(server: RunningServer) -> None:
    found = tokens(server, prompt="The KV cache", return_token_strs=True)
    assert "".join(found["token_strs"]) == "The KV cache"
    assert len(found["token_strs"]) == found["count"] == len(found["tokens"])
    assert "token_strs" not in tokens(server, prompt="The KV cache")


def test_control_tokens_are_text_where_they_are_not_parsed(server: RunningServer) -> None:
    parsed, text = tokens(server, content=TEXT), tokens(server, content=TEXT, parse_special=False)
    assert text["count"] > parsed["count"]
    back = server.http.post("/detokenize", json={"tokens": text["tokens"]}).json()
    assert back["content"] == back["prompt"] == TEXT


def test_both_names_of_a_field_mean_the_same(server: RunningServer) -> None:
    for wanted in (False, True):
        by_name = [
            tokens(server, prompt=TEXT, add_special_tokens=wanted),
            tokens(server, content=TEXT, add_special=wanted),
        ]
        assert by_name[0] == by_name[1]


def test_a_conversation_with_tools_is_counted_with_them(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    counted = tokens(server, messages=messages)["count"]
    made = server.chat(messages=messages, max_tokens=1).json()["usage"]["prompt_tokens"]
    assert counted == made
    assert tokens(server, messages=messages, tools=[tool])["count"] >= counted


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "a", "content": "a"}, "prompt"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "Hi"}]}, "prompt"),
        ({"add_generation_prompt": False, "messages": []}, "add_generation_prompt"),
        ({"continue_final_message": True, "messages": []}, "continue_final_message"),
        ({"chat_template": "{{ a }}", "messages": []}, "chat_template"),
        ({}, "prompt"),
    ],
)
def test_what_is_not_honoured_is_refused(server: RunningServer, fields: Any, param: str) -> None:
    reply = server.http.post("/tokenize", json=fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_embeddings_in_base64_of_token_ids(server: RunningServer) -> None:
    ids = tokens(server, prompt="The KV cache")["tokens"]
    fields = {"input": [ids], "user": "someone"}
    numbers = server.http.post("/embeddings", json=fields)
    coded = server.http.post("/embeddings", json={**fields, "encoding_format": "base64"})
    assert numbers.headers["x-ignored-fields"] == "user"
    wanted = numbers.json()["data"][0]["embedding"]
    raw = base64.b64decode(coded.json()["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(wanted)}f", raw)) == pytest.approx(wanted, abs=1e-6)
    refused = server.http.post("/embeddings", json={**fields, "dimensions": 3})
    assert refused.json()["error"]["param"] == "dimensions"
    assert server.http.post("/embeddings", json={**fields, "encoding_format": "int8"}).is_error


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "a/b", None])
def test_json_is_read_whatever_its_content_type_is(server: RunningServer, kind: str | None) -> None:
    headers = {"accept": "text/html"} | ({"content-type": kind} if kind else {})
    body = json.dumps({"prompt": "Hi", "max_tokens": 1}).encode()
    reply = server.http.post("/completions", content=body, headers=headers)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    form = server.http.post("/completions", content=b"prompt=Hi", headers=headers)
    assert form.json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/completions", {"prompt": "a", "logprobs": 21}, "logprobs"),
        ("/completions", {"prompt": "a", "logprobs": True}, "logprobs"),
        ("/chat/completions", {"messages": "a", "logprobs": True, "top_logprobs": 21},
         "top_logprobs"),
        ("/chat/completions", {"messages": "a", "top_logprobs": 2}, "top_logprobs"),
        ("/chat/completions", {"messages": "a", "max_tokens": -1}, "max_tokens"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/score", {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 3},
         "truncate_prompt_tokens"),
        ("/rerank", {"query": "a", "texts": ["b"]}, "documents"),
    ],
)  # fmt: skip
def test_what_exceeds_a_limit_is_refused_by_name(
    server: RunningServer, path: str, fields: Any, param: str
) -> None:
    reply = server.http.post(path, json=fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
