"""Generate token ids with a decoder: prefill in chunks, then one token a step."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mrs.cache.sequence import SequenceCache
from mrs.errors import ContextFull, UsageError
from mrs.model.decoder import Decoder
from mrs.model.segments import Segment
from mrs.request import PREFILL_CHUNK_TOKENS, Sampling
from mrs.run.sampler import Sampler


class Engine:
    """Runs one sequence at a time; speaks token ids only."""

    def __init__(
        self,
        decoder: Decoder,
        *,
        planned_tokens: int,
        context_tokens: int,
        kv_cache: bool = True,
        seed: int | None = None,
        chunk_tokens: int = PREFILL_CHUNK_TOKENS,
    ) -> None:
        self._decoder = decoder
        self._planned_tokens = planned_tokens
        self.context_tokens = context_tokens
        self._kv_cache = kv_cache
        self._chunk_tokens = chunk_tokens
        self._generator = torch.Generator(device=decoder.home)
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)

    def generate(self, prompt_ids: list[int], sampling: Sampling) -> Iterator[int]:
        """Yield the tokens of a reply, without end; the consumer stops when it has seen enough.

        Ends by itself only where the model's context or `sampling.max_tokens` is reached.
        """
        room_tokens = self.context_tokens - len(prompt_ids)
        if not prompt_ids:
            raise UsageError("the prompt has no tokens", hint="give it a text")
        if room_tokens < 1:
            raise ContextFull(len(prompt_ids), self.context_tokens)
        limit = room_tokens if sampling.max_tokens is None else sampling.max_tokens
        sampler = Sampler(
            sampling,
            prompt_ids,
            self._decoder.spec.vocab_size,
            self._decoder.home,
            self._generator,
        )
        cache, ids = self._new_cache(), list(prompt_ids)
        for _ in range(min(limit, room_tokens)):
            token = sampler(self._logits(cache, ids[cache.length :]))
            yield token
            ids.append(token)
            if not self._kv_cache or self._decoder.is_outdated(cache, len(ids)):
                cache = self._new_cache()

    def _new_cache(self) -> SequenceCache:
        capacity = min(self._planned_tokens, self.context_tokens)
        return self._decoder.new_cache(capacity, self._chunk_tokens)

    @torch.inference_mode()
    def _logits(self, cache: SequenceCache, new_ids: list[int]) -> Tensor:
        """Feed tokens in chunks; logits (V,) after the last."""
        logits = torch.empty(0)
        total_tokens = cache.length + len(new_ids)
        for start in range(0, len(new_ids), self._chunk_tokens):
            chunk = torch.tensor(new_ids[start : start + self._chunk_tokens])
            is_last = start + self._chunk_tokens >= len(new_ids)
            wanted = torch.tensor([len(chunk) - 1] if is_last else [], dtype=torch.long)
            segments = [Segment(slice(0, len(chunk)), cache, total_tokens)]
            logits = self._decoder.forward(chunk, segments, wanted)
        return logits[0]
