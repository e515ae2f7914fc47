"""The recurrent state of one layer and one sequence, whose size does not grow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from mrs.cache.layer_cache import CacheRules, LayerSlice, TensorShape


class RecurrentStateCache:
    """Tensors that a layer updates in place, in float32; they begin as zeros.

    Earlier states are lost unless they were exported, so it can only be rewound to its beginning
    and once to its mark.
    """

    is_state = True
    keeps_all = False

    def __init__(self, *shapes: Sequence[int], device: torch.device) -> None:
        self.length = self._marked_length = 0
        self._marked: tuple[torch.Tensor, ...] | None = None
        self.device = device
        self._set(torch.zeros(*shape, dtype=torch.float32, device=device) for shape in shapes)

    def _set(self, tensors: Iterable[torch.Tensor]) -> None:
        self.tensors = tuple(tensors)
        self.addresses = [tensor.data_ptr() for tensor in self.tensors]

    @property
    def rules(self) -> CacheRules:
        return type(self)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def advance(self, tokens: int) -> None:
        self.length += tokens

    def move_to(self, tensors: Sequence[torch.Tensor]) -> None:
        """Have the state in other memory, of the same shapes, from now on."""
        for target, source in zip(tensors, self.tensors, strict=True):
            target.copy_(source)
        self._set(tensors)

    def mark(self) -> None:
        self._marked_length = self.length
        self._marked = tuple(tensor.clone() for tensor in self.tensors)

    def can_rewind_to(self, length: int) -> bool:
        is_marked = self._marked is not None and length == self._marked_length
        return length in (0, self.length) or is_marked

    def rewind(self, length: int) -> None:
        if not self.can_rewind_to(length):
            raise ValueError(
                f"cannot rewind {self.length} tokens to {length}: earlier states are lost"
            )
        if length != self.length:
            marked = self._marked if length else None
            for number, tensor in enumerate(self.tensors):
                tensor.zero_() if marked is None else tensor.copy_(marked[number])
        self.length, self._marked = length, None

    def export(self, start: int, end: int) -> LayerSlice | None:
        if not start < end == self.length:
            return None
        return LayerSlice(end - 1, {str(n): x.clone() for n, x in enumerate(self.tensors)})

    def restore(self, length: int, slices: Sequence[LayerSlice | None]) -> None:
        saved = slices[-1]
        assert saved is not None
        for number, tensor in enumerate(self.tensors):
            tensor.copy_(saved.tensors[str(number)])
        self.length = length

    share, adopt = export, restore

    @staticmethod
    def serves(start: int, end: int, first: int | None, length: int) -> bool:
        return end < length or (end == length and first is not None)

    def fits(self, first: int, end: int, shapes: Mapping[str, TensorShape]) -> bool:
        wanted = {
            str(number): TensorShape(x.dtype, tuple(x.shape))
            for number, x in enumerate(self.tensors)
        }
        return first == end - 1 and wanted == shapes
