"""The sampling settings that a model's files suggest, by the names of `Sampling`."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from mrs.request.sampling import SETTINGS
from mrs.source.checkpoint import Checkpoint

_logger = logging.getLogger(__name__)


def suggested_sampling(checkpoint: Checkpoint) -> dict[str, Any]:
    """The settings in generation_config.json, or in the metadata of a GGUF file.

    `do_sample` false is a temperature of 0. A value that no request may have is left out with a
    warning.
    """
    is_gguf = checkpoint.container == "gguf"
    config: Mapping[str, Any] = checkpoint.config if is_gguf else checkpoint.generation_config
    given = {name: config.get(key) for name, key in _keys(checkpoint.container).items()}
    if config.get("do_sample") is False:
        given["temperature"] = 0.0
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if value is not None and SETTINGS[name].kind.accepts(value):
            settings[name] = SETTINGS[name].kind.read(value)
        elif value is not None:
            _logger.warning("the model suggests a wrong %s, which is ignored: %.40r", name, value)
    if settings.get("temperature") == 0:
        _logger.info("replies are greedy: the model's files suggest a temperature of 0")
    return settings


def _keys(container: str) -> dict[str, str]:
    """The key of each setting that files of this kind may have."""
    return {
        name: key
        for name, setting in SETTINGS.items()
        if (key := setting.gguf_key if container == "gguf" else setting.config_key)
    }


#: Keys of generation_config.json that shape no reply: of tokens and stops, which are read
#: elsewhere, of how transformers computes and returns, and of beams, which are off.
_SHAPES_NOTHING = re.compile(
    r"_.*|.*_token_ids?|transformers_version|do_sample|max_length|max_window_size|max_time"
    r"|(output|return|use|num_beam|num_assistant|assistant|prompt_lookup|compile|disable|cache)_.*"
    r"|num_return_sequences|low_memory|is_assistant|target_lookbehind|early_stopping"
    r"|length_penalty|diversity_penalty|renormalize_logits|remove_invalid_values|chat_format"
    r"|trust_remote_code|token_healing|speculative_.*"
)
#: Those of a model that transcribes, which are read with its tokens or are the same for all.
OF_SPEECH = (
    *("suppress_tokens", "begin_suppress_tokens", "is_multilingual", "lang_to_id", "task_to_id"),
    *("max_initial_timestamp_index", "alignment_heads", "forced_decoder_ids"),
    "median_filter_width",
)
#: Values that switch a setting off.
_OFF: tuple[Any, ...] = (None, False, 0, 1, "", [], {})


def unused_settings(container: str, config: Mapping[str, Any]) -> list[str]:
    """The settings in generation_config.json, or in the metadata of a GGUF file, that would shape
    replies and are not read; those that are off are left out."""
    if container == "gguf":
        given = [key for key in config if key.startswith("general.sampling.")]
    else:
        given = [key for key in config if not _SHAPES_NOTHING.fullmatch(key)]
    read = _keys(container).values()
    return sorted(key for key in given if key not in read and config[key] not in _OFF)
