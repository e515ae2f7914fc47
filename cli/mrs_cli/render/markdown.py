"""Markdown that is rendered while it arrives."""

from __future__ import annotations

import re
import time
from itertools import accumulate, pairwise
from typing import Any, ClassVar

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import Control
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.segment import ControlType, Segment, Segments
from rich.syntax import Syntax

from mrs_cli.render.formulas import add_formulas
from mrs_cli.render.theme import TEXT_COLUMNS

REDRAW_S = 0.08
Line = list[Segment]


class _LeftHeading(Heading):
    """A heading at the left margin."""

    LEVEL_ALIGN: ClassVar[dict[str, Any]] = {}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text


class _BareCode(CodeBlock):
    """Code without frame, margin or background, which can be copied unchanged."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(
            code, self.lexer_name, theme="ansi_dark", background_color="default", word_wrap=True
        )


class ReplyMarkdown(Markdown):
    """Markdown as models write it: line breaks are kept, and HTML is ordinary text."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _BareCode,
        "code_block": _BareCode,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False)
        self.markup = text
        self.parsed = _parse(text)
        for token in self.parsed:
            for child in token.children or ():
                if child.type == "softbreak":
                    child.type = "hardbreak"


def _parse(text: str) -> list[Any]:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    add_formulas(parser)
    # Link definitions would be invisible, but a reply must be shown completely.
    return parser.disable("reference").parse(text)


def split_finished(text: str) -> tuple[list[str], str]:
    """The blocks that further text cannot change, and the rest."""
    starts = [
        token.map[0]
        for token in _parse(text)
        if token.level == 0 and token.map and token.nesting >= 0
    ]
    if len(starts) < 2:
        return [], text
    lines = re.split("(?<=\n)", text)
    bounds = [0, *starts[1:]]
    blocks = ["".join(lines[start:end]) for start, end in pairwise(bounds)]
    return blocks, "".join(lines[starts[-1] :])


class MarkdownStream:
    """Shows a reply while it arrives.

    Finished blocks are printed once. Only the open block is redrawn, and only as many lines of it
    as fit on the screen, so that the scrollback neither loses nor repeats lines. `has_shown` says
    whether a block was printed.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open_text = ""
        self.has_shown = False
        self._style = "none"
        self._drawn_at = 0.0
        self._drawn_cells: list[int] = []

    def restyle(self, style: str) -> None:
        """Further text begins a new block, in this style of the console's theme."""
        if style != self._style:
            self.finish()
            self._style = style

    def feed(self, text: str) -> None:
        """Adds text; the screen follows at most every `REDRAW_S` seconds."""
        self._open_text += text
        now = time.monotonic()
        if now - self._drawn_at < REDRAW_S:
            return
        self._drawn_at = now
        finished, self._open_text = split_finished(self._open_text)
        with self._console:  # a single write avoids flicker
            self._console.show_cursor(False)
            self._erase()
            for block in finished:
                self._print(block)
            self._draw()

    def finish(self) -> None:
        """Prints the last block."""
        with self._console:
            self._erase()
            if self._open_text.strip():
                self._print(self._open_text)
            self._open_text = ""
            self._console.show_cursor(True)

    def _print(self, block: str) -> None:
        self._write(self._lines(block))
        self._console.print()
        self.has_shown = True

    def _draw(self) -> None:
        """The last lines of the open block; the cursor stays at the end of the last one.

        They would fit on a screen of half the width, too: what leaves the screen when a terminal
        is made narrower can no longer be erased.
        """
        lines = self._lines(self._open_text)
        cells = [sum(part.cell_length for part in line) for line in lines]
        rows = accumulate(_rows(each, self._console.width // 2) for each in reversed(cells))
        count = sum(1 for total in rows if total <= self._console.height - 2)
        shown = slice(-max(1, count), None)
        self._write(lines[shown])
        self._drawn_cells = cells[shown]

    def _lines(self, text: str) -> list[Line]:
        """`text` rendered, after an empty line unless it is the first block."""
        options = self._console.options.update(width=min(self._console.width, TEXT_COLUMNS))
        style = self._console.get_style(self._style)
        rendered = self._console.render_lines(ReplyMarkdown(text), options, style=style, pad=False)
        lines = [_trimmed(line) for line in rendered]
        while lines and not lines[0]:
            lines.pop(0)
        while lines and not lines[-1]:
            lines.pop()
        return [[], *lines] if self.has_shown else lines

    def _write(self, lines: list[Line]) -> None:
        parts = [part for line in lines for part in (Segment.line(), *line)]
        self._console.print(Segments(parts[1:]), end="")

    def _erase(self) -> None:
        """Erases the open block; a terminal made narrower meanwhile has wrapped its lines."""
        rows = sum(_rows(cells, self._console.width) for cells in self._drawn_cells)
        erase = (ControlType.ERASE_IN_LINE, 2)
        self._console.control(Control(ControlType.CARRIAGE_RETURN, erase))
        for _ in range(rows - 1):
            self._console.control(Control((ControlType.CURSOR_UP, 1), erase))
        self._drawn_cells = []


def _rows(cells: int, columns: int) -> int:
    """The rows that a line takes on a terminal."""
    return max(1, -(-cells // max(1, columns)))


def _trimmed(line: Line) -> Line:
    """`line` without trailing spaces."""
    while line and not line[-1].text.strip():
        line = line[:-1]
    return [*line[:-1], Segment(line[-1].text.rstrip(), line[-1].style)] if line else []
