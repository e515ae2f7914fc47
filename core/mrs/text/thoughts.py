"""Thoughts at the start of a reply, in the tags that most models use."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def answer_of(reply: str) -> str:
    """A reply without its thoughts; empty if the reply was stopped during its thoughts."""
    if not reply.lstrip().startswith(OPEN):
        return reply
    return reply.partition(CLOSE)[2].lstrip("\n")
