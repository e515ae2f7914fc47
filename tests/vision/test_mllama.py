"""What Llama 3.2 Vision alone has: layers with cross-attention to images, and unused tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from mllama_cases import BEGIN, IMAGE, MLLAMA, as_published, see_as_published
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from vision_case import make_tokenizer
from vision_reference import REPLY_TOKENS, VisionReference, picture
from vision_running import (
    PLANNED_TOKENS,
    Conversation,
    LoadedVisionModel,
    difference,
    load_vision_model,
)

from mrs.architecture.describe import describe
from mrs.engine.engine import Engine
from mrs.engine.image_input import ImageInput
from mrs.engine.multimodal import sequence_input
from mrs.engine.profile.run import profile_run
from mrs.families.vision.mllama import SPELLINGS
from mrs.model.batch import forward_batch
from mrs.plan.memory.cache_size import CacheSize
from mrs.request import ModelSource, Sampling
from mrs.source.find import open_checkpoint
from support.counted_calls import Counting
from support.engines import Asked, generate, make_engine

TOLERANCE = 1e-4
GREEDY = Sampling(temperature=0, frequency_penalty=0, presence_penalty=0, max_tokens=REPLY_TOKENS)
#: One tile, a row of tiles, a column of three, and a square.
IMAGES = [picture(*size, seed=7) for size in ((18, 20), (70, 30), (18, 60), (90, 90))]


@pytest.fixture(scope="module", params=MLLAMA, ids=lambda case: case.id)
def known(request: pytest.FixtureRequest, vision_references) -> VisionReference:
    return vision_references(request.param)


@pytest.fixture(scope="module")
def vision_model(known: VisionReference) -> LoadedVisionModel:
    return load_vision_model(known.folder)


class Peer:
    """Transformers' model and processor."""

    def __init__(self, known: VisionReference, adapt: Any) -> None:
        self.model = transformers.MllamaForConditionalGeneration.from_pretrained(
            known.folder, attn_implementation="eager"
        ).eval()
        adapt(self.model)
        self._processor = known.case.processor(make_tokenizer(known.case.specials))

    def inputs(self, text: str, images: Sequence[Image.Image]) -> dict[str, Any]:
        text = text.replace("{}", IMAGE)
        made = self._processor(text=[text], images=list(images), return_tensors="pt")
        return dict(made)

    @torch.no_grad()
    def logits(self, text: str, images: Sequence[Image.Image]) -> Tensor:
        return self.model(**self.inputs(text, images)).logits[0]


@pytest.fixture(scope="module")
def peer(known: VisionReference) -> Peer:
    return Peer(known, as_published)


@pytest.mark.few(2)
@pytest.mark.values
@pytest.mark.parametrize("chunk_tokens", [512, 3, 2, 1])
def test_logits_with_images_in_a_row_match_transformers(
    vision_model: LoadedVisionModel, peer: Peer, chunk_tokens: int
) -> None:
    text = f"{BEGIN} w1 {{}} {{}} w2 w3 {{}} w4 {{}}"
    ids, images = vision_model.shown(text, IMAGES)
    logits = Conversation(vision_model, chunk_tokens).feed(ids, images)
    assert difference(logits, peer.logits(text, IMAGES)) < TOLERANCE


def test_unchanged_transformers_agrees_if_an_image_comes_first(
    vision_model: LoadedVisionModel, known: VisionReference
) -> None:
    """Every token there attends to an image, so the rule for other tokens does not matter."""
    peer, text = Peer(known, see_as_published), f"{{}} {BEGIN} w1 w2 {{}} w3"
    ids, images = vision_model.shown(text, IMAGES[1:3])
    logits = Conversation(vision_model).feed(ids, images)
    assert difference(logits, peer.logits(text, IMAGES[1:3])) < TOLERANCE


def test_unused_tiles_change_the_features_but_have_none(
    vision_model: LoadedVisionModel,
) -> None:
    """The features of the used tiles depend on them; their own features are not cached."""
    one, _, three, _ = vision_model.prepare(IMAGES)
    positions = three.shape.keys // prod(three.shape.grid)
    assert one.shape.keys == positions
    assert three.shape.pixels[0] > prod(three.shape.grid)
    encode = vision_model.decoder.vision
    assert encode is not None
    changed = three.pixels.clone()
    changed[-1] = 1.0
    with torch.inference_mode():
        features, others = encode(three.pixels, three.shape), encode(changed, three.shape)
    assert features.shape == (three.shape.keys, 64)
    assert difference(features, others) > 0.01


@torch.inference_mode()
def test_sequences_of_a_batch_do_not_mix(vision_model: LoadedVisionModel) -> None:
    """One without an image, one that goes on after an image, one that begins with two."""
    plain = Conversation(vision_model)
    goes_on, begins = (Conversation(vision_model, space=plain.space) for _ in range(2))
    first, shown = vision_model.shown(f"{BEGIN} w1 {{}} w2 w3", IMAGES[:1])
    goes_on.feed(first[:-1], shown)
    text, _ = vision_model.shown(f"{BEGIN} w7 w8", [])
    both, two = vision_model.shown(f"{BEGIN} {{}} w4 {{}} w5", IMAGES[1:3])
    fed = [(plain, (), text), (goes_on, shown, first), (begins, two, both)]
    inputs = [
        sequence_input(vision_model.decoder, each.cache, images, ids[each.cache.length :], 0)
        for each, images, ids in fed
    ]
    inputs = [each._replace(logits_rows=range(len(each.token_ids))) for each in inputs]
    caches = [each.cache for each, _, _ in fed]
    together = vision_model.decoder.forward(forward_batch(inputs), caches)
    first_again = vision_model.shown(f"{BEGIN} w1 {{}} w2 w3", IMAGES[:1])
    again, shown_again = vision_model.shown(f"{BEGIN} {{}} w4 {{}} w5", IMAGES[1:3])
    alone = [
        Conversation(vision_model).feed(text),
        Conversation(vision_model).feed(*first_again)[-1:],
        Conversation(vision_model).feed(again, shown_again),
    ]
    assert difference(together, torch.cat(alone)) < TOLERANCE


def begin_engine(vision_model: LoadedVisionModel, prefix_cache_n: int) -> Engine:
    return make_engine(
        vision_model.decoder,
        planned_tokens=PLANNED_TOKENS,
        context_tokens=600,
        chunk_tokens=5,
        prefix_cache_n=prefix_cache_n,
        max_seqs=2,
        planned_seqs=2,
    )


def test_a_whole_reply_matches_transformers(vision_model: LoadedVisionModel, peer: Peer) -> None:
    text = f"{BEGIN} w1 {{}} w2 {{}} w3"
    made = peer.model.generate(
        **peer.inputs(text, IMAGES[:2]),
        max_new_tokens=REPLY_TOKENS,
        min_new_tokens=REPLY_TOKENS,
        do_sample=False,
    )
    ids, images = vision_model.shown(text, IMAGES[:2])
    reply = generate(begin_engine(vision_model, 0), ids, GREEDY, images)
    assert reply == made[0, len(ids) :].tolist()


def with_digests(shown: list[ImageInput], *digests: int) -> list[ImageInput]:
    for each, digest in zip(shown, digests, strict=True):
        each.image = replace(each.image, digest=digest)
    return shown


@pytest.mark.few(1)
def test_cached_images_are_not_encoded_again(
    vision_model: LoadedVisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting(vision_model.decoder.vision)
    monkeypatch.setattr(vision_model.decoder, "vision", counting)
    caching, uncached = begin_engine(vision_model, 8), begin_engine(vision_model, 0)

    def replies(text: str, images: Sequence[Image.Image], *digests: int) -> int:
        """Check that both engines agree; the number of images that the caching one encodes."""
        ids, shown = vision_model.shown(text, images)
        expected = generate(uncached, ids, GREEDY, with_digests(shown, *digests))
        ids, shown = vision_model.shown(text, images)
        before = counting.calls
        made = generate(caching, ids, GREEDY, with_digests(shown, *digests))
        assert made == expected
        return counting.calls - before

    first = f"{BEGIN} w1 {{}} w2 w3"
    assert replies(first, IMAGES[:1], 1) == 1
    assert replies(first, IMAGES[:1], 1) == 0
    # The same words with another image of as many tiles.
    other = IMAGES[3].resize(IMAGES[0].size)
    assert replies(first, [other], 2) == 1
    # More words and another image after them, with either image before.
    second = f"{first} w4 {{}} w5"
    assert replies(second, [IMAGES[0], IMAGES[1]], 1, 3) == 1
    assert replies(second, [other, IMAGES[1]], 2, 3) == 1
    assert replies(second, [IMAGES[0], IMAGES[1]], 1, 3) == 0
    assert replies(f"{BEGIN} w1 {{}} w2 w3 w4 w5", [other], 2) == 0


def test_an_interrupted_step_is_undone(
    vision_model: LoadedVisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some layers have already stored an image's keys."""
    text = f"{BEGIN} w1 w2 w3 w4 w5 {{}} w6"
    ids, images = vision_model.shown(text, IMAGES[:1])
    expected = generate(begin_engine(vision_model, 0), ids, GREEDY, images)
    layers, calls = vision_model.decoder.stack.layers, []

    class Failing:
        mixer = layers[-1].mixer

        def __call__(self, x: Tensor, *rest: Any) -> Tensor:
            calls.append(len(x))
            if len(calls) == 2:  # the chunk with the image
                raise KeyboardInterrupt
            return last(x, *rest)

    last = layers[-1]
    monkeypatch.setattr(vision_model.decoder.stack, "layers", [*layers[:-1], Failing()])
    engine = begin_engine(vision_model, 0)
    ids, images = vision_model.shown(text, IMAGES[:1])
    made = Asked.of(engine, ids, GREEDY, images)
    with pytest.raises(KeyboardInterrupt):
        made.finish()
    assert made.finish() == expected


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_planned_cache_has_the_size_of_the_largest_images(
    known: VisionReference, dtype: Any
) -> None:
    model = load_vision_model(known.folder, dtype=dtype)
    planned = model.plan.vision
    assert planned is not None
    edge = planned.image_edge
    largest = model.vision.layout.largest(edge)
    sizes = ((edge, edge), (edge, 1), (1, edge), (edge, edge // 2), (edge, edge // 3))
    images = [picture(*size) for size in sizes]
    image = next(i for i in images if model.prepare([i])[0].shape.keys == largest.keys)
    ids, shown = model.shown(f"{BEGIN} {{}} w1 {{}}", [image] * planned.images)
    conversation = Conversation(model)
    conversation.space = model.decoder.new_space(CacheSize(PLANNED_TOKENS, 1, 512))
    conversation.cache = conversation.space.new()
    conversation.feed(ids, shown)
    allocated = conversation.space.allocated_bytes([conversation.cache])
    assert allocated.total() == sum(model.plan.kv_bytes)
    measured = profile_run(model.decoder, CacheSize(PLANNED_TOKENS, 1, 512), planned.images, edge)
    cpu = model.decoder.primary_device
    assert measured.kv_bytes[cpu] == sum(model.plan.kv_bytes)
    assert measured.activation_bytes[cpu] <= model.plan.breakdowns[0].activations.expected


def test_text_alone_leaves_out_cross_attention(vision_model: LoadedVisionModel, peer: Peer) -> None:
    checkpoint = open_checkpoint(ModelSource(str(vision_model.folder), "safetensors"))
    description = describe(checkpoint)
    crossed = set(peer.model.config.text_config.cross_attention_layers)
    count = peer.model.config.text_config.num_hidden_layers
    assert description.spec.file_layers == tuple(n for n in range(count) if n not in crossed)
    names = {piece.tensor for p in description.parameters for piece in p.pieces}
    assert not any("cross_attn" in name or "vision" in name for name in names)
    plain = load_vision_model(vision_model.folder, with_vision=False)
    assert len(plain.plan.kv_bytes) == count - len(crossed)
    text = f"{BEGIN} w1 w2 w3 w9"
    ids = vision_model.ids(text, [])
    with torch.no_grad():
        expected = peer.model(input_ids=torch.tensor([ids])).logits[0]
    assert difference(Conversation(plain).feed(ids), expected) < TOLERANCE


def test_names_as_newer_files_have_them(
    vision_model: LoadedVisionModel, known: VisionReference, tmp_path: Path
) -> None:
    tensors = load_file(known.folder / "model.safetensors")

    def renamed(name: str) -> str:
        old = next(old for old in SPELLINGS if name.startswith(old))
        return SPELLINGS[old] + name.removeprefix(old)

    save_file({renamed(name): t for name, t in tensors.items()}, tmp_path / "model.safetensors")
    for name in ("config.json", "preprocessor_config.json", "tokenizer.json"):
        (tmp_path / name).write_text((known.folder / name).read_text())
    newer = load_vision_model(tmp_path)
    prompt = known.prompts[1]
    ids, images = newer.shown(prompt.text, prompt.images)
    assert difference(Conversation(newer).feed(ids, images), prompt.logits) < TOLERANCE


def test_penalties_ignore_image_tokens(vision_model: LoadedVisionModel) -> None:
    ids, images = vision_model.shown(f"{BEGIN} w1 {{}} w2 w1 {{}} w2 w1", IMAGES[:2])
    assert max(ids) == vision_model.description.spec.vocab_size
    sampling = replace(
        GREEDY, repetition_penalty=1.5, dry_multiplier=1.0, dry_allowed_length=1, max_tokens=3
    )
    reply = generate(begin_engine(vision_model, 0), ids, sampling, images)
    assert len(reply) == 3
