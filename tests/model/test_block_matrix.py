"""Matrices of blocks against float64 products of what gguf-py decodes."""

from __future__ import annotations

import gguf
import gguf.quants
import numpy as np
import pytest
import torch

from mrs.errors import Unsupported
from mrs.formats import FORMATS
from mrs.quantization import workspace
from mrs.quantization.matrix import BlockMatrix

CPU = torch.device("cpu")
NAMES = ["Q4_0", "Q5_1", "Q8_0", "Q3_K", "Q4_K", "IQ2_XXS", "IQ4_XS", "TQ2_0"]


def blocks_of(name: str, rows: int, columns: int) -> torch.Tensor:
    """Random bytes below 32: then every float16 value is small."""
    size = (rows, FORMATS[name].size_bytes((columns,)))
    return torch.from_numpy(np.random.default_rng(0).integers(0, 32, size, dtype=np.uint8))


@pytest.mark.parametrize("name", NAMES)
def test_multiplies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, columns = 7, 512
    monkeypatch.setattr(workspace, "TILE_WEIGHTS", 3 * columns)  # 3, 3 and 1 rows
    blocks = blocks_of(name, rows, columns)
    matrix = BlockMatrix(FORMATS[name], rows, columns, CPU)
    matrix.fill(blocks[4:], 4)
    matrix.fill(blocks[:4])
    assert matrix.nbytes == FORMATS[name].size_bytes(matrix.shape) == blocks.nbytes
    kind = gguf.GGMLQuantizationType[name]
    values = torch.from_numpy(gguf.quants.dequantize(blocks.numpy(), kind)).double()
    assert values.abs().max() > 0
    ids = torch.tensor([6, 0, 2])
    assert torch.equal(matrix.rows(ids, torch.float64), values[ids])
    for tokens in (1, 5):
        x = torch.randn(tokens, columns, generator=torch.Generator().manual_seed(0))
        expected = x.double() @ values.T
        error = (matrix.matmul(x).double() - expected).norm() / expected.norm()
        assert error < 1e-5


def test_a_format_without_a_decoder_is_refused_while_loading() -> None:
    with pytest.raises(Unsupported, match="Q8_1"):
        BlockMatrix(FORMATS["Q8_1"], 4, 64, CPU)
