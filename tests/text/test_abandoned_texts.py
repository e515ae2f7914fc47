"""Texts whose client has left are read no further."""

from __future__ import annotations

import os
import random
import resource
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from text_checkpoints import BACKEND

from mrs.errors import ContextFull, NotReadable
from mrs.process.work import Abandoned, Work, doing
from mrs.text import child_process, long_texts, template_process, text_limit
from mrs.text.backend import encode
from mrs.text.long_texts import encode_ids
from mrs.text.template_process import TemplateProcess
from mrs.text.text_limit import TextLimit
from mrs.text.tokenizer import Tokenizer

LOOP = "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}"


@pytest.fixture
def renderer() -> Iterator[TemplateProcess]:
    made = TemplateProcess()
    made.walls()
    yield made
    made.stop()


class Rendering:
    """A template that is rendered in a thread, for work that can be abandoned."""

    def __init__(self, renderer: TemplateProcess, source: str) -> None:
        self.work, self.found = Work(), list[Any]()
        self._thread = threading.Thread(target=self._render, args=(renderer, source))
        self._thread.start()

    def _render(self, renderer: TemplateProcess, source: str) -> None:
        with doing(self.work):
            try:
                self.found.append(renderer.ask(source, {}, 100))
            except Abandoned as error:
                self.found.append(error)

    def result(self) -> Any:
        self._thread.join(60)
        (found,) = self.found
        return found


def until_it_has_used(seconds: float, process: Any) -> None:
    used = template_process._processor_seconds
    before = used(process)
    while used(process) < before + seconds:
        time.sleep(0.005)


def test_a_template_ends_soon_after_its_client_left(renderer: TemplateProcess) -> None:
    process = renderer._process
    rendering = Rendering(renderer, LOOP)
    until_it_has_used(0.02, process)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    rendering.work.abandon()
    assert isinstance(rendering.result(), Abandoned)
    assert process is not None
    assert process.poll() == -signal.SIGKILL
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert used.ru_utime - before.ru_utime < template_process.MAX_SECONDS / 2
    assert renderer.ask("a", {}, 100) == {"text": "a"}


def test_a_template_that_is_almost_done_does_not_cost_its_process(
    renderer: TemplateProcess,
) -> None:
    process = renderer._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    rendering = Rendering(renderer, "a")
    while not renderer._lock._is_held:
        time.sleep(0.001)
    rendering.work.abandon()
    os.kill(process.pid, signal.SIGCONT)
    rendering.result()
    renderer.ask("a", {}, 100)
    assert renderer._process is process


def test_no_text_is_tokenized_for_work_that_is_abandoned() -> None:
    work = Work()
    with doing(work):
        assert len(encode(BACKEND, "a text", add_special_tokens=False))
        work.abandon()
        with pytest.raises(Abandoned):
            encode(BACKEND, "a text", add_special_tokens=False)
    assert len(encode(BACKEND, "a text", add_special_tokens=False))


def test_counting_ends_at_the_next_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    work, pieces = Work(), list[str]()

    def leaving(backend: Any, text: str, **more: bool) -> Any:
        pieces.append(text)
        if len(pieces) == 2:
            work.abandon()
        return encode(backend, text, **more)

    monkeypatch.setattr(text_limit, "encode", leaving)
    limit, text = TextLimit(Tokenizer(BACKEND, special_tokens={}), 20_000), "a b " * 100_000
    with doing(work), pytest.raises(Abandoned):
        limit.check_count(text)
    assert len(pieces) == 2
    with pytest.raises(ContextFull):
        limit.check_count(text)


TEXTS = ["abc def ", "\u0301\u4e2d\U0001f600", " ", "a", "\n\t ", "0123456789", "<|im_end|> "]


@pytest.mark.few(2)
@pytest.mark.values
@pytest.mark.parametrize("alphabet", TEXTS)
@pytest.mark.parametrize("special", [False, True])
def test_a_long_text_has_the_tokens_of_a_short_one(
    alphabet: str, special: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(random.Random(alphabet).choices(alphabet, k=3000))
    plain = Tokenizer(BACKEND, special_tokens={})
    rendered = plain.protect(text) + text
    short = [plain.encode(text, allow_special=special), plain.encode_rendered(rendered)]
    monkeypatch.setattr(long_texts, "MOST_CHARACTERS", 1000)
    apart = Tokenizer(BACKEND, special_tokens={})
    assert [apart.encode(text, allow_special=special), apart.encode_rendered(rendered)] == short


def test_a_long_text_ends_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    made, work, found = list[Any](), Work(), list[BaseException]()

    def noting(*arguments: Any) -> Any:
        made.append(child_process.new_process(*arguments))
        return made[-1]

    def read() -> None:
        with doing(work):
            try:
                encode_ids(BACKEND, "a b c d " * 2**21, add_special_tokens=False)
            except Abandoned as error:
                found.append(error)

    monkeypatch.setattr(long_texts, "new_process", noting)
    thread = threading.Thread(target=read)
    thread.start()
    while not made:
        time.sleep(0.005)
    until_it_has_used(0.2, made[0])
    work.abandon()
    thread.join(60)
    assert len(found) == 1
    assert made[0].returncode == -signal.SIGKILL


@pytest.mark.full
def test_a_long_text_that_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "_BASE_BYTES", 2**28)
    monkeypatch.setattr(long_texts, "_CHARACTER_BYTES", 0)
    with pytest.raises(NotReadable, match="long text"):
        encode_ids(BACKEND, "a b c d " * 2**20, add_special_tokens=False)
