"""Models that hear: what they are given of a sound, how long it may be, and what it costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from audio_cases import AUDIO, audio_case, rows_of, sound
from safetensors.torch import load_file, save_file
from vision_case import TEXT
from vision_running import Conversation, difference, load_vision_model

from mrs.architecture.describe import describe
from mrs.engine.profile.peak_memory import peak_bytes
from mrs.errors import MrsError, UsageError
from mrs.plan.memory.cache_size import CacheSize
from mrs.request import ModelSource, VisionRequest
from mrs.source.find import find_selector, open_checkpoint

DEFAULT = AUDIO[0]
#: As wide as the encoder of Qwen3-ASR 1.7B, with fewer layers.
WIDE = audio_case(
    "wide",
    {**TEXT, "tie_word_embeddings": True},
    {
        "encoder_layers": 2,
        "encoder_attention_heads": 16,
        "encoder_ffn_dim": 4096,
        "d_model": 1024,
        "output_dim": 64,
        "num_mel_bins": 128,
    },
)


@pytest.mark.table("pixels")
@pytest.mark.parametrize("case", AUDIO, ids=lambda case: case.name)
def test_spectrograms_are_those_of_the_processor(vision_references, case) -> None:
    truth = vision_references(case)
    model = load_vision_model(truth.folder)
    for seconds in (0.01, 0.5, 1.0, 2.347):
        heard = sound(seconds, 3)
        (ours,) = model.prepare([heard])
        assert tuple(ours.pixels.shape) == ours.shape.pixels
        theirs = truth.pixels(heard)
        frames = ours.shape.pixels[1]
        assert (ours.pixels - theirs[:, :frames]).abs().max() < 1e-5
        assert ours.shape.rows == rows_of(frames) == ours.shape.text.count(case.placeholder)
        assert ours.shape.rows <= model.vision.layout.largest(6).rows


def test_sounds_in_one_step_do_not_mix(vision_references) -> None:
    """Two prompts with sounds and one without, as one batch, have the logits of each alone."""
    from mrs.engine.multimodal import sequence_input
    from mrs.model.batch import forward_batch

    truth = vision_references(DEFAULT)
    model = load_vision_model(truth.folder)
    space = model.decoder.new_space(CacheSize(100, 3, 512))
    talks = [Conversation(model, space=space) for _ in range(3)]
    inputs = []
    for talk, prompt in zip(talks, truth.prompts, strict=True):
        ids, images = model.shown(prompt.text, prompt.images)
        one = sequence_input(model.decoder, talk.cache, images, ids, len(ids))
        inputs.append(one._replace(logits_rows=range(len(ids))))
    with torch.inference_mode():
        logits = model.decoder.forward(forward_batch(inputs), [talk.cache for talk in talks])
    expected = torch.cat([prompt.logits for prompt in truth.prompts])
    assert difference(logits, expected) < 1e-4


@pytest.mark.full
@pytest.mark.parametrize("seconds", [1, 6, 40])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_an_encoder_of_published_width_takes_no_more_than_planned(
    vision_references, dtype: str, seconds: int
) -> None:
    model = load_vision_model(vision_references(WIDE).folder, dtype=dtype, seconds=seconds)
    planned, hear = model.plan.vision, model.decoder.vision
    assert planned is not None
    assert hear is not None
    shape = model.vision.layout.largest(seconds)
    with torch.inference_mode():
        hear(torch.zeros(shape.pixels), shape)
        measured = peak_bytes(lambda: hear(torch.zeros(shape.pixels), shape), torch.device("cpu"))
    assert measured <= planned.activation_bytes <= 3 * measured + 2**20


#: What files as first published have other names for.
FIRST_NAMES = (
    ("model.audio_tower.", "thinker.audio_tower."),
    ("model.multi_modal_projector.linear_", "thinker.audio_tower.proj"),
    ("model.language_model.", "thinker.model."),
    ("lm_head.", "thinker.lm_head."),
)


@pytest.mark.parametrize("case", AUDIO, ids=lambda case: case.name)
def test_files_as_first_published(vision_references, tmp_path: Path, case) -> None:
    """The same model in the form that transformers' class does not read."""
    truth = vision_references(case)
    for path in truth.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = load_file(truth.folder / "model.safetensors")
    for old, new in FIRST_NAMES:
        tensors = {name.replace(old, new): value for name, value in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    text, audio = config.pop("text_config"), config.pop("audio_config")
    sections = {"mrope_section": [4, 5, 3], "mrope_interleaved": True, "interleaved": True}
    rope = text.pop("rope_parameters")
    text |= {
        "model_type": "qwen3_asr_text",
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"rope_type": "default", "type": "default", **sections},
    }
    audio |= {
        "model_type": "qwen3_asr_audio_encoder",
        "max_source_positions": 1500,
        "conv_chunksize": 500,
    }
    token = config.pop("audio_token_id")
    thinker = {"audio_config": audio, "text_config": text, "audio_token_id": token}
    thinker["model_type"] = "qwen3_asr_thinker"
    (tmp_path / "config.json").write_text(json.dumps({**config, "thinker_config": thinker}))
    features = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": audio["num_mel_bins"],
        "chunk_length": 30,
        "n_samples": 480_000,
        "nb_max_frames": 3000,
        "n_fft": 400,
        "hop_length": 160,
        "sampling_rate": 16_000,
        "padding_value": 0.0,
        "dither": 0.0,
        "padding_side": "right",
        "return_attention_mask": True,
    }
    (tmp_path / "processor_config.json").unlink()
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(features))
    assert find_selector(ModelSource(str(tmp_path), "safetensors")) == "vision-plain"
    model = load_vision_model(tmp_path)
    assert model.description.warnings == ()
    prompt = truth.prompts[2]
    ids, images = model.shown(prompt.text, prompt.images)
    assert ids == prompt.ids
    for chunk in (512, 7):
        assert difference(Conversation(model, chunk).feed(ids, images), prompt.logits) < 1e-4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"n_window": 20}, "n_window = 20 is not supported"),
        ({"n_window_infer": 150}, "n_window_infer = 150 is not a multiple of 100"),
        ({"output_dim": 32}, "output_dim = 32 differs"),
        ({"num_mel_bins": 80}, "num_mel_bins = 80"),
        ({"d_model": 2}, "d_model = 2"),
        ({"scale_embedding": True}, "scale_embedding"),
        ({"activation_function": "sine"}, "'sine' is not known"),
        ({"encoder_layers": 10**6}, "encoder_layers"),
    ],
)
def test_other_configs_are_refused(
    vision_references, tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    for path in vision_references(DEFAULT).folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["audio_config"].update(change)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(MrsError, match=reason):
        describe(open_checkpoint(ModelSource(str(tmp_path), "safetensors")), with_vision=True)


@pytest.mark.parametrize(("key", "value"), [("sampling_rate", 8000), ("n_fft", 512), ("dither", 1)])
def test_other_spectrograms_are_refused(
    vision_references, tmp_path: Path, key: str, value: int
) -> None:
    for path in vision_references(DEFAULT).folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    settings = json.loads((tmp_path / "processor_config.json").read_text())
    settings["feature_extractor"][key] = value
    (tmp_path / "processor_config.json").write_text(json.dumps(settings))
    with pytest.raises(MrsError, match=f"{key} = {value} is not supported"):
        describe(open_checkpoint(ModelSource(str(tmp_path), "safetensors")), with_vision=True)


def test_nothing_of_the_published_settings_is_left_unread(vision_references) -> None:
    folder = vision_references(DEFAULT).folder
    described = describe(open_checkpoint(ModelSource(str(folder), "safetensors")), with_vision=True)
    assert described.warnings == ()


@pytest.mark.parametrize("seconds", [0, 3601, 10**12])
def test_the_longest_sound_has_bounds(seconds: int) -> None:
    with pytest.raises(UsageError, match="max_audio_seconds is not a whole number from 1 to 3600"):
        VisionRequest(max_audio_seconds=seconds)


def test_images_have_no_edge_here(vision_references) -> None:
    checkpoint = open_checkpoint(ModelSource(str(vision_references(DEFAULT).folder), "safetensors"))
    with pytest.raises(UsageError, match="this model takes no images"):
        describe(checkpoint, with_vision=True, max_edge=64)
