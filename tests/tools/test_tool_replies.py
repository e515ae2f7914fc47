"""Replies of a loaded model that calls tools; the demo's template knows none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from mrs.events import Finished, TextDelta, ToolCallDelta
from mrs.request import Grammar, Message, ModelSource, RunRequest, Sampling
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader
from mrs.tools.tool_request import read_tools
from support.threads import one_thread

__all__ = ["one_thread"]

QUESTION: list[Message] = [{"role": "user", "content": "Who are you?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"kind": {"enum": ["day", "night"]}, "level": {"type": "integer", "maximum": 9,
                                                                 "minimum": 1}},
    "required": ["kind", "level"],
}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "set_light", "parameters": PARAMETERS}}]


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    made = ModelLoader(RunRequest(ModelSource("demo", "safetensors"), cpu=True)).load()
    yield made
    made.close()


def answer(
    model: LoadedModel, choice: Any, seed: int = 0, **settings: Any
) -> tuple[str, list[list[str]], str]:
    sampling = Sampling(**{"temperature": 1.0, "max_tokens": 200, "seed": seed, **settings})
    tools = read_tools(TOOLS, choice, parallel_tool_calls=False)
    content, calls = "", []
    for event in model.stream_chat(QUESTION, sampling, tools=tools):
        if isinstance(event, TextDelta):
            content += event.text
        elif isinstance(event, ToolCallDelta):
            if event.name:
                calls.append([event.name, ""])
            calls[-1][1] += event.arguments
        else:
            assert isinstance(event, Finished)
            reason = event.reason
    return content, calls, reason


def test_a_required_call(model: LoadedModel) -> None:
    for seed in range(5):
        content, [[name, arguments]], reason = answer(model, "required", seed)
        assert (content, name, reason) == ("", "set_light", "tool_calls")
        jsonschema.validate(json.loads(arguments), PARAMETERS)


def test_a_model_that_need_not_call_answers(model: LoadedModel) -> None:
    content, calls, reason = answer(model, "auto", temperature=0)
    assert content
    assert (calls, reason) == ([], "stop")
    assert answer(model, "none", temperature=0)[0]


def test_a_call_that_is_cut_off_has_the_reason_length(model: LoadedModel) -> None:
    _, [[name, arguments]], reason = answer(model, "required", max_tokens=45)
    assert (name, reason) == ("set_light", "length")
    with pytest.raises(ValueError, match=r"Expecting|Unterminated|delimiter"):
        json.loads(arguments)


@pytest.mark.parametrize("stop", ["\n", '"', "tool", "day", "night"])
def test_a_stop_string_cuts_no_call(model: LoadedModel, stop: str) -> None:
    content, [[name, arguments]], reason = answer(model, "required", stop=(stop,))
    assert (content, name, reason) == ("", "set_light", "tool_calls")
    jsonschema.validate(json.loads(arguments), PARAMETERS)


def test_text_in_a_grammar_or_a_call(model: LoadedModel) -> None:
    for seed in range(4):
        content, calls, reason = answer(model, "auto", seed, grammar=Grammar("regex", "on|off"))
        assert (content in ("on", "off")) is (reason == "stop") is (not calls)


def test_logprobs_cover_every_token_of_a_call(model: LoadedModel) -> None:
    tools = read_tools(TOOLS, "required")
    sampling = Sampling(temperature=1.0, max_tokens=200, logprobs=0, seed=1)
    *events, end = model.stream_chat(QUESTION, sampling, tools=tools)
    logprobs = [each for event in events if isinstance(event, TextDelta) for each in event.logprobs]
    assert isinstance(end, Finished)
    assert end.usage.completion_tokens - len(logprobs) in (0, 1), "an end token has none"
