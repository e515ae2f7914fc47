"""Attention of prompts by FlashInfer (arXiv 2501.01005), where that library is installed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.kernels.triton.attention_check import LARGEST_ERROR, attention_error
from mrs.kernels.triton.paged_attention import TritonAttention
from mrs.kernels.triton.self_test import is_right
from mrs.kernels.workspace.attention import FLASHINFER_BYTES

#: What the library has kernels for on all GPUs.
_HEAD_DIMS = (64, 128, 256)
_DTYPES = (torch.bfloat16, torch.float16)


class FlashInferAttention:
    """FlashInfer for steps with prompts, which read the same blocks; Triton's kernels for others.

    These are decode steps, of which CUDA graphs are made, and what the library lacks or does in
    another way: tokens that attend to later ones, sinks, latent attention, caches of 8 bits.
    """

    def __init__(self) -> None:
        self._triton = TritonAttention()

    def write(self, cache: PagedKV, batch: AttentionBatch, k: Tensor, v: Tensor | None) -> None:
        self._triton.write(cache, batch, k, v)

    def attend(
        self,
        q: Tensor,
        cache: PagedKV,
        batch: AttentionBatch,
        options: AttentionOptions,
    ) -> Tensor:
        if options.sinks is not None or not _has_kernel(q, cache, batch):
            return self._triton.attend(q, cache, batch, options)
        _, heads, head_dim = q.shape
        _, kv_heads, block_tokens, _ = cache.keys.shape
        settings = {
            "num_qo_heads": heads,
            "num_kv_heads": kv_heads,
            "head_dim_qk": head_dim,
            "page_size": block_tokens,
            "causal": True,
            "sm_scale": options.scale,
            # Keys before the query's own; ours counts that one, too.
            "window_left": -1 if options.window is None else options.window - 1,
            "logits_soft_cap": options.softcap or 0.0,
            "q_data_type": q.dtype,
            "kv_data_type": cache.keys.dtype,
        }
        planned = _planned(q.device, tuple(settings.items()))
        planned.plan(batch, settings)
        out: Tensor = planned.wrapper.run(q.contiguous(), (cache.keys, cache.values))
        return out.flatten(1)


def _has_kernel(q: Tensor, cache: PagedKV, batch: AttentionBatch) -> bool:
    """Whether a batch is computed by the library."""
    has_prompt = len(q) > len(batch.context_lens)
    is_plain = len(cache.tensors) == 2 and q.dtype == cache.keys.dtype in _DTYPES
    has_size = q.shape[2] == cache.value_dim in _HEAD_DIMS
    return has_prompt and is_plain and has_size and batch.attention_ends is None


@dataclass
class _Planned:
    """The library's object for layers of one kind, and the batch that it knows."""

    wrapper: Any
    batch: AttentionBatch | None = None

    def plan(self, batch: AttentionBatch, settings: dict[str, Any]) -> None:
        """Tell the library about a batch, once for all layers of a kind. Copies nothing back."""
        if batch is self.batch:
            return
        size, lengths = settings["page_size"], batch.context_lens
        counts = (lengths + size - 1) // size
        starts = torch.cat([torch.zeros(1, dtype=torch.int32), counts.cumsum(0)]).int()
        width = batch.block_tables.shape[1]
        rows = torch.arange(len(counts)).repeat_interleave(counts) * width
        columns = torch.arange(len(rows)) - starts[:-1].repeat_interleave(counts)
        places = (rows + columns).to(batch.block_tables.device)
        self.wrapper.plan(
            qo_indptr=batch.query_start,
            paged_kv_indptr=starts,
            paged_kv_indices=batch.block_tables.flatten().index_select(0, places),
            paged_kv_last_page_len=lengths - (counts - 1) * size,
            **settings,
        )
        self.batch = batch


@cache
def _planned(device: torch.device, settings: tuple[tuple[str, Any], ...]) -> _Planned:
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    return _Planned(BatchPrefillWithPagedKVCacheWrapper(_workspace(device), kv_layout="HND"))


@cache
def _workspace(device: torch.device) -> Tensor:
    return torch.empty(FLASHINFER_BYTES, dtype=torch.uint8, device=device)


@cache
def has_flashinfer(device: torch.device) -> bool:
    """Whether the library is installed, runs on a GPU and is right there; warns if it is not."""
    if find_spec("flashinfer") is None:
        return False
    return is_right(device, _error, LARGEST_ERROR, "FlashInfer is not used", who="it")


def _error(device: torch.device) -> float:
    return attention_error(device, FlashInferAttention().attend)
