"""What caches remember of a stretch of tokens, taken out of them and put into others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from mrs.cache.images import ImageCache, ImageKeys
from mrs.cache.layer import LayerCache, StateCache, TokenCache
from mrs.cache.sequence import SequenceCache

State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Piece:
    """One layer's memory of the tokens `first` and after; `reach` as the layer's cache says.

    `is_view` says that the memory is the cache's.
    """

    first: int
    reach: int | None
    tensors: tuple[Tensor, ...]
    is_view: bool = False

    def cut(self, start: int, end: int) -> Piece:
        """The tokens `start` to `end`; before `first` there is nothing."""
        first = max(start, self.first)
        begin, stop = first - self.first, max(end, first) - self.first
        return replace(self, first=first, tensors=tuple(t[:, begin:stop] for t in self.tensors))

    def copied(self) -> Piece:
        """The same in memory of its own."""
        return replace(self, tensors=tuple(map(_copied, self.tensors)), is_view=False)

    def moved(self, device: torch.device) -> Piece:
        """The same on a device, with no other memory kept alive by it."""
        tensors = tuple(_moved(tensor, device) for tensor in self.tensors)
        return replace(self, tensors=tensors, is_view=False)


@dataclass(frozen=True)
class ImagePiece:
    """The pictures that one layer remembers of the tokens `first` and after."""

    first: int
    images: tuple[ImageKeys, ...]
    reach: None = None
    is_view: bool = False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(t for image in self.images for t in (image.keys, image.values))

    def cut(self, start: int, end: int) -> ImagePiece:
        """Those at the places `start` to `end`."""
        inside = tuple(image for image in self.images if start <= image.place < end)
        return replace(self, first=max(start, self.first), images=inside)

    def copied(self) -> ImagePiece:
        """The same, free of other memory. Nothing is copied that is never changed."""
        return self._with(lambda tensor: _moved(tensor, tensor.device))

    def moved(self, device: torch.device) -> ImagePiece:
        """The same on a device, with no other memory kept alive by it."""
        return self._with(lambda tensor: _moved(tensor, device))

    def _with(self, change: Callable[[Tensor], Tensor]) -> ImagePiece:
        images = (ImageKeys(i.place, change(i.keys), change(i.values)) for i in self.images)
        return replace(self, images=tuple(images), is_view=False)


def _copied(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    if tensor.device != device:
        return tensor.to(device)
    is_whole = tensor.nbytes == tensor.untyped_storage().nbytes()
    return tensor if is_whole else _copied(tensor)


@dataclass(frozen=True)
class Holding:
    """What all layers remember of the tokens `start` to `end`.

    `pieces` has one entry a layer, None where a layer holds nothing of these tokens. `states`
    has the state after `end` of the layers that are one state, None for the others; it is empty
    where nothing is known of it. `source` is the cache that pieces are views of, None where all
    have memory of their own.
    """

    start: int
    end: int
    pieces: tuple[Piece | ImagePiece | None, ...]
    states: tuple[State | None, ...] = ()
    source: SequenceCache | None = None

    @staticmethod
    def of(cache: SequenceCache, start: int, end: int, states: tuple[State | None, ...]) -> Holding:
        """Views of what `cache` holds; it must not be rewound to before `end` afterwards."""
        pieces = tuple(_piece(layer, start, end) for layer in cache.layers)
        return Holding(start, end, pieces, states, cache)

    @cached_property
    def own_bytes(self) -> Mapping[torch.device, int]:
        """Bytes by device, without what a cache holds anyway."""
        pieces = (piece.tensors for piece in self.pieces if piece and not piece.is_view)
        totals: Counter[torch.device] = Counter()
        for tensors in (*pieces, *self.states):
            for tensor in tensors or ():
                totals[tensor.device] += tensor.nbytes
        return totals

    @property
    def is_tail(self) -> bool:
        """Whether it holds what only serves sequences that go on near its end."""
        return bool(self.states) or any(p and p.reach is not None for p in self.pieces)

    def first_held(self) -> dict[int, int]:
        """For each limited reach, the first token from which on its layers hold all."""
        firsts: dict[int, int] = {}
        for piece in self.pieces:
            if piece and piece.reach is not None:
                firsts[piece.reach] = max(firsts.get(piece.reach, 0), piece.first)
        return firsts

    def split(self, at: int) -> tuple[Holding, Holding]:
        """Two holdings, of which each can go without the other."""
        left = tuple(
            p and (_part(p, self.start, at) if p.first < at else None) for p in self.pieces
        )
        right = tuple(p and _part(p, at, self.end) for p in self.pieces)
        return (
            Holding(self.start, at, left, source=self.source),
            Holding(at, self.end, right, self.states, self.source),
        )

    def or_wider(self, other: Holding) -> Holding:
        """Of each layer what reaches further back, of two alike this one's.

        What is taken of the other gets memory of its own.
        """
        if not other.pieces:
            return self
        pieces = tuple(
            _owned(b) if b and (a is None or b.first < a.first) else a
            for a, b in zip(self.pieces, other.pieces, strict=True)
        )
        return replace(self, pieces=pieces, states=self.states or other.states)

    def without_tail(self) -> Holding:
        """Only what serves every sequence that begins with these tokens."""
        pieces = tuple(p if p and p.reach is None else None for p in self.pieces)
        return replace(self, pieces=pieces, states=())

    def without_states(self) -> Holding:
        return replace(self, states=())

    def owned(self) -> Holding:
        """The same in memory of its own, whatever becomes of the cache that it was seen in."""
        if self.source is None:
            return self
        return replace(self, pieces=tuple(p and _owned(p) for p in self.pieces), source=None)

    def moved(self, device: torch.device) -> Holding:
        """The same in memory of its own on a device."""
        pieces = tuple(p and p.moved(device) for p in self.owned().pieces)
        states = tuple(s and tuple(_moved(t, device) for t in s) for s in self.states)
        return Holding(self.start, self.end, pieces, states)


def _piece(layer: LayerCache, start: int, end: int) -> Piece | ImagePiece | None:
    if isinstance(layer, ImageCache):
        return ImagePiece(start, layer.images(start, end), is_view=True)
    if not isinstance(layer, TokenCache):
        return None
    first = max(start, layer.oldest)
    return Piece(first, layer.reach, layer.contents(first, end), True) if first < end else None


def _owned(piece: Piece | ImagePiece) -> Piece | ImagePiece:
    return piece.copied() if piece.is_view else piece


def _part(piece: Piece | ImagePiece, start: int, end: int) -> Piece | ImagePiece:
    """The tokens `start` to `end`, which keep no memory of the others alive unless a cache does."""
    part = piece.cut(start, end)
    return part if piece.is_view else part.copied()


def states_of(cache: SequenceCache) -> tuple[State | None, ...]:
    """Copies of the states that a cache has; empty where it has none."""
    states = tuple(
        layer.snapshot() if isinstance(layer, StateCache) else None for layer in cache.layers
    )
    return states if any(state is not None for state in states) else ()


def fill(cache: SequenceCache, holdings: Sequence[Holding], length: int) -> None:
    """Make an empty cache what `holdings`, adjacent from token 0 on, say of `length` tokens."""
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, TokenCache):
            needed = 0 if layer.reach is None else max(0, length - layer.reach)
            pieces = [
                cast(Piece, h.pieces[index]).cut(needed, min(h.end, length)).tensors
                for h in holdings
                if h.end > needed and h.start < length
            ]
            layer.fill(length, pieces)
        elif isinstance(layer, ImageCache):
            parts = (cast(ImagePiece, h.pieces[index]).cut(0, length) for h in holdings)
            layer.fill(length, [image for part in parts for image in part.images])
        elif isinstance(layer, StateCache):
            state = holdings[-1].states[index]
            assert state is not None
            layer.restore(length, state)
