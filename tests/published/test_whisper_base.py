"""Whisper base writes down speech as transformers does with the same weights.

`tests/recordings` were spoken by the synthesizer espeak-ng: sentences in three languages, in two of
them after numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer

from mrs.media.audio_file import read_samples
from mrs.media.media_memory import MediaMemory
from mrs.media.read_media import read_audio
from mrs.request import ModelSource, RunRequest, VisionRequest
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader
from mrs.run.transcription.transcript import TranscriptSettings
from support.ctranslate2_whisper import write_published_whisper
from support.published_files import WHISPER, WHISPER_CONFIG, WHISPER_TOKENIZER

RECORDINGS = Path(__file__).parents[1] / "recordings"
#: A word that each recording has.
SPOKEN = {"en": "1, 2, 3, 4, 5, 6, 7", "de": "Guten Morgen", "es": "buenos d\u00edas"}
END, FIRST_TIME = 50_257, 50_364


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = WHISPER, WHISPER_CONFIG, WHISPER_TOKENIZER
    if absent := [each.why_absent for each in files if not each.is_present]:
        pytest.skip(absent[0])
    target = tmp_path_factory.mktemp("whisper_base")
    write_published_whisper(*(each.path for each in files), target)
    return target


@pytest.fixture(scope="module")
def whisper(folder: Path) -> Iterator[LoadedModel]:
    source = ModelSource(str(folder), "safetensors")
    request = RunRequest(source, cpu=True, dtype="f32", vision=VisionRequest(), calibration=False)
    model = ModelLoader(request).load()
    yield model
    model.close()


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    model = transformers.WhisperForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32
    )
    return model.eval()


@pytest.mark.parametrize("language", SPOKEN)
def test_the_text_and_its_times_are_those_of_transformers(
    whisper: LoadedModel, reference: Any, folder: Path, language: str
) -> None:
    audio = read_audio(str(RECORDINGS / f"{language}.ogg"))
    memory = MediaMemory()
    with memory.decoding():
        samples = read_samples(audio, memory, 30)
    features = transformers.WhisperFeatureExtractor()(
        samples, sampling_rate=16_000, return_tensors="pt"
    )["input_features"]
    made = reference.generate(
        input_features=features,
        language=language,
        task="transcribe",
        return_timestamps=True,
        num_beams=1,
        do_sample=False,
    )[0].tolist()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    reply = whisper.transcribe(audio, TranscriptSettings(tries_again=False))
    assert "".join(getattr(each, "text", "") for each in reply) == reply.transcript.text
    text = tokenizer.decode([each for each in made if each < END])
    assert reply.transcript.text == text.strip()
    assert SPOKEN[language] in text
    assert reply.transcript.language == language
    times = [(each - FIRST_TIME) * 0.02 for each in made if each >= FIRST_TIME]
    ends = [each.end_s for each in reply.transcript.segments]
    assert ends[:-1] == pytest.approx(times[1:-1:2])
    assert ends[-1] == pytest.approx(min(times[-1], len(samples) / 16_000), abs=0.02)


def test_a_translation_is_english(whisper: LoadedModel) -> None:
    audio = read_audio(str(RECORDINGS / "es.ogg"))
    reply = whisper.transcribe(audio, TranscriptSettings(task="translate", tries_again=False))
    for _ in reply:
        pass
    assert "good morning" in reply.transcript.text.lower()
