"""Every vision family gives the logits of transformers, however images and tokens are batched."""

from __future__ import annotations

import pytest
import torch
from vision_reference import REPLY_TOKENS, Truth, VisionReference
from vision_running import Conversation, LoadedVisionModel, difference, load_vision_model

from mrs.request import Sampling
from support.engines import generate, make_engine
from support.suites import first

#: How far logits may be from the reference, over its largest one.
TOLERANCE = 1e-4
GREEDY = Sampling(temperature=0, frequency_penalty=0, presence_penalty=0, max_tokens=REPLY_TOKENS)


def check(model: LoadedVisionModel, prompt: Truth, chunk_tokens: int = 512) -> None:
    ids, images = model.shown(prompt.text, prompt.images)
    assert ids == prompt.ids
    logits = Conversation(model, chunk_tokens).feed(ids, images)
    assert difference(logits, prompt.logits) < TOLERANCE


@pytest.mark.table("0, 1, 2 images")
@pytest.mark.parametrize(
    "images",
    [*first(0, (0, 1)), pytest.param(2, marks=pytest.mark.each_family)],
)
def test_prompts(model: LoadedVisionModel, truth: VisionReference, images: int) -> None:
    check(model, truth.prompts[images])


@pytest.mark.table("chunks of 7")
def test_in_chunks(model: LoadedVisionModel, truth: VisionReference) -> None:
    check(model, truth.prompts[2], chunk_tokens=7)


@pytest.mark.table("second turn")
def test_second_turn_with_another_image(model: LoadedVisionModel, truth: VisionReference) -> None:
    first, second = truth.prompts[1], truth.second
    ids, images = model.shown(second.text, second.images)
    assert ids == second.ids
    conversation = Conversation(model)
    count = len(first.ids)
    assert ids[:count] == first.ids
    begun = conversation.feed(ids[:count], images)
    assert difference(begun, first.logits) < TOLERANCE
    more = conversation.feed(ids, images)
    assert difference(more, second.logits[count:]) < TOLERANCE


@pytest.mark.table("two devices")
def test_split_over_two_logical_devices(truth: VisionReference) -> None:
    devices = torch.device("cpu"), torch.device("cpu", 0)
    split = load_vision_model(truth.folder, devices=devices)
    check(split, truth.prompts[2])


@pytest.mark.each_family
@pytest.mark.table("remembered")
def test_engine(model: LoadedVisionModel, truth: VisionReference) -> None:
    """Greedy replies, with what the second may remember of the first, and of other pictures."""
    prompt, other = truth.prompts[1], truth.prompts[2]
    engine = make_engine(
        model.decoder,
        planned_tokens=400,
        context_tokens=600,
        prefix_cache_n=8,
        planned_seqs=2,
        max_seqs=2,
    )
    ids, images = model.shown(prompt.text, prompt.images)
    assert generate(engine, ids, GREEDY, images) == truth.reply
    again, same = model.shown(prompt.text, prompt.images)
    assert generate(engine, again, GREEDY, same) == truth.reply
    # The same text with another picture must not be taken for it.
    another = model.prepare([other.images[1].resize(prompt.images[0].size)])
    changed, shown = model.shown(prompt.text, [other.images[1].resize(prompt.images[0].size)])
    shown[0].image = type(another[0])(shown[0].image.pixels, shown[0].image.shape, 99)
    fresh = Conversation(model).feed(changed, shown)
    first = generate(engine, changed, GREEDY, shown)[0]
    assert first == int(fresh[-1].argmax())


@pytest.mark.few(5)
@pytest.mark.table("bf16", "planned bytes")
def test_bf16_and_planned_bytes(truth: VisionReference) -> None:
    half = load_vision_model(truth.folder, dtype="bf16")
    for parameter in half.description.parameters:
        planned = half.plan.storage[parameter.name].size_bytes
        if parameter.role in ("vector", "dense"):
            assert half.weights.vector(parameter.name).nbytes == planned
        else:
            assert half.weights.matrix(parameter.name.removesuffix(".weight")).nbytes == planned
    prompt = truth.prompts[1]
    ids, images = half.shown(prompt.text, prompt.images)
    decided = ~prompt.undecided
    assert decided.float().mean() > 0.5
    logits = Conversation(half).feed(ids, images)
    assert difference(logits[decided], prompt.logits[decided]) < truth.case.half_tolerance
