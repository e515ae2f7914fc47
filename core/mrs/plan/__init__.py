"""Where every byte goes, known before anything is loaded."""

from __future__ import annotations

from mrs.plan.fastest import TokenReads, fastest, token_seconds
from mrs.plan.fill import auto_map
from mrs.plan.gpu_estimate import (
    FitPrediction,
    GpuEstimate,
    GpuMemory,
    estimate_gpu_layers,
    predict_fit,
)
from mrs.plan.placement import DeviceMemory, Placement
from mrs.plan.spread import spread

__all__ = [
    "DeviceMemory",
    "FitPrediction",
    "GpuEstimate",
    "GpuMemory",
    "Placement",
    "TokenReads",
    "auto_map",
    "estimate_gpu_layers",
    "fastest",
    "predict_fit",
    "spread",
    "token_seconds",
]
