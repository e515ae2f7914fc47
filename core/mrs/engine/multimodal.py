"""The model's inputs for a chunk of a prompt with images: features and positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mrs.cache.sequence_cache import SequenceCache
from mrs.engine.image_input import ImageInput
from mrs.model.batch import ImageFeatures, SequenceInput

if TYPE_CHECKING:
    from mrs.model.decoder import Decoder


def sequence_input(
    decoder: Decoder,
    cache: SequenceCache,
    images: Sequence[ImageInput],
    token_ids: Sequence[int],
    length: int,
    *,
    num_logits: int = 1,
    scored: range = range(0),
    token_types: Sequence[int] = (),
) -> SequenceInput:
    """The next tokens of a sequence, `token_ids`, which follow those in its cache.

    The sequence has `length` tokens. Logits are wanted after the last `num_logits` of these, and
    for scores at the positions `scored`. The `token_types` are those of a whole sequence.
    """
    chunk = range(cache.length, cache.length + len(token_ids))
    vision = decoder.spec.vision
    offset, positions, attention_ends = 0, None, None
    if vision is None or vision.positions == "plain":
        attention_ends = _attention_ends(images, chunk)
    else:
        offset, positions = _rotary_positions(images, chunk)
    return SequenceInput(
        cache,
        token_ids,
        length,
        _image_features(decoder, images, chunk),
        offset,
        positions,
        attention_ends,
        logits_rows=range(len(chunk) - num_logits, len(chunk)),
        token_types=token_types,
        scored_rows=range(scored.start - chunk.start, scored.stop - chunk.start),
    )


def _image_features(
    decoder: Decoder, images: Sequence[ImageInput], chunk: range
) -> tuple[ImageFeatures, ...]:
    """The image features at the positions `chunk`, by rows of the chunk.

    An image is encoded with its first position, and its features are dropped after its last one.
    """
    found = []
    for image in [image for image in images if image.overlaps(chunk)]:
        inside = [n for n, position in enumerate(image.positions) if position in chunk]
        if not inside:
            continue
        assert decoder.vision is not None
        if image.features is None:
            image.features = decoder.vision(image.image.pixels, image.image.shape)
        features = image.features
        if decoder.vision.description.enters == "embeddings":
            features = features[inside[0] : inside[-1] + 1]
        rows = [image.positions[n] - chunk.start for n in inside]
        found.append(ImageFeatures(torch.tensor(rows), features))
        if inside[-1] == len(image.positions) - 1:
            image.features = None
    return tuple(found)


def _attention_ends(images: Sequence[ImageInput], chunk: range) -> Tensor | None:
    """The last position that each token of `chunk` attends to (T,); None if that is its own."""
    spans = [span for image in images for span in image.undivided if span[-1] in chunk]
    if not spans:
        return None
    last = torch.arange(chunk.start, chunk.stop)
    for span in spans:
        last[max(span.start - chunk.start, 0) : span.stop - chunk.start] = span[-1]
    return last


def _rotary_positions(images: Sequence[ImageInput], chunk: range) -> tuple[int, Tensor | None]:
    """The offset of the tokens' rotary positions, or all positions (3, T) if there is an image.

    Features of an image have the same time, and their own rows and columns (arXiv 2409.12191).
    Those of a video begin at the same row and column in all its images.
    """
    offset = sum(image.offset for image in images if image.positions[-1] < chunk.start)
    among = [image for image in images if image.overlaps(chunk)]
    if not among:
        return offset, None
    positions = torch.arange(chunk.start, chunk.stop).repeat(3, 1) + offset
    for image in among:
        first, end = image.positions[0], image.positions[-1] + 1
        columns, time = image.image.shape.grid[1], image.image.shape.time
        features = torch.arange(max(first, chunk.start), min(end, chunk.stop)) - first
        grid = torch.stack((0 * features + time, features // columns, features % columns))
        positions[:, features + first - chunk.start] = grid + first + offset
        positions[:, end - chunk.start :] += image.offset
        offset += image.offset
    return 0, positions
