"""What Python shows of a runner and of its answers: one line that says what they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from mrs import (
    AsyncRunner,
    ChatCompletionRequest,
    CompletionRequest,
    Runner,
    Which,
    plan_model,
)

CHAT = [{"role": "user", "content": "Who are you?"}]


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(Which.Plain("demo"), seed=1) as runner:
        yield runner


def test_a_runner_names_its_model_and_devices(runner: Runner) -> None:
    assert repr(runner).startswith("<Runner of demo: llama, BF16, ")
    assert " on cpu (5 layers)" in repr(runner)


def test_an_answer_shows_its_text_and_tokens(runner: Runner) -> None:
    answer = runner.send_chat_completion_request(ChatCompletionRequest(CHAT, temperature=0))
    shown = repr(answer)
    assert shown.startswith("<ChatCompletionResponse of demo: ")
    assert answer.choices[0].message.content[:20] in shown
    assert shown.endswith(
        f"(stop); {answer.usage.prompt_tokens} + {answer.usage.completion_tokens} tokens>"
    )
    assert "\n" not in shown


def test_a_long_text_is_cut(runner: Runner) -> None:
    request = CompletionRequest("Once", max_tokens=100, ignore_eos=True)
    answer = runner.send_completion_request(request)
    assert len(answer.choices[0].text) > 100
    assert "…' (length)" in repr(answer) or '…" (length)' in repr(answer)


def test_chunks_show_what_is_new(runner: Runner) -> None:
    stream = runner.send_chat_completion_request(ChatCompletionRequest(CHAT, stream=True))
    assert repr(stream) == "<ChunkStream of 1 reply>"
    first, *_, last = list(stream)
    assert repr(first.choices[0].delta.content) in repr(first)
    assert "''" in repr(last)


def test_a_notebook_shows_the_replies_as_markdown(runner: Runner) -> None:
    request = ChatCompletionRequest(CHAT, n_choices=2, temperature=0)
    answer = runner.send_chat_completion_request(request)
    first, second = (choice.message.content for choice in answer.choices)
    assert answer._repr_markdown_() == f"{first}\n\n---\n\n{second}"


def test_a_plan_is_shown_in_a_line(runner: Runner) -> None:
    assert repr(runner.plan()).startswith("<Plan of demo: llama, BF16, ")
    assert "\n" not in repr(plan_model(Which.Plain("demo")))


def test_requests_and_models_show_what_was_given() -> None:
    assert repr(Which.Plain("demo")) == "Which.Plain(model_id='demo')"
    assert repr(CompletionRequest("Once", max_tokens=3)) == (
        "CompletionRequest(prompt='Once', max_tokens=3)"
    )
    assert repr(ChatCompletionRequest(CHAT, stream=True)) == (
        f"ChatCompletionRequest(messages={CHAT!r}, stream=True)"
    )


def test_a_stream_for_asyncio_says_what_it_is(runner: Runner) -> None:
    async def shown() -> tuple[str, str]:
        request = ChatCompletionRequest(CHAT, stream=True)
        stream = await AsyncRunner(runner).send_chat_completion_request(request)
        before = repr(stream)
        await stream.aclose()
        return before, repr(stream)

    assert asyncio.run(shown()) == (
        "<AsyncChunkStream of 1 reply>", "<AsyncChunkStream of 1 reply, closed>"
    )  # fmt: skip
