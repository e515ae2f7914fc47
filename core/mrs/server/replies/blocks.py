"""Groups the pieces of one reply into blocks: thoughts, a text, or one call of a tool."""

from __future__ import annotations

from dataclasses import dataclass

from mrs.server.replies.choice_text import ReplyPiece


@dataclass(frozen=True)
class BlockPart:
    """A piece of a block. The one that `begins` a block is its first, and ends the block before."""

    piece: ReplyPiece
    begins: bool


class ReplyBlocks:
    """Tells where blocks begin. White space between blocks, or at the end, is in none of them."""

    def __init__(self) -> None:
        self._key: tuple[str, int] | None = None
        self._blank: list[ReplyPiece] = []

    def add(self, piece: ReplyPiece) -> list[BlockPart]:
        """The parts that are certain with the next piece."""
        key = _key(piece)
        if key == self._key:
            return [BlockPart(piece, begins=False)]
        if piece.call is None and not piece.text.strip():
            self._blank.append(piece)
            return []
        before = [each for each in self._blank if _key(each) == key]
        self._key, self._blank = key, []
        first, *others = [*before, piece]
        return [BlockPart(first, begins=True), *(BlockPart(each, begins=False) for each in others)]


def _key(piece: ReplyPiece) -> tuple[str, int]:
    """Pieces with the same key in a row are of the same block."""
    if piece.call is not None:
        return "call", piece.call.index
    return ("thoughts" if piece.is_thought else "text"), 0
