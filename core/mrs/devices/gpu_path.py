"""Which kernels may be used on GPUs, if that is chosen by hand."""

from __future__ import annotations

import os
from collections.abc import Mapping

from mrs.devices.variables import GPU_PATH_VARIABLE
from mrs.errors import UsageError

#: Each with the kernels after it for what it cannot compute.
GPU_PATHS = ("cuda", "triton", "torch")


def gpu_path(environ: Mapping[str, str] = os.environ) -> str | None:
    """The path that `MRS_GPU_PATH` selects; None if a test on the GPU is to choose.

    UsageError for one that does not exist.
    """
    path = environ.get(GPU_PATH_VARIABLE) or None
    if path is not None and path not in GPU_PATHS:
        raise UsageError(
            f"there is no path {GPU_PATH_VARIABLE}={path}", hint=f"use {', '.join(GPU_PATHS)}"
        )
    return path
