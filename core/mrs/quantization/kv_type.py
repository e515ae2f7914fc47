"""The type of cached keys and values by its name in plans."""

from __future__ import annotations

from typing import cast

from mrs.kernels.kv_codes import CodeFormat, KVFormats, KVType
from mrs.quantization.gguf.unquantized import DTYPES


def kv_type(name: str) -> KVType:
    """That of `mrs.formats.KVFormat.name`."""
    keys, _, values = name.partition("/")
    if keys in DTYPES:
        return DTYPES[keys]
    return KVFormats(cast(CodeFormat, keys), cast(CodeFormat, values or keys))
