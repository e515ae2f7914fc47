"""Runs the model on a scheduled batch: the only place that builds a model's inputs."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from mrs.engine.multimodal import sequence_input
from mrs.engine.sequence import ScheduledBatch
from mrs.model.batch import forward_batch
from mrs.model.decoder import Decoder


class StepAborted(Exception):
    """All sequences of a step were aborted while it was computed."""


class Worker:
    """Holds the model."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def forward(self, batch: ScheduledBatch, check: Callable[[], None] | None = None) -> Tensor:
        """Logits (W, vocab) float32 on the CPU, of the sequences that are complete with `batch`.

        Each has a row after its last token, and one after each token of its draft, in order. All
        caches take up the new tokens; `num_computed_tokens` stays as it is. `check` is called
        between layers, and may raise; by default it raises StepAborted if all are aborted.
        """
        inputs, caches = [], []
        for sequence, num_tokens in batch:
            assert sequence.cache is not None
            end, length = sequence.num_computed_tokens + num_tokens, len(sequence.token_ids)
            ids = [*sequence.token_ids[sequence.num_computed_tokens : end], *sequence.draft]
            caches.append(sequence.cache)
            inputs.append(
                sequence_input(
                    self._decoder,
                    sequence.cache,
                    sequence.images,
                    ids,
                    length,
                    num_logits=max(end - length + 1, 0),
                    token_types=sequence.token_types,
                )
            )

        def check_aborted() -> None:
            if all(sequence.is_aborted for sequence, _ in batch):
                raise StepAborted

        embedded = any(sequence.pooling is not None for sequence, _ in batch)
        observe = _pool(batch, self._decoder.readout) if embedded else None
        return self._decoder.forward(
            forward_batch(inputs), caches, check or check_aborted, observe
        ).cpu()


def _pool(
    batch: ScheduledBatch, read_out: Callable[[Tensor], Tensor] | None
) -> Callable[[Tensor], None]:
    """A function that passes the hidden states (N, hidden) of a batch to those that pool them."""

    def pool(hidden: Tensor) -> None:
        start = 0
        for sequence, num_tokens in batch:
            if sequence.pooling is not None:
                rows = hidden[start : start + num_tokens]
                sequence.pooling.add(rows, is_first=sequence.num_computed_tokens == 0)
                if sequence.num_computed_tokens + num_tokens == len(sequence.token_ids):
                    sequence.pooling.finish(read_out)
            start += num_tokens

    return pool
