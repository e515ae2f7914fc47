"""What a weight is for."""

from __future__ import annotations

from typing import Literal

Role = Literal["matrix", "embedding", "head", "tower", "dense", "vector"]
