"""Matrices in planes keep what gguf-py decodes, in as many bytes as the file."""

from __future__ import annotations

import pytest
import torch
from packed_blocks import random_blocks, reference_values

from mrs.formats import FORMATS
from mrs.kernels.triton.plane_matrix import PlaneMatrix
from mrs.quantization.gguf.fields import PLANE_LAYOUTS, split_blocks

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", PLANE_LAYOUTS)
@pytest.mark.parametrize("blocks_in_row", [1, 3])
def test_keeps_every_value(name: str, blocks_in_row: int) -> None:
    layout, columns = PLANE_LAYOUTS[name], PLANE_LAYOUTS[name].block * blocks_in_row
    blocks = random_blocks(name, 7, columns)
    matrix = PlaneMatrix(layout, 7, columns, CPU)
    for start, stop in ((5, 7), (0, 5)):
        matrix.fill(split_blocks(blocks[start:stop], FORMATS[name]), start)
    ids = torch.tensor([6, 0, 3, 3, 5])
    assert torch.equal(matrix.rows(ids, torch.float32), reference_values(name, blocks)[ids])
    assert matrix.nbytes == FORMATS[name].size_bytes((7, columns)) == blocks.nbytes


@pytest.mark.parametrize("name", PLANE_LAYOUTS)
def test_planes_begin_where_their_words_can(name: str) -> None:
    """Torch refuses to view bytes as words elsewhere, so any odd size that works will do."""
    for rows in (1, 3, 5):
        matrix = PlaneMatrix(PLANE_LAYOUTS[name], rows, 3 * PLANE_LAYOUTS[name].block, CPU)
        planes = [plane for plane in matrix.planes if plane is not None]
        assert sum(plane.nbytes for plane in planes) == matrix.nbytes
        first = matrix._data.data_ptr()
        assert all((plane.data_ptr() - first) % plane.itemsize == 0 for plane in planes)


@pytest.mark.parametrize("name", PLANE_LAYOUTS)
def test_fields_stay_on_their_device(name: str) -> None:
    """torch's `meta` device refuses to meet another one."""
    columns = 2 * PLANE_LAYOUTS[name].block
    meta = torch.device("meta")
    blocks = random_blocks(name, 3, columns).to(meta)
    matrix = PlaneMatrix(PLANE_LAYOUTS[name], 3, columns, meta)
    matrix.fill(split_blocks(blocks, FORMATS[name]))
    ids = torch.zeros(4, dtype=torch.int64, device=meta)
    assert matrix.rows(ids, torch.bfloat16).shape == (4, columns)


def test_refuses_what_does_not_fit() -> None:
    layout, kind = PLANE_LAYOUTS["Q8_0"], FORMATS["Q8_0"]
    with pytest.raises(ValueError, match="not whole blocks"):
        PlaneMatrix(layout, 4, 48, CPU)
    matrix = PlaneMatrix(layout, 4, 64, CPU)
    with pytest.raises(ValueError, match="from row 2"):
        matrix.fill(split_blocks(random_blocks("Q8_0", 3, 64), kind), 2)
    with pytest.raises(ValueError, match="from row 0"):
        matrix.fill(split_blocks(random_blocks("Q8_0", 3, 32), kind))
    with pytest.raises(ValueError, match="columns"):
        matrix.matmul(torch.ones(1, 32))
