"""Keys and values of pictures, for layers whose tokens look at those and not at each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ImageKeys:
    """Keys and values (KV, R, D) of one picture, which is seen from the token `place` on.

    Nothing ever changes them, so that sequences can share them.
    """

    place: int
    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class _Group:
    """Pictures at adjacent places, which are seen together: `keys` and `values` have all their rows.

    `ends` are the rows at which each of them ends.
    """

    first: int
    ends: tuple[int, ...]
    keys: Tensor
    values: Tensor

    @property
    def next_place(self) -> int:
        return self.first + len(self.ends)

    def with_image(self, image: ImageKeys) -> _Group:
        keys = torch.cat((self.keys, image.keys), dim=1)
        values = torch.cat((self.values, image.values), dim=1)
        return _Group(self.first, (*self.ends, keys.shape[1]), keys, values)

    def up_to(self, place: int) -> _Group:
        """Those of its pictures, at least one, that stand before `place`."""
        ends = self.ends[: place - self.first]
        return _Group(self.first, ends, self.keys[:, : ends[-1]], self.values[:, : ends[-1]])

    def images(self) -> Iterable[ImageKeys]:
        for index, (start, end) in enumerate(zip((0, *self.ends), self.ends, strict=False)):
            yield ImageKeys(self.first + index, self.keys[:, start:end], self.values[:, start:end])


class ImageCache:
    """Remembers every picture of a sequence; can be rewound to any earlier length.

    Of tokens it knows how many there were. Memory is taken as pictures come, and no more.
    """

    def __init__(self, *, dtype: torch.dtype, device: torch.device) -> None:
        self.length = 0
        self.device = device
        self._dtype = dtype
        self._groups: list[_Group] = []

    @property
    def nbytes(self) -> int:
        return sum(group.keys.nbytes + group.values.nbytes for group in self._groups)

    def add(self, image: ImageKeys) -> None:
        """Take up a picture whose token comes after those of all others."""
        keys = image.keys.to(self.device, self._dtype)
        values = image.values.to(self.device, self._dtype)
        image = ImageKeys(image.place, keys, values)
        if self._groups and self._groups[-1].next_place == image.place:
            self._groups[-1] = self._groups[-1].with_image(image)
        else:
            self._groups.append(_Group(image.place, (keys.shape[1],), keys, values))

    def advance(self, tokens: int) -> None:
        """Count tokens that have been seen."""
        self.length += tokens

    def seen_at(self, place: int) -> tuple[Tensor, Tensor] | None:
        """Keys and values (KV, S, D) of the pictures that the token at `place` sees, if any."""
        for group in reversed(self._groups):
            if group.first <= place:
                seen = group.up_to(place + 1)
                return seen.keys, seen.values
        return None

    def images(self, start: int, end: int) -> tuple[ImageKeys, ...]:
        """The pictures at the places `start` to `end`."""
        found = (image for group in self._groups for image in group.images())
        return tuple(image for image in found if start <= image.place < end)

    def fill(self, length: int, images: Iterable[ImageKeys]) -> None:
        """Make an empty cache one of `length` tokens with these pictures; those on its device are
        shared."""
        for image in images:
            self.add(image)
        self.length = length

    def can_rewind_to(self, length: int) -> bool:
        return 0 <= length <= self.length

    def rewind(self, length: int) -> None:
        if not self.can_rewind_to(length):
            raise ValueError(f"cannot rewind {self.length} tokens to {length}")
        kept = [group for group in self._groups if group.first < length]
        if kept:
            kept[-1] = kept[-1].up_to(length)
        self._groups = kept
        self.length = length
