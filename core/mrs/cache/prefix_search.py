"""Find how far a stored sequence serves a prompt that begins like it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mrs.cache.prefix_tree import Node, matching


def longest_match(
    root: Node, tokens: Sequence[int], limit: int, reaches: Collection[int], has_states: bool
) -> tuple[list[Node], int] | None:
    """The longest match of one tree from which a sequence can go on: its nodes and its length.

    Layers look back as far as `reaches` say, and with `has_states` some have one state.
    """
    path, length = matching(root, tokens)
    length = min(length, limit)
    while path:
        while path and path[-1].start >= length:
            path.pop()
        if path and _can_go_on(path, length, reaches, has_states):
            return path, length
        # Within a node, what a shorter match needs is never more at hand.
        length = path[-1].start if path else 0
    return None


def _can_go_on(path: list[Node], length: int, reaches: Collection[int], has_states: bool) -> bool:
    if has_states and not (path[-1].end == length and path[-1].holding.states):
        return False
    return all(_held_from(path, length, reach) <= max(0, length - reach) for reach in reaches)


def _held_from(path: list[Node], length: int, reach: int) -> int:
    """The first token from which on all up to `length` are held by the layers of one reach."""
    held = length
    for node in reversed(path):
        first = node.holding.first_held().get(reach, node.end)
        if first >= held:
            break
        held = first
        if first > node.start:
            break
    return held
