"""Sequences that remember states: taken up again from snapshots, and side by side in a batch."""

from __future__ import annotations

import pytest
import torch
from delta_net_cases import DELTA_NETS
from gated_cases import AFMOE
from gemma3n_cases import GEMMA3N
from gemma4_cases import SHARED
from hybrid_cases import HYBRIDS
from kimi_cases import KIMI
from llama4_cases import LLAMA4
from mamba_cases import MAMBAS
from mixture_cases import MIXTURES
from parity_cases import REPRESENTATIVES
from routed_cases import ROUTED
from running import TOLERANCE, Conversation, difference, load

from mrs.model.batch import SequenceInput, forward_batch
from mrs.request import ModelSource
from support.suites import kinds

STATES = [*HYBRIDS, *DELTA_NETS, *MAMBAS, *KIMI]
#: Families whose layers have more than one new concept.
NEW = [*SHARED, *GEMMA3N, *AFMOE, *LLAMA4]


@pytest.mark.few(3)
@pytest.mark.parametrize("case", kinds(STATES, REPRESENTATIVES))
def test_restored_states_go_on(case, references) -> None:
    truth = references(case)
    model = load(ModelSource(str(truth.folder), "safetensors"))
    conversation = Conversation(model.decoder)
    conversation.feed(truth.prompt)
    length = conversation.cache.length
    saved = [layer.export(0, length) for layer in conversation.cache.layers]
    assert conversation.cache.has_states
    first = conversation.feed(truth.second_turn)
    assert not conversation.cache.can_rewind_to(length)
    again = Conversation(model.decoder)
    again.cache.restore(length, [[part] for part in saved])
    again._ids = list(truth.prompt)
    assert torch.equal(again.feed(truth.second_turn), first)


@pytest.mark.few(5)
@pytest.mark.parametrize("case", kinds([*MIXTURES, *ROUTED, *STATES, *NEW], REPRESENTATIVES))
@torch.inference_mode()
def test_sequences_of_a_batch_do_not_mix(case, references) -> None:
    """One goes on, the other begins, in one pass."""
    truth = references(case)
    model = load(ModelSource(str(truth.folder), "safetensors"))
    first = Conversation(model.decoder)
    second = Conversation(model.decoder, space=first.space)
    first.feed(truth.prompt[:20])
    going_on, beginning = truth.prompt[20:30], truth.second_turn
    caches = [first.cache, second.cache]
    fed = [
        SequenceInput(cache, ids, logits_rows=range(len(ids)))
        for cache, ids in zip(caches, (going_on, beginning), strict=True)
    ]
    together = model.decoder.forward(forward_batch(fed), caches)
    alone = Conversation(model.decoder).feed(beginning)
    assert difference(together[len(going_on) :], alone) < TOLERANCE
    assert difference(together[: len(going_on)], truth.prompt_logits[20:30]) < TOLERANCE
