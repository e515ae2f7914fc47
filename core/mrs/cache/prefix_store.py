"""Stored sequences in radix trees: which there are, in which order used, and where they lie."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch

from mrs.cache.prefix_parts import Holding, states_of
from mrs.cache.prefix_tree import Node, path_of
from mrs.cache.sequence import SequenceCache


@dataclass(eq=False)
class Stored:
    """A sequence that ends at `node`. `live` is its cache, ready to go on, if it is still whole."""

    root: Hashable
    node: Node
    live: SequenceCache | None
    on_device: bool = True


class PrefixStore:
    """Trees by key; sequences of different keys share nothing.

    A *tail* is a node from whose end a sequence can go on although none is stored that ends there,
    because layers that see a window, or that are one state, were remembered.
    """

    def __init__(self, tail_capacity: int) -> None:
        self.roots: dict[Hashable, Node] = {}
        self.sequences: OrderedDict[Node, Stored] = OrderedDict()
        self._tails: OrderedDict[Node, Hashable] = OrderedDict()
        self._tail_capacity = tail_capacity

    def nodes(self) -> Iterator[Node]:
        for root in self.roots.values():
            yield from root.below()

    def own_bytes(self) -> Counter[torch.device]:
        """Bytes by device, without those of live caches."""
        totals: Counter[torch.device] = Counter()
        for node in self.nodes():
            totals.update(node.holding.own_bytes)
        return totals

    def add(
        self, key: Hashable, tokens: Sequence[int], cache: SequenceCache, *, live: bool
    ) -> None:
        """Store a sequence as the one used last; those that it extends become part of it."""
        path = path_of(self.roots.setdefault(key, Node([], 0, None)), tokens)
        end, states = path[-1], states_of(cache)
        for node in path:
            held = Holding.of(cache, node.start, node.end, states if node is end else ())
            node.holding = held.or_wider(node.holding)
        self._count(Stored(key, end, cache if live else None))
        for node in path[:-1]:
            if node in self.sequences:
                self._uncount(self.sequences.pop(node))
                self._keep_tail(node, key)

    def touch(self, node: Node) -> None:
        """A sequence went on from the end of `node`."""
        for order in (self.sequences, self._tails):
            if node in order:
                order.move_to_end(node)

    def take_live(self, stored: Stored, length: int) -> SequenceCache:
        """The live cache of a sequence, rewound to `length`, for another one to go on with.

        What is stored of it after `length`, in whichever tree, is copied first.
        """
        assert stored.live is not None
        cache, stored.live = stored.live, None
        if length < cache.length:
            for node in list(stored.node.lineage()):
                if node.start < length < node.end:
                    node.split(length - node.start)
            for node in self.nodes():
                if node.holding.source is cache and node.end > length:
                    node.holding = node.holding.owned()
            cache.rewind(length)
        return cache

    def release(self, cache: SequenceCache) -> None:
        """Give what the trees see of a cache memory of its own, so that the cache can go."""
        for stored in self.sequences.values():
            if stored.live is cache:
                stored.live = None
        for node in self.nodes():
            if node.holding.source is cache:
                node.holding = node.holding.owned()

    def move(self, stored: Stored, host: torch.device) -> None:
        """Take a sequence from its devices, except for what others there share with it."""
        if stored.live is not None:
            self.release(stored.live)
        stored.on_device = False
        for node in stored.node.lineage():
            node.device_users -= 1
            if not node.device_users:
                node.holding = node.holding.moved(host)

    def drop_oldest(self) -> bool:
        """Forget the tail or else the sequence that was used longest ago; False if none is left."""
        if self._tails:
            self._drop_tail()
        elif self.sequences:
            self._drop_sequence()
        else:
            return False
        return True

    def clear(self) -> int:
        """Forget everything; returns how many sequences there were."""
        count = len(self.sequences)
        for root in self.roots.values():
            root.detach()
        self.roots.clear()
        self.sequences.clear()
        self._tails.clear()
        return count

    def _count(self, stored: Stored) -> None:
        before = self.sequences.pop(stored.node, None)
        if before is not None:
            self._uncount(before)
        self._tails.pop(stored.node, None)
        self.sequences[stored.node] = stored
        for node in stored.node.lineage():
            node.users += 1
            node.device_users += 1

    def _uncount(self, stored: Stored) -> None:
        for node in stored.node.lineage():
            node.users -= 1
            node.device_users -= stored.on_device

    def _keep_tail(self, node: Node, key: Hashable) -> None:
        if node.holding.is_tail:
            self._tails[node] = key
            self._tails.move_to_end(node)
            if len(self._tails) > self._tail_capacity:
                self._drop_tail()

    def _drop_tail(self) -> None:
        """Forget what only a sequence going on from the oldest tail would need."""
        node, _ = self._tails.popitem(last=False)
        children = [child.holding for child in node.children.values()]
        # A child that remembers its first token may need those before it for its window.
        needed = any(h.start in h.first_held().values() for h in children)
        node.holding = node.holding.without_states() if needed else node.holding.without_tail()

    def _drop_sequence(self) -> None:
        _, stored = self.sequences.popitem(last=False)
        self._uncount(stored)
        unused = [node for node in stored.node.lineage() if not node.users]
        if unused:
            unused[-1].detach()
        for node in unused:
            self._tails.pop(node, None)
        if not self.roots[stored.root].children:
            del self.roots[stored.root]
        if stored.live is not None:
            # Others may share a beginning with it that is a view of its whole cache.
            self.release(stored.live)
