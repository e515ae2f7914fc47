"""A radix tree over token ids: a common beginning of sequences is in it once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mrs.cache.layer_cache import CacheRules
from mrs.cache.prefix.snapshot import PrefixSnapshot


class Node:
    """Tokens from position `start` on, of all sequences that begin with the parents' tokens.

    `users` counts the stored sequences that end here or below.
    """

    def __init__(self, tokens: list[int], start: int, parent: Node | None) -> None:
        self.tokens = tokens
        self.start = start
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.snapshot = PrefixSnapshot(start, self.end)
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
        upper.snapshot, self.snapshot = self.snapshot.split(self.start + count)
        upper.users = self.users
        self.tokens, self.start, self.parent = self.tokens[count:], upper.end, upper
        upper.children = {self.tokens[0]: self}
        return upper

    def detach(self) -> None:
        """Remove this node and all below it, and release what they store."""
        for node in self.below():
            node.snapshot.release()
        if self.parent is not None:
            del self.parent.children[self.tokens[0]]


def matching(root: Node, tokens: Sequence[int]) -> tuple[list[Node], int]:
    """The nodes that `tokens` begins with, and how many tokens match.

    The last node may match in part.
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
    """The nodes of exactly `tokens`; nodes are split and added where needed."""
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
        whole = path[-1].snapshot.resumable(length) if path else length
        if whole < length:
            length = whole
            continue
        if path and all(node.snapshot.serves(rules, length) for node in path):
            return path, length
        # A shorter match within the same node would lack the same parts.
        length = path[-1].start if path else 0
    return None
