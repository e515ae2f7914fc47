"""A prompt that is too long loses what is oldest, if that is asked for."""

from __future__ import annotations

import pytest

from mrs import ChatCompletionRequest, CompletionRequest, Runner, Which
from mrs.errors import ContextFull
from mrs.request import Message
from mrs.text.shorten import max_prompt_tokens, newest_tokens, newest_turns

CONTEXT = 128


@pytest.fixture(scope="module")
def runner(random_model):
    folder = random_model("llama", max_position_embeddings=CONTEXT)
    with Runner(Which.Plain(str(folder)), cpu=True) as made:
        yield made


def said(role: str, content: str) -> Message:
    return Message(role=role, content=content)


TALK = [
    said("system", "Be short."),
    *(
        said(role, f"{role} {n}, and some more words")
        for n in range(9)
        for role in ("user", "assistant")
    ),
    said("user", "The last question."),
]  # fmt: skip


def prompt_tokens(runner: Runner, messages: list[Message] | str, **settings: object) -> int:
    request = ChatCompletionRequest(messages, **{"max_tokens": 2, **settings})
    return runner.send_chat_completion_request(request).usage.prompt_tokens


def test_without_being_asked_nothing_is_left_out(runner: Runner) -> None:
    assert runner.max_sequence_length() == CONTEXT
    with pytest.raises(ContextFull):
        prompt_tokens(runner, TALK)
    with pytest.raises(ContextFull):
        runner.send_completion_request(CompletionRequest("word " * 500))


def test_the_oldest_turns_are_left_out(runner: Runner) -> None:
    kept = [turn for turn in range(10) if _tokens_from(runner, turn) <= CONTEXT - 2]
    assert 0 < kept[0] < 9
    expected = _tokens_from(runner, kept[0])
    assert prompt_tokens(runner, TALK, truncate_sequence=True) == expected
    # More room for the reply leaves less to the prompt, half of the context at least.
    half = next(_tokens_from(runner, n) for n in kept if _tokens_from(runner, n) <= CONTEXT // 2)
    assert prompt_tokens(runner, TALK, truncate_sequence=True, max_tokens=None) == half < expected


def test_no_conversation_is_rendered_twice(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    text, lengths = runner._model.prompts.text, []
    prompt_ids = text.prompt_ids
    monkeypatch.setattr(
        text,
        "prompt_ids",
        lambda turns, **others: lengths.append(len(turns)) or prompt_ids(turns, **others),
    )
    prompt_tokens(runner, TALK, truncate_sequence=True)
    assert max(lengths) == len(TALK)
    assert len(lengths) == len(set(lengths)) > 1


def _tokens_from(runner: Runner, turn: int) -> int:
    model = runner._model
    return model.prompt_tokens([TALK[0], *TALK[1 + 2 * turn :]])


def test_a_turn_that_is_too_long_alone_loses_its_beginning(runner: Runner) -> None:
    long = [said("system", "Be short."), said("user", "many words " * 200)]
    assert prompt_tokens(runner, long, truncate_sequence=True) == CONTEXT - 2


def test_a_text_loses_its_oldest_tokens(runner: Runner) -> None:
    text = " ".join(f"word{n}" for n in range(200))
    request = CompletionRequest(text, max_tokens=5, truncate_sequence=True, ignore_eos=True)
    usage = runner.send_completion_request(request).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (CONTEXT - 5, 5)
    short = CompletionRequest("a few words", temperature=0, max_tokens=5, truncate_sequence=True)
    plain = CompletionRequest("a few words", temperature=0, max_tokens=5)
    answers = [runner.send_completion_request(each).choices for each in (short, plain)]
    assert answers[0] == answers[1]


def test_what_comes_before_all_turns_stays() -> None:
    messages = [
        said("system", "S"),
        *(said(r, r + str(n)) for n in range(4) for r in ("user", "tool")),
    ]
    for count in range(1, 10):
        kept = newest_turns(messages, lambda rest, count=count: len(rest) <= count)
        assert kept[0] == messages[0]
        assert kept[1]["role"] == "user"
        assert kept[1:] == messages[-(len(kept) - 1) :]
        assert len(kept) == max(3, count if count % 2 else count - 1)
    assert newest_turns(messages[:1], lambda rest: False) == messages[:1]


def test_the_newest_tokens_after_the_first() -> None:
    assert newest_tokens([1, 2, 3, 4, 5], 3, None) == [3, 4, 5]
    assert newest_tokens([1, 2, 3, 4, 5], 3, 1) == [1, 4, 5]
    assert newest_tokens([1, 2, 3, 4, 5], 1, 1) == [1]
    assert [max_prompt_tokens(100, wanted) for wanted in (None, 10, 90)] == [50, 90, 50]
