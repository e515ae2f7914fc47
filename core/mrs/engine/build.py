"""Builds an engine of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from mrs.cache.prefix.disk import DiskPrefixCache
from mrs.cache.prefix.manager import PrefixCacheManager
from mrs.engine.cache_manager import CacheManager
from mrs.engine.engine import Engine
from mrs.engine.scheduler import MAX_WAITING, Scheduler
from mrs.engine.worker import Worker
from mrs.model.decoder import Decoder
from mrs.request import PREFILL_CHUNK_TOKENS


@dataclass(frozen=True)
class EngineConfig:
    """Limits of an engine.

    A sequence has at most `context_tokens`; memory was planned for `planned_seqs` of
    `planned_tokens` each. At most `max_seqs` run at once and `max_waiting` wait; a step computes
    about `chunk_tokens`. The prefix cache stores `prefix_cache_n` sequences in memory, within
    `prefix_budget_bytes` on each device, and all in `prefix_folder` if it is given.
    """

    context_tokens: int
    planned_tokens: int
    planned_seqs: int = 1
    max_seqs: int = 1
    max_waiting: int = MAX_WAITING
    chunk_tokens: int = PREFILL_CHUNK_TOKENS
    kv_cache: bool = True
    seed: int | None = None
    prefix_cache_n: int = 0
    prefix_budget_bytes: Mapping[torch.device, int] = field(default_factory=dict)
    prefix_folder: DiskPrefixCache | None = None


def build_engine(decoder: Decoder, config: EngineConfig) -> Engine:
    planned_tokens = min(config.planned_tokens, config.context_tokens)
    space = decoder.new_space(planned_tokens, config.chunk_tokens, sequences=config.planned_seqs)
    prefixes = PrefixCacheManager(
        config.prefix_cache_n if config.kv_cache else 0,
        new_cache=space.new,
        budget_bytes=config.prefix_budget_bytes,
        folder=config.prefix_folder,
    )
    caches = CacheManager(
        decoder,
        prefixes,
        space,
        planned_tokens=planned_tokens,
        planned_seqs=config.planned_seqs,
        keeps_caches=config.kv_cache,
    )
    scheduler = Scheduler(
        caches,
        max_seqs=config.max_seqs,
        step_tokens=config.chunk_tokens,
        max_waiting=config.max_waiting,
    )
    return Engine(
        decoder.spec,
        Worker(decoder),
        scheduler,
        caches,
        context_tokens=config.context_tokens,
        seed=config.seed,
    )
