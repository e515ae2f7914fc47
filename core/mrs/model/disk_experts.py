"""Experts that are on disk, of which those that are used most stay in memory.

The native library asks for each expert before it computes with it, by a call back. Those in memory
compute first, while others that a pass has chosen are read, several at a time. One that needs
memory takes that of the expert with the fewest uses, of equal ones of the one whose last use is
longest ago. Uses are forgotten by half now and then, so that experts of an earlier subject leave.
What is left of them is kept for the next run, which begins with the experts that are used most.

To guess what the next layer chooses, by its router and what this layer's experts are given, was not
faster where the disk was as busy as the processor, even if all guesses were right.
"""

from __future__ import annotations

import ctypes
import heapq
import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from mrs.devices.expert_uses import Uses, remember_uses
from mrs.errors import NotReadable
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.process.direct_file import DirectFile, DirectReader, checksums

#: An expert of a layer, by the layer's index and its number.
_Key = tuple[int, int]
#: As `Fetch` of native/experts.h.
_FETCH = ctypes.CFUNCTYPE(
    ctypes.c_bool,
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_int32),
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_bool,
)
#: So many experts are read at most before the first of them is needed.
_AHEAD = 16
#: Uses are halved once there are so many for each expert.
_MOST_USES = 16


@dataclass(frozen=True)
class ExpertsFile:
    """A layer's file: its experts one after another, and the CRC-32 of each piece of each.

    `matrices` has those of each expert, with the offset of each in the expert's bytes.
    """

    file: DirectFile
    part_bytes: int
    checksums: Sequence[Sequence[int]]
    matrices: Sequence[Sequence[tuple[PackedMatrix, int]]]


class DiskExperts:
    """The experts of the layers of a model that are on disk, and the memory of some of them."""

    def __init__(
        self, layers: Mapping[int, ExpertsFile], slots: Sequence[Tensor], room: Tensor
    ) -> None:
        """`slots` (at least 2) are uint8, each for one expert.

        `room` is the native library's: without room for what all chosen experts make of a pass,
        they compute in the order of their numbers.
        """
        #: See there.
        self.room = room
        self._layers = dict(layers)
        self._slots = [(each.data_ptr(), each.numpy().data) for each in slots]
        self._slot_of: dict[_Key, int] = {}
        self._key_of: list[_Key | None] = [None] * len(slots)
        self._uses: Counter[_Key] = Counter()
        self._last: dict[_Key, int] = {}
        self._time = self._all_uses = 0
        self._most_uses = _MOST_USES * sum(len(each.matrices) for each in layers.values())
        #: The rank of each slot, when it was last looked at: it only rises.
        self._ranks = [(0, 0, slot) for slot in range(len(slots))]
        self._readings: dict[int, Sequence[Future[None]]] = {}
        self._checked: set[_Key] = set()
        #: The turns of a pass, and the expert of each.
        self._turns: dict[_Key, int] = {}
        self._chosen: list[_Key] = []
        self._reader = DirectReader()
        self._failure: BaseException | None = None
        #: The layers whose program asks for its experts.
        self.asking: set[int] = set()
        own = weakref.ref(self)  # or its memory would stay until garbage is collected

        def fetch(*arguments: Any) -> bool:
            disk = own()
            return disk is not None and disk._called(*arguments)

        self._fetch = _FETCH(fetch)

    @property
    def address(self) -> int:
        """The address of the function that fetches an expert, valid as long as this object."""
        address = ctypes.cast(self._fetch, ctypes.c_void_p).value
        assert address is not None
        return address

    @property
    def silent(self) -> Collection[int]:
        """The layers whose program does not ask."""
        return self._layers.keys() - self.asking

    def begin_with(self, uses: Uses) -> None:
        """Read those with the most uses in earlier runs, as many as have memory.

        Raises NotReadable.
        """
        for layer, counts in uses.items():
            self._uses.update({(layer, n): count for n, count in enumerate(counts) if count})
        self._all_uses = self._uses.total()
        most = [key for key, _ in self._uses.most_common(len(self._slots))]
        for first in range(0, len(most), _AHEAD):
            some = most[first : first + _AHEAD]
            for key in some:
                self._begin(key, range(0))
            for key in some:
                self._wait_for(key)

    def keep_uses(self, folder: Path) -> None:
        """In the model's folder, for later runs, once this object is not used any more."""
        experts = {layer: len(each.matrices) for layer, each in self._layers.items()}
        weakref.finalize(self, _keep_uses, folder, experts, self._uses)

    def raise_failure(self) -> None:
        """Raise what has ended the last call, if anything did. Raises NotReadable."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def in_turn(self, layer: int, experts: Sequence[int]) -> Iterator[int]:
        """The experts that a pass has chosen, each in memory until the next one is asked for.

        `experts` are different ones. For what computes them without the native library's programs.
        Raises NotReadable.
        """
        self._choose([(layer, expert) for expert in experts])
        for turn, expert in enumerate(experts):
            self._have(turn)
            yield expert

    def _called(self, layer: int, turns: Any, count: int, turn: int, takes_any_order: bool) -> bool:
        try:
            if not turn:
                chosen = [(layer, expert) for expert in turns[:count]]
                if takes_any_order:
                    chosen.sort(key=self._must_be_read)
                    for place, (_, number) in enumerate(chosen):
                        turns[place] = number
                self._choose(chosen)
            self._have(turn)
        except BaseException as error:  # noqa: BLE001 - C cannot pass it on
            self._failure = error
            return False
        return True

    def _must_be_read(self, key: _Key) -> bool:
        return key not in self._slot_of

    def _choose(self, chosen: list[_Key]) -> None:
        """Of a layer, in the order of their turns."""
        self._chosen = chosen
        self._turns = {key: turn for turn, key in enumerate(chosen)}
        self._time += 1
        for key in chosen:
            self._uses[key] += 1
            self._last[key] = self._time
        self._all_uses += len(chosen)
        if self._all_uses > self._most_uses:
            self._all_uses //= 2
            for key in self._uses:
                self._uses[key] //= 2
            self._ranks = [self._rank(slot) for _, _, slot in self._ranks]
            heapq.heapify(self._ranks)

    def _have(self, turn: int) -> None:
        """The expert of a turn in memory, and those after it on their way. Raises NotReadable."""
        near = range(turn, turn + len(self._slots) - 1)
        for place, key in enumerate(self._chosen[turn : near.stop]):
            if place and len(self._readings) >= _AHEAD:
                break
            if key not in self._slot_of:
                self._begin(key, near)
        self._wait_for(self._chosen[turn])

    def _wait_for(self, key: _Key) -> None:
        """Until an expert is in memory whose reading has begun. Raises NotReadable."""
        slot = self._slot_of[key]
        try:
            for piece in self._readings.get(slot, ()):
                piece.result()
            self._readings.pop(slot, None)
            if key not in self._checked:
                self._check(key, slot)
        except OSError as error:
            self._forget(slot)
            raise NotReadable(
                f"expert {key[1]} of layer {key[0]} cannot be read from disk",
                where=str(self._layers[key[0]].file.path),
                hint=f"{error.strerror or error}; start again to make the file anew",
            ) from error

    def _begin(self, key: _Key, near: range) -> None:
        """Begin to read an expert into the memory of one that has no turn `near`."""
        slot = self._least_used(near)
        self._forget(slot)
        address, memory = self._slots[slot]
        layer = self._layers[key[0]]
        for matrix, offset in layer.matrices[key[1]]:
            matrix.move(address + offset)
        target = memory[: layer.part_bytes]
        self._readings[slot] = self._reader.begin(layer.file, target, key[1] * layer.part_bytes)
        self._slot_of[key], self._key_of[slot] = slot, key

    def _least_used(self, near: range) -> int:
        """The slot of the expert with the lowest rank that has no turn `near`."""
        kept = []
        while True:
            rank = heapq.heappop(self._ranks)
            slot = rank[2]
            key = self._key_of[slot]
            if key is not None and self._turns.get(key, -1) in near:
                kept.append(rank)
            elif self._rank(slot) > rank:  # it was used since
                heapq.heappush(self._ranks, self._rank(slot))
            else:
                break
        for each in (*kept, rank):
            heapq.heappush(self._ranks, each)
        return slot

    def _rank(self, slot: int) -> tuple[int, int, int]:
        """Uses and last use of the expert in a slot; the slot."""
        key = self._key_of[slot]
        return (0, 0, slot) if key is None else (self._uses[key], self._last.get(key, 0), slot)

    def _forget(self, slot: int) -> None:
        wait(self._readings.pop(slot, ()))
        key = self._key_of[slot]
        if key is not None:
            del self._slot_of[key]
            self._key_of[slot] = None

    def _check(self, key: _Key, slot: int) -> None:
        """Of an expert that was read for the first time. Raises OSError if it is damaged."""
        layer, memory = self._layers[key[0]], self._slots[slot][1]
        if checksums(memory[: layer.part_bytes]) != list(layer.checksums[key[1]]):
            layer.file.path.unlink(missing_ok=True)
            raise OSError("its bytes are damaged")
        for matrix, _ in layer.matrices[key[1]]:
            matrix.mark_subnormal()
        self._checked.add(key)


def _keep_uses(folder: Path, experts: Mapping[int, int], uses: Counter[_Key]) -> None:
    counts = {layer: [uses[layer, n] for n in range(count)] for layer, count in experts.items()}
    remember_uses(folder, counts)
