"""A recording as segments of text with times, a window after another."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mrs.engine.image_input import ImageInput
from mrs.engine.prompt import Prompt
from mrs.errors import UsageError
from mrs.request import Sampling
from mrs.run.transcription.speech_tokens import SpeechTokens, Task
from mrs.run.transcription.window_reply import WindowReply

if TYPE_CHECKING:
    from mrs.media.recording import Recording
    from mrs.text.tokenizer import Tokenizer

#: Seconds from a token of time to the next.
STEP_S = 0.02
#: A reply is tried again at the next of these temperatures if it seems wrong: if it repeats itself
#: so that it can be compressed by more than this factor, or is too improbable.
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MOST_COMPRESSION, LEAST_LOGPROB = 2.4, -1.0
#: A window that is more probably silent, and whose text is improbable, is silent.
MOST_NO_SPEECH = 0.6
#: Replies that were drawn at a higher temperature are no example for the next window.
MOST_EXEMPLARY = 0.5


@dataclass(frozen=True)
class TimedSegment:
    """A piece of text, and when it is said, in seconds of the recording."""

    start_s: float
    end_s: float
    text: str


@dataclass(frozen=True)
class TranscriptSettings:
    """How a recording is transcribed.

    language      its code; None: the model finds it out from the first window
    text          what may stand before the transcript: names and words that may occur
    temperature   of the first attempt
    tries_again   whether replies that seem wrong are tried again at higher temperatures
    """

    language: str | None = None
    task: Task = "transcribe"
    text: str = ""
    temperature: float = 0.0
    tries_again: bool = True


def check_settings(settings: TranscriptSettings, tokens: SpeechTokens) -> None:
    """Raise UsageError for what a model with these tokens cannot do."""
    if settings.task not in tokens.tasks and settings.task != "transcribe":
        raise UsageError("this model does not translate: it knows English alone")
    known = tokens.languages or ("en",)
    if settings.language is not None and settings.language not in known:
        raise UsageError(
            f"the language {settings.language[:40]!r} is not known",
            hint=f"give one of {', '.join(known)}",
        )


@dataclass
class Window:
    """One attempt at a window: what to ask the engine, and what becomes of the reply."""

    start_frame: int
    frames: int
    prompt: Prompt
    sampling: Sampling
    reply: WindowReply


@dataclass
class Transcript:
    """What is said in a recording as far as it has been heard; one thread at a time."""

    recording: Recording
    tokens: SpeechTokens
    tokenizer: Tokenizer
    context_tokens: int
    settings: TranscriptSettings
    segments: list[TimedSegment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._language: int | None = None
        if self.settings.language is not None and self.tokens.languages:
            self._language = self.tokens.languages[self.settings.language]
        self._frame = 0
        self._before: list[int] = []
        if self.settings.text.strip():
            given = f" {self.settings.text.strip()}"
            self._before = self.tokenizer.encode(given, allow_special=False)

    @property
    def language(self) -> str | None:
        """The code of its language, if the model has several and the first window is heard."""
        return None if self._language is None else self.tokens.language_of(self._language)

    @property
    def text(self) -> str:
        return "".join(each.text for each in self.segments).strip()

    def text_with(self, window: Window) -> str:
        """The text with what is certain of a reply that is not whole yet: up to its last time."""
        ids = [*window.reply.ids]  # another thread adds to them
        while ids and ids[-1] < self.tokens.first_time:
            ids.pop()
        if len(ids) < 2 or window.reply.no_speech > MOST_NO_SPEECH:
            return self.text
        pieces, _ = self._pieces(ids, window.frames * self.recording.frame_s)
        said = (self._text_of(each) for _, _, each in pieces)
        more = "".join(text for text in said if text.strip())
        return ("".join(each.text for each in self.segments) + more).strip()

    def windows(self) -> Iterator[Window]:
        """Attempts, one after another: the reply of each must be whole before the next is asked."""
        temperatures = [self.settings.temperature]
        if self.settings.tries_again and self.settings.temperature == 0:
            temperatures = list(TEMPERATURES)
        while self._frame < self.recording.frames:
            for temperature in temperatures:
                window = self._window(temperature)
                yield window
                if temperature == temperatures[-1] or not self._seems_wrong(window.reply):
                    self._take(window)
                    break

    def _text_of(self, ids: Sequence[int]) -> str:
        """The text of tokens, without times."""
        return self.tokenizer.decode(each for each in ids if each < self.tokens.end)

    def _window(self, temperature: float) -> Window:
        tokens, half = self.tokens, self.context_tokens // 2
        ids = [tokens.start]
        if self._before:
            ids = [tokens.previous, *self._before[-(half - 1) :], tokens.start]
        task = tokens.tasks.get(self.settings.task)
        reply = WindowReply(tokens, self._language, task)
        # The first token stands for what is heard: all tokens attend to it.
        heard = ImageInput(self.recording.window(self._frame), [0])
        most = min(half + (2 if tokens.tasks else 0), self.context_tokens - len(ids))
        sampling = Sampling(
            temperature=temperature,
            frequency_penalty=0,
            presence_penalty=0,
            max_tokens=most,
        )
        prompt = Prompt(ids, images=[heard], new_constraint=lambda: reply)
        left = self.recording.frames - self._frame
        return Window(self._frame, min(self.recording.window_frames, left), prompt, sampling, reply)

    def _seems_wrong(self, reply: WindowReply) -> bool:
        is_improbable = reply.mean_logprob < LEAST_LOGPROB
        if is_improbable and reply.no_speech > MOST_NO_SPEECH:
            return False  # silence
        text = self._text_of(reply.ids).encode()
        return is_improbable or len(text) > MOST_COMPRESSION * len(zlib.compress(text))

    def _take(self, window: Window) -> None:
        """Add the segments of a window's reply, and move to where the next window begins."""
        reply = window.reply
        self._language = self._language or reply.language
        is_silent = reply.no_speech > MOST_NO_SPEECH and reply.mean_logprob <= LEAST_LOGPROB
        frames = window.frames
        if not is_silent:
            pieces, heard_s = self._pieces(reply.ids, window.frames * self.recording.frame_s)
            start_s = window.start_frame * self.recording.frame_s
            for first_s, last_s, ids in pieces:
                if (text := self._text_of(ids)).strip():
                    self.segments.append(TimedSegment(start_s + first_s, start_s + last_s, text))
            if heard_s:
                frames = min(frames, round(heard_s / self.recording.frame_s))
            said = [each for _, _, ids in pieces for each in ids]
            self._before += said
        if window.sampling.temperature > MOST_EXEMPLARY:
            self._before.clear()
        most = self.context_tokens // 2 - 1
        del self._before[:-most]
        self._frame += frames

    def _pieces(
        self, ids: Sequence[int], window_s: float
    ) -> tuple[list[tuple[float, float, Sequence[int]]], float]:
        """(beginning, end, tokens) of what is said in a window, and how much of it was heard.

        Two times in a row end a piece and begin the next. After the last of them the text may be
        cut off, so the next window begins there; 0.0 if all of the window was heard.
        """
        first = self.tokens.first_time

        def seconds(token: int) -> float:
            return min((token - first) * STEP_S, window_s)

        is_time = [each >= first for each in ids]
        cuts = [at for at in range(1, len(ids)) if is_time[at - 1] and is_time[at]]
        ends_whole = is_time[-2:] == [False, True]
        if not cuts:
            start_s = seconds(ids[0]) if ids else 0.0
            end_s = seconds(ids[-1]) if len(ids) > 1 and is_time[-1] else window_s
            return [(start_s, end_s, ids)], 0.0
        if ends_whole:
            cuts.append(len(ids))
        pieces: list[tuple[float, float, Sequence[int]]] = []
        at = 0
        for cut in cuts:
            pieces.append((seconds(ids[at]), seconds(ids[cut - 1]), ids[at:cut]))
            at = cut
        return pieces, 0.0 if ends_whole else seconds(ids[at - 1])
