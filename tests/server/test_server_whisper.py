"""Transcripts and translations of a model that does nothing else, with and without a server."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running_server import RunningServer, running

from mrs.errors import UsageError
from mrs.events import Finished, TextDelta
from mrs.media.read_media import read_audio
from mrs.request import ModelSource, RunRequest, Sampling, VisionRequest
from mrs.run.model_loader import ModelLoader
from mrs.run.transcription.transcript import TranscriptSettings
from mrs_cli.app import main
from mrs_cli.environment import Environment
from support.audio_files import tone, wav
from support.tiny_whisper import write_whisper

PATHS = "/v1/audio/transcriptions", "/v1/audio/translations"
SECONDS = 2.7


def sound() -> bytes:
    """A tone with noise, so that windows differ."""
    noise = np.random.default_rng(2).normal(size=round(SECONDS * 16_000)).astype(np.float32)
    return wav(tone(SECONDS) + 0.1 * noise)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("whisper")
    write_whisper(target, seed=3)
    return target


@pytest.fixture(scope="module")
def whisper(folder: Path) -> Iterator[RunningServer]:
    source = ModelSource(str(folder), "safetensors")
    # Longer recordings than planned for are heard, too: a window at a time.
    limits = VisionRequest(max_audio_seconds=1)
    with running(source=source, dtype="f32", vision=limits) as made:
        yield made


def post(server: RunningServer, path: str, **fields: str) -> Any:
    reply = server.http.post(path, files={"file": ("a.wav", sound())}, data=fields)
    assert reply.status_code == 200, reply.text
    return reply


@pytest.fixture(scope="module")
def made(folder: Path) -> tuple[str, list[tuple[float, float, str]]]:
    """What Python's loaded model says, in German: the text, and the segments."""
    source = ModelSource(str(folder), "safetensors")
    loaded = ModelLoader(RunRequest(source, cpu=True, dtype="f32", vision=VisionRequest())).load()
    audio = folder / "a.wav"
    audio.write_bytes(sound())
    settings = TranscriptSettings(language="de", tries_again=False)
    reply = loaded.transcribe(read_audio(str(audio)), settings)
    *deltas, end = reply
    assert isinstance(end, Finished)
    assert end.reason == "stop"
    text = "".join(each.text for each in deltas if isinstance(each, TextDelta))
    assert text == reply.transcript.text
    segments = [(s.start_s, s.end_s, s.text.strip()) for s in reply.transcript.segments]
    with pytest.raises(UsageError, match="only transcribes"):
        loaded.stream_completion("text", Sampling())
    loaded.close()
    return text, segments


def test_all_forms_say_the_same(
    whisper: RunningServer, made: tuple[str, list[tuple[float, float, str]]]
) -> None:
    text, segments = made
    assert len(segments) >= 3
    events = whisper.openai().audio.transcriptions.create(
        model="default", file=("a.wav", sound()), language="de", stream=True
    )
    *deltas, done = events
    assert done.text == text == "".join(each.delta for each in deltas)
    verbose = post(
        whisper, PATHS[0], language="German", response_format="verbose_json", temperature="0.001"
    ).json()
    assert verbose["language"] == "German"
    assert verbose["task"] == "transcribe"
    assert verbose["duration"] == pytest.approx(SECONDS)
    ends = [each["end"] for each in verbose["segments"]]
    assert ends == sorted(ends)
    assert ends[-1] <= SECONDS
    srt = post(whisper, PATHS[0], language="de", response_format="srt", temperature="0.001")
    assert srt.text.startswith("1\n00:00:00,")


def test_the_language_is_found_and_translations_differ(whisper: RunningServer) -> None:
    found = post(whisper, PATHS[0], response_format="verbose_json", temperature="0.001").json()
    assert found["language"] in ("English", "German", "French")
    translated = post(whisper, PATHS[1], response_format="verbose_json", temperature="0.001")
    assert translated.json()["task"] == "translate"
    assert translated.json()["text"] != found["text"]


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}, "transcribes"),
        ("/v1/completions", {"prompt": "Hi"}, "only transcribes"),
    ],
)
def test_texts_have_no_reply(
    whisper: RunningServer, path: str, body: dict[str, Any], reason: str
) -> None:
    reply = whisper.http.post(path, json=body)
    assert reply.status_code == 400
    assert reason in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (PATHS[0], {"language": "tlh"}, "language"),
        (PATHS[1], {"response_format": "exe"}, "response_format"),
    ],
)
def test_what_is_refused(
    whisper: RunningServer, path: str, fields: dict[str, str], param: str
) -> None:
    reply = whisper.http.post(path, files={"file": ("a.wav", sound())}, data=fields)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


def run(*arguments: str) -> tuple[int, str, str]:
    out, errors = io.StringIO(), io.StringIO()
    return (
        main([*arguments], Environment(io.StringIO(), out, errors)),
        out.getvalue(),
        errors.getvalue(),
    )


def test_the_command_line_prints_the_text(folder: Path) -> None:
    audio = folder / "b.wav"
    audio.write_bytes(sound())
    model = ("vision-plain", "-m", str(folder), "--dtype", "f32")
    code, out, errors = run("--audio", str(audio), *model)
    assert (code, bool(out.strip())) == (0, True), errors
    code, again, _ = run("--audio", str(audio), *model)
    assert again == out
    code, _, errors = run("-P", "What is said?", *model)
    assert code == 2
    assert "only transcribes" in errors
