"""Chat completions, as the official client of OpenAI reads them."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from typing import Any

import openai
import pytest
from running_server import CHAT, RunningServer, running

from mrs.server.settings import ServerSettings

QUESTION: Any = [{"role": "user", "content": "What is a KV cache?"}]
ANSWER = "The **KV cache** keeps"


def test_a_reply_is_a_chat_completion(server: RunningServer) -> None:
    reply = server.openai().chat.completions.create(model="demo", messages=QUESTION)
    (choice,) = reply.choices
    assert choice.message.role == "assistant"
    assert (choice.message.content or "").startswith(ANSWER)
    assert choice.finish_reason == "stop"
    assert (reply.object, reply.model, choice.index) == ("chat.completion", "demo", 0)
    assert choice.logprobs is None
    usage = reply.usage
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.completion_tokens > 10


def test_a_stream_says_the_same_in_pieces(server: RunningServer) -> None:
    client = server.openai()
    whole = client.chat.completions.create(model="demo", messages=QUESTION).choices[0].message
    chunks = list(client.chat.completions.create(model="demo", messages=QUESTION, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == whole.content
    assert deltas[0].role == "assistant"
    assert deltas[0].content == ""
    assert all(delta.role is None for delta in deltas[1:])
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_the_wire_has_data_lines_only_and_ends_with_done(server: RunningServer) -> None:
    reply = server.chat(stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-cache"
    *events, done, end = reply.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    for event in events:
        chunk = json.loads(event.removeprefix("data: "))
        assert "usage" not in chunk
        assert "tool_calls" not in chunk["choices"][0]["delta"]


@pytest.mark.full
def test_a_stream_that_waits_gets_comments(slow_steps: None) -> None:
    with running(ServerSettings(sse_keep_alive_s=0.01), max_seqs=1) as server:
        body = {"messages": "Hi", "max_tokens": 5, "ignore_eos": True, "stream": True}
        text = server.http.post(CHAT, json=body).text
        assert "\n\n: waiting\n\n" in text
        assert text.endswith("data: [DONE]\n\n")
        stream = server.openai().chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "Hi"}], max_tokens=5, stream=True
        )
        assert [chunk.choices[0] for chunk in stream][-1].finish_reason


def test_usage_comes_last_and_only_if_it_is_wanted(server: RunningServer) -> None:
    stream = server.openai().chat.completions.create(
        model="demo", messages=QUESTION, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens > 10
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_the_helper_of_the_sdk_reads_a_stream(server: RunningServer) -> None:
    with server.openai().chat.completions.stream(model="demo", messages=QUESTION) as stream:
        final = stream.get_final_completion()
    assert (final.choices[0].message.content or "").startswith(ANSWER)


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices_and_a_seed(server: RunningServer, stream: bool) -> None:
    def texts(seed: int) -> list[str]:
        reply: Any = server.openai().chat.completions.create(
            model="demo", messages=QUESTION, n=3, seed=seed, temperature=3, max_tokens=8,
            stream=stream,
        )  # fmt: skip
        found = [""] * 3
        for part in reply if stream else [reply]:
            for choice in part.choices:
                text = choice.delta.content if stream else choice.message.content
                found[choice.index] += text or ""
        return found

    first = texts(7)
    assert texts(7) == first
    assert len(set(first)) == 3
    assert texts(8) != first


def test_the_prompt_of_several_choices_counts_once(server: RunningServer) -> None:
    one, three = server.chat(n=1).json()["usage"], server.chat(n=3).json()["usage"]
    assert three["prompt_tokens"] == one["prompt_tokens"]
    assert three["completion_tokens"] == 3 * one["completion_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_stop_ends_a_reply_before_the_text(server: RunningServer, stream: bool) -> None:
    reply: Any = server.openai().chat.completions.create(
        model="demo", messages=QUESTION, stop=["cache**"], stream=stream
    )
    if stream:
        chunks = list(reply)
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "The **KV "
        assert chunks[-1].choices[0].finish_reason == "stop"
    else:
        assert reply.choices[0].message.content == "The **KV "
        assert reply.choices[0].finish_reason == "stop"


def test_log_probabilities_of_tokens_and_candidates(server: RunningServer) -> None:
    reply = server.openai().chat.completions.create(
        model="demo", messages=QUESTION, logprobs=True, top_logprobs=3, max_tokens=5
    )
    content = reply.choices[0].logprobs.content  # type: ignore[union-attr]
    assert content is not None
    assert "".join(each.token for each in content) == reply.choices[0].message.content
    assert len(content) == 5
    for each in content:
        assert each.top_logprobs[0].logprob == pytest.approx(each.logprob)
        assert sum(math.exp(top.logprob) for top in each.top_logprobs) <= 1 + 1e-6
        assert bytes(each.bytes or []).decode() == each.token


def test_the_model_suggests_settings_that_a_request_leaves_open(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def text(**fields: Any) -> str:
        return str(server.chat(seed=3, max_tokens=20, **fields).json()["choices"][0]["message"])

    warm = {"temperature": 1.5, "min_p": 0.0}
    likeliest, drawn = text(), text(**warm)
    assert likeliest != drawn
    monkeypatch.setattr(server.model, "suggested_sampling", warm)
    assert text() == drawn
    assert text(temperature=0) == likeliest


def test_a_bias_decides_which_token_comes(server: RunningServer) -> None:
    token = server.http.post(
        "/tokenize", json={"prompt": "zebra", "add_special_tokens": False}
    ).json()["tokens"][0]
    reply = server.chat(logit_bias={str(token): 1000}, max_tokens=1).json()
    shown = server.http.post("/detokenize", json={"tokens": [token]}).json()["prompt"]
    assert reply["choices"][0]["message"]["content"] == shown


def test_ignore_eos_goes_on_until_the_limit(server: RunningServer) -> None:
    assert server.chat(max_tokens=60).json()["choices"][0]["finish_reason"] == "stop"
    reply = server.chat(max_tokens=60, ignore_eos=True).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 60


def test_max_completion_tokens_wins(server: RunningServer) -> None:
    reply = server.chat(max_tokens=9, max_completion_tokens=2).json()
    assert reply["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 3, "top_p": 0.5, "min_p": 0.1, "temperature": 0.7},
        {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": -1},
        {"dry_multiplier": 0.8, "dry_base": 2, "dry_allowed_length": 2},
        {"dry_multiplier": 0.8, "dry_sequence_breakers": ["\n"]},
        {"top_k": -1, "user": "someone", "n": None, "tools": [], "stop": None},
        {"response_format": {"type": "text"}, "tool_choice": "none"},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)  # fmt: skip
def test_all_fields_are_taken(server: RunningServer, fields: dict[str, Any]) -> None:
    assert server.chat(**fields).status_code == 200


def test_unknown_fields_are_named_not_refused(server: RunningServer) -> None:
    reply = server.chat(user="u", frobnicate=1, seed=3)
    assert reply.status_code == 200
    assert reply.headers["x-ignored-fields"] == "frobnicate, user"
    odd = server.chat(**{" ?": 1, "a\r\nb: c": 2, "é": 3})
    assert odd.headers["x-ignored-fields"] == "%20?, a%0D%0Ab:%20c, %C3%A9"
    assert "x-ignored-fields" not in server.chat().headers


def test_messages_of_every_kind(server: RunningServer) -> None:
    def prompt_tokens(messages: Any) -> int:
        return int(server.chat(messages=messages, max_tokens=1).json()["usage"]["prompt_tokens"])

    question = {"role": "user", "content": "Hi"}
    systems = [{"role": "system", "content": text} for text in "ab"]
    both = prompt_tokens([*systems, question])
    assert both > prompt_tokens([systems[0], question])
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    apart = prompt_tokens(
        [
            {"role": "system", "content": "a"},
            {"role": "developer", "content": "b"},
            {"role": "user", "content": parts, "name": "me"},
        ]
    )
    assert apart == both
    refusal = [{"type": "refusal", "refusal": "No."}]
    assert prompt_tokens(
        [question, {"role": "assistant", "content": refusal}, question]
    ) == prompt_tokens([question, {"role": "assistant", "content": "No."}, question])
    assert prompt_tokens("Hi") == prompt_tokens([{"role": "user", "content": "Hi"}])


def test_a_prompt_beyond_the_context_is_refused_with_both_figures(server: RunningServer) -> None:
    context = server.model.context_tokens
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai().chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "a b c d " * context}]
        )
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"
    assert str(context) in caught.value.message
    reply = server.chat(messages="a b c d " * context, truncate_sequence=True)
    assert reply.status_code == 200


@pytest.mark.full
def test_fifty_at_once_get_what_each_gets_alone(server: RunningServer) -> None:
    questions = ["What is a KV cache?", "What is ISQ?", "Hi", "What is a plan?", "What is rope?"]
    alone = {
        text: server.chat(messages=text, max_tokens=12).json()["choices"][0]["message"]["content"]
        for text in questions
    }

    async def ask() -> list[str]:
        async with server.async_openai() as client:
            replies = await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model="demo", messages=[{"role": "user", "content": text}], max_tokens=12
                    )
                    for text in questions * 10
                )
            )
        return [reply.choices[0].message.content or "" for reply in replies]

    assert asyncio.run(ask()) == [alone[text] for text in questions * 10]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": 5}, "messages"),
        ({"messages": ...}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": 1}]}]}, "messages[0].content[0].type"),
        ({"seed": "x"}, "seed"),
        ({"n": 0}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"stop": 5}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"99999999": 1}}, None),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"n": 100}, None),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    server: RunningServer, fields: dict[str, Any], param: str | None
) -> None:
    reply = server.chat(**fields)
    error = reply.json()["error"]
    assert reply.status_code == 400
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["message"]


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[1]", b"null", b'{"messages": "\xff\xfe"}', b"[" * 100_000, b"\x00" * 10),
        b'{"messages": "a", "temperature": 1e999}',
    ],
)
def test_a_body_that_is_not_a_json_object(server: RunningServer, body: bytes) -> None:
    reply = server.http.post(CHAT, content=body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_json", None)
    assert "[...]" not in error["message"]


@pytest.mark.parametrize("text", ["\\ud800", "\\u0000", "\\ufffc", "\U0001f600" * 5])
def test_any_text_is_answered_or_refused(server: RunningServer, text: str) -> None:
    body = f'{{"messages": "{text}", "max_tokens": 1}}'.encode()
    assert server.http.post(CHAT, content=body).status_code in (200, 400)


def test_the_only_model_answers_whatever_name_is_asked_for(server: RunningServer) -> None:
    for name in ("demo", "default", None):
        reply = server.chat(model=name)
        assert reply.status_code == 200
        assert "x-model" not in reply.headers
    made = server.openai().chat.completions.with_raw_response.create(
        model="gpt-4o", messages=QUESTION, max_tokens=2
    )
    assert made.headers["x-model"] == "demo"
    assert made.parse().model == "demo"


@pytest.mark.parametrize("url", ["/etc/passwd", "file:///etc/passwd", "http://127.0.0.1/a.png"])
def test_files_and_addresses_are_no_images(server: RunningServer, url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    reply = server.chat(messages=[{"role": "user", "content": [part]}])
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "messages[0].content[0].image_url"


def test_an_image_for_a_model_without_vision_is_refused(server: RunningServer) -> None:
    url = "data:image/png;base64," + base64.b64encode(b"no image").decode()
    part = {"type": "image_url", "image_url": url}
    reply = server.chat(messages=[{"role": "user", "content": [part]}])
    assert reply.status_code == 400
    assert "vision" in reply.json()["error"]["message"]
    assert server.model.plan.model.model_id not in reply.json()["error"]["message"]
