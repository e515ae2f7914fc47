"""Budgets of thoughts in the Python API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mrs import ChatCompletionRequest, CompletionRequest, Runner, Which
from mrs.errors import Unsupported, UsageError

MULLS = (
    "{% for m in messages %}{% if m.reasoning_content %}<mull>{{ m.reasoning_content }}</mull>"
    "{% endif %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<mull>{% endif %}"
)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    template: Path = tmp_path_factory.mktemp("template") / "mulls.jinja"
    template.write_text(MULLS)
    with Runner(Which.Plain("demo"), cpu=True, jinja_explicit=template) as made:
        yield made


def ask(runner: Runner, **settings: Any) -> Any:
    request = ChatCompletionRequest(
        [{"role": "user", "content": "What is a KV cache?"}],
        temperature=0,
        max_tokens=20,
        ignore_eos=True,
        **settings,
    )
    return runner.send_chat_completion_request(request)


@pytest.mark.parametrize(
    "settings", [{"reasoning_budget": 4}, {"reasoning_effort": "low"}, {"n_choices": 1}]
)
def test_tokens_of_thoughts(runner: Runner, settings: dict[str, Any]) -> None:
    closing = len(runner._model._text.thought_endings()[0])
    expected = 20 if "n_choices" in settings else 4 + closing
    reply = ask(runner, **settings)
    assert reply.usage.reasoning_tokens == expected
    assert reply.choices[0].message.content.startswith("<think>")
    *_, last = ask(runner, **settings, stream=True)
    assert last.usage.reasoning_tokens == expected
    assert ask(runner, **settings, n_choices=2) if "n_choices" not in settings else True


def test_the_message_and_no_thought(runner: Runner) -> None:
    reply = ask(runner, reasoning_budget=2, reasoning_budget_message=" Done.")
    assert " Done.</think>" in reply.choices[0].message.content
    closing = len(runner._model._text.thought_endings()[0])
    for settings in ({"enable_thinking": False}, {"reasoning_effort": "none"}):
        assert ask(runner, **settings).usage.reasoning_tokens == closing


def test_what_has_no_thoughts() -> None:
    with pytest.raises((UsageError, TypeError, Unsupported)):
        CompletionRequest("Once", reasoning_budget=3)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="reasoning_budget is -2"):
        ChatCompletionRequest("x", reasoning_budget=-2)


def test_a_prompt_without_a_template_has_no_budget(runner: Runner) -> None:
    request = ChatCompletionRequest("Once upon", reasoning_budget=3)
    with pytest.raises(UsageError, match="reasoning_budget is for chats"):
        runner.send_chat_completion_request(request)
