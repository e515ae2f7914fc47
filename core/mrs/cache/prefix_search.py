"""Find how far a stored sequence serves a prompt that begins like it."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.cache.layer import CacheRules
from mrs.cache.prefix_tree import Node, matching


def longest_match(
    root: Node, tokens: Sequence[int], limit: int, rules: Sequence[CacheRules]
) -> tuple[list[Node], int] | None:
    """The longest match of one tree from which a sequence can go on: its nodes and its length.

    `rules` are those of all parts of a cache.
    """
    path, length = matching(root, tokens)
    length = min(length, limit)
    while path:
        while path and path[-1].start >= length:
            path.pop()
        if path and all(node.holding.serves(rules, length) for node in path):
            return path, length
        # Within a node, what a shorter match needs is never more at hand.
        length = path[-1].start if path else 0
    return None
