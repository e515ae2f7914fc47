"""The engine of a model that is loaded as its plan says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mrs.engine.engine_builder import EngineConfig, build_engine
from mrs.engine.loop import EngineLoop
from mrs.kernels.cpu.heap import HeapLimit
from mrs.plan.speed.draft_gain import draft_cost

if TYPE_CHECKING:
    from mrs.cache.prefix.disk import DiskPrefixCache
    from mrs.engine.engine_builder import DraftConfig
    from mrs.model.decoder import Decoder
    from mrs.plan.plan import Plan
    from mrs.request import RunRequest


def engine_of(
    request: RunRequest,
    plan: Plan,
    decoder: Decoder,
    folder: DiskPrefixCache | None,
    draft: DraftConfig | None,
) -> EngineLoop:
    """The running engine; `folder` has prefix caches of earlier runs, `draft` a draft model."""
    budgets = plan.prefix_budgets().items()
    config = EngineConfig(
        context_tokens=plan.model.context_tokens,
        cache_size=plan.workload.cache,
        max_seqs=request.max_seqs,
        kv_cache=request.kv_cache,
        seed=request.seed,
        prefix_cache_n=request.prefix_cache_n,
        prefix_budget_bytes={torch.device(name): size_bytes for name, size_bytes in budgets},
        prefix_folder=folder,
        target_gap_s=request.target_gap_s,
        prompt_tokens_per_s=plan.speed.prompt.expected,
        speculate=request.speculate == "ngram",
        draft=draft,
        lookup_cost=draft_cost(plan.speed),
    )
    on_cpu = [n for n, device in enumerate(plan.devices) if device.torch_device == "cpu"]
    heap = HeapLimit(sum(plan.breakdowns[n].total.expected for n in on_cpu))
    return EngineLoop(build_engine(decoder, config), after_step=heap.check)
