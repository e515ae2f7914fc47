"""Pictures in a prompt: where they stand, and what the model sees there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mrs.cache.sequence import SequenceCache
from mrs.errors import UsageError
from mrs.families.vision.spec import Vision
from mrs.media.prepare import PreparedImage
from mrs.model.decoder import Decoder
from mrs.model.segments import Segment, Sight


@dataclass(eq=False)
class ShownImage:
    """A picture, and the places `positions` of the prompt that its features fill, in order.

    `features` (rows, hidden) are there while some of those places are still to be fed.
    """

    image: PreparedImage
    positions: Sequence[int]
    features: Tensor | None = None

    @property
    def key(self) -> int:
        """A number that no token has, and no other picture."""
        return -1 - self.image.digest


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
        shown.append(ShownImage(image, places[start:end]))
        start = end
    return shown


def segment(
    decoder: Decoder,
    cache: SequenceCache,
    images: Sequence[ShownImage],
    fed: range,
    total_tokens: int,
    first_row: int = 0,
) -> Segment:
    """The tokens at the places `fed` of a sequence, as the rows from `first_row` on of a batch."""
    rows = slice(first_row, first_row + len(fed))
    return Segment(rows, cache, total_tokens, _sights(decoder, images, fed, first_row))


def _sights(
    decoder: Decoder, images: Sequence[ShownImage], fed: range, first_row: int
) -> tuple[Sight, ...]:
    """What is seen there.

    A picture is looked at when the first of its places is fed, and forgotten after the last.
    """
    found = []
    for shown in images:
        inside = [n for n, place in enumerate(shown.positions) if place in fed]
        if not inside:
            continue
        assert decoder.vision is not None
        if shown.features is None:
            shown.features = decoder.vision(shown.image.pixels, shown.image.shape)
        features = shown.features
        if decoder.vision.description.enters == "embeddings":
            features = features[inside[0] : inside[-1] + 1]
        rows = [shown.positions[n] - fed.start + first_row for n in inside]
        found.append(Sight(torch.tensor(rows), features))
        if inside[-1] == len(shown.positions) - 1:
            shown.features = None
    return tuple(found)
