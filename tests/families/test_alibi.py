"""Slopes and positions of ALiBi: as transformers makes them, and exact in every kind of cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from transformers.models.bloom.modeling_bloom import _get_alibi_slopes
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from mrs.config.config import Config
from mrs.errors import NotReadable, Unsupported
from mrs.graph.attention_operations import with_positions
from mrs.graph.operations import STREAM, Graph
from mrs.layers.attention.alibi import MOST_POSITIONS, POSITION_VALUES, alibi_slopes
from mrs.layers.attention.config import read_alibi_attention
from mrs.layers.attention.spec import Attention
from mrs.model.model_weights import ModelWeights
from mrs.model.torch_operations import TorchOperations
from mrs.quantization.matrix import DenseMatrix

CPU = torch.device("cpu")


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 71, 112])
def test_slopes(heads: int) -> None:
    ours = torch.tensor(alibi_slopes(heads))
    assert torch.allclose(ours, _get_alibi_slopes(heads, CPU), rtol=1e-5)
    for largest in (8, 6):
        theirs = build_mpt_alibi_tensor(heads, 2, largest)[:, 0, 0]  # one position back
        assert torch.allclose(torch.tensor(alibi_slopes(heads, largest)), -theirs, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_positions_are_exact(dtype: torch.dtype) -> None:
    attention = Attention(3, 1, 16, scale=0.25, rope=None, alibi=alibi_slopes(3))
    positions = torch.tensor([0, 1, 15, 16, 4097, MOST_POSITIONS - 1])
    batch = cast(Any, SimpleNamespace(positions=positions))
    q, k = torch.randn(6, 3, 16), torch.randn(6, 1, 16)
    graph = Graph(64)
    wide = with_positions(graph, attention, *graph.split(STREAM, (48, 16)))
    weights = ModelWeights({"mixer.q.weight": DenseMatrix(torch.empty(1, 1))}, {})
    stream = torch.cat((q.flatten(1), k.flatten(1)), dim=1)
    wide_q, wide_k = (
        TorchOperations(graph.operations, graph, weights, result=each)(stream, batch).view(
            6, -1, 32
        )
        for each in wide
    )
    assert wide_k.shape == (6, 1, 16 + POSITION_VALUES) == (6, 1, attention.key_dim)
    stored = wide_k[..., 16:].to(dtype).double()
    added = 0.25 * torch.einsum("qhd,kgd->hqk", wide_q[..., 16:].double(), stored)
    expected = torch.tensor(attention.alibi)[:, None, None] * positions.double()
    assert torch.allclose(added, expected.expand(3, 6, 6))
    assert torch.equal(wide_q[..., :16], q)
    assert torch.equal(wide_k[..., :16], k)


def test_what_is_out_of_range() -> None:
    usual = {"hidden_size": 64, "num_attention_heads": 4}
    with pytest.raises(Unsupported, match="positions"):
        read_alibi_attention(Config({**usual, "max_position_embeddings": 1 << 20}, "x"))
    with pytest.raises(NotReadable, match="num_attention_heads"):
        read_alibi_attention(Config({**usual, "num_attention_heads": 1 << 60, "head_dim": 8}, "x"))
