"""Fields that say how long a model thinks, sent by the clients of OpenAI and Anthropic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from running_server import RunningServer, running

QUESTION: Any = [{"role": "user", "content": "What is a KV cache?"}]
LONG = {"ignore_eos": True, "temperature": 0}
#: Always opens a thought, whose marks are written in letters, and knows no effort.
MULLS = (
    "{% for m in messages %}{{ m.role }}: {% if m.reasoning_content %}<mull>\n"
    "{{ m.reasoning_content }}\n</mull>\n\n{% endif %}{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}bot: <mull>\n{% endif %}"
)


@pytest.fixture(scope="module")
def muller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    template = tmp_path_factory.mktemp("template") / "mulls.jinja"
    template.write_text(MULLS)
    with running(chat_template=str(template)) as made:
        yield made


def closing(server: RunningServer) -> int:
    return len(server.model._text.thought_endings()[0])


BUDGETS = [
    {"reasoning_budget": 5},
    {"thinking_budget": 5},
    {"thinking_budget_tokens": 5},
    {"max_thinking_tokens": 5},
    {"reasoning": {"max_tokens": 5}},
    {"thinking": {"type": "enabled", "budget_tokens": 5}},
    {"chat_template_kwargs": {"thinking_budget": 5}},
    {"reasoning_budget": 5, "max_thinking_tokens": 5},
    {"reasoning_effort": "low"},  # a fifth of 25 tokens
    {"reasoning": {"effort": "low"}},
    {"chat_template_kwargs": {"reasoning_effort": "low"}},
]
NONE = [
    {"enable_thinking": False},
    {"reasoning_effort": "none"},
    {"reasoning": {"enabled": False}},
    {"reasoning": {"effort": "none"}},
    {"thinking": {"type": "disabled"}},
    {"chat_template_kwargs": {"thinking": False}},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"reasoning_budget": 0},
]


@pytest.mark.few(4)
@pytest.mark.parametrize("fields", BUDGETS)
def test_chat_completions(muller: RunningServer, fields: dict[str, Any]) -> None:
    asked: Any = {"model": "demo", "messages": QUESTION, "max_tokens": 25}
    asked |= {"extra_body": {**LONG, **fields}}
    chat = muller.openai().chat.completions
    reply = chat.create(**asked)
    details = reply.usage.completion_tokens_details
    assert details.reasoning_tokens == 5 + closing(muller)
    thought = getattr(reply.choices[0].message, "reasoning_content", "")
    assert len(muller.model.tokenizer.encode(thought.strip(), allow_special=False)) <= 6
    *chunks, last = chat.create(**asked, stream=True, stream_options={"include_usage": True})
    assert last.usage.completion_tokens_details == details
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(each, "reasoning_content", "") for each in deltas) == thought
    assert "<" not in thought + (reply.choices[0].message.content or "")


@pytest.mark.parametrize("fields", NONE)
def test_no_thought_at_all(muller: RunningServer, fields: dict[str, Any]) -> None:
    """The template cannot switch thoughts off: they are ended at once."""
    reply = muller.chat(**LONG, **fields, max_tokens=25).json()
    assert "reasoning_content" not in reply["choices"][0]["message"]
    details = reply["usage"]["completion_tokens_details"]
    assert details["reasoning_tokens"] == closing(muller)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"thinking": {"type": "adaptive"}, "max_thinking_tokens": 5},
        {"thinking": {"type": "adaptive", "budget_tokens": 5}},
    ],
)
def test_messages(muller: RunningServer, more: dict[str, Any]) -> None:
    client = anthropic.Anthropic(base_url=muller.url, api_key="any", max_retries=0)
    whole: Any = {"model": "demo", "max_tokens": 25, "messages": QUESTION, "extra_body": LONG}
    given = {**whole, "thinking": {"type": "enabled", "budget_tokens": 5}}
    if more:
        given = {**whole, "extra_body": {**LONG, **more}}
    reply = client.messages.create(**given)
    free = client.messages.create(**whole)
    assert reply.content[0].type == "thinking"
    assert free.content[0].thinking.startswith(reply.content[0].thinking.strip())
    assert free.content[0].thinking != reply.content[0].thinking
    with client.messages.stream(**given) as stream:
        streamed = stream.get_final_message().content
    assert [each.type for each in streamed] == [each.type for each in reply.content]
    assert streamed[0] == reply.content[0]


def test_a_budget_of_messages_is_below_the_tokens(muller: RunningServer) -> None:
    client = anthropic.Anthropic(base_url=muller.url, api_key="any", max_retries=0)
    thinking: Any = {"type": "enabled", "budget_tokens": 25}
    with pytest.raises(
        anthropic.BadRequestError, match="budget_tokens is 25, but max_tokens is 25"
    ):
        client.messages.create(model="demo", max_tokens=25, messages=QUESTION, thinking=thinking)
    assert muller.chat(reasoning_budget=25, max_tokens=5).status_code == 200


def test_an_omitted_thought_of_messages(muller: RunningServer) -> None:
    client = anthropic.Anthropic(base_url=muller.url, api_key="any", max_retries=0)
    thinking: Any = {"type": "enabled", "budget_tokens": 5, "display": "omitted"}
    whole: Any = {"model": "demo", "max_tokens": 25, "messages": QUESTION, "extra_body": LONG}
    reply = client.messages.create(**whole, thinking=thinking)
    assert "thinking" not in [each.type for each in reply.content]


@pytest.mark.few(1)
@pytest.mark.parametrize("fields", [{"reasoning": {"effort": "low"}},
                                    {"extra_body": {"reasoning_budget": 5}},
                                    {"extra_body": {"reasoning": {"max_tokens": 5}}}])  # fmt: skip
def test_responses(muller: RunningServer, fields: dict[str, Any]) -> None:
    body = {**LONG, **fields.pop("extra_body", {})}
    asked: Any = {"model": "demo", "input": "What is a KV cache?", "max_output_tokens": 25}
    asked |= {"extra_body": body, "store": False, **fields}
    reply = muller.openai().responses.create(**asked)
    assert reply.usage is not None
    details = reply.usage.output_tokens_details
    assert details.reasoning_tokens == 5 + closing(muller)
    *_, last = muller.openai().responses.create(**asked, stream=True)
    assert last.response.usage.output_tokens_details == details  # type: ignore[union-attr]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "fields",
    [
        {"include_reasoning": False},
        {"reasoning": {"exclude": True}},
        {"reasoning_format": "hidden"},
        {"thinking": {"type": "enabled", "display": "omitted"}},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_left_out(muller: RunningServer, fields: Any, stream: bool) -> None:
    found = muller.chat(**LONG, **fields, reasoning_budget=5, max_tokens=25, stream=stream).text
    assert "reasoning_content" not in found
    whole = muller.chat(**LONG, **fields, reasoning_budget=5, max_tokens=25).json()
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5 + closing(muller)
    logged = muller.chat(**LONG, **fields, reasoning_budget=5, max_tokens=25, logprobs=True).json()
    assert len(logged["choices"][0]["logprobs"]["content"]) <= 25 - 5


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_format": "none"},
        {"reasoning_format": "raw"},
        {"separate_reasoning": False},
        {"parse_reasoning": False},
    ],
)
def test_thoughts_are_a_part_of_the_text(muller: RunningServer, fields: dict[str, Any]) -> None:
    message = muller.chat(**LONG, **fields, reasoning_budget=5, max_tokens=25).json()
    text = message["choices"][0]["message"]["content"]
    assert text.startswith("<think>\n")
    assert "</think>" in text


@pytest.mark.parametrize(
    "fields",
    [{"reasoning_format": "auto"}, {"separate_reasoning": True}, {"parse_reasoning": True},
     {"include_reasoning": True}, {"reasoning_format": "deepseek"}, {"stream_reasoning": True}],
)  # fmt: skip
def test_the_usual_form_can_be_asked_for(muller: RunningServer, fields: dict[str, Any]) -> None:
    message = muller.chat(**LONG, **fields, max_tokens=5).json()["choices"][0]["message"]
    assert message["reasoning_content"]


def test_the_message_before_the_end(muller: RunningServer) -> None:
    fields = {"reasoning_budget": 3, "reasoning_budget_message": " Enough of that."}
    message = muller.chat(**LONG, **fields, max_tokens=40).json()["choices"][0]["message"]
    assert message["reasoning_content"].strip().endswith(" Enough of that.")


@pytest.mark.parametrize(
    ("fields", "words", "param"),
    [
        ({"reasoning_budget": 5, "max_thinking_tokens": 6}, "contradict", "reasoning_budget"),
        ({"enable_thinking": True, "thinking": {"type": "disabled"}}, "contradict",
         "enable_thinking"),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "contradict",
         "reasoning_effort"),
        ({"enable_thinking": True, "reasoning_effort": "none"}, "leave one of them out",
         "reasoning_effort"),
        ({"reasoning_budget": -2}, ">= -1", "reasoning_budget"),
        ({"reasoning_format": "deepseek-legacy"}, "is not supported", "reasoning_format"),
        ({"stream_reasoning": False}, "is not supported", "stream_reasoning"),
        ({"chat_template_kwargs": {"frobnicate": 1}}, "has no variable frobnicate",
         "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "no variable to choose",
         "chat_template_kwargs"),
    ],
)  # fmt: skip
def test_what_is_refused(
    muller: RunningServer, fields: dict[str, Any], words: str, param: str
) -> None:
    reply = muller.chat(**fields)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert words in error["message"]
    assert error["param"] == param


@pytest.mark.parametrize(
    "fields", [{"enable_thinking": True}, {"thinking": {"type": "enabled"}},
               {"reasoning": {"enabled": True}}]
)  # fmt: skip
def test_thoughts_of_a_model_without(server: RunningServer, fields: dict[str, Any]) -> None:
    reply = server.chat(**fields)
    assert reply.status_code == 400
    assert "the model does not think" in reply.json()["error"]["message"]
    plain = server.chat(temperature=0).json()["choices"]
    for bound in ({"reasoning_budget": 3}, {"reasoning_effort": "low"}, {"enable_thinking": False}):
        assert server.chat(temperature=0, **bound).json()["choices"] == plain


def test_tags_of_a_model_without_thoughts_are_text(server: RunningServer) -> None:
    """A grammar makes the model begin with the usual mark."""
    grammar = {"type": "regex", "value": "<think>a</think>b"}
    message = server.chat(grammar=grammar, max_tokens=60).json()["choices"][0]["message"]
    assert message["content"] == "<think>a</think>b"
    assert "reasoning_content" not in message


def test_every_reply_counts(muller: RunningServer) -> None:
    fields = {"n": 3, "reasoning_budget": 4, "temperature": 1, "seed": 1, "ignore_eos": True}
    reply = muller.chat(**fields, max_tokens=20).json()
    found = reply["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert found == 3 * (4 + closing(muller))


def test_the_document_names_the_fields(muller: RunningServer) -> None:
    schemas = json.dumps(muller.http.get("/openapi.json").json())
    for name in ("reasoning_budget", "max_thinking_tokens", "include_reasoning", "budget_tokens"):
        assert name in schemas
