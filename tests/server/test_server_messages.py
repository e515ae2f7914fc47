"""Anthropic's interface, as its official client reads it."""

from __future__ import annotations

import base64
import json
from typing import Any

import anthropic
import jsonschema
import msgspec
import pytest
from anthropic.types import TextBlock, ThinkingBlock, ToolUseBlock
from running_server import RunningServer, running, until
from test_server_parts import picture
from test_server_tools import PARAMETERS

from mrs.events import ToolCallDelta
from mrs.request import ModelSource, VisionRequest
from mrs.server.replies.choice_text import ReplyPiece
from mrs.server.replies.message_blocks import MessageBlocks
from mrs.server.schemas.messages_blocks import InputMessage
from mrs.server.schemas.messages_conversation import chat_messages
from mrs.server.settings import ServerSettings

PATH = "/v1/messages"
QUESTION: Any = [{"role": "user", "content": "Who are you?"}]
ANSWER = "I am the **mrs demo model**, a toy with about 2 million parameters."
TOOLS: Any = [
    {"name": "set_light", "strict": True, "input_schema": PARAMETERS},
    {"name": "search", "type": "web_search_20250305"},
]
NAMED: Any = {"type": "tool", "name": "set_light"}


def client(server: RunningServer, key: str = "any") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0, timeout=120)


def test_a_reply_is_that_of_a_chat_completion(server: RunningServer) -> None:
    reply = client(server).messages.create(model="demo", max_tokens=40, messages=QUESTION)
    [block] = reply.content
    assert isinstance(block, TextBlock)
    assert block.text == ANSWER
    assert (reply.type, reply.role, reply.model) == ("message", "assistant", "demo")
    assert (reply.stop_reason, reply.stop_sequence) == ("end_turn", None)
    usage = server.chat(messages=QUESTION, max_tokens=40).json()["usage"]
    cached = reply.usage.cache_read_input_tokens or 0
    assert reply.usage.input_tokens + cached == usage["prompt_tokens"]
    assert reply.usage.output_tokens == usage["completion_tokens"]


def test_a_stream_has_the_same_message(server: RunningServer) -> None:
    text = ""
    with client(server).messages.stream(model="demo", max_tokens=40, messages=QUESTION) as stream:
        for part in stream.text_stream:
            text += part
        reply = stream.get_final_message()
    assert text == ANSWER
    [block] = reply.content
    assert isinstance(block, TextBlock)
    assert block.text == ANSWER
    assert reply.stop_reason == "end_turn"
    assert reply.usage.output_tokens == 18


def test_events_have_names_and_no_other_end(server: RunningServer) -> None:
    body = {"messages": QUESTION, "max_tokens": 2, "stream": True}
    events = server.http.post(PATH, json=body).text.removesuffix("\n\n").split("\n\n")
    names = []
    for each in events:
        name, data = each.split("\n")
        names.append(name.removeprefix("event: "))
        assert json.loads(data.removeprefix("data: "))["type"] == names[-1]
    assert names == [
        "message_start", "content_block_start", "content_block_delta", "content_block_delta",
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("stream", [False, True])
def test_why_a_reply_has_ended(server: RunningServer, stream: bool) -> None:
    def ended(**fields: Any) -> tuple[str | None, str | None]:
        given: Any = {"model": "demo", "messages": QUESTION, "max_tokens": 200, **fields}
        if not stream:
            reply = client(server).messages.create(**given)
        else:
            with client(server).messages.stream(**given) as events:
                reply = events.get_final_message()
        return reply.stop_reason, reply.stop_sequence

    assert ended() == ("end_turn", None)
    assert ended(max_tokens=3) == ("max_tokens", None)
    assert ended(stop_sequences=["toy", "model"]) == ("stop_sequence", "model")
    assert ended(tools=TOOLS, tool_choice=NAMED)[0] == "tool_use"


def test_a_call_its_result_and_the_answer(server: RunningServer) -> None:
    create = client(server).messages.create
    with client(server).messages.stream(
        model="demo", max_tokens=60, messages=QUESTION, tools=TOOLS, tool_choice=NAMED
    ) as stream:
        reply = stream.get_final_message()
        assert stream.response.headers["x-ignored-fields"] == "tools[1]"
    [call] = reply.content
    assert isinstance(call, ToolUseBlock)
    assert call.name == "set_light"
    jsonschema.validate(call.input, PARAMETERS)
    whole = create(
        model="demo", max_tokens=60, messages=QUESTION, tools=TOOLS, tool_choice=NAMED
    ).content[0]
    assert isinstance(whole, ToolUseBlock)
    assert whole.input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "It is on."}
    talk: Any = [
        *QUESTION,
        {"role": "assistant", "content": reply.content},
        {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
    ]
    answer = create(
        model="demo", max_tokens=9, messages=talk, tools=TOOLS, tool_choice={"type": "none"}
    )
    assert isinstance(answer.content[0], TextBlock)
    with pytest.raises(anthropic.BadRequestError, match="no earlier message has the tool call"):
        create(model="demo", max_tokens=9, messages=[talk[0], talk[2]])


def test_a_reply_in_json(server: RunningServer) -> None:
    schema = {"enum": ["Paris", "Rome"]}
    form: Any = {"format": {"type": "json_schema", "schema": schema}}
    reply = client(server).messages.create(
        model="demo", max_tokens=20, messages=QUESTION, output_config=form
    )
    assert isinstance(reply.content[0], TextBlock)
    assert json.loads(reply.content[0].text) in schema["enum"]


def test_counted_tokens_are_those_of_the_prompt(server: RunningServer) -> None:
    given: Any = {"model": "demo", "messages": QUESTION, "system": "Be brief.", "tools": TOOLS}
    counted = client(server).messages.count_tokens(**given).input_tokens
    usage = client(server).messages.create(max_tokens=1, **given).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_cached_tokens_are_apart(server: RunningServer) -> None:
    talk: Any = [{"role": "user", "content": "Tell me what a prefix cache is, and why."}]
    first, second = (
        client(server).messages.create(model="demo", max_tokens=1, messages=talk).usage
        for _ in range(2)
    )
    assert second.input_tokens == 1
    assert second.cache_read_input_tokens == (
        first.input_tokens + (first.cache_read_input_tokens or 0) - 1
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": [*QUESTION, {"role": "assistant", "content": "I"}]}, "do not continue one"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "'document'"),
        ({"messages": []}, "messages: expected"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"n": 2}, "n is more than 1"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "search"}}, "none of the tools"),
        ({"tool_choice": {"type": "all"}}, "tool_choice.type"),
    ],
)
def test_what_is_wrong_is_named(server: RunningServer, fields: Any, words: str) -> None:
    given: Any = {"messages": QUESTION, "max_tokens": 4, **fields}
    reply = server.http.post(PATH, json=given)
    assert reply.status_code == 400
    body = reply.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert words in body["error"]["message"]


def test_errors_have_the_classes_of_the_client(server: RunningServer) -> None:
    made = client(server).messages.with_raw_response.create(
        model="claude", max_tokens=4, messages=QUESTION
    )
    assert (made.headers["x-model"], made.parse().model) == ("demo", "demo")
    with running(ServerSettings(api_keys=("right",), strict_names=True)) as locked:
        with pytest.raises(anthropic.NotFoundError, match="there is no model 'claude'"):
            client(locked, "right").messages.create(model="claude", max_tokens=4, messages=QUESTION)
        with pytest.raises(anthropic.AuthenticationError) as found:
            client(locked, "wrong").messages.create(model="demo", max_tokens=4, messages=QUESTION)
        assert found.value.body == {
            "type": "error",
            "error": {
                "type": "authentication_error",
                "message": "the API key is wrong: ask the operator",
            },
        }
        assert client(locked, "right").messages.create(
            model="demo", max_tokens=4, messages=QUESTION
        )


@pytest.mark.usefixtures("later_steps_fail")
def test_an_error_is_the_last_event(server: RunningServer) -> None:
    with client(server).messages.stream(
        model="demo", max_tokens=100, messages=QUESTION, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
        with pytest.raises(anthropic.APIStatusError, match="too little memory") as found:
            stream.until_done()
        assert found.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index]


@pytest.mark.usefixtures("slow_steps")
def test_a_client_that_leaves_ends_its_reply(server: RunningServer) -> None:
    given: Any = {"model": "demo", "messages": QUESTION, "max_tokens": 1900}
    with client(server).messages.stream(**given, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
        until(lambda: server.stats.running == 1)
    server.wait_until_idle()


def test_thoughts_are_blocks(thinker: RunningServer) -> None:
    given: Any = {"model": "demo", "max_tokens": 6, "messages": QUESTION}
    with client(thinker).messages.stream(**given) as stream:
        streamed = stream.get_final_message().content
    [block] = client(thinker).messages.create(**given).content
    assert isinstance(block, ThinkingBlock)
    assert block.thinking
    assert [block] == streamed
    off = client(thinker).messages.create(**given, thinking={"type": "disabled"})
    assert isinstance(off.content[0], TextBlock)


def test_an_image_is_seen() -> None:
    source = {
        "type": "base64",
        "media_type": "image/png",
        "data": base64.b64encode(picture()).decode(),
    }
    content = [{"type": "image", "source": source}, {"type": "text", "text": "What is this?"}]
    model = ModelSource("demo-vision", "safetensors")
    talk: Any = [{"role": "user", "content": content}]
    with running(source=model, vision=VisionRequest()) as viewer:
        reply = client(viewer).messages.create(model="default", max_tokens=30, messages=talk)
    assert isinstance(reply.content[0], TextBlock)
    assert "red" in reply.content[0].text


def test_blocks_of_a_reply_with_everything() -> None:
    """White space between blocks is in none of them, and each call is a block."""
    blocks = MessageBlocks()
    for piece in (
        ReplyPiece(True, "Let me "),
        ReplyPiece(True, "see."),
        ReplyPiece(False, "\n\n"),
        ReplyPiece(False, "\nI call"),
        ReplyPiece(False, "\n"),
        ReplyPiece(False, "two."),
        ReplyPiece(False, "\n"),
        ReplyPiece(False, "", call=ToolCallDelta(0, "a", "f")),
        ReplyPiece(False, "", call=ToolCallDelta(0, arguments='{"x": ')),
        ReplyPiece(False, "", call=ToolCallDelta(0, arguments="1}")),
        ReplyPiece(False, "\n"),
        ReplyPiece(False, "", call=ToolCallDelta(1, "b", "g", "{}")),
        ReplyPiece(False, "", call=ToolCallDelta(2, "c", "h", '{"cut')),
        ReplyPiece(False, "\n"),
    ):
        list(blocks.add(piece))
    list(blocks.finish())
    thoughts, text, *calls = blocks.content
    assert getattr(thoughts, "thinking", None) == "Let me see."
    assert getattr(text, "text", None) == "\n\n\nI call\ntwo.\n"
    assert [getattr(each, "input", None) for each in calls] == [{"x": 1}, {}, {}]


def test_messages_of_the_user_in_a_row_are_one() -> None:
    result: Any = {"type": "tool_result", "tool_use_id": "a", "content": "done"}
    given: Any = [
        {"role": "user", "content": "one"},
        {"role": "user", "content": [{"type": "text", "text": "two"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "yes"},
            {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
        ]},
        {"role": "user", "content": [result]},
        {"role": "user", "content": "three"},
    ]  # fmt: skip
    made = chat_messages(None, msgspec.convert(given, list[InputMessage]))
    texts = ["".join(getattr(part, "text", "") for part in each.parts) for each in made]
    assert [each.role for each in made] == ["user", "assistant", "tool", "user"]
    assert texts == ["one\n\ntwo", "yes", "done", "three"]
    assert made[1].reasoning_content == "hm"
    assert made[1].tool_calls == [{"id": "a", "function": {"name": "f", "arguments": '{"x": 1}'}}]
    assert made[2].tool_call_id == "a"


def test_a_whole_reply_has_no_null_that_its_schema_does_not_want(server: RunningServer) -> None:
    """Vercel's client refuses `citations: null`."""
    body = {"model": "demo", "max_tokens": 4, "messages": QUESTION}
    found = server.http.post("/v1/messages", json=body).json()
    assert found["content"][0].keys() == {"type", "text"}
    assert {name for name, value in found.items() if value is None} <= {"stop_sequence"}
