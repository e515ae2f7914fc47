"""Sequences that remember states: taken up again from snapshots, and side by side in a batch."""

from __future__ import annotations

import pytest
import torch
from hybrid_cases import HYBRIDS
from mixture_cases import MIXTURES
from running import TOLERANCE, Conversation, difference, load

from mrs.cache.layer import StateCache
from mrs.model.segments import Segment
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


@pytest.mark.parametrize("case", [*MIXTURES, *HYBRIDS], ids=lambda case: case.id)
@torch.inference_mode()
def test_sequences_of_a_batch_do_not_mix(case, references) -> None:
    """One goes on, the other begins, in one pass."""
    truth = references(case)
    model = load(ModelSource(str(truth.folder), "safetensors"))
    first, second = Conversation(model.decoder), Conversation(model.decoder)
    first.feed(truth.prompt[:20])
    going_on, beginning = truth.prompt[20:30], truth.second_turn
    tokens = torch.tensor([*going_on, *beginning])
    segments = [
        Segment(slice(0, len(going_on)), first.cache),
        Segment(slice(len(going_on), len(tokens)), second.cache),
    ]
    together = model.decoder.forward(tokens, segments, torch.arange(len(tokens)))
    alone = Conversation(model.decoder).feed(beginning)
    assert difference(together[len(going_on) :], alone) < TOLERANCE
    assert difference(together[: len(going_on)], truth.prompt_logits[20:30]) < TOLERANCE
