"""The text of one reply as it arrives: thoughts apart from the answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.events import TextDelta, TokenLogprob, ToolCallDelta
from mrs.server.schemas.thinking import ThoughtsShown
from mrs.text.thought_splitter import ThoughtSplitter


@dataclass(frozen=True)
class ReplyPiece:
    """New text or a part of a call, with the log probabilities of the tokens since the last one."""

    is_thought: bool
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    call: ToolCallDelta | None = None


class ChoiceText:
    """Splits the deltas of one reply into pieces, without the line breaks around thoughts.

    With `thoughts` inline all text is the answer; dropped ones make no pieces.
    """

    def __init__(self, thoughts: ThoughtsShown) -> None:
        self._splitter = None if thoughts == "inline" else ThoughtSplitter()
        self._drops = thoughts == "dropped"
        self._logprobs: list[TokenLogprob] = []
        #: Whether the last text was a thought.
        self.is_thinking = False
        self._strips = False

    def feed(self, delta: TextDelta | ToolCallDelta) -> Iterator[ReplyPiece]:
        if isinstance(delta, ToolCallDelta):
            self.is_thinking = False
            yield ReplyPiece(False, "", self._taken(), delta)
            return
        self._logprobs += delta.logprobs
        if self._splitter is None:
            yield ReplyPiece(False, delta.text, self._taken())
        else:
            yield from self._pieces(self._splitter.feed(delta.text))

    def finish(self) -> Iterator[ReplyPiece]:
        """What is left, even if that is only log probabilities."""
        if self._splitter is not None:
            yield from self._pieces(self._splitter.finish())
        if self._logprobs and not (self.is_thinking and self._drops):
            yield ReplyPiece(self.is_thinking, "", self._taken())

    def _pieces(self, parts: Iterator[tuple[bool, str]]) -> Iterator[ReplyPiece]:
        for is_thought, text in parts:
            if is_thought != self.is_thinking:
                self.is_thinking, self._strips = is_thought, True
            if self._strips:
                text = text.lstrip("\n")
            if text:
                self._strips = False
                logprobs = self._taken()
                if not (is_thought and self._drops):
                    yield ReplyPiece(is_thought, text, logprobs)

    def _taken(self) -> tuple[TokenLogprob, ...]:
        logprobs, self._logprobs = tuple(self._logprobs), []
        return logprobs
