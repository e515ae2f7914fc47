"""`/v1/audio/transcriptions` and `/translations`: what was said in a recording."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from mrs.architecture.vision_spec import Transcripts
from mrs.engine.loop import Outbox
from mrs.engine.prompt import Prompt
from mrs.engine.reply_events import ReplyEvents
from mrs.media.audio_names import audio_type
from mrs.media.audio_pieces import AudioPiece
from mrs.media.read_media import DEFAULT_READ_LIMITS
from mrs.media.video_names import video_type
from mrs.request import IMAGE_MARK, Media, Message, Sampling
from mrs.run.loaded_model import LoadedModel
from mrs.run.transcription.speech_tokens import SpeechTokens, Task
from mrs.run.transcription.transcript import TimedSegment, Transcript, TranscriptSettings, Window
from mrs.server.http.errors import ApiError, errors_of
from mrs.server.http.exchange import Exchange
from mrs.server.http.wire import Raw
from mrs.server.models.slot import ModelSlot
from mrs.server.replies.reader import ChoiceEnd, ReplyReader
from mrs.server.schemas.transcription import (
    Segment,
    TranscriptDelta,
    TranscriptDone,
    TranscriptEvent,
    Transcription,
    TranscriptionRequest,
    TranslationRequest,
    as_srt,
    as_vtt,
    unknown_language,
)
from mrs.server.service import Service, prefix_salt

#: A longer recording is cut into pieces, which are the segments of subtitles.
_PIECE_S = 30
#: Most tokens of a piece's transcript: a reply that repeats itself ends there.
_MOST_TOKENS = 512


async def transcribe(
    service: Service, exchange: Exchange, request: TranscriptionRequest
) -> Transcription | Raw | AsyncIterator[TranscriptEvent]:
    """What was said in a recording, with times of its pieces."""
    return await _written_down(service, exchange, request, "transcribe")


async def translate(
    service: Service, exchange: Exchange, request: TranslationRequest
) -> Transcription | Raw | AsyncIterator[TranscriptEvent]:
    """What was said in a recording, in English."""
    return await _written_down(service, exchange, request.as_transcription(), "translate")


async def _written_down(
    service: Service, exchange: Exchange, request: TranscriptionRequest, task: Task
) -> Transcription | Raw | AsyncIterator[TranscriptEvent]:
    slot = service.slot_of(exchange, request.model)
    request.check()
    model = await service.use(exchange, slot)
    transcripts, speech = model.prompts.transcripts, model.prompts.speech
    with errors_of("file"):
        model.prompts.check_media("audio", "the file")
    scribe: _Scribe
    if speech is not None:
        scribe = _WindowScribe(service, exchange, slot, request, speech, task)
    elif isinstance(transcripts, Transcripts) and task == "transcribe":
        scribe = _PieceScribe(service, exchange, slot, request, transcripts)
    elif isinstance(transcripts, Transcripts):
        raise ApiError(400, "this model does not translate", "model", "invalid_value")
    else:
        reason = "this model is not made for transcripts: ask it in a chat"
        raise ApiError(400, reason, "model", "invalid_value")
    if request.stream:
        return _events(scribe)
    async for _ in scribe.deltas():
        pass
    return _answer(request, scribe, task)


async def _events(scribe: _Scribe) -> AsyncGenerator[TranscriptEvent]:
    async for delta in scribe.deltas():
        yield TranscriptDelta(delta=delta)
    yield TranscriptDone(text=scribe.text)


def _answer(request: TranscriptionRequest, scribe: _Scribe, task: Task) -> Transcription | Raw:
    match request.response_format:
        case "text":
            return Raw(f"{scribe.text}\n".encode())
        case "srt":
            return Raw(as_srt(scribe.segments).encode(), "application/x-subrip; charset=utf-8")
        case "vtt":
            return Raw(as_vtt(scribe.segments).encode(), "text/vtt; charset=utf-8")
        case "verbose_json":
            return Transcription(
                text=scribe.text,
                task=task,
                language=scribe.language,
                duration=round(scribe.duration_s, 3),
                segments=scribe.segments,
            )
    return Transcription(text=scribe.text)


class _Scribe(ABC):
    """Writes down one recording; `segments` are those that are done."""

    def __init__(
        self,
        service: Service,
        exchange: Exchange,
        slot: ModelSlot,
        request: TranscriptionRequest,
        languages: Sequence[tuple[str, str]],
    ) -> None:
        self._service = service
        self._exchange = exchange
        self._slot = slot
        self._request = request
        self._given = _language(request.language, languages)
        self._model: LoadedModel = slot.model
        self.segments: list[Segment] = []
        self.duration_s = 0.0
        #: The name of the recording's language, once it is known.
        self.language = self._given

    @property
    @abstractmethod
    def text(self) -> str:
        """All that is written down so far."""

    @abstractmethod
    def deltas(self) -> AsyncGenerator[str]:
        """The text as it comes."""

    def _file(self) -> Media:
        """The recording, which the request has no longer. Raises ApiError."""
        content, self._request.file = self._request.file, b""
        with errors_of("file"):
            return _recording(content)

    def _holds(self, size_bytes: int) -> None:
        """What is there instead of the request's body."""
        if self._exchange.held is not None:
            self._exchange.held.resize(size_bytes)

    async def _replies(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[str]:
        """The pieces of a reply's text, the last of which is empty."""
        service, exchange, model = self._service, self._exchange, self._model

        def start(outbox: Outbox) -> ReplyEvents:
            return model.start(
                prompt,
                sampling,
                outbox,
                timeout_s=exchange.left_s,
                prefix_salt=prefix_salt(exchange, None),
                client=exchange.sender,
            )

        group = await service.start(exchange, self._slot, [start])
        finish = service.on_finish(exchange, self._slot)
        async for _, event in ReplyReader(group, finish, choices=1, thoughts="inline").read():
            yield "" if isinstance(event, ChoiceEnd) else event.text


class _WindowScribe(_Scribe):
    """Writes down a recording as Whisper does, with the times that it says."""

    def __init__(
        self,
        service: Service,
        exchange: Exchange,
        slot: ModelSlot,
        request: TranscriptionRequest,
        speech: SpeechTokens,
        task: Task,
    ) -> None:
        names = speech.language_names
        super().__init__(service, exchange, slot, request, names)
        codes = {name: code for code, name in names}
        self._names = dict(names)
        self._settings = TranscriptSettings(
            codes[self._given] if self._given else None,
            task,
            request.prompt or "",
            request.temperature,
            tries_again=not request.stream,
        )
        self._written = ""

    @property
    def text(self) -> str:
        return self._written

    async def deltas(self) -> AsyncGenerator[str]:
        self._service.admit(self._exchange, self._slot, 1)  # before a recording is decoded
        transcript = await self._service.in_thread(self._exchange, self._read)
        self._holds(0)  # the loader counts spectrograms
        self.duration_s = transcript.recording.seconds
        windows = transcript.windows()
        while (window := await self._next(windows)) is not None:
            async for _ in self._replies(window.prompt, window.sampling):
                if self._request.stream and (more := self._more(transcript.text_with(window))):
                    yield more
        if more := self._more(transcript.text):
            yield more
        language = transcript.language
        self.language = self._names.get(language, language) if language else "English"
        self.segments = [_segment(n, each) for n, each in enumerate(transcript.segments)]

    def _read(self) -> Transcript:
        prompts, audio = self._model.prompts, self._file()
        with errors_of("file"):
            recording = prompts.recording(audio)
        with errors_of("prompt"):
            return prompts.transcript(recording, self._settings)

    async def _next(self, windows: Iterator[Window]) -> Window | None:
        """The next attempt; to judge the last one takes a while."""
        return await self._service.in_thread(self._exchange, lambda: next(windows, None))

    def _more(self, text: str) -> str:
        more = text[len(self._written) :]
        self._written = text
        return more


def _segment(number: int, timed: TimedSegment) -> Segment:
    start, end = round(timed.start_s, 3), round(timed.end_s, 3)
    return Segment(id=number, start=start, end=end, text=timed.text.strip())


class _PieceScribe(_Scribe):
    """Writes down one recording, a piece after another."""

    def __init__(
        self,
        service: Service,
        exchange: Exchange,
        slot: ModelSlot,
        request: TranscriptionRequest,
        transcripts: Transcripts,
    ) -> None:
        super().__init__(service, exchange, slot, request, transcripts.languages)
        self._transcripts = transcripts

    @property
    def text(self) -> str:
        return " ".join(each.text for each in self.segments if each.text)

    async def deltas(self) -> AsyncGenerator[str]:
        """The text of a piece is parted from that before by a space."""
        self._service.admit(self._exchange, self._slot, 1)  # before a recording is decoded
        for piece in await self._pieces():
            reply = _Reply(self._transcripts, has_language=self._given is not None)
            is_first = not self.text
            async for written in self._written(piece, reply):
                text = written if is_first or not written else f" {written}"
                is_first = is_first or bool(written)
                if text:
                    yield text
            self.language = self.language or reply.language
            self.duration_s = piece.end_s
            self.segments.append(
                Segment(
                    id=len(self.segments),
                    start=round(piece.start_s, 3),
                    end=round(piece.end_s, 3),
                    text=reply.text,
                )
            )

    async def _pieces(self) -> list[AudioPiece]:
        def cut() -> list[AudioPiece]:
            audio = self._file()
            with errors_of("file"):
                return self._model.prompts.cut_audio(audio, _PIECE_S)

        pieces = await self._service.in_thread(self._exchange, cut)
        self._holds(sum(len(each.audio.content) for each in pieces))
        return pieces

    async def _written(self, piece: AudioPiece, reply: _Reply) -> AsyncGenerator[str]:
        """The pieces of the text of one piece of the recording."""
        exchange = self._exchange
        sampling = Sampling(
            temperature=self._request.temperature,
            frequency_penalty=0,
            presence_penalty=0,
            max_tokens=_MOST_TOKENS,
        )

        def read() -> Prompt:
            with errors_of("file"):
                return self._model.prompts.chat(
                    self._messages(piece.audio),
                    sampling,
                    ending="reply" if self._given is None else "continued",
                    owner=exchange.salt,
                )

        prompt = await self._service.in_thread(exchange, read)
        async for text in self._replies(prompt, sampling):
            yield reply.feed(text)
        yield reply.finish()

    def _messages(self, audio: Media) -> list[Message]:
        messages: list[Message] = []
        if self._request.prompt:
            said = self._request.prompt.replace(IMAGE_MARK, "")
            messages.append({"role": "system", "content": said})
        messages.append({"role": "user", "content": IMAGE_MARK, "images": [audio]})
        if self._given is not None:
            opening = self._transcripts.opening.format(self._given) + self._transcripts.mark
            messages.append({"role": "assistant", "content": opening})
        return messages


@dataclass
class _Reply:
    """Parts the text of one reply from the language before it."""

    transcripts: Transcripts
    has_language: bool
    language: str | None = None
    text: str = ""
    _whole: str = ""

    def feed(self, piece: str) -> str:
        """What is more of the text."""
        self._whole += piece
        mark = self.transcripts.mark
        if not self.has_language:
            before, found, after = self._whole.partition(mark)
            if not found:
                return ""
            self.has_language, self._whole = True, after
            names = {name.lower(): name for _, name in self.transcripts.languages}
            self.language = names.get(before.split()[-1].lower()) if before.split() else None
        return self.finish()

    def finish(self) -> str:
        """What is more when the reply ends: one without a mark is a text."""
        self._whole = self._whole.lstrip()
        text = self._whole.rstrip()
        more = text[len(self.text) :]
        self.text = text
        return more


def _language(given: str | None, languages: Sequence[tuple[str, str]]) -> str | None:
    """The model's name of a language, of codes and names. Raises ApiError."""
    if not given:
        return None
    names = {name.lower(): name for _, name in languages}
    names |= {code: name for code, name in languages}
    found = names.get(given.lower())
    if found is None:
        raise unknown_language(given, [code for code, _ in languages])
    return found


def _recording(content: bytes) -> Media:
    """Raises ApiError for a file that is none, or too large."""
    most = DEFAULT_READ_LIMITS.audio_bytes
    if len(content) > most:
        raise ApiError(400, f"the file has more than {most // 2**20} MiB", "file", "invalid_value")
    if audio_type(content) is None and video_type(content) is None:
        reason = "the file is not audio: send wav, mp3, flac, ogg, m4a or webm"
        raise ApiError(400, reason, "file", "invalid_value")
    return Media.of("recording", content, "audio")
