"""Keys and values of pictures, for layers whose tokens look at those and not at each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mrs.cache.layer_cache import CacheRules, LayerSlice, TensorShape


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
    """Images at adjacent places, which are visible together: `keys` and `values` have all rows.

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


class ImageSlice(LayerSlice):
    """Keys and values of images, by the places of their tokens."""

    def split(self, at: int) -> tuple[ImageSlice, ImageSlice]:
        before = {n: x for n, x in self.tensors.items() if int(n.partition(".")[0]) < at}
        after = {n: x for n, x in self.tensors.items() if n not in before}
        return replace(self, tensors=before), replace(self, first=at, tensors=after)


class CrossAttentionCache:
    """Keeps every image of a sequence; can be rewound to any earlier length.

    Of tokens it knows how many there were. Memory is taken as images come, and no more.
    """

    is_state = False
    keeps_all = True

    def __init__(self, *, dtype: torch.dtype, device: torch.device) -> None:
        self.length = 0
        self.device = device
        self._dtype = dtype
        self._groups: list[_Group] = []

    @property
    def rules(self) -> CacheRules:
        return type(self)

    @property
    def nbytes(self) -> int:
        return sum(group.keys.nbytes + group.values.nbytes for group in self._groups)

    def add(self, image: ImageKeys) -> None:
        """Take up an image whose token comes after those of all others."""
        keys = image.keys.to(self.device, self._dtype)
        values = image.values.to(self.device, self._dtype)
        image = ImageKeys(image.place, keys, values)
        if self._groups and self._groups[-1].next_place == image.place:
            self._groups[-1] = self._groups[-1].with_image(image)
        else:
            self._groups.append(_Group(image.place, (keys.shape[1],), keys, values))

    def advance(self, tokens: int) -> None:
        self.length += tokens

    def seen_at(self, place: int) -> tuple[Tensor, Tensor] | None:
        """Keys and values (KV, S, D) of the images that the token at `place` attends to, if any."""
        for group in reversed(self._groups):
            if group.first <= place:
                seen = group.up_to(place + 1)
                return seen.keys, seen.values
        return None

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

    def export(self, start: int, end: int) -> LayerSlice | None:
        found = (image for group in self._groups for image in group.images())
        tensors = {}
        for image in found:
            if start <= image.place < end:
                tensors[f"{image.place}.keys"] = image.keys
                tensors[f"{image.place}.values"] = image.values
        return ImageSlice(start, tensors).on(self.device)

    def restore(self, length: int, slices: Sequence[LayerSlice | None]) -> None:
        """Images on this device are shared, since nothing ever changes them."""
        named = {n: x for piece in slices if piece is not None for n, x in piece.tensors.items()}
        for place in _places(named):
            if place < length:
                self.add(ImageKeys(place, named[f"{place}.keys"], named[f"{place}.values"]))
        self.length = length

    share, adopt = export, restore

    @staticmethod
    def serves(start: int, end: int, first: int | None, length: int) -> bool:
        return first == start

    def fits(self, first: int, end: int, shapes: Mapping[str, TensorShape]) -> bool:
        """How many keys an image has is not known before it is there: only the names count."""
        try:
            places = _places(shapes)
        except ValueError:
            return False
        wanted = {f"{place}.{part}" for place in places for part in ("keys", "values")}
        return wanted == set(shapes) and all(first <= place < end for place in places)


def _places(names: Iterable[str]) -> list[int]:
    """Where images stand, in order, by the names of their tensors."""
    return sorted({int(name.partition(".")[0]) for name in names})
