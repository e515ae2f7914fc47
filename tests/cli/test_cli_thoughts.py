"""Thoughts at the beginning of a reply are told from the answer, however they arrive."""

from __future__ import annotations

from itertools import groupby

import pytest

from mrs.text.thought_splitter import ThoughtSplitter


def split(*pieces: str) -> list[tuple[bool, str]]:
    splitter = ThoughtSplitter()
    parts = [part for piece in pieces for part in splitter.feed(piece)]
    parts += splitter.finish()
    joined = groupby(parts, key=lambda part: part[0])
    return [(thought, "".join(text for _, text in group)) for thought, group in joined]


@pytest.mark.parametrize(
    ("reply", "parts"),
    [
        ("<think>a < b</think>yes", [(True, "a < b"), (False, "yes")]),
        ("\n<think>\na\n</think>\n\nyes", [(True, "\na\n"), (False, "\n\nyes")]),
        ("<think></think>yes", [(False, "yes")]),
        ("<think>a</thin", [(True, "a</thin")]),
        ("<think>a</think>b <think>c</think>", [(True, "a"), (False, "b <think>c</think>")]),
        ("yes <think>a</think>", [(False, "yes <think>a</think>")]),
        ("<thinker", [(False, "<thinker")]),
        ("<th", [(False, "<th")]),
        ("  \n", [(False, "  \n")]),
        ("a</think>b", [(False, "a</think>b")]),
        ("", []),
    ],
)
def test_every_way_to_cut_a_reply_gives_the_same(reply, parts):
    assert split(reply) == parts
    assert split(*reply) == parts
    for cut in range(len(reply)):
        assert split(reply[:cut], reply[cut:]) == parts


def test_nothing_certain_is_held_back():
    splitter = ThoughtSplitter()
    assert [*splitter.feed("<think>one <")] == [(True, "one ")]
    assert [*splitter.feed("2")] == [(True, "<2")]
    assert [*splitter.feed("</think>two <")] == [(False, "two <")]
