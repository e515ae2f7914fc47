"""Read the rope scaling from the metadata of a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from mrs.architecture.config import Config
from mrs.errors import Unsupported

_SCALING = "rope.scaling."
#: The key of the factor in older files.
_LINEAR = "rope.scale_linear"
_KEYS: dict[str, str] = {
    "original_max_position_embeddings": "original_context_length",
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
    "yarn_log_multiplier": "yarn_log_multiplier",
}
#: What is read here, after the architecture's prefix.
ROPE_NAMES = (
    _LINEAR,
    *(_SCALING + name for name in ("type", "factor", "attn_factor", "yarn_ext_factor")),
    *(_SCALING + name for name in _KEYS.values()),
)
#: Architectures whose base of rope is raised by `alpha`.
_WITH_ALPHA = ("hunyuan-dense.", "hunyuan_vl.")


def gguf_rope_scaling(
    metadata: Mapping[str, Any], prefix: str, tensor_names: Collection[str], where: str
) -> dict[str, Any] | None:
    """The rope scaling; factors that are tensors of the file are left out.

    A factor without a type is linear, and a factor of 0 is none. Raises Unsupported.
    """
    start = prefix + _SCALING
    given = Config(
        {key.removeprefix(start): v for key, v in metadata.items() if key.startswith(start)}, where
    )
    factor = given.number("factor", metadata.get(prefix + _LINEAR, 0)) or 1.0
    if prefix in _WITH_ALPHA and given.number("alpha", 0) > 0:
        return {"alpha": given.number("alpha")}
    stated = given.values.get("type", "linear")
    kind = _kind_by_tensors(tensor_names) or stated
    if kind in ("factors", "longrope") and stated != "none" and factor != 1:
        raise _unsupported(f"{start}factor = {factor} with factors of single pairs", where)
    magnitude = given.number("attn_factor", 0) or 1.0
    if kind in ("none", "linear", "factors") and magnitude != 1:
        raise _unsupported(f"{start}attn_factor = {magnitude} without yarn or longrope", where)
    if kind == "none" or (kind == "linear" and factor == 1):
        return None
    values = {key: given.values[name] for key, name in _KEYS.items() if name in given.values}
    if kind == "yarn":
        _check_extension(given, start)
        if magnitude != 1 and given.has("yarn_log_multiplier"):
            raise _unsupported(f"{start}attn_factor = {magnitude} with yarn_log_multiplier", where)
        usual = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
        values |= {"attention_factor": magnitude * usual} if magnitude != 1 else {}
    elif magnitude != 1:
        values["attention_factor"] = magnitude
    if kind in ("linear", "yarn"):
        values["factor"] = factor
    return {"rope_type": kind, **values}


def _kind_by_tensors(tensor_names: Collection[str]) -> str | None:
    if "rope_freqs.weight" in tensor_names:
        return "factors"
    return "longrope" if "rope_factors_long.weight" in tensor_names else None


def _check_extension(given: Config, start: str) -> None:
    """Raises Unsupported unless frequencies are extended in full; a negative factor says nothing"""
    extension = given.number("yarn_ext_factor", 1.0)
    if 0 <= extension != 1:
        raise _unsupported(f"{start}yarn_ext_factor = {extension}", given.where)


def _unsupported(what: str, where: str) -> Unsupported:
    return Unsupported(
        f"{what} is not supported", where=where, hint="convert the model again, or give another"
    )
