"""Whether the CUDA kernels are used on a device: each kind is tested there once."""

from __future__ import annotations

import logging
from functools import cache

import torch

from mrs.kernels.cuda.self_test import missing_reason, row_reason, unavailable_reason
from mrs.quantization.gguf.fields import PLANE_LAYOUTS

_logger = logging.getLogger(__name__)


@cache
def has_cuda_products(device: torch.device, name: str) -> bool:
    """Whether the kernels compute correct products of a format on a device.

    It warns if they are wrong, and not where they cannot be: other kernels are there.
    """
    if missing_reason(device) is not None:
        return False
    reason = unavailable_reason(device, {name: PLANE_LAYOUTS.get(name)})
    if reason is not None:
        _logger.warning("%s does not multiply %s by CUDA kernels: %s", device, name, reason)
    return reason is None


@cache
def has_cuda_rows(device: torch.device) -> bool:
    """The same of the kernels that norm rows and rotate heads."""
    if missing_reason(device) is not None:
        return False
    reason = row_reason(device)
    if reason is not None:
        _logger.warning("%s norms and rotates without CUDA kernels: %s", device, reason)
    return reason is None
