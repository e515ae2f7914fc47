"""Which blocks have the rests of quantized keys and values (`mrs.kernels.kv_codes`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mrs.kernels.paged import PagedKV


class RestSlots:
    """Slots of the layers of a pool, each for the rests of one block.

    Whoever reads or writes a block's rests holds them. Blocks that nobody holds keep theirs until
    another one needs the slot: a sequence that goes on within such a block finds them. Layers that
    are not quantized need no slots.
    """

    def __init__(self, layers: Sequence[PagedKV]) -> None:
        self._layers = [each for each in layers if each.slot_bytes]
        self.count = 0
        self._free: list[int] = []
        self._slots: dict[int, int] = {}
        self._holders: Counter[int] = Counter()
        #: The blocks that nobody holds, in the order in which they were let go.
        self._spare: dict[int, None] = {}

    @property
    def is_needed(self) -> bool:
        return bool(self._layers)

    def add(self, count: int) -> None:
        """Count slots that the layers have now."""
        self._free += range(self.count, count)
        self.count = max(self.count, count)

    def has(self, block: int) -> bool:
        """Whether all that a token in this block attends to of it is there."""
        return not self.is_needed or block in self._slots

    def find_free(self) -> bool:
        """Whether there is a free slot, after one is taken from a block that nobody holds."""
        if not self._free and self._spare:
            self.drop(next(iter(self._spare)))
        return bool(self._free)

    def hold(self, block: int) -> None:
        """Let a block have rests until it is let go as often; new ones get a free slot."""
        self._holders[block] += 1
        self._spare.pop(block, None)
        if block not in self._slots:
            self._attach(block, self._free.pop())

    def let_go(self, block: int) -> None:
        if not self.is_needed:
            return
        self._holders[block] -= 1
        if not self._holders[block]:
            del self._holders[block]
            self._spare[block] = None

    def drop(self, block: int) -> None:
        """Free the slot of a block that nobody holds, if it has one."""
        if block in self._slots:
            self._free.append(self._slots.pop(block))
            self._spare.pop(block, None)
            for layer in self._layers:
                layer.attach(block, -1)

    def _attach(self, block: int, slot: int) -> None:
        self._slots[block] = slot
        for layer in self._layers:
            layer.attach(block, slot)
