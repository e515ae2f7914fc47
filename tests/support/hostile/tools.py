"""Tools, their calls and their results: too many, too large, strange."""

from __future__ import annotations

import random
from typing import Any

from support.hostile.request import MB, HostileRequest, Maker, asking, chat

_NAMES = ("", " ", "\0", "a" * 100_000, "é", "👩\u200d👧", '"}', "{{ 7 * 7 }}", "../../x", "f\n",
"\ud800",
          "<tool_call>", "None", "__class__", "a.b", "1", "$ref")  # fmt: skip


def _tool(name: Any = "f", **fields: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


def _many(chance: random.Random) -> HostileRequest:
    count = chance.choice([10, 1000, 50_000])
    tools = [_tool(f"f{i}") for i in range(count)]
    choice = chance.choice(
        ["auto", "required", "none", {"type": "function", "function": {"name": "f1"}}]
    )
    return chat(f"tools: {count}, {choice!r}", tools=tools, tool_choice=choice)


def _described(chance: random.Random) -> HostileRequest:
    text = chance.choice(["a", " ", "\0", "{{", "é"]) * chance.choice([10_000, MB, 5 * MB])
    return chat(f"tools: described by {len(text):,}", tools=[_tool(description=text)])


def _named(chance: random.Random) -> HostileRequest:
    name = chance.choice(_NAMES)
    more = {"tool_choice": {"type": "function", "function": {"name": name}}}
    return chat(
        f"tools: named {name[:20]!r}",
        tools=[_tool(name)] * chance.choice([1, 2]),
        **(more if chance.random() < 0.5 else {}),
    )


def _nested(chance: random.Random) -> HostileRequest:
    parameters: Any = {"type": "string"}
    for _ in range(chance.choice([50, 100, 300])):
        parameters = {"type": "object", "properties": {"a": parameters}, "required": ["a"]}
    return chat(
        "tools: deep parameters",
        tools=[_tool(parameters=parameters)],
        tool_choice=chance.choice(["auto", "required"]),
    )


def _strange_choice(chance: random.Random) -> HostileRequest:
    choice = chance.choice([
        "x", "", {}, {"type": "function"}, {"type": "function", "function": {"name": "absent"}},
        "a" * MB,
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto",
        "tools": [{"type": "x"}] * 10_000}},
    ])  # fmt: skip
    return chat("tools: strange choice", tools=[_tool()], tool_choice=choice)


def _calls(chance: random.Random) -> HostileRequest:
    arguments = chance.choice(["{", "", "[" * 100_000, '{"a":' * 5000, "null", "1" * MB,
    "{}" * 1000, "NaN",
                               '{"a": "\\ud800"}', '{"k": 1, "k": 2}'])  # fmt: skip
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "tool_calls": [call] * chance.choice([1, 10 * MB // (len(arguments) + 10**4)]),
        },
        {"role": "tool", "tool_call_id": "a", "content": "b"},
    ]
    return chat(f"tools: calls with {arguments[:20]!r}", messages=messages, tools=[_tool()])


def _results(chance: random.Random) -> HostileRequest:
    """Results of calls that nobody made, and messages of wrong order."""
    messages = [{"role": "tool", "tool_call_id": str(i), "content": "b"} for i in range(5000)]
    chance.shuffle(messages)
    return chat("tools: results without calls", messages=messages)


def _chain(chance: random.Random) -> HostileRequest:
    """Thousands of calls, each with its result."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
    for i in range(chance.choice([100, 5000])):
        call = {"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        messages += [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{i}", "content": "b"},
        ]
    is_cut = chance.random() < 0.5
    return chat(f"tools: {len(messages)} messages", messages=messages, truncate_sequence=is_cut)


def _anthropic(chance: random.Random) -> HostileRequest:
    tools: list[dict[str, Any]] = [
        {"name": chance.choice(_NAMES), "input_schema": {"type": "object"}},
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    return asking(
        "tools: of Anthropic's form",
        chance.choice(["/v1/messages", "/v1/messages/count_tokens"]),
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 4,
            "tools": tools * chance.choice([1, 200]),
            "tool_choice": {"type": chance.choice(["auto", "any", "none"])},
        },
    )


def _responses(chance: random.Random) -> HostileRequest:
    tools = [{"type": "function", "name": chance.choice(_NAMES), "parameters": {}}]
    return asking(
        "tools: of the Responses' form",
        "/v1/responses",
        {"input": "Hi", "max_output_tokens": 4, "tools": tools * chance.choice([1, 200])},
    )


MAKERS: tuple[Maker, ...] = (
    _many,
    _described,
    _named,
    _nested,
    _strange_choice,
    _calls,
    _results,
    _chain,
    _anthropic,
    _responses,
)
