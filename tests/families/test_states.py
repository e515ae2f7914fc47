"""A sequence that is taken up again from its snapshots goes on as if it had never stopped."""

from __future__ import annotations

import pytest
import torch
from hybrid_cases import HYBRIDS
from running import Conversation, load

from mrs.cache.layer import StateCache
from mrs.request import ModelSource


@pytest.mark.parametrize("case", HYBRIDS, ids=lambda case: case.id)
def test_restored_states_go_on(case, references) -> None:
    truth = references(case)
    model = load(ModelSource(str(truth.folder), "safetensors"))
    conversation = Conversation(model.decoder)
    conversation.feed(truth.prompt)
    length = conversation.cache.length
    saved = {
        index: layer.snapshot()
        for index, layer in enumerate(conversation.cache.layers)
        if isinstance(layer, StateCache)
    }
    assert saved
    first = conversation.feed(truth.second_turn)
    assert not conversation.cache.can_rewind_to(length)
    for index, layer in enumerate(conversation.cache.layers):
        if index in saved:
            layer.restore(length, saved[index])
        else:
            layer.rewind(length)
    assert conversation.cache.length == length
    again = Conversation(model.decoder)
    again.cache, again._ids = conversation.cache, list(truth.prompt)
    assert torch.equal(again.feed(truth.second_turn), first)
