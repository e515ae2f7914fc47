"""Tokens of an image that see each other are fed together, however prompts arrive."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gemma3_cases import GEMMA3
from hypothesis import given
from hypothesis import strategies as st
from vision_reference import VisionReference
from vision_running import Conversation, LoadedVisionModel, load_vision_model

from mrs.architecture.vision_spec import ImageShape
from mrs.engine.engine import Engine
from mrs.engine.image_input import ImageInput, chunk_end
from mrs.engine.scheduler import ScheduledBatch, ScheduledSequence, Scheduler
from mrs.media.image_processors import PreparedImage
from mrs.request import Sampling
from support.engines import Asked, generate, make_engine

CHUNK = 7
GREEDY = Sampling(temperature=0, frequency_penalty=0, presence_penalty=0, max_tokens=5)


@pytest.fixture(scope="module", params=GEMMA3, ids=lambda case: case.id)
def vision_model(
    request: pytest.FixtureRequest, vision_references
) -> tuple[LoadedVisionModel, VisionReference]:
    truth = vision_references(request.param)
    return load_vision_model(truth.folder), truth


def begin_engine(model: LoadedVisionModel, **settings: int) -> Engine:
    return make_engine(
        model.decoder, planned_tokens=300, context_tokens=600, chunk_tokens=CHUNK, **settings
    )


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 40), st.integers(1, 12))
def test_cuts_lie_between_images(lengths: list[int], start: int, chunk: int) -> None:
    """Pictures of these lengths, a token between each two, are never cut; nor is time lost."""
    image = PreparedImage(torch.empty(0), ImageShape((), 0, 0, ""), 0)
    runs, at = [], 2
    for length in lengths:
        runs.append(range(at, at + length))
        at += length + 1
    shown = [ImageInput(image, run, (run,)) for run in runs]
    start = chunk_end(shown, start)
    end = chunk_end(shown, start + chunk, start=start)
    assert end > start
    assert not any(run.start < cut < run.stop for run in runs for cut in (start, end))
    cut = [run for run in runs if run.start < start + chunk < run.stop]
    assert end == start + chunk or end in (cut[0].start, cut[0].stop)
    assert end <= start + max(chunk, *lengths)


def test_many_prompts_at_once(
    vision_model: tuple[LoadedVisionModel, VisionReference], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, truth = vision_model
    steps: list[list[tuple[int, ScheduledSequence]]] = []
    schedule = Scheduler.schedule

    def spy(scheduler: Scheduler) -> ScheduledBatch:
        batch = schedule(scheduler)
        steps.append([(each.sequence.num_computed_tokens, each) for each in batch])
        return batch

    monkeypatch.setattr(Scheduler, "schedule", spy)
    engine = begin_engine(model, max_seqs=4, planned_seqs=4)
    prompts = [truth.prompts[1], truth.prompts[2], truth.second, truth.prompts[0]]
    asked = []
    for prompt in prompts:
        ids, images = model.shown(prompt.text, prompt.images)
        asked.append(Asked.of(engine, ids, GREEDY, images))
    replies = [each.finish() for each in asked]
    for prompt, reply in zip(prompts, replies, strict=True):
        ids, images = model.shown(prompt.text, prompt.images)
        assert generate(begin_engine(model), ids, GREEDY, images) == reply
        logits = Conversation(model).feed(ids, images)
        assert reply[0] == int(logits[-1].argmax())
    longest = max(
        len(run) for each in asked for image in each.sequence.images for run in image.undivided
    )
    assert longest > CHUNK
    for step in steps:
        decoding = sum(each.num_tokens == 1 for _, each in step)
        assert sum(each.num_tokens for _, each in step) <= max(CHUNK, longest + decoding)
        for start, (sequence, num_tokens) in step:
            runs = [run for image in sequence.images for run in image.undivided]
            assert not any(run.start < start + num_tokens < run.stop for run in runs)


def test_no_prefix_ends_inside_an_image(
    vision_model: tuple[LoadedVisionModel, VisionReference],
) -> None:
    """A prompt that ends with an image leaves nothing but the image to be computed again."""
    model, truth = vision_model
    engine = begin_engine(model, prefix_cache_n=4)
    prompt = truth.prompts[1]
    replies, cached = [], []
    for _ in range(2):
        ids, images = model.shown(prompt.text, prompt.images)
        last = images[0].undivided[-1]
        asked = Asked.of(engine, ids[: last.stop], GREEDY, images)
        replies.append(asked.finish())
        cached.append(asked.sequence.num_cached_tokens)
    assert replies[0] == replies[1]
    assert cached == [0, last.start]


def test_others_may_be_cut(vision_model: tuple[LoadedVisionModel, VisionReference]) -> None:
    """Where a model reads images like text nothing is undivided."""
    model, truth = vision_model
    prompt = truth.prompts[2]
    ids, images = model.shown(prompt.text, prompt.images)
    causal = [replace(image, undivided=()) for image in images]
    assert chunk_end(causal, images[0].undivided[0].start + 1) in images[0].undivided[0]
    apart = Conversation(model, CHUNK).feed(ids, causal)
    whole = Conversation(model, CHUNK).feed(ids, images)
    assert float((apart - whole).abs().max()) > 1e-2
