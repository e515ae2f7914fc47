"""Markdown that arrives in pieces ends on the screen as if it had come at once."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mrs_runs import screen
from rich.console import Console

from mrs_cli.render import markdown
from mrs_cli.render.markdown import MarkdownStream, split_finished

DOCUMENT = """# Title

Some **bold** text
on two lines. <b>html</b>

- one
- two
  - nested

1. first

```python
x = 1

y = 2
```

| a | b |
|---|--:|
| 1 | 2 |

[ref]: http://example.org

> quote

Wide: \u4f60\u597d

End.
"""


def streamed(pieces: list[str], height: int = 12) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60, height=height, color_system=None)
    stream = MarkdownStream(console)
    for piece in pieces:
        stream.feed(piece)
    stream.finish()
    return screen(out.getvalue(), height)


@pytest.fixture(autouse=True)
def _draw_every_piece(monkeypatch):
    monkeypatch.setattr(markdown, "REDRAW_S", 0)


def test_the_whole_document():
    shown = streamed([DOCUMENT], height=100)
    text = "\n".join(shown)
    for expected in ("Title", "Some bold text\non two lines. <b>html</b>", " \u2022 one", "x = 1"):
        assert expected in text
    assert "[ref]: http://example.org" in text
    assert "\n\n\n" not in text


@pytest.mark.values
@pytest.mark.parametrize("size", [1, 3, 17])
@pytest.mark.parametrize("height", [4, 12, 100])
def test_pieces_end_like_the_whole(size, height):
    pieces = [DOCUMENT[start : start + size] for start in range(0, len(DOCUMENT), size)]
    assert streamed(pieces, height) == streamed([DOCUMENT], 100)


@pytest.mark.parametrize(
    "block", ["```\n" + "code\n" * 40 + "```", "\n".join(f"- item {n}" for n in range(40))]
)
def test_a_block_taller_than_the_screen_is_neither_lost_nor_doubled(block):
    pieces = re.findall(r"\s*\S+", f"Before.\n\n{block}\n\nAfter.")
    assert streamed(pieces, 10) == streamed(["".join(pieces)], 200)


MARKS = st.sampled_from(
    [
        "a",
        " ",
        "\n",
        "\n\n",
        "- ",
        "1. ",
        "# ",
        "```\n",
        "**",
        "`",
        "> ",
        "|",
        "---",
        "  ",
        "x\n",
        "\t",
    ]
)


@settings(deadline=None, max_examples=60)
@given(st.lists(MARKS, max_size=30))
def test_splitting_loses_nothing(marks):
    text = "".join(marks)
    finished, rest = split_finished(text)
    assert "".join(finished) + rest == text
    assert not finished or rest


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(["- a\n", "1. b\n", "\n", "c d\n", "  e\n", "# f\n"]), max_size=14))
def test_every_word_is_shown_once(lines):
    shown = " ".join(streamed(lines))
    for letter in "abcdef":
        assert shown.count(letter) == "".join(lines).count(letter)


@pytest.mark.parametrize("width", [23, 59, 90])
def test_a_terminal_that_changes_its_width_keeps_no_stray_line(width):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60, height=99, color_system=None)
    stream = MarkdownStream(console)
    stream.feed("Before.\n\n" + "many words " * 20)
    lines = screen(out.getvalue(), 99)
    wrapped = [part for line in lines for part in re.findall(f".{{1,{width}}}", line) or [""]]
    out.truncate(out.seek(0))
    console.width = width
    stream.feed("and more")
    stream.finish()
    shown = screen(out.getvalue(), 99, tuple(wrapped))
    assert " ".join(" ".join(shown).split()) == "Before. " + "many words " * 20 + "and more"
    assert max(map(len, shown)) <= width


def test_an_open_block_fits_a_terminal_of_half_the_width():
    """Rows that left the screen could not be erased: the block would be there twice."""
    out = io.StringIO()
    console = Console(file=out, width=40, height=12, force_terminal=True, color_system=None)
    stream = MarkdownStream(console)
    stream.feed("word " * 200)
    out.truncate(0)
    console.width = 20
    stream.feed("more")
    assert 5 < out.getvalue().count("\x1b[1A") < 12
