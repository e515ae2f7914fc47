"""Audio files of every format become 16 kHz samples and spectrograms, within limits."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor
from transformers.models.qwen3_asr.feature_extraction_qwen3_asr import Qwen3ASRFeatureExtractor

from mrs.architecture.vision_spec import LogMel
from mrs.errors import NotReadable, Unsupported
from mrs.media import audio_file
from mrs.media.audio_names import audio_type
from mrs.media.log_mel import log_mel
from mrs.media.media_memory import MediaMemory
from mrs.media.read_media import read_audio, read_media, to_data_uri
from mrs.request import Media
from support.audio_files import encoded, tone, wav


def samples_of(content: bytes, seconds: int = 10, name: str = "a.wav") -> np.ndarray:
    return audio_file.read_samples(Media.of(name, content, "audio"), MediaMemory(), seconds)


@pytest.mark.parametrize(
    ("container", "codec", "suffix", "kind"),
    [
        ("mp3", "mp3", "mp3", "audio/mpeg"),
        ("flac", "flac", "flac", "audio/flac"),
        ("ogg", "libopus", "opus", "audio/ogg"),
        ("ipod", "aac", "m4a", "audio/mp4"),
    ],
)
def test_formats(tmp_path: Path, container: str, codec: str, suffix: str, kind: str) -> None:
    content = encoded(tone(1.5, 48_000), container, codec)
    assert audio_type(content) == kind
    path = tmp_path / f"a note.{suffix}"
    path.write_bytes(content)
    read = read_media(str(path))
    assert (read.content, read.kind) == (content, "audio")
    held = to_data_uri(read)
    assert held.startswith(f"data:{kind};name=")
    assert read_media(held) == read == read_audio(str(path))
    facts = audio_file.read_facts(read)
    assert (facts.channels, facts.rate) == (1, 48_000)
    assert facts.seconds == pytest.approx(1.5, abs=0.1)
    found, expected = samples_of(content), tone(1.5)
    assert len(found) == pytest.approx(len(expected), abs=1700)
    # Encoders delay the sound by some samples.
    best = max(
        np.corrcoef(found[shift : shift + 20_000], expected[:20_000])[0, 1]
        for shift in range(min(len(found) - 20_000, 1700))
    )
    assert best > 0.995


def test_samples_of_16_khz_are_kept() -> None:
    assert np.array_equal(samples_of(wav(tone(1))), tone(1))


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100])
def test_other_rates_are_resampled(rate: int) -> None:
    found = samples_of(wav(tone(2, rate), rate))
    assert len(found) == pytest.approx(32_000, abs=2)
    inner = slice(500, 31_000)
    assert np.abs(found[inner] - tone(2)[inner]).max() < 1e-3


def test_what_is_too_high_for_16_khz_is_left_out() -> None:
    assert np.abs(samples_of(wav(tone(1, 48_000, 11_000.0), 48_000))[500:-500]).max() < 1e-3


def test_channels_become_their_mean() -> None:
    left, right = tone(1), tone(1, hertz=300.0)
    both = wav(np.stack((left, right), axis=1).flatten(), channels=2)
    assert np.abs(samples_of(both) - (left + right) / 2).max() < 1e-6


HOSTILE = {
    "empty": (b"", "it is not a wav, mp3"),
    "text": (b"RIFF and so on", "it is not a wav, mp3"),
    "header": (wav(tone(1))[:30], "it is damaged"),
    "silent file": (wav(tone(0)), "it has no sound"),
    "255 channels": (wav(tone(1), channels=255), "it has 255 channels, and at most 8 are read"),
    "no rate": (wav(tone(1), rate=0), "it "),
    "rate": (wav(tone(1), rate=2**31 - 1), "samples a second"),
    "NaN": (wav(np.full(9000, np.nan, np.float32)), "samples that are not numbers"),
    "infinite": (wav(np.full(9000, np.inf, np.float32)), "samples that are not numbers"),
    "loud": (wav(np.full(9000, 1e30, np.float32)), "far too loud"),
    "playlist": (b"ID3" + b"#EXTM3U\n/etc/hostname\n" * 9, "it "),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_one_line(tmp_path: Path, name: str) -> None:
    content, reason = HOSTILE[name]
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    with pytest.raises(NotReadable) as raised:
        audio_file.read_samples(read_media(str(path)), MediaMemory(), 10)
    line = str(raised.value)
    assert line.startswith(f"audio file {path} cannot be read")
    assert reason in line
    assert "\n" not in line


def test_a_length_that_a_file_claims_is_not_believed() -> None:
    assert len(samples_of(wav(tone(1), claimed_bytes=4_000_000_000))) == 16_000
    samples_of(wav(tone(1), claimed_bytes=400))  # the rest is not sound


def test_longer_files_are_refused_whatever_they_claim() -> None:
    assert len(samples_of(wav(tone(2)), seconds=2)) == 32_000
    for claimed in (None, 100_000):
        with pytest.raises(NotReadable, match="longer than 1 seconds"):
            samples_of(wav(tone(2), claimed_bytes=claimed), seconds=1)


def test_room_is_taken_before_decoding() -> None:
    memory = MediaMemory()
    memory.room.most_bytes = audio_file.decoding_bytes(5)
    audio = Media.of("a.wav", wav(tone(0.1)), "audio")
    audio_file.read_samples(audio, memory, 4)
    assert memory.room.used_bytes == 0
    with pytest.raises(NotReadable, match="more memory than there is for audio files"):
        audio_file.read_samples(audio, memory, 6)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(Unsupported, match="audio files need the package av"):
        samples_of(wav(tone(1)))


@pytest.mark.parametrize("bands", [80, 128])
@pytest.mark.parametrize("samples", [300, 8_000, 30_011, 200_000])
def test_spectrograms_are_those_of_transformers(bands: int, samples: int) -> None:
    noise = np.random.default_rng(samples).normal(size=samples)
    sound = (noise * np.abs(np.sin(np.arange(samples) / 3000)) * 0.2).astype(np.float32)
    found = log_mel(sound, LogMel(bands), least=8_000)
    extract = Qwen3ASRFeatureExtractor(feature_size=bands, return_attention_mask=True)
    made = extract(sound, sampling_rate=16_000, padding=True, return_attention_mask=True)
    frames = int(made["attention_mask"].sum())
    assert found.shape == (bands, frames)
    expected = made["input_features"][0][:, :frames]
    assert (found - torch.as_tensor(expected)).abs().max() < 1e-5
    if samples >= 8_000:
        whisper = WhisperFeatureExtractor(feature_size=bands)
        again = whisper(sound, sampling_rate=16_000, padding="longest", truncation=False)
        assert np.abs(found.numpy() - again["input_features"][0][:, :frames]).max() < 1e-5


def test_silence_is_a_spectrogram() -> None:
    found = log_mel(np.zeros(16_000, np.float32), LogMel(80))
    assert found.isfinite().all()
    assert (found == found[0, 0]).all()
