"""Runs the model on a scheduled batch: the only place that builds a model's inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.cache.sequence import SequenceCache
from mrs.engine.image_input import ImageInput
from mrs.engine.multimodal import attention_ends, image_features, rotary_positions
from mrs.engine.scheduler import ScheduledBatch
from mrs.model.decoder import Decoder
from mrs.model.segments import Segment


class StepAborted(Exception):
    """All sequences of a step were aborted while it was computed."""


class Worker:
    """Holds the model."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def forward(self, batch: ScheduledBatch) -> Tensor:
        """Logits (W, vocab) float32 on the CPU, after the last token of each of W sequences.

        These are the sequences of `batch` that are complete with it, in order. All caches take up
        the new tokens; `num_computed_tokens` stays as it is. Raises StepAborted.
        """
        ids: list[int] = []
        segments: list[Segment] = []
        wanted: list[int] = []
        for sequence, num_tokens in batch:
            assert sequence.cache is not None
            start, length = sequence.num_computed_tokens, len(sequence.token_ids)
            chunk = range(start, start + num_tokens)
            segments.append(
                build_segment(
                    self._decoder, sequence.cache, sequence.images, chunk, length, len(ids)
                )
            )
            ids += sequence.token_ids[start : chunk.stop]
            if chunk.stop == length:
                wanted.append(len(ids) - 1)

        def check() -> None:
            if all(sequence.is_aborted for sequence, _ in batch):
                raise StepAborted

        rows = torch.tensor(wanted, dtype=torch.long)
        return self._decoder.forward(torch.tensor(ids), segments, rows, check).cpu()


def build_segment(
    decoder: Decoder,
    cache: SequenceCache,
    images: Sequence[ImageInput],
    chunk: range,
    total_tokens: int,
    first_row: int = 0,
) -> Segment:
    """The tokens at the positions `chunk` of a sequence, as the rows from `first_row` on."""
    rows = slice(first_row, first_row + len(chunk))
    features = image_features(decoder, images, chunk, first_row)
    vision = decoder.spec.vision
    if vision is None or vision.positions == "plain":
        ends = attention_ends(images, chunk)
        return Segment(rows, cache, total_tokens, features, last_seen=ends)
    offset, positions = rotary_positions(images, chunk, decoder.home)
    return Segment(rows, cache, total_tokens, features, offset, positions)
