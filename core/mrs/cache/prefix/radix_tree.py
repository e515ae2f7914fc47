"""A radix tree over token ids: what sequences have in common is in it once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mrs.cache.layer_cache import CacheRules
from mrs.cache.prefix.snapshot import Holding


class Node:
    """The stretch `tokens` of all sequences that begin as the parents say.

    It stands at position `start` of them. `users` counts the stored sequences that end here or
    below.
    """

    def __init__(self, tokens: list[int], start: int, parent: Node | None) -> None:
        self.tokens = tokens
        self.start = start
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.holding = Holding(start, self.end)
        self.users = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def lineage(self) -> Iterator[Node]:
        """This node and those above it, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def below(self) -> Iterator[Node]:
        """This node and all under it."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children.values())
            yield node

    def split(self, count: int) -> Node:
        """Cut off the first `count` tokens as a parent of the rest; returns that parent."""
        assert self.parent is not None
        upper = Node(self.tokens[:count], self.start, self.parent)
        self.parent.children[upper.tokens[0]] = upper
        upper.holding, self.holding = self.holding.split(self.start + count)
        upper.users = self.users
        self.tokens, self.start, self.parent = self.tokens[count:], upper.end, upper
        upper.children = {self.tokens[0]: self}
        return upper

    def detach(self) -> None:
        """Forget this node and all under it, and what they keep."""
        for node in self.below():
            node.holding.release()
        if self.parent is not None:
            del self.parent.children[self.tokens[0]]


def matching(root: Node, tokens: Sequence[int]) -> tuple[list[Node], int]:
    """The nodes whose tokens `tokens` begins with, and how many tokens that are.

    Of the last node perhaps not all tokens count.
    """
    path: list[Node] = []
    node, position = root, 0
    while position < len(tokens):
        child = node.children.get(tokens[position])
        if child is None:
            break
        count = _common(child.tokens, tokens, position)
        path.append(child)
        position += count
        if count < len(child.tokens):
            break
        node = child
    return path, position


def path_of(root: Node, tokens: Sequence[int]) -> list[Node]:
    """The nodes of exactly `tokens`, made by splitting and adding what is not there."""
    path, position = matching(root, tokens)
    if path and position < path[-1].end:
        path[-1] = path[-1].split(position - path[-1].start)
    if position < len(tokens):
        parent = path[-1] if path else root
        node = Node(list(tokens[position:]), position, parent)
        parent.children[node.tokens[0]] = node
        path.append(node)
    return path


def _common(edge: list[int], tokens: Sequence[int], start: int) -> int:
    """How many tokens an edge shares with `tokens` from `start` on."""
    other = tokens[start : start + len(edge)]
    if edge == other:
        return len(edge)
    return next(
        (i for i, (a, b) in enumerate(zip(edge, other, strict=False)) if a != b),
        min(len(edge), len(other)),
    )


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
