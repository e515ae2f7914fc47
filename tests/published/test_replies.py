"""Replies of the published model are those of its exact weights, however it is placed or asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conversations import check_replies, converse, request_for

from mrs.request import Message, Sampling
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader


def test_a_conversation_with_the_prefix_cache(loaded: LoadedModel, reference: Any) -> None:
    said = converse(loaded)
    check_replies(said, reference)
    # All but the last token of the first reply was computed, and whole blocks are shared.
    known_tokens = len(said.prompts[0]) + len(said.replies[0]) - 1
    assert known_tokens - 32 <= said.cached_tokens[1] <= known_tokens


def test_the_cache_saves_what_was_computed_before(loaded: LoadedModel) -> None:
    converse(loaded)
    computed = loaded.engine.stats.computed_tokens
    said = converse(loaded, max_tokens=4)
    new_tokens = loaded.engine.stats.computed_tokens - computed
    assert said.cached_tokens[0] >= len(said.prompts[0]) - 33
    total_tokens = sum(map(len, said.prompts)) + sum(map(len, said.replies))
    assert new_tokens == total_tokens - len(said.replies) - sum(said.cached_tokens)


def test_on_two_devices(published: Path, reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MRS_LOGICAL_DEVICES", "cpu,cpu")
    request = request_for(published, layer_map="0:13;1:17", prefix_cache_n=0)
    loader = ModelLoader(request)
    assert loader.plan.layer_devices == (0,) * 13 + (1,) * 17
    model = loader.load()
    said = converse(model, max_tokens=16)
    model.close()
    assert said.cached_tokens == [0, 0]
    check_replies(said, reference)


def test_a_known_reply(loaded: LoadedModel) -> None:
    """The exact model is sure of each of these tokens by more than 1.5 nats."""
    question: Message = {"role": "user", "content": "Name the days of the week."}
    reply = loaded.stream_chat([question], Sampling(temperature=0, max_tokens=8))
    text = "".join(getattr(event, "text", "") for event in reply)
    assert text.startswith("The days of the week are:")
