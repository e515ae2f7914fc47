"""Families on a GPU of this machine, against transformers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from reference import REPLY_TOKENS, Reference
from running import check_conversation, load

from mrs.devices.variables import GRAPHS_VARIABLE
from mrs.engine.decode_graph import is_capturable
from mrs.request import ModelSource, Sampling
from support.engines import Asked, make_engine

pytestmark = pytest.mark.needs("a CUDA device")

GREEDY = Sampling(temperature=0, frequency_penalty=0, presence_penalty=0, max_tokens=REPLY_TOKENS)
SAMPLED = Sampling()
GPU, OTHER = torch.device("cuda", 0), torch.device("cuda", 1)


@pytest.mark.parametrize("chunk_tokens", [512, 7])
def test_conversation(truth: Reference, chunk_tokens: int) -> None:
    loaded = load(ModelSource(str(truth.folder), "safetensors"), devices=(GPU,))
    check_conversation(loaded, truth, chunk_tokens)


@pytest.mark.needs("two CUDA devices")
def test_split_over_two_gpus(truth: Reference) -> None:
    loaded = load(ModelSource(str(truth.folder), "safetensors"), devices=(GPU, OTHER))
    check_conversation(loaded, truth)


def test_replies_that_share_steps(truth: Reference) -> None:
    loaded = load(ModelSource(str(truth.folder), "safetensors"), devices=(GPU,))
    engine = make_engine(loaded.decoder, planned_tokens=64, context_tokens=512, max_seqs=3)
    asked = [Asked.of(engine, truth.prompt, GREEDY) for _ in range(3)]
    assert [each.finish() for each in asked] == [truth.reply] * 3


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_captured_steps_choose_the_same_tokens(
    truth: Reference, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three sequences of different lengths, in steps of four rows, two and one."""
    found = []
    for value in ("on", "off"):
        monkeypatch.setenv(GRAPHS_VARIABLE, value)
        loaded = load(ModelSource(str(truth.folder), "safetensors"), devices=(GPU,))
        engine = make_engine(
            loaded.decoder,
            planned_tokens=64,
            context_tokens=512,
            max_seqs=3,
            planned_seqs=3,
            seed=1,
        )
        limits = (REPLY_TOKENS, REPLY_TOKENS // 2, REPLY_TOKENS // 3)
        asked = [
            Asked.of(engine, truth.prompt[n:], replace(sampling, max_tokens=limit))
            for n, limit in enumerate(limits)
        ]
        found.append([each.finish() for each in asked])
        has_choices = loaded.decoder.stack.has_host_choices
        if value == "on" and is_capturable(loaded.decoder.spec) and not has_choices:
            assert engine._graphs is not None
            assert engine._graphs.num_captured > 0
    assert found[0] == found[1]
