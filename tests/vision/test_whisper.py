"""Whisper: its decoder hears a window through cross-attention, whose keys are computed once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from vision_running import PLANNED_TOKENS, Conversation, LoadedVisionModel, load_vision_model

from mrs.engine.engine import Engine
from mrs.engine.image_input import ImageInput
from mrs.engine.multimodal import sequence_input
from mrs.engine.profile.run import profile_run
from mrs.errors import NotReadable, Unsupported
from mrs.kernels.cpu.library import native_library
from mrs.kernels.native_limits import is_native
from mrs.media.image_processors import PreparedImage
from mrs.model.batch import forward_batch
from mrs.plan.memory.cache_size import CacheSize
from mrs.request import ModelSource, RunRequest, Sampling, VisionRequest
from mrs.run.planned_model import PlannedModel, no_report
from support.counted_calls import Counting
from support.engines import generate, make_engine
from support.tiny_whisper import write_whisper

TOLERANCE = 1e-4
GREEDY = Sampling(temperature=0, frequency_penalty=0, presence_penalty=0, max_tokens=12)
ODD = {
    "num_mel_bins": 13,
    "d_model": 36,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 37,
    "decoder_layers": 3,
    "decoder_attention_heads": 3,
    "decoder_ffn_dim": 41,
    "activation_function": "relu",
    "max_source_positions": 31,
}
CASES: dict[str, dict[str, Any]] = {"default": {}, "odd": ODD}


@dataclass(frozen=True)
class Known:
    """A model of transformers in a folder."""

    folder: Path
    model: Any

    def logits(self, ids: list[int], heard: Tensor) -> Tensor:
        with torch.no_grad():
            made = self.model(input_features=heard[None], decoder_input_ids=torch.tensor([ids]))
        return made.logits[0]


@pytest.fixture(scope="module", params=CASES, ids=str)
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Known:
    folder = tmp_path_factory.mktemp("whisper")
    sizes = {"max_target_positions": PLANNED_TOKENS, **CASES[request.param]}
    return Known(folder, write_whisper(folder, **sizes))


@pytest.fixture(scope="module")
def whisper(known: Known) -> LoadedVisionModel:
    return load_vision_model(known.folder)


def window(model: LoadedVisionModel, seed: int) -> ImageInput:
    audio = model.vision.audio_layout
    assert audio is not None
    shape = audio.shape(0)
    pixels = torch.randn(shape.pixels, generator=torch.Generator().manual_seed(seed))
    return ImageInput(PreparedImage(pixels, shape, seed), [0])


def said(seed: int, count: int = 20) -> list[int]:
    return torch.randint(0, 250, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


@pytest.mark.values
@pytest.mark.parametrize("chunk_tokens", [512, 7, 1])
def test_logits_match_transformers(
    whisper: LoadedVisionModel, known: Known, chunk_tokens: int
) -> None:
    heard, ids = window(whisper, 1), said(1)
    expected = known.logits(ids, heard.image.pixels)
    assert difference(Conversation(whisper, chunk_tokens).feed(ids, [heard]), expected) < TOLERANCE
    other = known.logits(ids, window(whisper, 2).image.pixels)
    assert difference(expected, other) > 0.01, "what is heard must matter"


@pytest.fixture(scope="module")
def packed(known: Known) -> LoadedVisionModel:
    """The model as a run loads it: with matrices for the native library, if there is one."""
    source = ModelSource(str(known.folder), "safetensors")
    request = RunRequest(source, cpu=True, dtype="f32", vision=VisionRequest())
    planned = PlannedModel(request)
    decoder, weights = planned.load_decoder(no_report)
    return LoadedVisionModel(
        known.folder, planned.planner.description, planned.plan, weights, decoder
    )


@pytest.mark.values
@pytest.mark.parametrize("chunk_tokens", [512, 7, 1])
def test_native_steps_match_transformers(
    packed: LoadedVisionModel, known: Known, chunk_tokens: int
) -> None:
    heard, ids = window(packed, 1), said(1)
    expected = known.logits(ids, heard.image.pixels)
    assert difference(Conversation(packed, chunk_tokens).feed(ids, [heard]), expected) < TOLERANCE


def test_all_layers_of_a_step_are_one_native_call(packed: LoadedVisionModel) -> None:
    """Where the library knows the sizes of heads: in the default model."""
    spec, runs = packed.description.spec, [*packed.decoder.stack.runs.values()]
    head_dim = spec.layers[0].mixer.cache_shape.head_dims[0]
    if native_library() is not None and is_native(head_dim):
        assert [run.layer_indices for run in runs] == [range(len(spec.layers))]
    else:
        assert runs == []


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["whisper", "packed"])
def test_sequences_of_a_batch_hear_their_own_windows(
    request: pytest.FixtureRequest, known: Known, kind: str
) -> None:
    """Together with the windows of new ones, and in the step after that."""
    model: LoadedVisionModel = request.getfixturevalue(kind)
    begun = Conversation(model)
    talks = [begun, *(Conversation(model, space=begun.space) for _ in range(2))]
    heard = [window(model, seed) for seed in range(3)]
    ids = [said(seed, 6 + seed) for seed in range(3)]
    begun.feed(ids[0][:-2], [heard[0]])
    for end in (-1, None):
        inputs = [
            sequence_input(model.decoder, talk.cache, [sound], one[talk.cache.length : end], 0)
            for talk, sound, one in zip(talks, heard, ids, strict=True)
        ]
        caches = [each.cache for each in talks]
        together = model.decoder.forward(forward_batch(inputs), caches)
        alone = [
            known.logits(one[:end], s.image.pixels)[-1] for one, s in zip(ids, heard, strict=True)
        ]
        assert difference(together, torch.stack(alone)) < TOLERANCE


def test_a_rewound_sequence_still_hears(packed: LoadedVisionModel, known: Known) -> None:
    heard, talk, ids = window(packed, 1), Conversation(packed), said(1)
    talk.feed(ids, [heard])
    talk.cache.rewind(5)
    talk._ids = ids[:5]
    others = ids[:5] + said(9, 8)
    expected = known.logits(others, heard.image.pixels)[5:]
    assert difference(talk.feed(others, [heard]), expected) < TOLERANCE


def engine_of(whisper: LoadedVisionModel, prefix_cache_n: int) -> Engine:
    return make_engine(
        whisper.decoder,
        planned_tokens=PLANNED_TOKENS,
        context_tokens=100,
        chunk_tokens=8,
        prefix_cache_n=prefix_cache_n,
        max_seqs=2,
        planned_seqs=2,
    )


def test_a_cached_prefix_belongs_to_its_window(
    whisper: LoadedVisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting(whisper.decoder.vision)
    monkeypatch.setattr(whisper.decoder, "vision", counting)
    caching, uncached, ids = engine_of(whisper, 8), engine_of(whisper, 0), said(4, 40)
    for seed, encoded in ((1, 1), (1, 0), (2, 1), (1, 0)):
        expected = generate(uncached, ids, GREEDY, [window(whisper, seed)])
        before = counting.calls
        assert generate(caching, ids, GREEDY, [window(whisper, seed)]) == expected
        assert counting.calls - before == encoded


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_plan_has_what_a_window_takes(known: Known, dtype: Any) -> None:
    model = load_vision_model(known.folder, dtype=dtype)
    planned = model.plan.vision
    assert planned is not None
    assert (planned.images, planned.image_rows) == (1, 1)
    size = CacheSize(PLANNED_TOKENS, 1, 512)
    talk = Conversation(model, space=model.decoder.new_space(size))
    talk.feed(said(1), [window(model, 1)])
    allocated = talk.space.allocated_bytes([talk.cache])
    assert allocated.total() == sum(model.plan.kv_bytes)
    measured = profile_run(model.decoder, size, planned.images, planned.image_edge)
    cpu = model.decoder.primary_device
    assert measured.kv_bytes[cpu] == sum(model.plan.kv_bytes)
    assert measured.activation_bytes[cpu] <= model.plan.breakdowns[0].activations.expected


@pytest.mark.parametrize("how", [{"dtype": "bf16"}, {"isq": "q8_0"}], ids=str)
def test_fewer_bits_are_near(known: Known, how: dict[str, Any]) -> None:
    model = load_vision_model(known.folder, **how)
    heard, ids = window(model, 1), said(1)
    expected = known.logits(ids, heard.image.pixels)
    spread = float(expected.std())
    assert 0 < difference(Conversation(model).feed(ids, [heard]), expected) < spread


def test_text_alone_and_a_wrong_window_are_refused(known: Known, tmp_path: Path) -> None:
    source = ModelSource(str(known.folder), "safetensors")
    with pytest.raises(Unsupported, match="a whisper model takes more than text"):
        _ = PlannedModel(RunRequest(source, cpu=True)).plan
    for each in known.folder.iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
    (tmp_path / "preprocessor_config.json").write_text('{"feature_size": 99}')
    wrong = RunRequest(ModelSource(str(tmp_path), "safetensors"), vision=VisionRequest(), cpu=True)
    with pytest.raises(NotReadable, match="feature_size is 99, and it takes"):
        _ = PlannedModel(wrong).plan
