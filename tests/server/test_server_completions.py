"""Completions, token ids and back, and the list of models."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from running_server import RunningServer

PATH = "/v1/completions"


def complete(server: RunningServer, prompt: Any, **fields: Any) -> httpx.Response:
    return server.http.post(PATH, json={"prompt": prompt, **fields})


def texts(reply: httpx.Response) -> list[str]:
    assert reply.status_code == 200, reply.text
    return [choice["text"] for choice in reply.json()["choices"]]


def test_a_text_is_continued_by_sixteen_tokens(server: RunningServer) -> None:
    reply = server.openai().completions.create(model="demo", prompt="The KV cache", n=2)
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert reply.object == "text_completion"
    assert reply.usage is not None
    assert reply.usage.completion_tokens <= 32


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_of_every_kind_get_the_same_continuation(
    server: RunningServer, stream: bool
) -> None:
    text = "The KV cache"
    ids = server.http.post("/tokenize", json={"prompt": text}).json()["tokens"]
    other = texts(complete(server, "What"))[0]
    wanted = texts(complete(server, text))[0]
    kinds = {text: [wanted], (text, "What"): [wanted, other], tuple(ids): [wanted],
             (tuple(ids), "What"): [wanted, other]}  # fmt: skip
    client = server.openai()
    for prompt, continuations in kinds.items():
        given: Any = prompt if isinstance(prompt, str) else list(prompt)
        found = [""] * len(continuations)
        reply: Any = client.completions.create(model="demo", prompt=given, stream=stream)
        for part in reply if stream else [reply]:
            for choice in part.choices:
                found[choice.index] += choice.text
        assert found == continuations


@pytest.mark.parametrize("stream", [False, True])
def test_echo_returns_the_prompt_before_the_text(server: RunningServer, stream: bool) -> None:
    reply: Any = server.openai().completions.create(
        model="demo", prompt=["The KV", "What"], echo=True, max_tokens=2, n=2, stream=stream
    )
    found = [""] * 4
    for part in reply if stream else [reply]:
        for choice in part.choices:
            found[choice.index] += choice.text
    assert [text[:4] for text in found] == ["The ", "The ", "What", "What"]


def test_log_probabilities_lie_along_the_text(server: RunningServer) -> None:
    reply = server.openai().completions.create(model="demo", prompt="The KV", logprobs=2)
    (choice,) = reply.choices
    found = choice.logprobs
    assert found is not None
    assert found.tokens is not None
    assert "".join(found.tokens) == choice.text
    for token, start in zip(found.tokens, found.text_offset or [], strict=True):
        assert choice.text[start : start + len(token)] == token
    assert all(len(top) <= 2 for top in found.top_logprobs or [])


@pytest.mark.parametrize(
    ("prompt", "fields", "param"),
    [
        (5, {}, "prompt"),
        ([], {}, "prompt"),
        ([1, "a"], {}, "prompt"),
        ([[]], {}, None),
        ([-1], {}, "prompt[0]"),
        ([2**30], {}, "prompt"),
        ("a", {"suffix": "b"}, "suffix"),
        ("a", {"suffix": "b", "truncate_sequence": True}, "suffix"),
        ("a", {"echo": True, "logprobs": 0, "truncate_sequence": True}, "echo"),
        ("a", {"echo": True, "logprobs": 0, "suffix": "b"}, "suffix"),
        ("a", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ("a", {"prompt_logprobs": 21}, "prompt_logprobs"),
        ("a", {"prompt_logprobs": -1}, "prompt_logprobs"),
        ("a", {"max_tokens": -1}, "max_tokens"),
        ("a", {"best_of": 1, "n": 2}, "best_of"),
        ("a", {"best_of": 2, "stream": True}, "best_of"),
        ("a " * 5000, {}, "prompt"),
    ],
)
def test_what_is_wrong_is_named(
    server: RunningServer, prompt: Any, fields: dict[str, Any], param: str | None
) -> None:
    reply = complete(server, prompt, **fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_the_likeliest_of_several_replies_are_returned(server: RunningServer) -> None:
    fields = {"temperature": 1.5, "seed": 3, "max_tokens": 6, "logprobs": 0}
    made = complete(server, ["The KV", "What"], n=4, **fields).json()["choices"]

    def likelihood(choice: Any) -> float:
        found = choice["logprobs"]["token_logprobs"]
        return sum(found) / len(found)

    wanted = [
        choice["text"]
        for first in (0, 4)
        for choice in sorted(made[first : first + 4], key=likelihood, reverse=True)[:2]
    ]
    del fields["logprobs"]
    reply = complete(server, ["The KV", "What"], n=2, best_of=4, **fields)
    assert texts(reply) == wanted
    assert [choice["index"] for choice in reply.json()["choices"]] == [0, 1, 2, 3]
    assert all(choice["logprobs"] is None for choice in reply.json()["choices"])
    assert reply.json()["usage"]["completion_tokens"] > 12


def test_tokens_and_back(server: RunningServer) -> None:
    text = "The KV cache — déjà vu"
    found = server.http.post("/tokenize", json={"content": text, "add_special_tokens": False})
    assert found.json()["count"] == len(found.json()["tokens"])
    back = server.http.post("/detokenize", json={"tokens": found.json()["tokens"]}).json()
    assert back == {"prompt": text, "content": text}
    messages = [{"role": "user", "content": "What is a KV cache?"}]
    count = server.http.post("/tokenize", json={"messages": messages}).json()["count"]
    assert count == server.chat().json()["usage"]["prompt_tokens"]
    assert server.http.post("/tokenize", json={}).json()["error"]["param"] == "prompt"


def test_the_list_of_models(server: RunningServer) -> None:
    client = server.openai()
    (model,) = client.models.list()
    assert model.id == "demo"
    assert client.models.retrieve("demo") == model
    assert model.model_extra is not None
    assert model.model_extra["max_model_len"] == server.model.context_tokens
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another/model")


@pytest.mark.parametrize("token", [10**6, 2**31 - 1])
@pytest.mark.parametrize("path", ["/v1/completions", "/detokenize"])
def test_a_token_id_that_does_not_exist_is_named(
    server: RunningServer, path: str, token: int
) -> None:
    key = "prompt" if path == "/v1/completions" else "tokens"
    answer = server.http.post(path, json={"model": "demo", key: [5, token, 6], "max_tokens": 1})
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert f"there is no token {token}" in message
    assert "tokenizer" not in message


def test_a_body_may_begin_with_the_signature_of_utf_8(server: RunningServer) -> None:
    body = b'{"tokens": [5]}'
    plain = server.http.post("/detokenize", content=body)
    assert server.http.post("/detokenize", content=b"\xef\xbb\xbf" + body).json() == plain.json()
    for encoding in ("utf-16", "utf-32"):
        answer = server.http.post("/detokenize", content=body.decode().encode(encoding))
        assert answer.status_code == 400
        assert encoding.upper() in answer.json()["error"]["message"]
