"""The calls of each family: found in its template, held by a grammar, parsed as they arrive."""

from __future__ import annotations

import random
from typing import Any

import jsonschema
import pytest
from tool_cases import CALLS, CASES, TOOLS, Case
from tool_writer import Writer, joined, processor

from mrs.engine.prompt import Prompt
from mrs.engine.reply_events import ReplyEvents
from mrs.engine.sampling.sampler import SampledToken, Sampler
from mrs.engine.sequence import Sequence, TokenOutput
from mrs.errors import UsageError
from mrs.events import Finished, TextDelta, ToolCallDelta
from mrs.request import Grammar, Sampling
from mrs.tools.tool_caller import ToolCaller
from mrs.tools.tool_request import ToolRequest, read_tools


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _request() -> ToolRequest:
    request = read_tools(TOOLS)
    assert request is not None
    return request


def expected(case: Case) -> list[tuple[str, Any]]:
    return CALLS if case.has_two else CALLS[:1]


def test_the_format_of_the_template_is_that_of_the_reply(name: str) -> None:
    style = ToolCaller(_request(), processor(name)).format
    calls = expected(CASES[name])
    assert style.is_parallel is CASES[name].has_two
    text = CASES[name].reply.removeprefix("I look. ").rpartition("<|start|>assistant")[2]
    assert style.write(calls).replace("'", '"') == text


@pytest.mark.few(7)
@pytest.mark.values
@pytest.mark.parametrize("with_tokens", [True, False])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_reply_is_allowed_and_parsed(name: str, choice: str, with_tokens: bool) -> None:
    """The marks of a format are control tokens, or letters in a tokenizer that lacks them."""
    case = CASES[name]
    if name == "gpt-oss" and not with_tokens:
        pytest.skip("harmony is found by its tokens")
    writer = Writer(name, choice=choice, with_tokens=with_tokens)
    reply = case.reply if choice == "auto" else case.reply.removeprefix("I look. ")
    assert writer.write(reply)
    assert writer.may_end()
    content = case.content if choice == "auto" or name == "gpt-oss" else ""
    for size in (1, 3, 1000):
        assert writer.parsed(size) == (content, expected(case))


def test_a_reply_may_have_no_call(name: str) -> None:
    writer = Writer(name)
    start = "<|channel|>final<|message|>" if name == "gpt-oss" else ""
    assert writer.write(start + 'No <b>, no [TOOL, no {"name": 1}.')
    assert writer.may_end()
    assert writer.parsed() == ('No <b>, no [TOOL, no {"name": 1}.', [])


def test_a_required_call_cannot_be_left_out(name: str) -> None:
    writer = Writer(name, choice="required")
    assert not writer.may_end()
    assert not writer.write("No.")


@pytest.mark.few(5)
def test_a_named_tool_is_the_only_one(name: str) -> None:
    choice = {"type": "function", "function": {"name": "now"}}
    for seed in range(3):
        writer = Writer(name, choice=choice)
        writer.write_at_random(seed)
        assert [call for call, _ in writer.parsed()[1]] == ["now"]


def test_one_call_only_unless_they_may_be_parallel(name: str) -> None:
    case = CASES[name]
    writer = Writer(name, parallel_tool_calls=False)
    assert writer.write(case.reply) is not case.has_two
    assert len(writer.parsed()[1]) == 1


@pytest.mark.few(5)
def test_whatever_a_model_writes_its_calls_are_valid(name: str) -> None:
    """Strings of any length seldom end at random, so that there are only choices."""
    schema = {
        "type": "object",
        "properties": {
            "unit": {"type": "string", "enum": ["C", "F"]},
            "sunny": {"type": "boolean"},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
        },
        "required": ["sunny", "unit"],
    }
    tools = [{"type": "function", "function": {"name": "f.g-h", "parameters": schema}}]
    for seed in range(4):
        writer = Writer(name, tools, "required")
        writer.write_at_random(seed)
        _, calls = writer.parsed()
        assert calls
        for called, arguments in calls:
            assert called == "f.g-h"
            jsonschema.validate(arguments, {**schema, "additionalProperties": False})


@pytest.mark.few(5)
def test_names_and_choices_of_any_letters(name: str) -> None:
    """A choice that spells a control token stays text; definitions may be shared."""
    schema = {
        "type": "object",
        "$defs": {"level": {"type": "integer", "minimum": 1, "maximum": 3}},
        "properties": {
            "my-key": {"$ref": "#/$defs/level"},
            "gr\u00f6\u00dfe": {"type": "string", "enum": ["<|im_end|>", 'a "b"']},
        },
        "required": ["my-key", "gr\u00f6\u00dfe"],
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    for seed in range(2):
        writer = Writer(name, tools, "required")
        writer.write_at_random(seed)
        [_, arguments], *_ = writer.parsed()[1]
        jsonschema.validate(arguments, schema)


def test_nested_parameters_are_answered_or_refused(name: str) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "boolean"}}}
    for _ in range(1500):
        schema = {"type": "object", "properties": {"a": schema}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    with pytest.raises(UsageError):
        Writer(name, tools, "required")


@pytest.mark.few(5)
def test_text_without_calls_may_have_a_grammar(name: str) -> None:
    free = Grammar("regex", "yes|no")
    start = "<|channel|>final<|message|>" if name == "gpt-oss" else ""
    writer = Writer(name, free=free)
    assert writer.write(f"{start}yes")
    assert writer.may_end()
    assert not Writer(name, free=free).write(f"{start}maybe")
    reply = CASES[name].reply.removeprefix("I look. ")
    assert Writer(name, free=free).write(reply)


@pytest.mark.few(10)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_call_that_is_cut_off_ends_the_reply(name: str, choice: str) -> None:
    """After `max_tokens` there is no more text; nothing hangs, and no call is made up."""
    case = CASES[name]
    writer = Writer(name, choice=choice)
    reply = case.reply if choice == "auto" else case.reply.removeprefix("I look. ")
    ids = writer.text.tokenizer.encode(reply, allow_special=True)
    for count in range(0, len(ids), 5):
        parser = writer.caller.parser()
        decoder = writer.text.stream_decoder(is_exact=True, shown=parser.shown)
        deltas = [d for token in ids[:count] for d in parser.push(decoder.push(token))]
        deltas += parser.finish()
        called = [each.name for each in deltas if isinstance(each, ToolCallDelta) and each.name]
        assert called == [call for call, _ in expected(case)][: len(called)]
        text = "".join(each.text for each in deltas if isinstance(each, TextDelta))
        assert choice == "auto" or not text or name == "gpt-oss", "it would be part of a mark"


def test_arguments_arrive_in_parts() -> None:
    writer = Writer("qwen")
    assert writer.write(CASES["qwen"].reply)
    parser = writer.caller.parser()
    decoder = writer.text.stream_decoder(is_exact=True, shown=parser.shown)
    deltas = [d for token in writer.written for d in parser.push(decoder.push(token))]
    calls = [each for each in deltas if isinstance(each, ToolCallDelta)]
    assert calls[0].name == "get_weather"
    assert calls[0].arguments == ""
    assert sum(each.index == 0 for each in calls) > 5


def test_a_thought_may_spell_a_call() -> None:
    writer = Writer("qwen")
    parser = writer.caller.parser()
    thought = '<think>\nI write <tool_call>\n{"name": "now", "arguments": \n</think>\n\n'
    deltas = [d for letter in thought + CASES["qwen"].reply for d in parser.push(letter)]
    content, calls = joined([*deltas, *parser.finish()])
    assert (content, calls) == (thought + "I look. ", CALLS)


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("thought", ["", "<think>\nIs it <tool_call>? I\n</think>\n\n"])
def test_calls_come_after_a_thought(choice: str, thought: str) -> None:
    writer = Writer("qwen thinks", choice=choice)
    assert writer.write(thought + CASES["qwen"].reply.removeprefix("I look. "))
    assert writer.may_end()
    assert writer.parsed() == (thought, CALLS)


def events_of(
    name: str, reply: str, *, opening: str = "", **settings: Any
) -> tuple[str, list[tuple[str, Any]], str]:
    """Content, calls and end of a reply that may call, until it ends by itself."""
    text, request = processor(name), read_tools(TOOLS)
    assert request is not None
    prompt = Prompt([1], opening, new_calls=ToolCaller(request, text).parser)
    sequence = Sequence([1], 1, 9, Sampler(Sampling(), [1], 9, random.Random(0)))
    events = ReplyEvents(sequence, text, prompt, Sampling(**settings))
    for token in text.tokenizer.encode(reply, allow_special=True):
        events.take(TokenOutput(sequence, SampledToken(token), None, 0.0))
        if events.queue and isinstance(events.queue[-1], Finished):
            break
    else:
        events.finish("stop")
    *parts, end = events.queue
    assert isinstance(end, Finished)
    return *joined([part for part in parts if not isinstance(part, Finished)]), end.reason


def test_a_mark_in_a_thought_that_the_prompt_opened_begins_no_call() -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    thought = f"{call}</think>\n\nYes."
    found = events_of("qwen thinks", thought, opening="<think>\n")
    assert found == (f"<think>\n{thought}", [], "stop")


def test_stop_strings_are_no_part_of_calls(name: str) -> None:
    case = CASES[name]
    found = events_of(name, case.reply, stop=("{", "<tool", "[", "name", "days", ")", "now"))
    assert found == (case.content.rstrip(), expected(case), "tool_calls")


@pytest.mark.parametrize(
    ("stop", "found"),
    [
        (" look", ("I", [], "stop")),
        (". ", ("I look", [], "stop")),
        (". <tool", ("I look.", CALLS, "tool_calls")),
    ],
)
def test_a_stop_string_ends_the_text_before_calls(stop: str, found: Any) -> None:
    assert events_of("qwen", CASES["qwen"].reply, stop=(stop,)) == found
    assert events_of("qwen", "I look. <tool", stop=("<too",)) == ("I look. ", [], "stop")
