"""Makes the blocks and events of Anthropic's interface from the pieces of a reply."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from mrs.server.replies.blocks import ReplyBlocks
from mrs.server.replies.choice_text import ReplyPiece
from mrs.server.replies.reader import ChoiceEnd
from mrs.server.schemas.messages_blocks import ReplyBlock, TextBlock, ThinkingBlock, ToolUseBlock
from mrs.server.schemas.messages_response import (
    AddedJson,
    AddedText,
    AddedThinking,
    BlockDelta,
    BlockStart,
    BlockStop,
    MessageEnd,
    StopReason,
)

BlockEvent = BlockStart | BlockDelta | BlockStop


class MessageBlocks:
    """Collects the blocks of a reply in `content`, and says what each piece changes."""

    def __init__(self) -> None:
        self.content: list[ReplyBlock] = []
        self._blocks = ReplyBlocks()
        self._open: ReplyBlock | None = None
        self._texts: list[str] = []

    def add(self, piece: ReplyPiece) -> Iterator[BlockEvent]:
        for part in self._blocks.add(piece):
            if part.begins:
                yield from self.finish()
                self._open = _begun(part.piece)
                yield BlockStart(index=len(self.content), content_block=_begun(part.piece))
            text = part.piece.text if part.piece.call is None else part.piece.call.arguments
            if text:
                self._texts.append(text)
                yield BlockDelta(index=len(self.content), delta=_delta(part.piece, text))

    def finish(self) -> Iterator[BlockEvent]:
        """The end of the last block."""
        if self._open is None:
            return
        block, text = self._open, "".join(self._texts)
        if isinstance(block, ToolUseBlock):
            block.input = _object(text)
        elif isinstance(block, ThinkingBlock):
            block.thinking = text
        else:
            block.text = text
        self.content.append(block)
        self._open, self._texts = None, []
        yield BlockStop(index=len(self.content) - 1)


def end_of(end: ChoiceEnd) -> MessageEnd:
    """Why the reply has ended, in the words of Anthropic's interface."""
    reasons: dict[str, StopReason] = {"length": "max_tokens", "tool_calls": "tool_use"}
    reason = "stop_sequence" if end.stop_string is not None else reasons.get(end.reason, "end_turn")
    return MessageEnd(stop_reason=reason, stop_sequence=end.stop_string)


def _begun(piece: ReplyPiece) -> ReplyBlock:
    """The empty block that begins with a piece."""
    if piece.call is not None:
        return ToolUseBlock(id=piece.call.id or "", name=piece.call.name or "", input={})
    return ThinkingBlock(thinking="") if piece.is_thought else TextBlock(text="")


def _delta(piece: ReplyPiece, text: str) -> AddedText | AddedThinking | AddedJson:
    if piece.call is not None:
        return AddedJson(partial_json=text)
    return AddedThinking(thinking=text) if piece.is_thought else AddedText(text=text)


def _object(arguments: str) -> dict[str, Any]:
    """The arguments of a call; those of one that was cut off are not JSON, and are left out."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
