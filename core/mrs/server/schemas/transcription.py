"""Requests and responses of `/v1/audio/transcriptions` and `/translations`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from mrs.server.http.errors import ApiError
from mrs.server.http.wire import NamedEvent

TranscriptFormat = Literal["json", "text", "srt", "vtt", "verbose_json"]


class TranscriptionRequest(Struct, kw_only=True):
    """A recording to write down: a form with a file, or JSON with the file in base64.

    language         a code of ISO 639 such as en, or a name such as English; by default the model
                     finds it out
    prompt           names and words that may occur
    timestamp_granularities
                     segment alone
    include          is refused
    """

    file: bytes
    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    response_format: TranscriptFormat = "json"
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    stream: bool = False
    timestamp_granularities: list[str] = field(
        name="timestamp_granularities[]", default_factory=list
    )
    include: list[str] = field(name="include[]", default_factory=list)

    def check(self) -> None:
        """Raises ApiError for what is not done."""
        if any(each != "segment" for each in self.timestamp_granularities):
            raise _invalid("timestamp_granularities[]", "only segment is known here")
        if self.include:
            raise _invalid("include[]", "nothing more is known of a transcript")
        if self.stream and self.response_format not in ("json", "text"):
            raise _invalid("stream", f"{self.response_format} is not streamed: leave it out")


class TranslationRequest(Struct, kw_only=True):
    """A recording to write down in English: as for a transcript, whatever language it is in.

    language         that of the recording; by default the model finds it out
    prompt           names and words that may occur, in English
    """

    file: bytes
    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    response_format: TranscriptFormat = "json"
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    stream: bool = False

    def as_transcription(self) -> TranscriptionRequest:
        """The same for a transcript, which has the file from now on."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        self.file = b""
        return TranscriptionRequest(**fields)


class Segment(Struct, frozen=True, kw_only=True):
    """A piece of a recording; times are in seconds."""

    id: int
    start: float
    end: float
    text: str


class Transcription(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was said; all but the text is that of verbose_json."""

    text: str
    task: str | None = None
    language: str | None = None
    duration: float | None = None
    segments: Sequence[Segment] | None = None


class TranscriptDelta(NamedEvent, frozen=True, kw_only=True, tag="transcript.text.delta"):
    """More of a transcript."""

    delta: str


class TranscriptDone(NamedEvent, frozen=True, kw_only=True, tag="transcript.text.done"):
    """The whole transcript."""

    text: str


TranscriptEvent = TranscriptDelta | TranscriptDone


def as_srt(segments: Sequence[Segment]) -> str:
    return "".join(
        f"{each.id + 1}\n{_time(each.start, ',')} --> {_time(each.end, ',')}\n{_line(each)}\n\n"
        for each in segments
    )


def as_vtt(segments: Sequence[Segment]) -> str:
    cues = (
        f"{_time(each.start, '.')} --> {_time(each.end, '.')}\n{_line(each)}\n\n"
        for each in segments
    )
    return "WEBVTT\n\n" + "".join(cues)


def _line(segment: Segment) -> str:
    """The text on one line, in which no arrow begins another cue."""
    return " ".join(segment.text.split()).replace("-->", "->")


def _time(seconds: float, point: str) -> str:
    """Such as 00:01:02,500."""
    minutes, ms = divmod(round(seconds * 1000), 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{ms // 1000:02}{point}{ms % 1000:03}"


def _invalid(name: str, reason: str) -> ApiError:
    return ApiError(400, f"{name}: {reason}", name, "invalid_value")


def unknown_language(given: str, known: Sequence[str]) -> ApiError:
    return _invalid("language", f"{given[:40]!r} is not known: choose one of {', '.join(known)}")
