"""Markdown that is rendered while it arrives."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, ClassVar

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.segment import Segment
from rich.syntax import Syntax

from mrs_cli.render.theme import TEXT_COLUMNS

REDRAW_S = 0.08


class _LeftHeading(Heading):
    """A heading at the left margin."""

    LEVEL_ALIGN: ClassVar[dict[str, Any]] = {}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text


class _BareCode(CodeBlock):
    """Code without frame, margin or background, so that it can be copied as it is."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(
            code, self.lexer_name, theme="ansi_dark", background_color="default", word_wrap=True
        )


class ReplyMarkdown(Markdown):
    """Markdown as models write it: line breaks count, and HTML is text like any other."""

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
    # A definition of a link shows nothing: no text of a reply may vanish.
    return parser.disable("reference").parse(text)


def split_finished(text: str) -> tuple[list[str], str]:
    """The blocks that further text cannot change, and the open rest."""
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


class _Tail:
    """The last lines of a block, as many as the screen holds."""

    def __init__(self, lines: list[list[Segment]]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in self._lines:
            yield from line
            yield Segment.line()


class MarkdownStream:
    """Shows a reply while it arrives.

    Finished blocks are printed for good; only the open one is redrawn, and of that no more than
    the screen holds, so that nothing is lost from or doubled in the scrollback.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open_text = ""
        self._printed_any = False
        self._drawn_at = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def start(self) -> None:
        self._live.start()

    def stop(self) -> None:
        """Prints the last block for good."""
        self._live.stop()
        if self._open_text.strip():
            self._print(self._open_text)

    def feed(self, text: str) -> None:
        """Adds text; the screen follows at most every `REDRAW_S` seconds."""
        self._open_text += text
        now = time.monotonic()
        if now - self._drawn_at < REDRAW_S:
            return
        self._drawn_at = now
        finished, self._open_text = split_finished(self._open_text)
        for block in finished:
            self._print(block)
        self._live.update(self._tail(), refresh=True)

    def _print(self, block: str) -> None:
        if self._printed_any:
            self._console.print()
        self._printed_any = True
        self._console.print(ReplyMarkdown(block), width=self._width)

    def _tail(self) -> _Tail:
        lines = self._console.render_lines(
            ReplyMarkdown(self._open_text),
            self._console.options.update(width=self._width),
            pad=False,
        )
        if self._printed_any:
            lines = [[], *lines]
        return _Tail(lines[-max(1, self._console.height - 2) :])

    @property
    def _width(self) -> int:
        return min(self._console.width, TEXT_COLUMNS)
