"""What a chunk of a prompt has of images: their features, and the positions of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mrs.cache.sequence_cache import SequenceCache
from mrs.engine.image_input import ImageInput
from mrs.model.batch import ImageFeatures, SequenceInput
from mrs.model.decoder import Decoder


def sequence_input(
    decoder: Decoder,
    cache: SequenceCache,
    images: Sequence[ImageInput],
    token_ids: Sequence[int],
    length: int,
    *,
    is_last: bool = True,
) -> SequenceInput:
    """The tokens of a sequence that are not in its cache yet: `token_ids` are all up to a chunk.

    The sequence has `length` tokens. With `is_last`, logits are wanted after the last of these.
    """
    chunk = range(cache.length, len(token_ids))
    made = SequenceInput(
        cache,
        token_ids[chunk.start :],
        length,
        _image_features(decoder, images, chunk),
        logits_rows=(len(chunk) - 1,) if is_last else (),
    )
    vision = decoder.spec.vision
    if vision is None or vision.positions == "plain":
        return replace(made, attention_ends=_attention_ends(images, chunk))
    offset, positions = _rotary_positions(images, chunk)
    return replace(made, offset=offset, positions=positions)


def _image_features(
    decoder: Decoder, images: Sequence[ImageInput], chunk: range
) -> tuple[ImageFeatures, ...]:
    """The features that enter at the positions `chunk`, by rows of the chunk.

    An image is encoded for the first of its positions, and its features are dropped after the last.
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
    """The offset of the tokens, and if an image is among them, their positions (3, T) instead.

    An image stands at one time, its features in rows and columns (arXiv 2409.12191).
    """
    offset = sum(image.offset for image in images if image.positions[-1] < chunk.start)
    among = [image for image in images if image.overlaps(chunk)]
    if not among:
        return offset, None
    positions = torch.arange(chunk.start, chunk.stop).repeat(3, 1) + offset
    for image in among:
        first, end = image.positions[0], image.positions[-1] + 1
        columns = image.image.shape.grid[1]
        features = torch.arange(max(first, chunk.start), min(end, chunk.stop)) - first
        places = torch.stack((0 * features, features // columns, features % columns))
        positions[:, features + first - chunk.start] = places + first + offset
        positions[:, end - chunk.start :] += image.offset
        offset += image.offset
    return 0, positions
