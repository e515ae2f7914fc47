"""The Python API and images in several processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from mrs import ChatCompletionRequest, Runner, Which

PICTURE = Path(__file__).parents[1] / "pictures" / "one_blue_star.png"


def ask(runner: Runner, text: str, **parts: Any) -> str:
    content = [{"type": "text", "text": text}]
    content += [{"type": "image_url", "image_url": {"url": str(url)}} for url in parts.values()]
    message = {"role": "user", "content": content}
    request = ChatCompletionRequest([message], model="x", temperature=0, max_tokens=24)
    return str(runner.send_chat_completion_request(request).choices[0].message.content)


@pytest.mark.slow
def test_a_vision_model_answers_as_in_one_process() -> None:
    which = Which.MultimodalPlain("demo-vision")
    with Runner(which, cpu=True) as runner:
        expected = ask(runner, "What is in the picture?", image=PICTURE)
    assert "blue" in expected
    with Runner(which, cpu=True, workers=1) as runner:
        assert ask(runner, "What is in the picture?", image=PICTURE) == expected


@pytest.mark.slow
def test_a_killed_worker_is_started_again() -> None:
    with Runner(Which.Plain("demo"), cpu=True, workers=1, rejoin_limit_s=240) as runner:
        expected = ask(runner, "What is a KV cache?")
        workers = [p for p in psutil.Process().children() if "worker" in p.cmdline()]
        assert len(workers) == 1
        os.kill(workers[0].pid, signal.SIGKILL)
        assert ask(runner, "What is a KV cache?") == expected


@pytest.mark.slow
def test_a_budget_of_thoughts_as_in_one_process(tmp_path: Path) -> None:
    template = tmp_path / "thinks.jinja"
    template.write_text("{{ messages[0].content }}{% if add_generation_prompt %}<think>{% endif %}")
    request = ChatCompletionRequest(
        [{"role": "user", "content": "What is a KV cache?"}],
        temperature=0,
        max_tokens=40,
        reasoning_budget=9,
        ignore_eos=True,
    )
    found = []
    for workers in (0, 1):
        with Runner(
            Which.Plain("demo"), cpu=True, jinja_explicit=template, workers=workers
        ) as runner:
            reply: Any = runner.send_chat_completion_request(request)
            found.append((reply.choices[0].message.content, reply.usage.reasoning_tokens))
            closing = len(runner._model._text.thought_endings()[0])
    assert found[0] == found[1]
    assert found[0][1] == 9 + closing
