"""Thoughts at the beginning of a reply, between tags as most models write them."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def answer_of(reply: str) -> str:
    """A reply without its thoughts; nothing is left of one that was stopped while it thought."""
    if not reply.lstrip().startswith(OPEN):
        return reply
    return reply.partition(CLOSE)[2].lstrip("\n")
