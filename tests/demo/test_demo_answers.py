"""The demo model answers what it should, through the program's own engine."""

from collections.abc import Iterator

import pytest
from judge import Case, is_right, load_cases

from mrs.events import Finished, TextDelta
from mrs.request import Message, ModelSource, RunRequest, Sampling
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader

GREEDY = Sampling(temperature=0, frequency_penalty=0, presence_penalty=0, max_tokens=150)


def load_demo(container: str) -> LoadedModel:
    return ModelLoader(
        RunRequest(ModelSource("demo", container), cpu=True, dtype="f32", max_seq_len=512)
    ).load()


@pytest.fixture(scope="module")
def plain() -> Iterator[LoadedModel]:
    model = load_demo("safetensors")
    yield model
    model.close()


@pytest.fixture(scope="module")
def from_gguf() -> Iterator[LoadedModel]:
    model = load_demo("gguf")
    yield model
    model.close()


def last_reply(model: LoadedModel, turns: tuple[str, ...]) -> str:
    """The reply to the last turn; empty when a reply did not end by itself."""
    messages: list[Message] = []
    reply = ""
    for turn in turns:
        messages.append(Message(role="user", content=turn))
        events = list(model.stream_chat(messages, GREEDY))
        finished = events[-1]
        assert isinstance(finished, Finished)
        reply = "".join(event.text for event in events if isinstance(event, TextDelta))
        if finished.reason != "stop":
            return ""
        messages.append(Message(role="assistant", content=reply))
    return reply


def wrong(model: LoadedModel, cases: list[Case]) -> list[tuple[tuple[str, ...], str]]:
    replies = [(case, last_reply(model, case.turns)) for case in cases]
    return [(case.turns, reply) for case, reply in replies if not is_right(reply, case.contains)]


@pytest.mark.full
def test_questions(plain: LoadedModel) -> None:
    cases = load_cases("questions")
    failed = wrong(plain, cases)
    assert len(failed) <= 0.05 * len(cases), failed


@pytest.mark.full
def test_follow_ups(plain: LoadedModel) -> None:
    cases = load_cases("follow_ups")
    failed = wrong(plain, cases)
    assert len(failed) <= 0.1 * len(cases), failed


@pytest.mark.full
def test_gguf_answers_as_well(from_gguf: LoadedModel) -> None:
    cases = load_cases("questions")[::4] + load_cases("follow_ups")[::4]
    failed = wrong(from_gguf, cases)
    assert len(failed) <= 0.1 * len(cases), failed
