"""Triton's attention against float64, over random shapes, in Triton's interpreter.

`test_triton.py` runs this file with `TRITON_INTERPRET=1`, which must be set before Triton is
imported.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from attention_problems import SHAPES, Problem, Shape
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from mrs.kernels.paged import AttentionBatch
from mrs.kernels.triton import attention_check, paged_attention


@pytest.fixture(autouse=True)
def _short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that sequences of a few dozen tokens have several."""
    monkeypatch.setattr(paged_attention, "SPLIT_KEYS", 64)
    monkeypatch.setattr(paged_attention.TileSize, "of", _small_tiles)


def _small_tiles(head_dim: int, group: int, dtype: torch.dtype) -> paged_attention.TileSize:
    heads = min(1 << (group - 1).bit_length(), 16)
    return paged_attention.TileSize(heads, 16 // heads, 16)


@pytest.fixture(autouse=True)
def products_of_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter multiplies the bits of bf16 as if they were integers."""
    create_dot = InterpreterBuilder.create_dot

    def wide_dot(builder: InterpreterBuilder, a: TensorHandle, b: TensorHandle, *rest: object):
        return create_dot(builder, _wide(a), _wide(b), *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", wide_dot)


def _wide(x: TensorHandle) -> TensorHandle:
    if x.dtype.scalar != tl.bfloat16:
        return x
    return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
def test_attends(shape: Shape) -> None:
    problem = Problem(shape)
    assert problem.error() < problem.largest_error


def test_the_check_before_use(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, launch, splits = torch.device("cpu"), paged_attention._launch, []

    def counted(*arguments: Any) -> None:
        splits.append(arguments[4])
        launch(*arguments)

    monkeypatch.setattr(paged_attention, "_launch", counted)
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        error = attention_check.attention_error(cpu, dtype=dtype)
        assert error < attention_check.LARGEST_ERROR
    assert max(splits) > 2
    monkeypatch.setattr(attention_check, "triton_missing_reason", lambda device: None)
    attention_check.has_triton_attention.cache_clear()
    assert attention_check.has_triton_attention(cpu)
    attention_check.has_triton_attention.cache_clear()
    monkeypatch.setattr(paged_attention, "_decode", lambda *inputs: None)
    monkeypatch.setattr(paged_attention, "_prefill", lambda inputs, tiles, out, *rest: out.fill_(1))
    assert not attention_check.has_triton_attention(cpu)
    attention_check.has_triton_attention.cache_clear()


def test_a_result_does_not_depend_on_the_batch() -> None:
    """Other sequences, and longer block tables, change no bit."""
    alone = Problem(Shape(4, 2, 64, (1,), (70,)))
    among = Problem(Shape(4, 2, 64, (1,), (70,)))
    tables = torch.zeros(3, 40, dtype=torch.int32)
    tables[1, : alone.batch.block_tables.shape[1]] = alone.batch.block_tables
    tables[[0, 2], 0] = alone.batch.block_tables[0, 0]
    among.batch = AttentionBatch(
        torch.tensor([0, 1, 2, 3], dtype=torch.int32),
        torch.tensor([5, 71, 3], dtype=torch.int32),
        tables,
        torch.empty(0, dtype=torch.int64),
    )
    among.q = alone.q.expand(3, -1, -1)
    assert torch.equal(alone.attend()[0], among.attend()[1])
