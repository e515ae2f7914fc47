"""Keys and values of images, for layers in which tokens attend to images only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mrs.cache.layer_cache import CacheRules, LayerSlice, TensorShape
from mrs.kernels.cpu.elementwise import WholeKeys


@dataclass(frozen=True)
class ImageKeys:
    """Keys and values (KV, R, D) of one image, to which tokens from `position` on attend.

    They never change, so sequences can share them.
    """

    position: int
    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class _Group:
    """Images at adjacent positions, to which tokens attend together, with all rows of them.

    `ends` are the rows at which each of them ends.
    """

    first: int
    ends: tuple[int, ...]
    keys: Tensor
    values: Tensor

    @property
    def next_position(self) -> int:
        return self.first + len(self.ends)

    def with_image(self, image: ImageKeys) -> _Group:
        keys = torch.cat((self.keys, image.keys), dim=1)
        values = torch.cat((self.values, image.values), dim=1)
        return _Group(self.first, (*self.ends, keys.shape[1]), keys, values)

    def up_to(self, position: int) -> _Group:
        """The group's images that stand before `position`, at least one."""
        ends = self.ends[: position - self.first]
        return _Group(self.first, ends, self.keys[:, : ends[-1]], self.values[:, : ends[-1]])

    def images(self) -> Iterable[ImageKeys]:
        for index, (start, end) in enumerate(zip((0, *self.ends), self.ends, strict=False)):
            yield ImageKeys(self.first + index, self.keys[:, start:end], self.values[:, start:end])


class ImageSlice(LayerSlice):
    """Keys and values of images, by the positions of their tokens."""

    def split(self, at: int) -> tuple[ImageSlice, ImageSlice]:
        before = {n: x for n, x in self.tensors.items() if int(n.partition(".")[0]) < at}
        after = {n: x for n, x in self.tensors.items() if n not in before}
        return replace(self, tensors=before), replace(self, first=at, tensors=after)


class CrossAttentionCache:
    """Keeps every image of a sequence, and the number of its tokens.

    It can be rewound to any earlier length. Memory is allocated as images come.
    """

    is_state = False
    keeps_all = True

    def __init__(self, *, dtype: torch.dtype, device: torch.device) -> None:
        self.length = 0
        self.device = device
        self._dtype = dtype
        self._groups: list[_Group] = []
        self._read: tuple[_Group, WholeKeys] | None = None

    @property
    def rules(self) -> CacheRules:
        return type(self)

    @property
    def nbytes(self) -> int:
        return sum(group.keys.nbytes + group.values.nbytes for group in self._groups)

    def by_head(self, rows: Tensor) -> Tensor:
        """Keys or values (R, KV, D) as they are kept, (KV, R, D): one copy, in the cache's type."""
        by_head = rows.transpose(0, 1)
        kept = torch.empty(by_head.shape, dtype=self._dtype, device=self.device)
        return kept.copy_(by_head)

    def add(self, image: ImageKeys) -> None:
        """Add an image whose token comes after those of all others."""
        keys = image.keys.to(self.device, self._dtype)
        values = image.values.to(self.device, self._dtype)
        image = ImageKeys(image.position, keys, values)
        if self._groups and self._groups[-1].next_position == image.position:
            self._groups[-1] = self._groups[-1].with_image(image)
        else:
            self._groups.append(_Group(image.position, (keys.shape[1],), keys, values))

    def mark(self) -> None:
        """Any length can be come back to."""

    def advance(self, tokens: int) -> None:
        self.length += tokens

    def visible_at(self, position: int) -> tuple[Tensor, Tensor] | None:
        """Keys and values (KV, S, D) of the images to which the token at `position` attends."""
        for group in reversed(self._groups):
            if group.first <= position:
                visible = group.up_to(position + 1)
                return visible.keys, visible.values
        return None

    def whole_at(self, position: int) -> WholeKeys | None:
        """The same for native programs, on a CPU; None if it is a part of what is kept."""
        group = self._groups[-1] if self._groups else None
        if group is None or group.next_position > position + 1:
            return None
        if self._read is None or self._read[0] is not group:
            self._read = group, WholeKeys(group.keys, group.values)
        return self._read[1]

    def can_rewind_to(self, length: int) -> bool:
        return 0 <= length <= self.length

    def rewind(self, length: int) -> None:
        if not self.can_rewind_to(length):
            raise ValueError(f"cannot rewind {self.length} tokens to {length}")
        kept = [group for group in self._groups if group.first < length]
        if kept:
            kept[-1] = kept[-1].up_to(length)
        self._groups, self._read = kept, None
        self.length = length

    def export(self, start: int, end: int) -> LayerSlice | None:
        images = (image for group in self._groups for image in group.images())
        tensors = {}
        for image in images:
            if start <= image.position < end:
                tensors[f"{image.position}.keys"] = image.keys
                tensors[f"{image.position}.values"] = image.values
        return ImageSlice(start, tensors).on(self.device)

    def restore(self, length: int, slices: Sequence[LayerSlice | None]) -> None:
        """Images on this device are shared, because they never change."""
        named = {n: x for piece in slices if piece is not None for n, x in piece.tensors.items()}
        for position in _positions(named):
            if position < length:
                self.add(
                    ImageKeys(position, named[f"{position}.keys"], named[f"{position}.values"])
                )
        self.length = length

    share, adopt = export, restore

    @staticmethod
    def serves(start: int, end: int, first: int | None, length: int) -> bool:
        return first == start

    def fits(self, first: int, end: int, shapes: Mapping[str, TensorShape]) -> bool:
        """The number of keys of an image is not known in advance: only the names count."""
        try:
            positions = _positions(shapes)
        except ValueError:
            return False
        wanted = {f"{position}.{part}" for position in positions for part in ("keys", "values")}
        return wanted == set(shapes) and all(first <= position < end for position in positions)


def _positions(names: Iterable[str]) -> list[int]:
    """The positions of images, in order, by the names of their tensors."""
    return sorted({int(name.partition(".")[0]) for name in names})
