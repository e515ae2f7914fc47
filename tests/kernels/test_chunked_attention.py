"""Attention within chunks of sequences, over blocks."""

from __future__ import annotations

import pytest
import torch
from test_paged_attention import make_cache
from test_steps import assert_near, attention_in_double, batch_of, normal

from mrs.kernels.attention_backend import attention_backend
from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.chunked_attention import within_chunks

pytestmark = pytest.mark.usefixtures("any_path")


@pytest.mark.parametrize(("block", "chunk"), [(8, 8), (8, 24), (16, 64)])
def test_tokens_attend_to_their_own_chunk(block: int, chunk: int) -> None:
    """Some decode, some read several chunks at once, some begin one."""
    lengths = [(1, 1), (130, 1), (129, 1), (70, 50), (23, 23), (64, 3), (24, 24)]
    sequences = [
        (normal(2, length, 48, seed=n), normal(2, length, 32, seed=n + 50), new)
        for n, (length, new) in enumerate(lengths)
    ]
    kv, places = make_cache(sequences, block, torch.float32)
    q = normal(sum(new for _, new in lengths), 4, 48, seed=9)
    batch = batch_of(places, block)
    chunked = within_chunks(batch, chunk, block)
    assert chunked is within_chunks(batch, chunk, block)
    assert torch.equal(chunked.slot_mapping, batch.slot_mapping)
    result = attention_backend(kv).attend(q, kv, chunked, AttentionOptions(0.2))
    for (k, v, new), (rows, context) in zip(sequences, batch.queries, strict=True):
        for i in range(new):
            end = context - new + i + 1
            seen = slice((end - 1) // chunk * chunk, end)
            one = q[rows][i : i + 1]
            expected = attention_in_double(one, k[:, seen], v[:, seen], 0.2, None, None, None)
            assert_near(result[rows][i : i + 1], expected, 1e-5)
