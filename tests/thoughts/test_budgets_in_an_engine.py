"""Budgets of thoughts in a real engine: beside other replies, with drafts, tools and seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mrs.errors import UsageError
from mrs.events import Finished, TextDelta, ToolCallDelta
from mrs.request import Effort, Grammar, Message, ModelSource, RunRequest, Sampling
from mrs.run.loaded_model import LoadedModel
from mrs.run.prompt_reader import PromptReader
from mrs.run.thinking_settings import ThinkingSettings
from mrs.text.template import ChatTemplate
from mrs.text.text_processor import TextProcessor
from mrs.tools.tool_request import read_tools

#: Opens a thought unless thinking is off; the marks are written in letters.
SWITCHED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<mull>\n{{ m.reasoning_content }}\n</mull>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is not defined or enable_thinking %}<mull>\n{% endif %}{% endif %}"
)
ALWAYS = SWITCHED.replace(" is not defined or enable_thinking", " is not defined or true")
LEVELS = "{{ reasoning_effort | default('none') }}" + SWITCHED
QUESTION: list[Message] = [{"role": "user", "content": "What is a KV cache?"}]
LONG: list[Message] = [{"role": "user", "content": "Name the oceans. " * 8}]
CLOSE = "</mull>"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string", "maxLength": 9}},
                "required": ["word"],
                "additionalProperties": False,
            },
        },
    }
]

Made = Callable[..., LoadedModel]


@pytest.fixture
def made(demo: LoadedModel) -> Made:
    """The demo model with another template, and other settings of the model."""

    def make(template: str = SWITCHED, **settings: Any) -> LoadedModel:
        own = demo._text
        text = TextProcessor(
            own.tokenizer, ChatTemplate(template, name="test"), stop_ids=own.stop_ids
        )
        request = RunRequest(ModelSource("demo", "safetensors"), **settings)
        thinking = ThinkingSettings(text, request)
        prompts = PromptReader(demo.engine.spec, text, thinking, demo.context_tokens)
        return LoadedModel(request, demo.plan, prompts, demo.engine)

    return make


def sampling(budget: int | None = None, **settings: Any) -> Sampling:
    plain = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "temperature": 0.0}
    return Sampling(**{**plain, "max_tokens": 60, "reasoning_budget": budget, **settings})


def read(events: Iterator[Any]) -> tuple[str, str, Finished, list[ToolCallDelta]]:
    """Thought, answer, end and calls."""
    *deltas, end = events
    assert isinstance(end, Finished)
    said = "".join(each.text for each in deltas if isinstance(each, TextDelta))
    calls = [each for each in deltas if isinstance(each, ToolCallDelta)]
    thought, closed, answer = said.removeprefix("<think>\n").partition("</think>")
    return (thought, answer, end, calls) if closed else (thought, "", end, calls)


def ask(
    model: LoadedModel, budget: int | None = None, **settings: Any
) -> tuple[str, str, Finished]:
    messages = settings.pop("messages", QUESTION)
    settings = {"ignore_eos": True, **settings}
    return read(model.stream_chat(messages, sampling(budget, **settings)))[:3]


def num_closing(model: LoadedModel) -> int:
    return len(model._text.thought_endings()[0])


@pytest.mark.few(3)
@pytest.mark.parametrize("budget", [0, 1, 6])
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "top_p": 1.0, "seed": 3}])
def test_a_thought_of_the_prompt(made: Made, budget: int, settings: dict[str, Any]) -> None:
    model = made(ALWAYS)
    free, none, whole = ask(model, **settings)
    assert not none, "the demo model never ends it"
    assert whole.usage.reasoning_tokens == whole.usage.completion_tokens > 6
    thought, answer, end = ask(model, budget, **settings)
    assert end.usage.reasoning_tokens == budget + num_closing(model)
    assert free.startswith(thought.removesuffix("\n"))
    assert len(model.tokenizer.encode_next(thought, allow_special=False)) >= budget
    assert end.usage.completion_tokens == 60, "the reply goes on"
    assert ask(model, budget, **settings)[:2] == (thought, answer)


def test_budgets_of_replies_in_one_batch(made: Made) -> None:
    model = made(ALWAYS)
    budgets, short = [None, 0, 3, 11, 5], {"max_tokens": 24, "ignore_eos": True}
    alone = [ask(model, budget, **short)[:2] for budget in budgets]
    replies = [model.stream_chat(QUESTION, sampling(each, **short)) for each in budgets]
    together = [read(reply) for reply in replies]
    assert [each[:2] for each in together] == alone
    counts = [each[2].usage.reasoning_tokens for each in together]
    assert counts == [24, *(budget + num_closing(model) for budget in (0, 3, 11, 5))]


def test_choices_of_one_request(made: Made) -> None:
    model = made(ALWAYS)
    settings = {"temperature": 1.5, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": 1}
    found = [ask(model, 6, **settings, variant=n) for n in range(3)]
    assert len({thought for thought, *_ in found}) == 3
    assert {end.usage.reasoning_tokens for *_, end in found} == {6 + num_closing(model)}


@pytest.mark.parametrize("budget", [2, 9, 30])
def test_prompt_lookup_drafts_nothing_beyond_the_budget(made: Made, budget: int) -> None:
    """A reply that repeats its prompt is drafted; log-probabilities do without forced tokens."""
    model = made(ALWAYS)
    bias = {"messages": LONG, "repetition_penalty": 0.5}
    *_, free = ask(model, **bias)
    assert free.usage.accepted_tokens, "the reply repeats itself"
    thought, answer, end = ask(model, budget, **bias)
    assert end.usage.reasoning_tokens == budget + num_closing(model)
    assert ask(model, budget, **bias, logprobs=0)[:2] == (thought, answer)


@pytest.mark.parametrize("budget", [0, 4])
def test_json_after_the_thought(made: Made, budget: int) -> None:
    form = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    grammar = Grammar("json_schema", json.dumps({**form, "additionalProperties": False}))
    for settings in ({}, {"temperature": 1.0, "seed": 5}):
        _, answer, end = ask(made(ALWAYS), budget, grammar=grammar, ignore_eos=False, **settings)
        assert set(json.loads(answer)) == {"a"}
        assert end.usage.reasoning_tokens == budget + num_closing(made(ALWAYS))


@pytest.mark.parametrize("budget", [0, 4])
def test_a_call_after_the_thought(made: Made, budget: int) -> None:
    model = made(ALWAYS)
    tools = read_tools(TOOLS, "required")
    reply = model.stream_chat(QUESTION, sampling(budget, max_tokens=150), tools=tools)
    _, _, end, calls = read(reply)
    assert calls[0].name == "look_up"
    assert end.reason == "tool_calls"
    assert end.usage.reasoning_tokens == budget + num_closing(model)


def test_no_budget_at_all_switches_thinking_off_where_that_is_possible(made: Made) -> None:
    assert "<think>" not in "".join(
        each.text
        for each in made().stream_chat(QUESTION, sampling(0))
        if isinstance(each, TextDelta)
    )
    *_, end = ask(made(ALWAYS), 0)
    assert end.usage.reasoning_tokens == num_closing(made(ALWAYS))


def test_thinking_that_a_template_cannot_switch_off_ends_at_once(made: Made) -> None:
    for settings in ({"reasoning_effort": "none"}, {"reasoning_budget": 0}):
        *_, end = ask(made(ALWAYS), **settings)
        assert end.usage.reasoning_tokens == num_closing(made(ALWAYS))
    *_, end, _ = read(made(ALWAYS).stream_chat(QUESTION, sampling(), thinking=False))
    assert end.usage.reasoning_tokens == num_closing(made(ALWAYS))


@pytest.mark.parametrize(("effort", "share"), [("minimal", 2), ("low", 4), ("high", 16)])
def test_an_effort_is_a_share_of_the_reply(made: Made, effort: Effort, share: int) -> None:
    for model, settings in (
        (made(), {"reasoning_effort": effort}),
        (made(reasoning_effort=effort), {}),
    ):
        *_, end = ask(model, max_tokens=20, **settings)
        assert end.usage.reasoning_tokens == min(share + num_closing(model), 20)
    *_, end = ask(made(), 3, max_tokens=20, reasoning_effort=effort)
    assert end.usage.reasoning_tokens == 3 + num_closing(made()), "the budget counts"
    *_, end = ask(made(LEVELS), max_tokens=20, reasoning_effort=effort)
    assert end.usage.reasoning_tokens == 20, "the template has levels"


def test_the_model_has_a_budget_and_requests_another(made: Made) -> None:
    model = made(reasoning_budget=4, reasoning_budget_message=" Stop.")
    thought, _, end = ask(model)
    assert thought.endswith(" Stop.\n")
    *_, other = ask(model, 2, reasoning_budget_message="")
    assert other.usage.reasoning_tokens == 2 + num_closing(model)
    assert ask(model, -1)[2].usage.reasoning_tokens == 60
    assert end.usage.reasoning_tokens == 4 + len(model._text.thought_endings(" Stop.")[0])


def test_a_template_gets_the_budget_that_it_asks_for(made: Made) -> None:
    model = made("{{ thinking_budget }}" + SWITCHED)
    prompt = model.prompts.chat(QUESTION, sampling(123))
    assert model.tokenizer.decode(prompt.ids).startswith("123")


def test_what_a_model_without_thoughts_is_asked_for(demo: LoadedModel) -> None:
    """An upper bound holds; thoughts there are none."""
    free = [*demo.stream_chat(QUESTION, sampling())]
    for settings in ({"reasoning_budget": 5}, {"reasoning_effort": "low"}):
        *found, end = demo.stream_chat(QUESTION, sampling(**settings))
        assert found == free[:-1]
        assert end.usage.reasoning_tokens == 0
    with pytest.raises(UsageError, match="the model does not think"):
        demo.stream_chat(QUESTION, sampling(), thinking=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [("reasoning_budget", 5), ("reasoning_budget_message", "Enough."), ("reasoning_effort", "low")],
)
def test_a_text_that_is_continued_has_no_thoughts(made: Made, field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{field} is for chats"):
        made().stream_completion("Once", Sampling(**{field: value}))


@pytest.mark.parametrize(
    ("template", "settings", "words"),
    [
        (ALWAYS, {"thinking": False}, "--thinking ends thoughts at once"),
        (SWITCHED, {"thinking": False}, None),
        (SWITCHED, {"thinking": True, "reasoning_effort": "low"}, "have 20% of a reply's tokens"),
        (LEVELS, {"thinking": True, "reasoning_effort": "low"}, None),
        ("{{ messages[0].content }}", {"reasoning_budget": 3}, "--reasoning-budget has no effect"),
        ("{{ messages[0].content }}", {"thinking": True}, "--thinking has no effect"),
        (SWITCHED, {"reasoning_budget": 3}, None),
    ],
)
def test_what_is_said_of_the_settings(
    made: Made, template: str, settings: dict[str, Any], words: str | None
) -> None:
    model = made(template)
    request = RunRequest(ModelSource("demo", "safetensors"), **settings)
    notes = [*ThinkingSettings(model._text, request).notes()]
    assert len(notes) == (words is not None)
    assert words is None or words in notes[0]
