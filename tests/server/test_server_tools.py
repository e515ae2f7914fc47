"""Calls of tools, as the official client of OpenAI reads them."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest
from running_server import RunningServer

QUESTION: Any = [{"role": "user", "content": "Who are you?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"kind": {"enum": ["day", "night"]}, "level": {"enum": [1, 2, 3]}},
    "required": ["kind", "level"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function",
     "function": {"name": "set_light", "strict": True, "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "stop"}},
]  # fmt: skip
NAMED: Any = {"type": "function", "function": {"name": "set_light"}}


def allowed(mode: str, *tools: Any) -> Any:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [*tools]}}


def test_a_call_its_result_and_the_answer(server: RunningServer) -> None:
    create = server.openai().chat.completions.create
    reply = create(
        model="demo", messages=QUESTION, tools=TOOLS, tool_choice=NAMED, temperature=1.0, seed=1
    ).choices[0]
    assert reply.finish_reason == "tool_calls"
    assert reply.message.content is None
    [call] = reply.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "set_light"
    jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": ""}
    talk = [*QUESTION, reply.message, result]
    answer = create(model="demo", messages=talk, tools=TOOLS, tool_choice="none", max_tokens=12)
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None
    assert create(model="demo", messages=talk, tools=TOOLS, max_tokens=12).choices[0]


def test_calls_arrive_in_parts(server: RunningServer) -> None:
    stream = server.openai().chat.completions.create(
        model="demo", messages=QUESTION, tools=TOOLS, tool_choice="required", temperature=1.0,
        seed=4, stream=True, logprobs=True, parallel_tool_calls=False,
        stream_options={"include_usage": True},
    )  # fmt: skip
    *chunks, usage = list(stream)
    assert usage.usage is not None
    choices = [chunk.choices[0] for chunk in chunks]
    assert choices[0].delta.role == "assistant"
    assert [each.finish_reason for each in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1].finish_reason == "tool_calls"
    parts = [part for each in choices for part in each.delta.tool_calls or ()]
    first, *others = parts
    assert first.id
    assert first.type == "function"
    assert first.function is not None
    assert first.function.name in ("set_light", "stop")
    assert first.function.arguments == ""
    assert {part.index for part in parts} == {0}
    assert all(part.id is None and part.type is None for part in others)
    arguments = [part.function.arguments or "" for part in others if part.function]
    assert isinstance(json.loads("".join(arguments)), dict)
    tokens = [token for each in choices if each.logprobs for token in each.logprobs.content or ()]
    assert usage.usage.completion_tokens - len(tokens) in (0, 1), "an end token has none"


def test_the_helper_of_the_sdk_reads_parallel_calls(server: RunningServer) -> None:
    with server.openai().chat.completions.stream(
        model="demo", messages=QUESTION, tools=TOOLS[:1], tool_choice="required", temperature=1.0,
        seed=0, max_tokens=300,
    ) as stream:  # fmt: skip
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason in ("tool_calls", "length")
    calls = final.message.tool_calls or []
    assert calls
    assert [call.index for call in calls if hasattr(call, "index")] in ([], [*range(len(calls))])
    assert len({call.id for call in calls}) == len(calls)


def test_a_reply_that_need_not_call_answers(server: RunningServer) -> None:
    message = server.chat(messages=QUESTION, tools=TOOLS, max_tokens=20).json()["choices"][0]
    assert message["message"]["content"]
    assert "tool_calls" not in message["message"]
    assert message["finish_reason"] in ("stop", "length")


def test_only_allowed_tools_are_called_though_all_are_in_the_prompt(server: RunningServer) -> None:
    fields = {"messages": QUESTION, "tools": TOOLS, "temperature": 1.0, "max_tokens": 200}
    stop = {"type": "function", "function": {"name": "stop"}}
    reply = server.chat(**fields, tool_choice=allowed("required", stop), n=4).json()
    calls = [call for each in reply["choices"] for call in each["message"]["tool_calls"]]
    assert {call["function"]["name"] for call in calls} == {"stop"}
    free = server.chat(**fields, tool_choice=allowed("auto", stop)).json()
    every = server.chat(**fields).json()
    assert free["choices"][0]["message"]["content"]
    assert (
        reply["usage"]["prompt_tokens"]
        == free["usage"]["prompt_tokens"]
        == every["usage"]["prompt_tokens"]
    )


def test_choices_have_calls_of_their_own(server: RunningServer) -> None:
    reply = server.chat(
        messages=QUESTION, tools=TOOLS, tool_choice=NAMED, temperature=1.0, max_tokens=200, n=3
    ).json()
    calls = [choice["message"]["tool_calls"] for choice in reply["choices"]]
    assert len({call[0]["id"] for call in calls}) == 3


def call_message(**fields: Any) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "stop", "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [{**call, **fields}]}


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [{"type": "function"}]}, "tools", "tools[0] is not a function"),
        ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice", "is none of the tools"),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice needs tools"),
        ({"tools": TOOLS, "tool_choice": allowed("required")}, "tool_choice", "none of the tools"),
        ({"tools": TOOLS, "tool_choice": allowed("some", NAMED)}, "tool_choice",
         "valid allowed_tools"),
        ({"tools": [{"type": "function", "function": {
            "name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "nix"}}}}}]},
         "tools", "nix"),
        ({"messages": [*QUESTION, call_message(function={})]}, "messages[1].tool_calls",
         "not complete"),
        ({"messages": [*QUESTION, call_message(),
                       {"role": "tool", "tool_call_id": "b", "content": "x"}]},
         "messages", "no earlier message has the tool call 'b'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    server: RunningServer, fields: dict[str, Any], param: str, words: str
) -> None:
    body = {"messages": QUESTION, **fields}
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai().chat.completions.create(model="demo", **body)
    assert words in caught.value.message
    assert caught.value.param == param
