"""Lines of a pipe are answered in order, and started together if they have arrived."""

from __future__ import annotations

import io
import os
import threading

import pytest

from mrs.errors import ContextFull
from mrs.events import Finished, ReplyUsage, TextDelta
from mrs.request import Sampling
from mrs_cli.chat.question import Question
from mrs_cli.chat.session import Session
from mrs_cli.commands.stdin_prompts import PipedLines, StartedPrompt, started_ahead


def piped(read_end: int) -> PipedLines:
    return PipedLines(os.fdopen(read_end, encoding="utf-8"))


def all_lines(lines: PipedLines) -> list[str]:
    return list(iter(lambda: lines.read(wait=True), None))


def test_lines_of_a_pipe_arrive_whole_whatever_the_writes() -> None:
    read_end, write_end = os.pipe()
    text = "a\r\nsnow \u2603\n\nlast".encode()

    def write() -> None:
        for start in range(0, len(text), 3):
            os.write(write_end, text[start : start + 3])
        os.close(write_end)

    thread = threading.Thread(target=write)
    thread.start()
    assert all_lines(piped(read_end)) == ["a", "snow \u2603", "", "last"]
    thread.join()


def test_who_waits_for_the_reply_is_not_waited_for() -> None:
    read_end, write_end = os.pipe()
    lines = piped(read_end)
    os.write(write_end, b"one\nhalf a li")
    assert lines.read(wait=True) == "one"
    assert lines.read(wait=False) is None
    os.write(write_end, b"ne\n")
    assert lines.read(wait=False) == "half a line"
    os.close(write_end)
    assert lines.read(wait=True) is None


def test_bytes_that_are_no_text_are_replaced() -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"\xff\xfe ok\n")
    os.close(write_end)
    assert all_lines(piped(read_end)) == ["\ufffd\ufffd ok"]


def test_a_stream_without_a_file_has_all_lines() -> None:
    lines = PipedLines(io.StringIO("a\nb\n"))
    assert [lines.read(wait=False), lines.read(wait=False), lines.read(wait=True)] == [
        "a",
        "b",
        None,
    ]


class Model:
    """Remembers which replies were started."""

    has_chat_template = True

    def __init__(self) -> None:
        self.started: list[str] = []

    def stream_chat(self, messages, sampling):
        text = messages[-1]["content"]
        if text == "too long":
            raise ContextFull(99, 9)
        self.started.append(text)
        return iter((TextDelta(text), Finished("stop", ReplyUsage(1, 1, 0, 0.1, 0.1))))


@pytest.mark.parametrize("most", [1, 3, 16])
def test_prompts_are_started_ahead_and_answered_in_order(most: int) -> None:
    model = Model()
    lines = PipedLines(io.StringIO("a\n\nb\nc\nd\n"))
    prompts = started_ahead(
        Session(model, Sampling()), lines, most, lambda line, _: StartedPrompt(Question(line))
    )
    said, ahead = [], []
    for prompt in prompts:
        ahead.append(len(model.started))
        said.append((prompt.question.text, next(prompt.started).text))
    assert said == [(text, text) for text in "abcd"]
    assert ahead == [min(index + most, 4) for index in range(4)]


def test_an_error_comes_in_its_turn(run_mrs) -> None:
    ran = run_mrs("--each-line", "plain", "-m", "small", stdin=f"hello\n{'word ' * 20}\npoem\n")
    assert ran.out == "Hello! I am a **fake** model.\n"
    assert ran.code == 2
    assert "context" in ran.err


def test_many_prompts_get_their_own_replies(run_mrs) -> None:
    stdin = "".join(f"number {index}\n" for index in range(40))
    ran = run_mrs("--each-line", "--max-seqs", "4", "plain", "-m", "x", stdin=stdin)
    assert ran.out.splitlines() == [f"You said: number {index}" for index in range(40)]
