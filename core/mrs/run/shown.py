"""Pictures in a prompt: where they stand, and what the model sees there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mrs.cache.sequence import SequenceCache
from mrs.errors import UsageError
from mrs.families.vision.spec import Vision
from mrs.media.prepare import PreparedImage
from mrs.model.batch import ImageFeatures, SequenceInput
from mrs.model.decoder import Decoder


@dataclass(eq=False)
class ShownImage:
    """A picture, and the places `positions` of the prompt that its features fill, in order.

    Those of an `undivided` stretch of them see each other, and have to be fed together.
    `features` (rows, hidden) are there while some of the places are still to be fed.
    """

    image: PreparedImage
    positions: Sequence[int]
    undivided: tuple[range, ...] = ()
    features: Tensor | None = None

    @property
    def key(self) -> int:
        """A number that no token has, and no other picture."""
        return -1 - self.image.digest

    @property
    def offset(self) -> int:
        """How much further on the text behind it stands, by place in the picture, than by tokens.

        It goes on after the last row or column of features, whichever are more.
        """
        return max(self.image.shape.grid) - self.image.shape.rows

    def is_among(self, fed: range) -> bool:
        return self.positions[0] < fed.stop and self.positions[-1] >= fed.start


def show(
    vision: Vision, prompt_ids: Sequence[int], images: Sequence[PreparedImage]
) -> list[ShownImage]:
    """Where each picture stands: at as many image tokens of the prompt as it fills.

    UsageError where the prompt has more or fewer of them.
    """
    places = [at for at, token in enumerate(prompt_ids) if token == vision.image_token_id]
    wanted = sum(image.shape.rows for image in images)
    if len(places) != wanted:
        raise UsageError(
            f"the prompt has room for {len(places)} rows of images, {len(images)} take {wanted}",
            hint="the chat template may not know images: give another one with -c FILE",
        )
    shown, start = [], 0
    for image in images:
        end = start + image.shape.rows
        own = places[start:end]
        shown.append(ShownImage(image, own, _runs(own) if vision.is_bidirectional else ()))
        start = end
    return shown


def _runs(places: Sequence[int]) -> tuple[range, ...]:
    """Stretches of places without a gap."""
    starts = [at for at in range(len(places)) if at == 0 or places[at] != places[at - 1] + 1]
    ends = [*starts[1:], len(places)]
    return tuple(
        range(places[start], places[end - 1] + 1) for start, end in zip(starts, ends, strict=True)
    )


def chunk_end(images: Sequence[ShownImage], end: int, *, start: int = -1) -> int:
    """Where tokens from `start` on are cut that shall end about at `end`.

    What is undivided stays whole: the cut is before it or, where it begins at `start`, behind it.
    """
    for run in (run for image in images for run in image.undivided):
        if run.start < end < run.stop:
            return run.start if run.start > start else run.stop
    return end


def sequence_input(
    decoder: Decoder,
    cache: SequenceCache,
    images: Sequence[ShownImage],
    ids: Sequence[int],
    length: int,
    *,
    is_last: bool = True,
) -> SequenceInput:
    """Those of a sequence's tokens `ids` that are not in its cache yet, of `length` in all.

    With `is_last`, logits are wanted after the last one.
    """
    new = range(cache.length, len(ids))
    rows = (len(new) - 1,) if is_last else ()
    made = SequenceInput(
        cache,
        ids[new.start :],
        length,
        _features(decoder, images, new),
        attention_ends=_attention_ends(images, new),
        logits_rows=rows,
    )
    if decoder.spec.vision is None or decoder.spec.vision.positions == "plain":
        return made
    offset, positions = _positions(images, new)
    return replace(made, offset=offset, positions=positions, attention_ends=None)


def _features(
    decoder: Decoder, images: Sequence[ShownImage], fed: range
) -> tuple[ImageFeatures, ...]:
    """What is seen there.

    A picture is looked at when the first of its places is fed, and forgotten after the last.
    """
    found = []
    for shown in [shown for shown in images if shown.is_among(fed)]:
        inside = [n for n, place in enumerate(shown.positions) if place in fed]
        if not inside:
            continue
        assert decoder.vision is not None
        if shown.features is None:
            shown.features = decoder.vision(shown.image.pixels, shown.image.shape)
        features = shown.features
        if decoder.vision.description.enters == "embeddings":
            features = features[inside[0] : inside[-1] + 1]
        rows = [shown.positions[n] - fed.start for n in inside]
        found.append(ImageFeatures(torch.tensor(rows), features))
        if inside[-1] == len(shown.positions) - 1:
            shown.features = None
    return tuple(found)


def _attention_ends(images: Sequence[ShownImage], fed: range) -> Tensor | None:
    """The last place that each token attends to, where one attends to others behind it."""
    runs = [run for image in images for run in image.undivided if run[-1] in fed]
    if not runs:
        return None
    last = torch.arange(fed.start, fed.stop)
    for run in runs:
        last[max(run.start - fed.start, 0) : run.stop - fed.start] = run[-1]
    return last


def _positions(images: Sequence[ShownImage], fed: range) -> tuple[int, Tensor | None]:
    """The offset of tokens, and where a picture is among them, their positions (3, T).

    A picture stands at one time, its features in rows and columns (arXiv 2409.12191).
    """
    offset = sum(shown.offset for shown in images if shown.positions[-1] < fed.start)
    among = [shown for shown in images if shown.is_among(fed)]
    if not among:
        return offset, None
    positions = torch.arange(fed.start, fed.stop).repeat(3, 1) + offset
    for shown in among:
        first, end = shown.positions[0], shown.positions[-1] + 1
        columns = shown.image.shape.grid[1]
        features = torch.arange(max(first, fed.start), min(end, fed.stop)) - first
        places = torch.stack((0 * features, features // columns, features % columns))
        positions[:, features + first - fed.start] = places + first + offset
        positions[:, end - fed.start :] += shown.offset
        offset += shown.offset
    return 0, positions
