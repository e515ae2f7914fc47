"""Normalization, as a frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Norm:
    """RMSNorm or LayerNorm over the last dimension, always computed in float32.

    One that is not `learned` has no weights.
    """

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    bias: bool = False
    learned: bool = True
