"""The sampling settings that a model's files suggest, by the names of `Sampling`."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from mrs.source.checkpoint import Checkpoint

_logger = logging.getLogger(__name__)

#: Keys of GGUF metadata; generation_config.json has the names of `Sampling` itself.
_GGUF_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
#: The largest value of each setting; infinity itself is not a value.
_LARGEST = {
    "temperature": math.inf,
    "top_k": math.inf,
    "top_p": 1.0,
    "min_p": 1.0,
    "repetition_penalty": math.inf,
}
_ABOVE_ZERO = ("top_p", "repetition_penalty")


def suggested_sampling(checkpoint: Checkpoint) -> dict[str, float]:
    """The settings in generation_config.json, or in the metadata of a GGUF file.

    `do_sample` false is a temperature of 0. A value that no flag accepts is left out with a
    warning.
    """
    if checkpoint.container == "gguf":
        config: Mapping[str, Any] = checkpoint.config
        keys = _GGUF_KEYS
    else:
        config = checkpoint.generation_config
        keys = {name: name for name in _GGUF_KEYS}
    given = {name: config.get(key) for name, key in keys.items()}
    if config.get("do_sample") is False:
        given["temperature"] = 0.0
    found = {name: value for name, value in given.items() if value is not None}
    wrong = [name for name, value in found.items() if not _is_valid(name, value)]
    for name in wrong:
        _logger.warning("the model suggests a wrong %s, which is ignored: %.40r", name, found[name])
    return {name: value for name, value in found.items() if name not in wrong}


def _is_valid(name: str, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if name == "top_k" else (int, float)):
        return False
    is_low_enough = value < math.inf and value <= _LARGEST[name]
    return is_low_enough and (value > 0 if name in _ABOVE_ZERO else value >= 0)


#: Keys of generation_config.json that shape no reply: of tokens and stops, which are read
#: elsewhere, of how transformers computes and returns, and of beams, which are off.
_SHAPES_NOTHING = re.compile(
    r"_.*|.*_token_ids?|transformers_version|do_sample|max_length|max_window_size|max_time"
    r"|(output|return|use|num_beam|num_assistant|assistant|prompt_lookup|compile|disable|cache)_.*"
    r"|num_return_sequences|low_memory|is_assistant|target_lookbehind|early_stopping"
    r"|length_penalty|diversity_penalty|renormalize_logits|remove_invalid_values|chat_format"
    r"|trust_remote_code|token_healing|speculative_.*"
)
#: Values that switch a setting off.
_OFF: tuple[Any, ...] = (None, False, 0, 1, "", [], {})


def unused_settings(container: str, config: Mapping[str, Any]) -> list[str]:
    """The settings in generation_config.json, or in the metadata of a GGUF file, that would shape
    replies and are not read; those that are off are left out."""
    if container == "gguf":
        prefix = "general.sampling."
        given = [key for key in config if key.startswith(prefix)]
        read: Collection[str] = _GGUF_KEYS.values()
    else:
        given = [key for key in config if not _SHAPES_NOTHING.fullmatch(key)]
        read = _GGUF_KEYS
    return sorted(key for key in given if key not in read and config[key] not in _OFF)
