"""Each field of a message becomes the same value by every protocol, or an error by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from running_server import RunningServer

from mrs.api.requests import ChatCompletionRequest
from mrs.engine.prompt import Prompt
from mrs.errors import MrsError
from mrs.request import Message
from mrs.run.prompt_reader import PromptReader

CALL_IDS = ("call_a", "call_b")
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
#: What a model gets by each protocol.
VALUES: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "reasoning": "Two cities.",
        "tool_calls": [
            {"id": "call_a", "name": "look", "arguments": '{"city": "Rome"}'},
            {"id": "call_b", "name": "look", "arguments": '{"city": "Oslo"}'},
        ],
    },
    {"role": "tool", "content": "sunny", "tool_call_id": "call_a", "name": "look"},
    {"role": "tool", "content": "snow", "tool_call_id": "call_b", "name": "look"},
    {"role": "assistant", "content": "Sun and snow.", "reasoning": "That is all."},
    {"role": "user", "content": "Thanks."},
]


def call(call_id: str, city: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": f'{{"city": "{city}"}}'}
    return {"id": call_id, "type": "function", "function": function}


CHAT: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Two cities.",
        "tool_calls": [call("call_a", "Rome"), call("call_b", "Oslo")],
    },
    {"role": "tool", "content": "sunny", "tool_call_id": "call_a"},
    {"role": "tool", "content": [{"type": "text", "text": "snow"}], "tool_call_id": "call_b"},
    {"role": "assistant", "content": "Sun and snow.", "reasoning": "That is all."},
    {"role": "user", "content": "Thanks."},
]
RESPONSES: dict[str, Any] = {
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Two cities."}]},
        *(
            {"type": "function_call", "call_id": call_id, "name": "look",
             "arguments": f'{{"city": "{city}"}}'}
            for call_id, city in zip(CALL_IDS, ("Rome", "Oslo"), strict=True)
        ),
        *(
            {"type": "function_call_output", "call_id": call_id, "output": text}
            for call_id, text in zip(CALL_IDS, ("sunny", "snow"), strict=True)
        ),
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "That is all."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Sun and snow."}]},
        {"role": "user", "content": "Thanks."},
    ],
}  # fmt: skip
MESSAGES: dict[str, Any] = {
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Two cities.", "signature": ""},
            *(
                {"type": "tool_use", "id": call_id, "name": "look", "input": {"city": city}}
                for call_id, city in zip(CALL_IDS, ("Rome", "Oslo"), strict=True)
            ),
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call_id, "content": text}
            for call_id, text in zip(CALL_IDS, ("sunny", "snow"), strict=True)
        ]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "That is all.", "signature": ""},
            {"type": "text", "text": "Sun and snow."},
        ]},
        {"role": "user", "content": "Thanks."},
    ],
}  # fmt: skip
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": CHAT},
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[Message]]:
    """The conversations that reach the model."""
    found: list[list[Message]] = []
    read = PromptReader.chat

    def noted(
        prompts: PromptReader, messages: Sequence[Message], *rest: Any, **more: Any
    ) -> Prompt:
        found.append(list(messages))
        return read(prompts, messages, *rest, **more)

    monkeypatch.setattr(PromptReader, "chat", noted)
    return found


@pytest.mark.parametrize("path", PATHS)
def test_every_protocol_gives_the_model_the_same(
    path: str, server: RunningServer, asked: list[list[Message]]
) -> None:
    answer = server.http.post(path, json={"model": "default", "max_tokens": 1, **PATHS[path]})
    assert answer.status_code == 200, answer.text
    assert asked == [VALUES]
    assert "x-ignored-fields" not in answer.headers


def test_python_gives_the_model_the_same() -> None:
    assert ChatCompletionRequest(CHAT).conversation() == VALUES


USER, REPLY = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}
CALLED = {"role": "assistant", "content": None, "tool_calls": [call("call_a", "Rome")]}


@pytest.mark.parametrize(
    ("message", "value"),
    [
        ({**USER, "name": "Ann"}, {**USER, "name": "Ann"}),
        ({**REPLY, "reasoning": "Hm."}, {**REPLY, "reasoning": "Hm."}),
        ({**REPLY, "thinking": "Hm."}, {**REPLY, "reasoning": "Hm."}),
        ({**REPLY, "reasoning_content": ""}, REPLY),
        ({"role": "assistant", "content": "", "reasoning_content": "Hm."},
         {"role": "assistant", "content": "", "reasoning": "Hm."}),
        ({"role": "assistant", "reasoning_content": "Hm."},
         {"role": "assistant", "content": None, "reasoning": "Hm."}),
        ({"role": "assistant", "content": None, "refusal": "No."},
         {"role": "assistant", "content": "No."}),
        ({"role": "developer", "content": "Be brief."}, {"role": "system", "content": "Be brief."}),
        ({**REPLY, "tool_calls": [], "function_call": None, "audio": None, "refusal": None}, REPLY),
    ],
)  # fmt: skip
def test_what_is_honoured(
    message: Any, value: Any, server: RunningServer, asked: list[list[Message]]
) -> None:
    answer = server.chat(messages=[USER, message, USER])
    assert answer.status_code == 200, answer.text
    assert "x-ignored-fields" not in answer.headers
    assert asked == [[USER, value, USER]]
    assert ChatCompletionRequest([USER, message, USER]).conversation() == [USER, value, USER]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "user", "content": None}, "a message of the user has no content"),
        ({"role": "assistant", "content": None}, "a message of the assistant has no content"),
        ({"role": "system"}, "a message of the system has no content"),
        ({"role": "tool", "content": None, "tool_call_id": "call_a"}, "the tool has no content"),
        ({**USER, "tool_calls": [call("b", "Rome")]}, "a message of the user has tool_calls"),
        ({**USER, "reasoning_content": "Hm."}, "a message of the user has reasoning"),
        ({**REPLY, "tool_call_id": "call_a"}, "a message of the assistant has a tool_call_id"),
        ({**REPLY, "function_call": {"name": "f", "arguments": "{}"}}, "function_call"),
        ({**REPLY, "audio": {"id": "a"}}, "audio"),
        ({**REPLY, "prefix": True}, "prefix"),
        ({**REPLY, "partial": True}, "partial"),
        ({**REPLY, "thinking_blocks": [{"type": "thinking", "thinking": "Hm."}]}, "thinking_block"),
        ({**REPLY, "reasoning_details": [{"text": "Hm."}]}, "reasoning_details"),
        ({"role": "function", "name": "f", "content": "1"}, "function"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "data"),
        ({"role": "user", "content": [{"type": "file", "file": {}}]}, "type|part"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    message: Any, words: str, server: RunningServer
) -> None:
    conversation = [USER, CALLED, message]
    answer = server.chat(messages=conversation)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"].startswith("messages[2]")
    with pytest.raises(MrsError, match=words):
        ChatCompletionRequest(conversation).conversation()
    assert re.search(words, error["message"])


def ignored(server: RunningServer, path: str, **body: Any) -> str:
    answer = server.http.post(path, json={"model": "default", "max_tokens": 1, **body})
    assert answer.status_code == 200, answer.text
    return str(answer.headers.get("x-ignored-fields", ""))


def test_what_changes_no_reply_is_named(server: RunningServer) -> None:
    cached = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    reply = {
        **REPLY,
        "annotations": [{"type": "url_citation"}],
        "provider_specific_fields": {"a": 1},
        "reasoning_content": "Hm.",
        "thinking_blocks": [{"type": "thinking", "thinking": "Hm."}],
    }
    messages = [{"role": "user", "content": [cached]}, reply, USER]
    assert ignored(server, "/v1/chat/completions", messages=messages, user="me") == (
        "user, messages[0].content[0].cache_control, messages[1].annotations, "
        "messages[1].provider_specific_fields, messages[1].thinking_blocks"
    )
    blocks = [
        {"type": "redacted_thinking", "data": "x"},
        {"type": "thinking", "thinking": "Hm.", "signature": "from elsewhere"},
        {"type": "text", "text": "Yes.", "citations": [{"type": "page_location"}]},
    ]
    talk = [USER, {"role": "assistant", "content": blocks}, {"role": "user", "content": [cached]}]
    assert ignored(server, "/v1/messages", messages=talk) == (
        "messages[1].content[0], messages[1].content[1].signature, "
        "messages[1].content[2].citations, messages[2].content[0].cache_control"
    )
    items = [
        USER,
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"role": "assistant", "content": [
            {"type": "output_text", "text": "Yes.", "annotations": [{"type": "file_citation"}]}]},
        {**USER, "metadata": {"a": 1}},
    ]  # fmt: skip
    assert ignored(server, "/v1/responses", input=items) == (
        "input[1].encrypted_content, input[2].content[0].annotations, input[3].metadata"
    )


def test_a_failed_call_says_so_to_the_model(
    server: RunningServer, asked: list[list[Message]]
) -> None:
    failed = {"type": "tool_result", "tool_use_id": "call_a", "content": "no net", "is_error": True}
    use = {"type": "tool_use", "id": "call_a", "name": "look", "input": {}}
    talk = [USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [failed]}]
    ignored(server, "/v1/messages", messages=talk)
    assert asked[0][2]["content"] == "Error: no net"
    talk[2] = {"role": "user", "content": [{"type": "text", "text": "So?"}, failed]}
    answer = server.http.post("/v1/messages", json={"max_tokens": 1, "messages": talk})
    assert answer.status_code == 400
    assert "put the results first" in answer.text


def test_thoughts_in_a_row_are_one(server: RunningServer, asked: list[list[Message]]) -> None:
    thoughts = [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]}
        for text in ("One.", "Two.")
    ]
    items = [USER, *thoughts, {"role": "assistant", "content": "Yes."}, USER]
    ignored(server, "/v1/responses", input=items)
    assert asked[0][1] == {"role": "assistant", "content": "Yes.", "reasoning": "One.\nTwo."}


def test_a_stored_item_may_be_named_by_reference(
    server: RunningServer, asked: list[list[Message]]
) -> None:
    body = {"model": "default", "input": "Hi", "max_output_tokens": 3}
    [made] = server.http.post("/v1/responses", json=body).json()["output"]
    reference = {"type": "item_reference", "id": made["id"]}
    again = {**body, "input": [USER, reference, USER]}
    assert server.http.post("/v1/responses", json=again).status_code == 200
    assert asked[1][1] == {"role": "assistant", "content": made["content"][0]["text"]}
    again["input"] = [USER, {"id": made["id"]}, USER]
    assert server.http.post("/v1/responses", json=again).status_code == 200
    again["input"] = [USER, {"type": "item_reference", "id": "msg_none"}, USER]
    answer = server.http.post("/v1/responses", json=again)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "input[1].id"
