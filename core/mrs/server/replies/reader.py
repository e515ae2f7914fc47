"""Reads the replies of a group: their pieces of text, and what they cost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from mrs.engine.reply_events import ReplyEvents
from mrs.events import Finished, ReplyUsage
from mrs.request import Sampling
from mrs.server.replies.choice_text import ChoiceText, ReplyPiece
from mrs.server.replies.group import ReplyGroup
from mrs.server.schemas.thinking import ThoughtsShown
from mrs.server.schemas.usage import UsageBody, usage_body


@dataclass(frozen=True)
class ChoiceEnd:
    """The last event of a reply; `stop_string` is the one of the request that has ended it."""

    reason: str
    stop_string: str | None = None


class ReplyReader:
    """Iterates over (index, piece or end) of all replies; then `usage` is complete.

    `thoughts` says whether thoughts are pieces of their own. `choices` replies in a row have the
    same prompt. `on_finish` is called for each reply that is complete.
    """

    def __init__(
        self,
        group: ReplyGroup,
        on_finish: Callable[[ReplyEvents, Finished], None],
        *,
        choices: int,
        thoughts: ThoughtsShown,
    ) -> None:
        self._group = group
        self._on_finish = on_finish
        self._choices = choices
        self._texts = [ChoiceText(thoughts) for _ in group.replies]
        self._usages: dict[int, ReplyUsage] = {}

    async def read(self) -> AsyncIterator[tuple[int, ReplyPiece | ChoiceEnd]]:
        async for index, event in self._group:
            text = self._texts[index]
            pieces = text.finish() if isinstance(event, Finished) else text.feed(event)
            for piece in pieces:
                yield index, piece
            if isinstance(event, Finished):
                self._usages[index] = event.usage
                self._on_finish(self._group.events_of(index), event)
                yield index, ChoiceEnd(event.reason, event.stop_string)

    def keep(self) -> None:
        """Count what is read until the request ends: a whole answer is made of it."""
        self._group.keep()

    async def read_all(self) -> tuple[list[list[ReplyPiece]], list[str]]:
        """The pieces of each reply, and the reason of each end."""
        pieces: list[list[ReplyPiece]] = [[] for _ in self._texts]
        reasons = [""] * len(pieces)
        self.keep()
        async for index, event in self.read():
            if isinstance(event, ChoiceEnd):
                reasons[index] = event.reason
            else:
                pieces[index].append(event)
        return pieces, reasons

    def events_of(self, index: int) -> ReplyEvents:
        """The events of a reply."""
        return self._group.events_of(index)

    @property
    def sampling(self) -> Sampling:
        """The settings of the first reply."""
        return self._group.events_of(0).sequence.sampler.sampling

    @property
    def prompt_tokens(self) -> int:
        """The tokens of the first reply's prompt."""
        return self._group.events_of(0).sequence.num_prompt_tokens

    @property
    def usage(self) -> UsageBody:
        usages = [usage for _, usage in sorted(self._usages.items())]
        return usage_body(usages, choices=self._choices)
