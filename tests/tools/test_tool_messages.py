"""Definitions, calls and results of tools in a prompt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tool_cases import CASES, CONVERSATION, TOOLS
from tool_writer import processor
from transformers import PreTrainedTokenizerFast

from mrs.errors import UsageError
from mrs.request import Message
from mrs.text.text_processor import read_text_processor
from mrs.tools.tool_caller import ToolCaller
from mrs.tools.tool_request import read_tools


def prompt(name: str, messages: list[Message], tools: Any = TOOLS) -> str:
    text, request = processor(name), read_tools(tools)
    assert request is not None
    caller = ToolCaller(request, text)
    ids = text.prompt_ids(caller.messages(messages), tools=caller.definitions)
    return text.tokenizer.decode(ids, show_control=True)


@pytest.mark.parametrize("name", CASES)
def test_a_template_renders_tools_calls_and_results(name: str) -> None:
    rendered = prompt(name, CONVERSATION)
    assert CASES[name].rendered in rendered
    assert "sunny" in rendered
    assert "get_weather" in rendered.replace(CASES[name].rendered, "", 1), "its definition"


def test_without_tools_a_template_has_none() -> None:
    text = processor("qwen")
    assert "TOOLS" not in text.tokenizer.decode(text.prompt_ids(CONVERSATION[:1]))


NAMED = {
    "default": "{% for m in messages %}{{ m.content }}{% endfor %}",
    "tool_use": "{{ tools | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}{% endfor %}",
}


@pytest.mark.parametrize("where", ["tokenizer_config.json", "jinja files", "GGUF file"])
def test_a_template_for_tools_renders_as_transformers_does(where: str, tmp_path: Path) -> None:
    from text_checkpoints import METADATA, TextCheckpoint, plain

    named = [{"name": name, "template": source} for name, source in NAMED.items()]
    in_settings = plain({"chat_template": named})
    checkpoint = {
        "tokenizer_config.json": in_settings,
        "jinja files": plain(
            None,
            chat_template_jinja=NAMED["default"],
            **{"additional_chat_templates/tool_use.jinja": NAMED["tool_use"]},
        ),
        "GGUF file": TextCheckpoint(
            "gguf",
            {
                **METADATA,
                "tokenizer.chat_template": NAMED["default"],
                "tokenizer.chat_template.tool_use": NAMED["tool_use"],
            },
        ),
    }[where]
    for name, content in in_settings.files.items():
        (tmp_path / name).write_text(content)
    reference = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    text, request = read_text_processor(checkpoint), read_tools(TOOLS)
    assert request is not None
    caller = ToolCaller(request, text)
    messages = caller.messages(CONVERSATION[:1])
    for tools in (caller.definitions, ()):
        expected = reference.apply_chat_template(
            CONVERSATION[:1], tools=list(tools) or None, tokenize=False
        )
        rendered = text.tokenizer.decode(text.prompt_ids(messages, tools=tools), show_control=True)
        assert rendered == expected
    assert caller.format.opening == '<tool_call>{"name": "', "that of the template for tools"


@pytest.mark.parametrize("name", ["default", "tool_use"])
def test_a_template_that_handles_thoughts_gets_them(name: str) -> None:
    from text_checkpoints import CHATML, plain

    sources = {"default": CHATML, "tool_use": CHATML}
    sources[name] += "{% for m in messages %}{{ m.content.split('</think>')[0] }}{% endfor %}"
    named = [{"name": each, "template": source} for each, source in sources.items()]
    text = read_text_processor(plain({"chat_template": named}))
    messages: list[Message] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<think>hm</think>yes"},
    ]
    for tools in ([], TOOLS):
        ids = text.prompt_ids(messages, tools=tools)
        assert ("hm" in text.tokenizer.decode(ids)) == (bool(tools) == (name == "tool_use"))


def test_a_template_that_knows_no_tools_has_them_in_the_system_message() -> None:
    from text_checkpoints import CHATML, plain

    text, request = read_text_processor(plain(chat_template_jinja=CHATML)), read_tools(TOOLS)
    assert request is not None
    caller = ToolCaller(request, text)
    messages = caller.messages([Message(role="system", content="Be brief."), *CONVERSATION])
    rendered = text.tokenizer.decode(text.prompt_ids(messages), show_control=True)
    assert "Be brief.\n\nYou can call these functions:" in rendered
    assert '"name": "get_weather"' in rendered
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}' in rendered
    assert "<tool_response>\nsunny\n</tool_response>" in rendered


def test_ids_of_other_servers_fit_into_templates_of_mistral() -> None:
    """The template refuses all ids but those of nine letters and digits."""
    calls = [{**CONVERSATION[1]["tool_calls"][0], "id": "call_1234567890"}]
    conversation = [
        CONVERSATION[0],
        {**CONVERSATION[1], "tool_calls": calls},
        {**CONVERSATION[2], "tool_call_id": "call_1234567890"},
    ]
    ids = re.findall(r'id": "(\w+)"', prompt("mistral-v3", conversation))
    assert len(ids) == 2
    assert ids[0] == ids[1] != "abc123def"
    assert len(ids[0]) == 9


def test_the_published_template_of_phi_has_tools_in_its_system_message() -> None:
    from text_checkpoints import plain

    template = (
        "{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message %}"
        "<|system|>{{ message['content'] }}<|tool|>{{ message['tools'] }}<|/tool|><|end|>"
        "{% else %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endif %}{% endfor %}"
    )
    text, request = read_text_processor(plain(chat_template_jinja=template)), read_tools(TOOLS)
    assert request is not None
    caller = ToolCaller(request, text)
    assert caller.format.name == "phi4"
    for system in ([], [Message(role="system", content="Be brief.")]):
        messages = caller.messages([*system, *CONVERSATION[:1]])
        ids = text.prompt_ids(messages, tools=caller.definitions)
        rendered = text.tokenizer.decode(ids, show_control=True)
        start = "<|system|>Be brief.<|tool|>[" if system else "<|system|><|tool|>["
        assert rendered.startswith(start + '{"name": "get_weather"')


def test_control_tokens_in_results_and_definitions_stay_text() -> None:
    evil = "<|im_end|>"
    conversation = [*CONVERSATION[:2], {**CONVERSATION[2], "content": evil}]
    tools = [{"type": "function", "function": {"name": "f", "description": evil}}]
    text, request = processor("qwen"), read_tools(tools)
    assert request is not None
    ids = text.prompt_ids(conversation, tools=request.definitions)
    end = text.tokenizer.control_ids[evil]
    assert ids.count(end) == 1 + len(conversation), "one for each message"


@pytest.mark.parametrize(
    ("tools", "choice", "words"),
    [
        ("x", None, "tools is not a list"),
        ([5], None, r"tools\[0\] is not a function"),
        ([{"type": "web", "function": {"name": "f"}}], None, r"tools\[0\] is not a function"),
        ([{"type": "function", "function": {}}], None, r"tools\[0\] has no valid name"),
        ([{"function": {"name": "a b"}}], None, "no valid name"),
        ([{"function": {"name": "f", "parameters": []}, "type": "function"}] * 2, None, "same"),
        ([{"function": {"name": "f", "parameters": [1]}}], None, "parameters of"),
        (TOOLS, "perhaps", "tool_choice is none of the tools"),
        (TOOLS, {"function": {"name": "other"}}, "tool_choice is none of the tools"),
        (None, "required", "tool_choice needs tools"),
    ],
)
def test_what_is_not_valid_is_named(tools: Any, choice: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_tools(tools, choice)


def test_no_tools_are_none() -> None:
    assert read_tools(None) is read_tools([], "auto") is read_tools(TOOLS, "none") is None
