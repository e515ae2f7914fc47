"""Towers and projectors on a GPU that is not there: nothing but logits comes to the host.

Core has one family, the full suite one for each kind of tower; `-m ""` runs every family.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from vision_case import VisionCase
from vision_cases import CASES
from vision_reference import VisionReference
from vision_running import load_vision_model

from mrs.request import Sampling
from support.engines import Asked, make_engine
from support.fake_gpu import FakeGpu, HostRead
from support.suites import suite_of

GPUS = torch.device("cuda", 0), torch.device("cuda", 1)
APPLE = torch.device("mps", 0)
GREEDY = Sampling(temperature=0, frequency_penalty=0, presence_penalty=0, max_tokens=4)
FAMILIES = {case.family: case for case in reversed(CASES)}
KINDS = ("llava", "gemma3", "qwen2_5_vl")


@pytest.fixture(
    params=[
        pytest.param(case, id=family, marks=suite_of(family, KINDS[:1], KINDS))
        for family, case in FAMILIES.items()
    ]
)
def truth(
    request: pytest.FixtureRequest, vision_references: Callable[[VisionCase], VisionReference]
) -> VisionReference:
    return vision_references(request.param)


@pytest.mark.values
@pytest.mark.parametrize(
    "devices",
    [
        pytest.param(GPUS, id="two GPUs"),
        pytest.param(GPUS[:1], id="one GPU", marks=pytest.mark.full),
        pytest.param((APPLE,), id="Apple's GPU", marks=pytest.mark.full),
    ],
)
def test_a_prompt_with_two_images(truth: VisionReference, devices: tuple[torch.device]) -> None:
    """In chunks, then a token at a time; and again from the prefix cache, with other images."""
    prompt = truth.prompts[2]
    with FakeGpu() as gpu:
        model = load_vision_model(truth.folder, "bf16", devices=devices)
        engine = make_engine(
            model.decoder,
            planned_tokens=400,
            context_tokens=600,
            chunk_tokens=16,
            max_seqs=2,
            planned_seqs=2,
            prefix_cache_n=2,
        )
        ids, images = model.shown(prompt.text, prompt.images)
        traffic = gpu.record()
        Asked.of(engine, ids, GREEDY, images).finish()
        again, others = model.shown(prompt.text, prompt.images)
        others[1].image = type(others[1].image)(others[1].image.pixels, others[1].image.shape, 99)
        Asked.of(engine, again, GREEDY, others).finish()
    layers, vocabulary = model.decoder.spec.layers, model.decoder.spec.vocab_size
    if not any(layer.feed_forward.routing for layer in layers):  # the host reads chosen experts
        logits = [shape for shape in traffic.to_host if shape[0] and shape[-1] == vocabulary]
        assert len(logits) >= 2 * GREEDY.max_tokens
        assert set(logits) == {(1, vocabulary)}


@pytest.mark.parametrize("mistake", ["a host read", "a tensor on the wrong device"])
def test_a_mistake_in_a_tower_is_found(
    vision_references: Callable[[VisionCase], VisionReference],
    mistake: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    truth = vision_references(FAMILIES["llava"])
    with FakeGpu():
        model = load_vision_model(truth.folder, "bf16", devices=GPUS[:1])
        engine = make_engine(model.decoder, planned_tokens=400, context_tokens=600)
        tower = model.decoder.vision
        assert tower is not None

        def wrong(*inputs: object) -> torch.Tensor:
            x = tower(*inputs)  # type: ignore[arg-type]
            if mistake == "a host read":
                return x * float(x.sum())
            return x + torch.ones(x.shape[1])

        wrong.description = tower.description  # type: ignore[attr-defined]
        monkeypatch.setattr(model.decoder, "vision", wrong)
        ids, images = model.shown(truth.prompts[1].text, truth.prompts[1].images)
        with pytest.raises((HostRead, RuntimeError)):
            Asked.of(engine, ids, GREEDY, images).finish()
