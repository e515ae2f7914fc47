"""Texts whose client has left are read no further."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from text_checkpoints import BACKEND

from mrs.errors import ContextFull
from mrs.text import template_process, text_limit
from mrs.text.backend import encode
from mrs.text.template_process import TemplateProcess
from mrs.text.text_limit import TextLimit
from mrs.text.tokenizer import Tokenizer
from mrs.work import Abandoned, Work, doing

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
    before = time.clock_gettime(time.CLOCK_MONOTONIC)
    rendering.work.abandon()
    assert isinstance(rendering.result(), Abandoned)
    assert process is not None
    assert process.poll() == -signal.SIGKILL
    assert time.clock_gettime(time.CLOCK_MONOTONIC) - before < template_process.MAX_SECONDS
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
