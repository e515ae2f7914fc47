"""Engines for tests, stepped in the test's own thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mrs.engine.engine import Engine
from mrs.engine.engine_builder import EngineConfig, build_engine
from mrs.engine.image_input import ImageInput
from mrs.engine.sequence import Sequence as EngineSequence
from mrs.engine.sequence import SequenceRequest
from mrs.model.decoder import Decoder
from mrs.plan.memory.device_sizes import Workload
from mrs.request import BLOCK_TOKENS, PREFILL_CHUNK_TOKENS, Sampling


def make_engine(
    decoder: Decoder,
    *,
    context_tokens: int,
    planned_tokens: int,
    planned_seqs: int = 1,
    chunk_tokens: int = PREFILL_CHUNK_TOKENS,
    block_tokens: int = BLOCK_TOKENS,
    pool_blocks: int | None = None,
    **settings: Any,
) -> Engine:
    """An engine with a cache for what is planned; `settings` are other fields of EngineConfig."""
    tokens = min(planned_tokens, context_tokens)
    workload = Workload(tokens, planned_seqs, chunk_tokens, block_tokens, pool_blocks)
    return build_engine(decoder, EngineConfig(context_tokens, workload.cache, **settings))


@dataclass
class Asked:
    """A sequence of an engine, and its tokens as of the last call here."""

    engine: Engine
    sequence: EngineSequence
    tokens: list[int] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        engine: Engine,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        images: Sequence[ImageInput] = (),
        stop_ids: frozenset[int] = frozenset(),
        control_ids: frozenset[int] = frozenset(),
    ) -> Asked:
        request = SequenceRequest(
            prompt_ids, sampling, stop_ids, images=images, control_ids=control_ids
        )
        return cls(engine, engine.add(request))

    def advance(self) -> None:
        """Step until the sequence has another token or is finished; raises its error."""
        sequence, before = self.sequence, self.sequence.num_new_tokens
        while sequence.num_new_tokens == before and not sequence.is_finished:
            self.engine.step()
        self.tokens = sequence.token_ids[sequence.num_prompt_tokens :]
        if sequence.error is not None:
            raise sequence.error

    def finish(self) -> list[int]:
        while not self.sequence.is_finished:
            self.advance()
        self.tokens = self.sequence.token_ids[self.sequence.num_prompt_tokens :]
        return self.tokens


def generate(
    engine: Engine,
    prompt_ids: Sequence[int],
    sampling: Sampling,
    images: Sequence[ImageInput] = (),
) -> list[int]:
    """The tokens of one reply."""
    return Asked.of(engine, prompt_ids, sampling, images).finish()
