"""A transcript as one reply, for a thread that waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mrs.engine.prompt import Prompt
from mrs.errors import UsageError
from mrs.events import Event, Finished, ReplyUsage, TextDelta
from mrs.request import IMAGE_MARK, Media, Message, Sampling, text_of
from mrs.run.transcription.transcript import Transcript, TranscriptSettings

if TYPE_CHECKING:
    from mrs.engine.reply import Reply


def asked_transcript(
    messages: Sequence[Message], sampling: Sampling
) -> tuple[Media, TranscriptSettings]:
    """The recording of a conversation's last message, and how it is transcribed.

    The text of that message, and of a system message, may be names and words that occur. Raises
    UsageError.
    """
    media = messages[-1].get("images", ()) if messages else ()
    if len(media) != 1 or media[0].kind != "audio":
        raise UsageError(
            f"this model transcribes one audio file at a time; files that are given: {len(media)}",
            hint="give one --audio FILE",
        )
    if sampling.grammar is not None:
        raise UsageError("a transcript has no grammar", hint="leave it out")
    system = [each for each in messages[:1] if each["role"] == "system"]
    texts = [text_of(each).replace(IMAGE_MARK, "").strip() for each in (*system, messages[-1])]
    return media[0], TranscriptSettings(
        text=" ".join(filter(None, texts)), temperature=sampling.temperature, tries_again=False
    )


class TranscriptReply:
    """The events of a transcript: an iterator that ends with one `Finished`.

    Text comes when its end is heard. `start` asks the engine for the reply to a window.
    """

    def __init__(self, transcript: Transcript, start: Callable[[Prompt, Sampling], Reply]) -> None:
        self.transcript = transcript
        self._start = start
        self._reply: Reply | None = None
        self._written = 0
        self._events = self._run()

    def __iter__(self) -> TranscriptReply:
        return self

    def __next__(self) -> Event:
        """Waits for the next event. Raises MrsError."""
        return next(self._events)

    def close(self) -> None:
        """Stop the reply. Any thread may call this."""
        if self._reply is not None:
            self._reply.close()
            self._start = _closed

    def _run(self) -> Iterator[Event]:
        usages: list[ReplyUsage] = []
        for window in self.transcript.windows():
            self._reply = self._start(window.prompt, window.sampling)
            for event in self._reply:
                if isinstance(event, Finished):
                    usages.append(event.usage)
                    if event.reason == "cancelled":
                        yield replace(event, usage=_sum(usages))
                        return
                elif not self.transcript.settings.tries_again:
                    yield from self._more(self.transcript.text_with(window))
        yield from self._more(self.transcript.text)
        yield Finished("stop", _sum(usages))

    def _more(self, text: str) -> Iterator[Event]:
        if len(text) > self._written:
            yield TextDelta(text[self._written :])
            self._written = len(text)


def _closed(prompt: Prompt, sampling: Sampling) -> Reply:
    raise UsageError("the reply is closed")


def _sum(usages: Sequence[ReplyUsage]) -> ReplyUsage:
    """The tokens and times of several replies in a row."""
    return ReplyUsage(
        prompt_tokens=sum(each.prompt_tokens for each in usages),
        completion_tokens=sum(each.completion_tokens for each in usages),
        cached_tokens=sum(each.cached_tokens for each in usages),
        prompt_s=sum(each.prompt_s for each in usages),
        completion_s=sum(each.completion_s for each in usages),
    )
