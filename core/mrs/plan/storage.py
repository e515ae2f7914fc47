"""How each parameter is kept on its device: the answer that planner and loader share."""

from __future__ import annotations

from dataclasses import dataclass

from mrs.families.spec import Parameter
from mrs.formats import FORMATS, Format

_DTYPE_FORMATS = {"bf16": "BF16", "f16": "F16", "f32": "F32"}


@dataclass(frozen=True)
class Storage:
    """One parameter in memory: its format and exact bytes.

    `packed` blocks are re-laid for the native kernels; other parameters are plain tensors.
    """

    format: Format
    size_bytes: int
    packed: bool = False


def resolve_dtype(wanted: str, stored: list[Format]) -> Format:
    """The dense format of weights and KV cache: `wanted`, or with `auto` that of the file.

    A file of quantized blocks, which names none, is run in bf16.
    """
    if wanted != "auto":
        return FORMATS[_DTYPE_FORMATS[wanted]]
    dense = [f for f in stored if f.name in _DTYPE_FORMATS.values()]
    if not dense or any(f.is_quantized for f in stored):
        return FORMATS["BF16"]
    return max(dense, key=dense.count)


def store(parameter: Parameter, dense: Format) -> Storage:
    """Vectors stay in float32, everything else takes the model's dense format."""
    kept = FORMATS["F32"] if parameter.role == "vector" else dense
    return Storage(kept, kept.size_bytes(parameter.shape))
