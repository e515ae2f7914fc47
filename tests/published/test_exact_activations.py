"""With activations of 16 bits, published quantized models answer as their weights in float32 do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conversations import request_for

from mrs.request import Message, RunRequest, Sampling
from mrs.run.evaluation.evaluate import Evaluation, Setting, exact_request
from mrs.run.evaluation.windows import Work
from mrs.run.model_loader import ModelLoader
from support.published_files import GEMMA, QWEN_CODER

WINDOWS, WINDOW_TOKENS = 4, 256
QUESTION: Message = {"role": "user", "content": "What is the capital of France?"}


@pytest.fixture(params=["smollm2", GEMMA, QWEN_CODER], ids=["smollm2", "gemma", "qwen"])
def path(request: pytest.FixtureRequest) -> Path:
    if request.param == "smollm2":
        found: Path = request.getfixturevalue("published")
        return found
    if not request.param.is_present:
        pytest.skip(request.param.why_absent)
    return Path(request.param.path)


def divergence(request: RunRequest) -> Any:
    """From the model's own weights in float32."""
    setting = Setting(None, request.paged.cache_type, request.activations)
    work = Work(context_tokens=WINDOW_TOKENS, most_windows=WINDOWS)
    evaluation = Evaluation(request, exact_request(request), [setting], work)
    evaluation.fetch()
    found = evaluation.run().results[0].divergence
    assert found is not None
    return found


@pytest.mark.full
def test_nothing_diverges(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = divergence(replace(request_for(path), cpu=True, activations=16))
    assert found.mean.value < 1e-6
    assert found.same.value > 0.999


@pytest.mark.full
def test_a_near_tie_is_what_the_weights_say(published: Path) -> None:
    """The exact model prefers `The` to `L` by 0.08 nats, which 8-bit activations turn around."""
    model = ModelLoader(request_for(published, cpu=True, activations=16)).load()
    reply = model.stream_chat([QUESTION], Sampling(temperature=0, max_tokens=12))
    text = "".join(getattr(event, "text", "") for event in reply)
    model.close()
    assert text.startswith("The capital of France is Paris.")
