"""Thoughts at the start of a reply, in the tags that most models use."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def split_thought(reply: str) -> tuple[str | None, str]:
    """The thought at the start of a reply and its answer; the thought is None without tags.

    The answer is empty if the reply was stopped during its thought.
    """
    start = reply.lstrip()
    if not start.startswith(OPEN):
        return None, reply
    thought, _, answer = start.removeprefix(OPEN).partition(CLOSE)
    return thought.strip("\n"), answer.lstrip("\n")
