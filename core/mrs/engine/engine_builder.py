"""Builds an engine of its parts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mrs.cache.cache_space import CacheSpace
from mrs.cache.prefix.disk import DiskPrefixCache
from mrs.cache.prefix.manager import PrefixCacheManager
from mrs.devices.variables import GRAPHS_VARIABLE
from mrs.engine.cache_manager import CacheManager
from mrs.engine.cuda_capture import CudaCapture
from mrs.engine.decode_graph import DecodeGraphs, is_capturable
from mrs.engine.draft_head import DraftHead
from mrs.engine.draft_model import DraftModel
from mrs.engine.drafter import Drafter, LookupDrafter
from mrs.engine.engine import Engine
from mrs.engine.scheduler import MAX_WAITING, Scheduler
from mrs.engine.step_budget import StepBudget
from mrs.engine.worker import Worker
from mrs.kernels.triton.attention_check import has_triton_attention
from mrs.kernels.triton.expert_blocks import MOST_TOKENS
from mrs.layers.joined_input.spec import JoinedInput
from mrs.model.decoder import Decoder
from mrs.plan.memory.cache_size import CacheSize
from mrs.plan.speed.draft_gain import NO_COST, DraftCost


@dataclass(frozen=True)
class DraftConfig:
    """A draft model or heads, the size of the KV cache of all, and what their tokens cost."""

    decoders: Sequence[Decoder]
    context_tokens: int
    cache_size: CacheSize
    cost: DraftCost


@dataclass(frozen=True)
class EngineConfig:
    """Limits of an engine.

    A sequence has at most `context_tokens`; the KV cache is made for `cache_size`, and a pool's
    size limits the length of a sequence, too. At most `max_seqs` run at once and `max_waiting`
    wait; a step computes about as many tokens as a chunk of `cache_size` has. The prefix cache
    stores `prefix_cache_n` sequences on accelerators, and within `prefix_budget_bytes` on each
    device; all are in `prefix_folder` if it is given. While replies are running, prompts may make a
    step take about `target_gap_s`; `prompt_tokens_per_s` is the planned rate, until one is
    measured. With `speculate`, tokens are drafted by the `draft` model, or else by prompt lookup,
    whose drafts cost `lookup_cost`.
    """

    context_tokens: int
    cache_size: CacheSize
    max_seqs: int = 1
    max_waiting: int = MAX_WAITING
    kv_cache: bool = True
    seed: int | None = None
    speculate: bool = False
    draft: DraftConfig | None = None
    lookup_cost: DraftCost = NO_COST
    prefix_cache_n: int = 0
    prefix_budget_bytes: Mapping[torch.device, int] = field(default_factory=dict)
    prefix_folder: DiskPrefixCache | None = None
    target_gap_s: float | None = None
    prompt_tokens_per_s: float | None = None


def build_engine(decoder: Decoder, config: EngineConfig) -> Engine:
    size = config.cache_size
    space = decoder.new_space(size)
    prefixes = PrefixCacheManager(
        config.prefix_cache_n if config.kv_cache else 0,
        new_cache=space.new,
        budget_bytes=config.prefix_budget_bytes,
        folder=config.prefix_folder,
        has_pool=size.is_pool,
    )
    if size.is_pool:
        space.reclaim_from(prefixes.drop_oldest)
    caches = CacheManager(
        decoder,
        prefixes,
        space,
        size,
        keeps_caches=config.kv_cache,
    )
    drafter = _drafter(config, decoder)
    scheduler = Scheduler(
        caches,
        max_seqs=config.max_seqs,
        budget=StepBudget(size.chunk_tokens, config.target_gap_s, config.prompt_tokens_per_s),
        max_waiting=config.max_waiting,
        drafter=drafter,
    )
    return Engine(
        decoder.spec,
        Worker(decoder, None if drafter is None else drafter.taker),
        scheduler,
        caches,
        context_tokens=config.context_tokens,
        pool_tokens=size.total_tokens if size.is_pool else None,
        seed=config.seed,
        graphs=_graphs(decoder, space, config.max_seqs),
    )


def _graphs(decoder: Decoder, space: CacheSpace, max_seqs: int) -> DecodeGraphs | None:
    """CUDA graphs for the decode steps; None if the model or its device has none."""
    device = decoder.primary_device
    is_fixed = is_capturable(decoder.spec) and not decoder.stack.has_host_choices
    can = device.type == "cuda" and decoder.is_on_one_device and is_fixed
    if not can or os.environ.get(GRAPHS_VARIABLE) == "off" or not has_triton_attention(device):
        return None
    has_experts = any(layer.feed_forward.routing for layer in decoder.spec.layers)
    most_rows = min(max_seqs, MOST_TOKENS) if has_experts else max_seqs
    return DecodeGraphs(decoder, space, most_rows, CudaCapture(device))


def _drafter(config: EngineConfig, target: Decoder) -> Drafter | None:
    draft = config.draft
    if not config.speculate:
        return None
    if draft is None:
        return LookupDrafter(config.lookup_cost)
    joined = draft.decoders[0].spec.input
    first, *further = ((Worker(each), _caches(each, draft.cache_size)) for each in draft.decoders)
    settings: dict[str, Any] = {
        "chunk_tokens": draft.cache_size.chunk_tokens,
        "context_tokens": draft.context_tokens,
        "vocab_size": target.spec.vocab_size,
        "cost": draft.cost,
    }
    if not isinstance(joined, JoinedInput):
        return DraftModel(*first, **settings)
    target.keeps_normed = joined.reads_normed
    return DraftHead(*first, further=further, is_chained=joined.chained, **settings)


def _caches(decoder: Decoder, size: CacheSize) -> CacheManager:
    space = decoder.new_space(size)
    prefixes = PrefixCacheManager(0, new_cache=space.new, budget_bytes={})
    return CacheManager(decoder, prefixes, space, size)
