"""Runs the model on a scheduled batch: the only place that builds a model's inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from mrs.engine.multimodal import sequence_input
from mrs.engine.sequence import ScheduledBatch, Sequence
from mrs.errors import UsageError
from mrs.graph.step_rows import FEW_TOKENS
from mrs.model.batch import SequenceInput, forward_batch
from mrs.model.native_layers import NativeSteps

if TYPE_CHECKING:
    from mrs.model.decoder import Decoder
    from mrs.model.pooler import PoolerModule

#: What gets the states (N, hidden) of a batch that a draft head reads; None if it reads none.
Taker = Callable[[ScheduledBatch], Callable[[Tensor], None] | None]


class StepAborted(Exception):
    """All sequences of a step were aborted while it was computed."""


class Worker:
    """Holds the model. What `taker` returns for a batch, if anything, gets the batch's states."""

    def __init__(self, decoder: Decoder, taker: Taker | None = None) -> None:
        self._decoder = decoder
        self._taker = taker

    def take_states(self, taker: Taker | None) -> None:
        """Ask `taker` from now on."""
        self._taker = taker

    def require_adapter(self, name: str | None) -> None:
        """Raise UsageError unless it is None, or the name of an adapter of the model."""
        known = self._decoder.adapter_ids
        if name is None or name in known:
            return
        names = ", ".join(known)
        hint = f"choose one of {names}" if names else "load it with --lora NAME=ID"
        raise UsageError(f"the model has no adapter {name!r}", hint=hint)

    def forward(
        self,
        batch: ScheduledBatch,
        check: Callable[[], None] | None = None,
        *,
        states: Tensor | None = None,
        keep: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """Logits (W, vocab) float32 on the CPU, of the sequences that are complete with `batch`.

        Each has a row after its last token, and one after each token of its draft, in order. All
        caches take up the new tokens; `num_computed_tokens` stays as it is. `check` is called
        between layers, and may raise; by default it raises StepAborted if all are aborted. A draft
        head reads the `states` (N, hidden) of its target, and `keep` gets those that it reads next.
        """
        inputs = batch_inputs(self._decoder, batch)

        def check_aborted() -> None:
            if all(sequence.is_aborted for sequence, _ in batch):
                raise StepAborted

        embedded = any(sequence.pooling is not None for sequence, _ in batch)
        observe = _pool(batch, self._decoder.pooler) if embedded else None
        score = _score(batch) if any(each.scored_rows for each in inputs) else None
        caches = [each.cache for each in inputs]
        if keep is None and self._taker is not None:
            keep = self._taker(batch)
        batch_of_all = forward_batch(inputs)
        if states is not None:
            batch_of_all = replace(batch_of_all, states=states)
        logits = self._decoder.forward(
            batch_of_all, caches, check or check_aborted, observe, score, keep
        )
        return logits if logits.is_cpu else logits.cpu()

    @property
    def has_read_steps(self) -> bool:
        """Whether there are `steps` of a draft head, or of a model that it reads."""
        return self._decoder.has_read_steps

    def steps(
        self,
        batch: ScheduledBatch,
        most_tokens: int,
        *,
        states: Tensor | None = None,
        is_read: bool = False,
    ) -> NativeSteps | None:
        """Compute a batch, and be able to compute as many tokens of each sequence after it.

        The next `most_tokens` of each are in the same block of its cache, which takes up the first.
        A draft head reads `states` (N, hidden) with them, or if it `is_read` those that come of it.
        None if the model, or a sequence, is computed in other ways.
        """
        decoder, is_read = self._decoder, is_read or states is not None
        is_adapted = any(sequence.adapter is not None for sequence, _ in batch)
        has_steps = decoder.has_read_steps if is_read else decoder.has_steps
        if not has_steps or is_adapted or sum(count for _, count in batch) > FEW_TOKENS:
            return None
        inputs = batch_inputs(self._decoder, batch)
        batch_of_all = forward_batch(inputs)
        if states is not None:
            batch_of_all = replace(batch_of_all, states=states)
        caches = [each.cache for each in inputs]
        return decoder.steps(batch_of_all, caches, most_tokens, is_read=is_read)


def batch_inputs(decoder: Decoder, batch: ScheduledBatch) -> list[SequenceInput]:
    """The inputs of the sequences of a batch, whose logits are wanted from their last token on."""
    inputs = []
    for sequence, num_tokens in batch:
        assert sequence.cache is not None
        end, length = sequence.num_computed_tokens + num_tokens, len(sequence.token_ids)
        own = sequence_input(
            decoder,
            sequence.cache,
            sequence.images,
            [*sequence.token_ids[sequence.num_computed_tokens : end], *sequence.draft],
            length,
            num_logits=max(end - length + 1, 0),
            scored=_scored(sequence, num_tokens),
            token_types=sequence.token_types,
        )
        if sequence.adapter is not None:
            own = own._replace(adapter_id=decoder.adapter_ids[sequence.adapter])
        inputs.append(own)
    return inputs


def _scored(sequence: Sequence, num_tokens: int) -> range:
    """The positions among the next tokens whose logits score a prompt."""
    start = sequence.num_computed_tokens
    scores = sequence.prompt_scores
    return range(start, start) if scores is None else scores.wanted(start, start + num_tokens)


def _score(batch: ScheduledBatch) -> Callable[[slice, Tensor], None]:
    """A function that passes logits of pieces of the scored rows to the prompts that they score."""
    rows = [
        (scores, position)
        for sequence, num_tokens in batch
        if (scores := sequence.prompt_scores) is not None
        for position in _scored(sequence, num_tokens)
    ]

    def score(piece: slice, logits: Tensor) -> None:
        for (scores, position), row in zip(rows[piece], logits, strict=True):
            scores.take(position, row)

    return score


def _pool(batch: ScheduledBatch, pooler: PoolerModule | None) -> Callable[[Tensor], None]:
    """A function that passes the hidden states (N, hidden) of a batch to those that pool them."""

    def pool(hidden: Tensor) -> None:
        start = 0
        if pooler is not None:
            hidden = pooler.states(hidden)
        for sequence, num_tokens in batch:
            if sequence.pooling is not None:
                rows = hidden[start : start + num_tokens]
                sequence.pooling.add(rows, is_first=sequence.num_computed_tokens == 0)
                if sequence.num_computed_tokens + num_tokens == len(sequence.token_ids):
                    sequence.pooling.finish(pooler)
            start += num_tokens

    return pool
