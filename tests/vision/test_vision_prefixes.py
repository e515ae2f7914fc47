"""Conversations with pictures, remembered in memory and in files, are answered as from nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from vision_case import WORDS
from vision_reference import VisionReference
from vision_running import LoadedVisionModel

from mrs.cache.prefix import chain, disk
from mrs.cache.prefix.disk import DiskPrefixCache
from mrs.engine.engine import Engine
from mrs.engine.image_input import place_images
from mrs.media.image_processors import PreparedImage
from mrs.request import Sampling
from support.engines import Asked, make_engine

#: Sizes and seeds: two of one size, which the same tokens stand for, and another.
PICTURES = [(40, 30, 1), (40, 30, 2), (24, 24, 3)]


@dataclass(frozen=True)
class Past:
    ids: tuple[int, ...] = ()
    images: tuple[PreparedImage, ...] = ()


def begin_engine(model: LoadedVisionModel, n: int, folder: DiskPrefixCache | None = None) -> Engine:
    return make_engine(
        model.decoder,
        planned_tokens=200,
        context_tokens=1024,
        chunk_tokens=9,
        seed=4,
        prefix_cache_n=n,
        prefix_folder=folder,
    )


def reply(
    model: LoadedVisionModel, engine: Engine, asked: Past, sampling: Sampling
) -> tuple[list[int], int]:
    """The tokens, and how many of the prompt were remembered."""
    images = place_images(model.vision, asked.ids, asked.images)
    made = Asked.of(engine, asked.ids, sampling, images)
    return made.finish(), made.sequence.num_cached_tokens


@pytest.mark.few("llava-default-memory", "mllama-default-memory", "qwen2_5_vl-default-memory")
@pytest.mark.values
@pytest.mark.parametrize("lasting", [False, True], ids=["memory", "files"])
def test_conversations_that_mix_pictures_are_answered_as_from_nothing(
    truth: VisionReference,
    model: LoadedVisionModel,
    lasting: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They branch, rewind, and show other pictures in the same places."""
    monkeypatch.setattr(chain, "BLOCK_TOKENS", 8)  # cuts pictures, too
    monkeypatch.setattr(disk, "LEAST_TOKENS", 8)
    chance = random.Random(truth.case.id)
    pictures = model.prepare([truth.show(*each) for each in PICTURES])
    prepared = [replace(image, digest=100 + number) for number, image in enumerate(pictures)]
    # A reply says words, so that it can be a part of the next prompt.
    vocabulary = range(WORDS, model.description.spec.vocab_size)
    words_alone = tuple((token, -1e9) for token in vocabulary)

    def more(past: Past) -> Past:
        shown = [chance.choice(prepared) for _ in range(chance.choice([0, 1, 1, 2]))]
        parts = [f"w{chance.randrange(1, WORDS)}" for _ in range(chance.randint(1, 6))]
        for _ in shown:
            parts.insert(chance.randint(0, len(parts)), "{}")
        beginning = "" if past.ids else truth.case.beginning
        ids = model.ids(f"{beginning} {' '.join(parts)}", shown)
        return Past((*past.ids, *ids), (*past.images, *shown))

    def begun() -> Engine:
        return begin_engine(model, 3, DiskPrefixCache(str(tmp_path), "m", 1 << 30, key=b"key"))

    forgetful = begin_engine(model, 0)
    remembering = begun() if lasting else begin_engine(model, 3)
    histories, cached = [more(Past())], 0
    for turn in range(12):
        if lasting and turn % 2:
            remembering.close()
            remembering = begun()
        asked = more(chance.choice([Past(), *histories[-4:]]))
        if len(asked.ids) > 500:
            continue
        sampling = Sampling(
            temperature=chance.choice([0.0, 1.0]),
            top_p=1.0,
            max_tokens=chance.randint(1, 4),
            logit_bias=words_alone,
        )
        tokens, hit = reply(model, remembering, asked, sampling)
        assert tokens == reply(model, forgetful, asked, sampling)[0]
        cached += hit
        histories += [asked, Past((*asked.ids, *tokens), asked.images)]
    assert cached > 40
    remembering.close()
