"""Fill matrices that keep quantized blocks, on the device that will multiply them."""

from __future__ import annotations

import logging
from functools import cache

import torch
from torch import Tensor

from mrs.formats import Format
from mrs.kernels.triton.plane_matrix import PlaneMatrix
from mrs.kernels.triton.self_test import triton_unavailable_reason
from mrs.model.linear import BlockMatrix
from mrs.quants import requantize
from mrs.quants.fields import PLANE_LAYOUTS, split_blocks

_logger = logging.getLogger(__name__)

#: Numbers that are copied to a device, quantized and laid out there at a time.
_NUMBERS = 1 << 21


class BlockFiller:
    """Takes the rows of a matrix one after another, in any format."""

    def __init__(self, format: Format, rows: int, columns: int, device: torch.device) -> None:
        self._format = format
        self._columns = columns
        self._row = 0
        self.matrix: PlaneMatrix | BlockMatrix
        if format.name in PLANE_LAYOUTS and _multiplies_planes(device):
            self.matrix = PlaneMatrix(PLANE_LAYOUTS[format.name], rows, columns, device)
        else:
            self.matrix = BlockMatrix(format, rows, columns, device)

    def add(self, data: Tensor, stored: Format) -> None:
        """The next rows, uint8 (R, row_bytes) of the format `stored`."""
        for part in torch.split(data, max(_NUMBERS // self._columns, 1)):
            here = part.to(self.matrix.device)
            blocks = here if stored == self._format else requantize(here, stored, self._format)
            if isinstance(self.matrix, PlaneMatrix):
                self.matrix.fill(split_blocks(blocks, self._format), self._row)
            else:
                self.matrix.fill(blocks, self._row)
            self._row += len(part)


@cache
def _multiplies_planes(device: torch.device) -> bool:
    """Whether the Triton kernels run on a device and give what they should."""
    if device.type != "cuda":
        return False
    reason = triton_unavailable_reason(device)
    if reason is not None:
        _logger.warning("%s decodes weights for every product: %s", device, reason)
    return reason is None
