"""Tools in the Python API: a call, its result, and the answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from mrs import ChatCompletionRequest, Runner, Which
from mrs.errors import UsageError

SCHEMA = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {
            "type": "object",
            "properties": {"word": {"enum": ["cache", "token"]}},
            "required": ["word"],
        },
    },
}
QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "What is a KV cache?"}]


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(Which.Plain("demo"), cpu=True) as made:
        yield made


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)])
def test_a_call_and_its_result(runner: Runner, schema: Any) -> None:
    request = ChatCompletionRequest(QUESTION, tool_schemas=[schema], tool_choice="required")
    choice = runner.send_chat_completion_request(request).choices[0]
    assert choice.finish_reason == "tool_calls"
    call = (choice.message.tool_calls or [])[0]
    assert (call.function.name, call.type, call.index) == ("look_up", "function", 0)
    assert json.loads(call.function.arguments)["word"] in ("cache", "token")
    function = {"name": call.function.name, "arguments": call.function.arguments}
    talk = [
        *QUESTION,
        {"role": "assistant", "content": None,
         "tool_calls": [{"id": call.id, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": call.id, "content": "memory of keys and values"},
    ]  # fmt: skip
    again = ChatCompletionRequest(talk, tool_schemas=[schema], max_tokens=30)
    answer = runner.send_chat_completion_request(again).choices[0]
    assert answer.message.content
    assert answer.message.tool_calls is None


def test_a_streamed_call(runner: Runner) -> None:
    request = ChatCompletionRequest(
        QUESTION, tool_schemas=[SCHEMA], tool_choice="required", stream=True, logprobs=True
    )
    parts = [
        part
        for chunk in runner.send_chat_completion_request(request)
        for part in chunk.choices[0].delta.tool_calls or ()
    ]
    first, *others = parts
    assert first.function.name == "look_up"
    assert first.id
    assert len(others) > 2
    assert all(part.id is None and part.function.name is None for part in others[:5])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tool_schemas": ["{"]}, "give a list of objects, or of their JSON"),
        ({"tool_schemas": [{}]}, r"tools\[0\] is not a function"),
        ({"tool_choice": "required"}, "tool_choice needs tools"),
        ({"tool_schemas": [SCHEMA], "tool_choice": "some"}, "tool_choice is none of the tools"),
    ],
)
def test_what_is_wrong_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ChatCompletionRequest(QUESTION, **settings)
