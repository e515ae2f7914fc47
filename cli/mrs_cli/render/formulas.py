"""Formulas in Markdown, as models write them: `\\(…\\)`, `\\[…\\]`, `$…$` and `$$…$$`.

A formula is shown as Unicode text, or as its source if Unicode has no form of it.
"""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

from mrs_cli.render.latex import unicode_math

#: The marks of formulas, each with its end; the longer ones come first.
_MARKS = {"\\(": "\\)", "\\[": "\\]", "$$": "$$", "$": "$"}
#: What tells a formula from words between brackets or amounts of money.
_SIGN = re.compile(r"[\\^_=+<>|]|^.{1,2}$", re.DOTALL)
#: A single dollar opens before a character and closes after one, but not before a digit.
_DOLLARS = re.compile(r"\$(?=\S)([^$\n]*\S)(?<!\\)\$(?!\w)")


def add_formulas(parser: MarkdownIt) -> None:
    """Teaches a parser formulas."""
    parser.inline.ruler.before("escape", "formula", _inline)
    parser.block.ruler.before(
        "fence", "formula", _block, {"alt": ["paragraph", "blockquote", "list"]}
    )


def _inline(state: StateInline, silent: bool) -> bool:
    """A formula, or a mark of one that lacks its end, which stays as it is."""
    mark = next((each for each in _MARKS if state.src.startswith(each, state.pos)), None)
    if mark is None:
        return _lone_mark(state, silent)
    length = _length(state.src[state.pos : state.posMax], mark)
    if length is None:
        return mark[0] == "\\" and _lone_mark(state, silent)
    source = state.src[state.pos : state.pos + length]
    inside = source[len(mark) : -len(mark)]
    shown = unicode_math(inside) if _SIGN.search(inside.strip()) else None
    if not silent:
        _push(state, source if shown is None else shown)
    state.pos += length
    return True


def _length(text: str, mark: str) -> int | None:
    """The length of the formula at the beginning of `text`; None if it has no end."""
    if mark == "$":
        match = _DOLLARS.match(text)
        return match.end() if match and _SIGN.search(match[1]) else None
    end = text.find(_MARKS[mark], len(mark))
    return None if end <= len(mark) else end + len(mark)


def _lone_mark(state: StateInline, silent: bool) -> bool:
    """One of `\\(`, `\\)`, `\\[` and `\\]`, of which Markdown would remove the backslash."""
    text = state.src[state.pos : state.pos + 2]
    if len(text) < 2 or text[0] != "\\" or text[1] not in "()[]":
        return False
    if not silent:
        state.pending += text
    state.pos += 2
    return True


def _push(state: StateInline, text: str) -> None:
    for number, line in enumerate(text.split("\n")):
        if number:
            state.push("hardbreak", "br", 0)
        state.push("text", "", 0).content = line


def _block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Lines of a formula as a paragraph, whatever else they would mean.

    One without an end, which may still arrive, goes to the next empty line.
    """
    first = state.getLines(start, start + 1, state.blkIndent, False).strip()
    mark = next((each for each in ("\\[", "$$") if first.startswith(each)), None)
    if mark is None or state.is_code_block(start):
        return False
    line, close = start, _MARKS[mark]
    while line < end and not state.isEmpty(line):
        text = state.getLines(line, line + 1, state.blkIndent, False)
        line += 1
        if close in (text.strip()[len(mark) :] if line == start + 1 else text):
            break
    if silent:
        return True
    content = state.getLines(start, line, state.blkIndent, False).strip()
    opened = state.push("paragraph_open", "p", 1)
    opened.map = [start, line]
    inline = state.push("inline", "", 0)
    inline.content, inline.map, inline.children = content, [start, line], []
    state.push("paragraph_close", "p", -1)
    state.line = line
    return True
