"""Transcripts of recordings: every form, long ones in pieces, and files that are none."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from running_server import RunningServer, running

from mrs.architecture.vision_spec import Transcripts
from mrs.families.vision.qwen3_asr import LANGUAGES
from mrs.media.audio_file import read_samples
from mrs.media.audio_pieces import cut_audio
from mrs.media.media_memory import MediaMemory
from mrs.request import Media, ModelSource, VisionRequest
from mrs.server.endpoints.transcriptions import _Reply
from mrs.server.http.errors import ApiError
from mrs.server.http.form import read_form
from mrs.server.schemas.transcription import Segment, as_srt, as_vtt
from support.audio_files import tone, wav
from support.tiny_qwen3_asr import write_qwen3_asr

PATH = "/v1/audio/transcriptions"
NOTE = wav(tone(2.2))


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("qwen3_asr")
    write_qwen3_asr(folder)
    limits = VisionRequest(max_audio_seconds=3)
    source = ModelSource(str(folder), "safetensors")
    with running(source=source, dtype="f32", vision=limits) as made:
        yield made


def said(server: RunningServer, *parts: dict[str, object], **fields: object) -> str:
    """The reply of a chat to the note, greedily."""
    data = base64.b64encode(NOTE).decode()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    body = {
        "messages": [{"role": "user", "content": [part]}, *parts],
        "temperature": 0,
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "max_tokens": 512,
        **fields,
    }
    reply = server.http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["message"]["content"]
    return text.strip()


def test_the_reply_of_a_chat_is_the_transcript(hearing: RunningServer) -> None:
    expected = said(hearing)
    assert expected
    client = hearing.openai()
    made = client.audio.transcriptions.create(model="default", file=("a.wav", NOTE))
    assert made.text == expected
    in_json = {"file": base64.b64encode(NOTE).decode()}
    assert hearing.http.post(PATH, json=in_json).json() == {"text": expected}
    text = client.audio.transcriptions.create(
        model="default", file=("a.wav", NOTE), response_format="text"
    )
    assert text.strip() == expected


def test_a_language_and_a_prompt_are_in_the_prompt(hearing: RunningServer) -> None:
    opening = {"role": "assistant", "content": "language German<asr_text>"}
    expected = said(hearing, opening, continue_final_message=True, add_generation_prompt=False)
    for language in ("de", "German", "german"):
        files = {"file": ("a.wav", NOTE)}
        made = hearing.http.post(PATH, files=files, data={"language": language})
        assert made.json()["text"] == expected, made.text
    hinted = hearing.http.post(PATH, files=files, data={"prompt": "Names: Ada"}).json()
    assert hinted["text"] != hearing.http.post(PATH, files=files).json()["text"]
    wrong = hearing.http.post(PATH, files=files, data={"language": "tlh"})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "language"
    assert "'tlh' is not known: choose one of ar, cs" in wrong.json()["error"]["message"]


def test_a_long_recording_has_segments(hearing: RunningServer) -> None:
    quiet = np.concatenate((tone(2.5), np.zeros(4800, np.float32), tone(2.0)))
    files = {"file": ("a.wav", wav(quiet))}
    made = hearing.http.post(PATH, files=files, data={"response_format": "verbose_json"}).json()
    assert made["task"] == "transcribe"
    assert made["duration"] == pytest.approx(4.8)
    first, second = made["segments"]
    assert first["start"] == 0
    assert 2.5 < first["end"] == second["start"] < 2.8
    assert second["end"] == pytest.approx(4.8)
    assert made["text"] == f"{first['text']} {second['text']}"
    srt = hearing.http.post(PATH, files=files, data={"response_format": "srt"})
    assert srt.text.startswith("1\n00:00:00,000 --> 00:00:02,")
    assert "\n2\n00:00:02," in srt.text
    vtt = hearing.http.post(PATH, files=files, data={"response_format": "vtt"})
    assert vtt.text.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:02.")
    assert vtt.headers["content-type"].startswith("text/vtt")
    client = hearing.openai()
    events = list(
        client.audio.transcriptions.create(model="default", file=("a.wav", wav(quiet)), stream=True)
    )
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == made["text"]
    assert "".join(each.delta for each in events[:-1]) == made["text"]


@pytest.mark.parametrize(
    ("content", "fields", "param", "reason"),
    [
        (b"", {}, "file", "the file is not audio"),
        (b"text", {}, "file", "the file is not audio"),
        (NOTE[:30], {}, "file", "it is damaged"),
        (wav(tone(1), channels=255), {}, "file", "255 channels"),
        (wav(np.full(9000, np.nan, np.float32)), {}, "file", "samples that are not numbers"),
        (NOTE, {"response_format": "exe"}, "response_format", "invalid enum value"),
        (NOTE, {"temperature": "hot"}, "temperature", "expected `float`"),
        (NOTE, {"temperature": "3"}, "temperature", "2.0"),
        (NOTE, {"timestamp_granularities[]": "word"}, "timestamp_granularities[]", "only segment"),
        (NOTE, {"include[]": "logprobs"}, "include[]", "nothing more"),
        (NOTE, {"stream": "true", "response_format": "srt"}, "stream", "srt is not streamed"),
    ],
)
def test_what_is_refused(
    hearing: RunningServer, content: bytes, fields: dict[str, str], param: str, reason: str
) -> None:
    reply = hearing.http.post(PATH, files={"file": ("a.wav", content)}, data=fields)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param
    assert reason in reply.json()["error"]["message"]


def test_a_file_is_needed_and_other_fields_are_named(hearing: RunningServer) -> None:
    reply = hearing.http.post(PATH, files={"other": ("a.wav", NOTE)})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "file")
    reply = hearing.http.post(PATH, files={"file": ("a.wav", NOTE)}, data={"colour": "red"})
    assert reply.headers["x-ignored-fields"] == "colour"


def test_other_models_make_no_transcripts(server: RunningServer) -> None:
    reply = server.http.post(PATH, files={"file": ("a.wav", NOTE)})
    assert reply.status_code == 400
    assert "loaded without vision or audio support" in reply.json()["error"]["message"]


BOUNDARY = "multipart/form-data; boundary=x"
FIELD = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'


@pytest.mark.parametrize(
    ("body", "content_type", "reason"),
    [
        (b"", BOUNDARY, "its end is missing"),
        (b"nothing", BOUNDARY, "its parts are damaged"),
        (FIELD, BOUNDARY, "its end is missing"),
        (FIELD + b"--x--\r\n", "multipart/form-data", "its parts are damaged"),
        (FIELD * 2 + b"--x--\r\n", BOUNDARY, "two fields 'a'"),
        (FIELD * 65 + b"--x--\r\n", BOUNDARY, "more than 64 fields"),
        (FIELD.replace(b'; name="a"', b"") + b"--x--\r\n", BOUNDARY, "a field has no name"),
        (FIELD.replace(b"1", b"\xff") + b"--x--\r\n", BOUNDARY, "'a' is not UTF-8"),
        (FIELD.replace(b"1", b"1" * 70_000) + b"--x--\r\n", BOUNDARY, "too long for a text"),
        (
            FIELD.replace(b"form-data", b"form-data; " + b"z" * 5000) + b"--x--\r\n",
            BOUNDARY,
            "its parts are damaged",
        ),
    ],
)
def test_broken_forms_are_one_line(body: bytes, content_type: str, reason: str) -> None:
    with pytest.raises(ApiError) as raised:
        read_form(body, content_type)
    assert raised.value.status == 400
    assert reason in raised.value.message


def test_forms_have_texts_files_and_lists() -> None:
    lists = FIELD.replace(b'"a"', b'"b[]"')
    file = b'--x\r\ncontent-disposition: form-data; name="c"; filename="d"\r\n\r\n\r\n--\xff\r\n'
    read = read_form(FIELD + lists * 2 + file + b"--x--\r\n", BOUNDARY)
    assert read == {"a": "1", "b[]": ["1", "1"], "c": b"\r\n--\xff"}


def reply(*pieces: str, has_language: bool = False) -> tuple[list[str], _Reply]:
    made = _Reply(Transcripts("language {}", "<asr_text>", tuple(LANGUAGES.items())), has_language)
    return [*map(made.feed, pieces), made.finish()], made


def test_the_language_before_a_text() -> None:
    deltas, made = reply("langu", "age English<asr", "_text> Hello", " ", "there.", " ")
    assert (deltas, made.text) == (["", "", "Hello", "", " there.", "", ""], "Hello there.")
    assert made.language == "English"
    assert reply("language None<asr_text>")[1].language is None
    assert reply("<asr_text>a")[1].text == "a"
    assert reply("just", " words")[0] == ["", "", "just words"]
    assert reply("so", " it is", has_language=True)[0] == ["so", " it is", ""]


def test_subtitles() -> None:
    segments = [
        Segment(id=0, start=0.0, end=61.5, text="One\n\ntwo --> three"),
        Segment(id=1, start=61.5, end=3723.0456, text=""),
    ]
    assert as_srt(segments) == (
        "1\n00:00:00,000 --> 00:01:01,500\nOne two -> three\n\n"
        "2\n00:01:01,500 --> 01:02:03,046\n\n\n"
    )
    assert as_vtt(segments).startswith("WEBVTT\n\n00:00:00.000 --> 00:01:01.500\nOne two")


def test_cuts_lose_nothing() -> None:
    sound = np.concatenate([tone(2.3), np.zeros(3000, np.float32)] * 4)
    audio, memory = Media.of("a.wav", wav(sound), "audio"), MediaMemory()
    pieces = cut_audio(audio, memory, 3)
    assert memory.room.used_bytes == 0
    joined = np.concatenate([read_samples(each.audio, memory, 3) for each in pieces])
    assert len(joined) == len(sound)
    assert np.abs(joined - sound).max() < 1e-4
    for before, after in pairwise(pieces):
        assert before.end_s == after.start_s
        assert sound[round(before.end_s * 16_000)] == 0
    assert cut_audio(audio, memory, 20)[0].audio is audio
