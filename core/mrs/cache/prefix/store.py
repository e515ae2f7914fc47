"""Stored sequences in radix trees, and the order in which they were used."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from mrs.cache.layer_cache import CacheRules, MemoryTally
from mrs.cache.prefix.radix_tree import Node, path_of
from mrs.cache.prefix.snapshot import PrefixSnapshot
from mrs.cache.sequence_cache import SequenceCache


class Stored(NamedTuple):
    """A sequence that ends at `node`, in the tree of `root`."""

    root: Hashable
    node: Node


class PrefixStore:
    """Trees by key; sequences of different keys share nothing.

    A *tail* is a node at whose end an earlier turn of a stored sequence ended. It still has that
    turn's windows and states, so that a sequence can go on from there. `rules` are those of all
    parts of a cache.

    `most_bytes` is never less than what `own_bytes` would count, whatever running sequences do: it
    grows by all that the path of a new sequence has, and counting makes it smaller again. Counting
    takes time in proportion to all nodes.
    """

    def __init__(self, tail_capacity: int, rules: Sequence[CacheRules]) -> None:
        self.roots: dict[Hashable, Node] = {}
        self.most_bytes: Counter[torch.device] = Counter()
        self.sequences: OrderedDict[Node, Stored] = OrderedDict()
        self._tails: OrderedDict[Node, Hashable] = OrderedDict()
        self._tail_capacity = tail_capacity
        self._rules = rules

    def nodes(self) -> Iterator[Node]:
        for root in self.roots.values():
            yield from root.below()

    def own_bytes(self, *, with_blocks: bool = True) -> Counter[torch.device]:
        """Bytes by device, without those of blocks that running sequences refer to."""
        tally = _tally(self.nodes())
        self.most_bytes = tally.most_bytes()
        return tally.total_bytes() if with_blocks else tally.own_bytes

    def add(self, key: Hashable, tokens: Sequence[int], cache: SequenceCache) -> None:
        """Store a sequence as the one used last, instead of those that it extends."""
        path = path_of(self.roots.setdefault(key, Node([], 0, None)), tokens)
        for node in path:
            node.snapshot = node.snapshot.merge(PrefixSnapshot.of(cache, node.start, node.end))
        self.most_bytes += _tally(path).most_bytes()
        self._count(Stored(key, path[-1]))
        for node in path[:-1]:
            if node in self.sequences:
                self._uncount(self.sequences.pop(node))
                self._keep_tail(node, key)

    def touch(self, node: Node) -> None:
        """Count the end of `node` as used now."""
        for order in (self.sequences, self._tails):
            if node in order:
                order.move_to_end(node)

    def drop_oldest(self) -> bool:
        """Drop the tail, or else the sequence, that was used longest ago; False if none is left."""
        if self._tails:
            self._drop_tail()
        elif self.sequences:
            self._drop_sequence()
        else:
            return False
        return True

    def _count(self, stored: Stored) -> None:
        before = self.sequences.pop(stored.node, None)
        if before is not None:
            self._uncount(before)
        self._tails.pop(stored.node, None)
        self.sequences[stored.node] = stored
        for node in stored.node.lineage():
            node.users += 1

    def _uncount(self, stored: Stored) -> None:
        for node in stored.node.lineage():
            node.users -= 1

    def _keep_tail(self, node: Node, key: Hashable) -> None:
        parts = zip(self._rules, node.snapshot.parts, strict=True)
        if any(snapshot_part is not None and not part.keeps_all for part, snapshot_part in parts):
            self._tails[node] = key
            self._tails.move_to_end(node)
            if len(self._tails) > self._tail_capacity:
                self._drop_tail()

    def _drop_tail(self) -> None:
        """Drop what only sequences that go on from the oldest tail need."""
        node, _ = self._tails.popitem(last=False)
        below = [child.snapshot for child in node.children.values()]

        def is_needed(number: int) -> bool:
            """Whether the window of a child, which has its first token, reaches back to here."""
            snapshot_parts = (snapshot.parts[number] for snapshot in below)
            return any(part is not None and part.first == node.end for part in snapshot_parts)

        def is_dropped(number: int) -> bool:
            part = self._rules[number]
            return part.is_state or not (part.keeps_all or is_needed(number))

        node.snapshot = node.snapshot.without(is_dropped)

    def _drop_sequence(self) -> None:
        _, stored = self.sequences.popitem(last=False)
        self._uncount(stored)
        unused = [node for node in stored.node.lineage() if not node.users]
        if not unused:
            return
        unused[-1].detach()
        for node in unused:
            self._tails.pop(node, None)
        if not self.roots[stored.root].children:
            del self.roots[stored.root]


def _tally(nodes: Iterable[Node]) -> MemoryTally:
    tally = MemoryTally()
    for node in nodes:
        for part in filter(None, node.snapshot.parts):
            part.count(tally)
    return tally
