"""Makes vectors of prompts with the engine of a loaded model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from mrs.architecture.pooler import PoolingKind
from mrs.engine.loop import EngineLoop, Outbox, TokenStream
from mrs.engine.pooling import Pooling
from mrs.engine.prompt import Prompt
from mrs.engine.reply_events import ReplyEvents
from mrs.engine.sequence import SequenceRequest
from mrs.process.turns import Client
from mrs.request import Sampling
from mrs.text.text_processor import TextProcessor

#: Prompts that wait for the engine at once while many are computed.
_SUBMITTED = 256


class Vector(NamedTuple):
    """The vector of a prompt of `tokens` tokens: an embedding, or scores."""

    values: list[float]
    tokens: int


class Embedder:
    """Computes prompts together with all other sequences of the engine.

    Without a kind of pooling it is that of the model's files, or else the mean.
    """

    def __init__(self, engine: EngineLoop, text: TextProcessor) -> None:
        self._engine = engine
        self._text = text

    def start(
        self,
        prompt: Prompt,
        outbox: Outbox,
        kind: PoolingKind | None = None,
        *,
        timeout_s: float | None = None,
        client: Client = (),
    ) -> ReplyEvents:
        """Start a prompt without waiting; at its end, `sequence.vector` is its vector.

        Raises UsageError and NotReadable.
        """
        request = replace(self._request(prompt, kind), timeout_s=timeout_s, client=client)
        sequence = self._engine.start(request, outbox)
        return ReplyEvents(sequence, self._text, prompt, request.sampling)

    def vectors(self, prompts: Sequence[Prompt]) -> list[Vector]:
        """The vector of each prompt. A KeyboardInterrupt stops all. Raises as `start` does."""
        streams: list[TokenStream] = []
        vectors: list[Vector] = []
        try:
            for prompt in prompts:
                streams.append(self._engine.submit(self._request(prompt)))
                if len(streams) - len(vectors) >= _SUBMITTED:
                    vectors.append(_vector(streams[len(vectors)]))
            return vectors + [_vector(stream) for stream in streams[len(vectors) :]]
        finally:
            for stream in streams:
                stream.close()

    def _request(self, prompt: Prompt, kind: PoolingKind | None = None) -> SequenceRequest:
        pooler = self._engine.spec.pooler
        if prompt.scored is not None:
            from mrs.engine.token_score import LogitDifference

            return SequenceRequest(
                prompt.ids,
                Sampling(max_tokens=1),
                scored=LogitDifference(prompt.scored),
            )
        kind = kind or (pooler.pooling if pooler else "mean")
        return SequenceRequest(
            prompt.ids,
            Sampling(max_tokens=1),
            pooling=Pooling(kind, normalize=pooler is None or pooler.normalize),
            token_types=prompt.token_types,
        )


def shortened(values: Sequence[float], dimensions: int | None) -> list[float]:
    """The first values of an embedding, with its length; None for all."""
    if dimensions is None or dimensions >= len(values):
        return [*values]
    first = values[:dimensions]
    share = math.hypot(*values) / (math.hypot(*first) or 1.0)
    return [value * share for value in first]


def _vector(stream: TokenStream) -> Vector:
    for _ in stream:
        pass
    return Vector([*stream.sequence.vector], stream.sequence.num_prompt_tokens)
