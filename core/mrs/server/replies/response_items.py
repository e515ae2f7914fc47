"""Makes the items and events of OpenAI's Responses interface from the pieces of a reply."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TypedDict
from uuid import uuid4

from mrs.api.chunk_stream import logprobs_of
from mrs.api.responses import ResponseLogprob
from mrs.events import ToolCallDelta
from mrs.server.replies.blocks import ReplyBlocks
from mrs.server.replies.choice_text import ReplyPiece
from mrs.server.schemas.responses_items import (
    FunctionCallItem,
    OutputItem,
    OutputMessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Status,
)
from mrs.server.schemas.responses_response import (
    ArgumentsDelta,
    ArgumentsDone,
    ItemAdded,
    ItemDone,
    ItemEvent,
    OutputTextDelta,
    OutputTextDone,
    PartAdded,
    PartDone,
    ReasoningTextDelta,
    ReasoningTextDone,
)


class ResponseItems:
    """Collects the items of a reply in `output`, and says what each piece changes."""

    def __init__(self) -> None:
        self.output: list[OutputItem] = []
        self._blocks = ReplyBlocks()
        self._open: _Open | None = None

    def add(self, piece: ReplyPiece) -> Iterator[ItemEvent]:
        for part in self._blocks.add(piece):
            if part.begins:
                yield from self.finish()
                self._open = _opened(len(self.output), part.piece)
                yield from self._open.begin()
            assert self._open is not None
            yield from self._open.add(part.piece)

    def finish(self, status: Status = "completed") -> Iterator[ItemEvent]:
        """The end of the last item."""
        if self._open is not None:
            yield from self._open.end(status)
            item = self._open.item(status)
            self.output.append(item)
            yield ItemDone(output_index=len(self.output) - 1, item=item)
            self._open = None


class _Open(ABC):
    """An item that grows."""

    prefix: str

    def __init__(self, index: int) -> None:
        self.id = f"{self.prefix}{uuid4().hex}"
        self.place: _Place = {"output_index": index, "item_id": self.id}
        self.texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def begin(self) -> Iterator[ItemEvent]:
        yield ItemAdded(output_index=self.place["output_index"], item=self.item("in_progress"))

    @abstractmethod
    def add(self, piece: ReplyPiece) -> Iterator[ItemEvent]:
        """Grow by a piece."""

    @abstractmethod
    def end(self, status: Status) -> Iterator[ItemEvent]:
        """The events before the one that has the item."""

    @abstractmethod
    def item(self, status: Status) -> OutputItem:
        """The item as it is now."""


class _OpenMessage(_Open):
    """Its one part is a text."""

    prefix = "msg_"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._logprobs: list[ResponseLogprob] = []

    @property
    def _part(self) -> OutputText:
        return OutputText(text=self.text, logprobs=self._logprobs)

    def begin(self) -> Iterator[ItemEvent]:
        yield from super().begin()
        yield PartAdded(**self.place, part=OutputText(text=""))

    def add(self, piece: ReplyPiece) -> Iterator[ItemEvent]:
        token_logprobs = logprobs_of(piece.logprobs)
        logprobs = token_logprobs.content if token_logprobs is not None else []
        self.texts.append(piece.text)
        self._logprobs += logprobs
        yield OutputTextDelta(**self.place, delta=piece.text, logprobs=logprobs)

    def end(self, status: Status) -> Iterator[ItemEvent]:
        part = self._part
        yield OutputTextDone(**self.place, text=part.text, logprobs=part.logprobs)
        yield PartDone(**self.place, part=part)

    def item(self, status: Status) -> OutputItem:
        content = [] if status == "in_progress" else [self._part]
        return OutputMessageItem(id=self.id, content=content, status=status)


class _OpenThoughts(_Open):
    """Its one part is a text."""

    prefix = "rs_"

    def begin(self) -> Iterator[ItemEvent]:
        yield from super().begin()
        yield PartAdded(**self.place, part=ReasoningText(text=""))

    def add(self, piece: ReplyPiece) -> Iterator[ItemEvent]:
        self.texts.append(piece.text)
        yield ReasoningTextDelta(**self.place, delta=piece.text)

    def end(self, status: Status) -> Iterator[ItemEvent]:
        yield ReasoningTextDone(**self.place, text=self.text)
        yield PartDone(**self.place, part=ReasoningText(text=self.text))

    def item(self, status: Status) -> OutputItem:
        content = [] if status == "in_progress" else [ReasoningText(text=self.text)]
        return ReasoningItem(id=self.id, content=content, status=status)


class _OpenCall(_Open):
    """It has no parts: its arguments are JSON."""

    prefix = "fc_"

    def __init__(self, index: int, call: ToolCallDelta) -> None:
        super().__init__(index)
        self._call_id, self._name = call.id or "", call.name or ""

    def add(self, piece: ReplyPiece) -> Iterator[ItemEvent]:
        if piece.call is not None and piece.call.arguments:
            self.texts.append(piece.call.arguments)
            yield ArgumentsDelta(**self.place, delta=piece.call.arguments)

    def end(self, status: Status) -> Iterator[ItemEvent]:
        yield ArgumentsDone(**self.place, name=self._name, arguments=self.text)

    def item(self, status: Status) -> OutputItem:
        return FunctionCallItem(
            id=self.id,
            call_id=self._call_id,
            name=self._name,
            arguments=self.text,
            status=status,
        )


class _Place(TypedDict):
    output_index: int
    item_id: str


def _opened(index: int, piece: ReplyPiece) -> _Open:
    if piece.call is not None:
        return _OpenCall(index, piece.call)
    return _OpenThoughts(index) if piece.is_thought else _OpenMessage(index)
