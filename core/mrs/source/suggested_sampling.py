"""The sampling settings that a model's files suggest, by the names of `Sampling`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from mrs.sampling import SETTINGS
from mrs.source.checkpoint import Checkpoint

_logger = logging.getLogger(__name__)

#: What files may ask for that changes replies and is not supported, with the values without effect.
_UNUSED: Mapping[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "penalty_alpha": (0.0,),
    "guidance_scale": (1.0,),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "bad_words_ids": ([],),
    "sequence_bias": ({}, []),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "general.sampling.mirostat": (0,),
    "general.sampling.penalty_last_n": (-1,),
    "general.sampling.sequence": ("",),
}


def suggested_sampling(checkpoint: Checkpoint) -> dict[str, Any]:
    """The settings in generation_config.json, or in the metadata of a GGUF file.

    `do_sample` false is a temperature of 0. A value that no request may have is left out with a
    warning, and so is what is not supported.
    """
    is_gguf = checkpoint.container == "gguf"
    config: Mapping[str, Any] = checkpoint.config if is_gguf else checkpoint.generation_config
    keys = {
        name: key
        for name, setting in SETTINGS.items()
        if (key := setting.gguf_key if is_gguf else setting.config_key)
    }
    given = {name: config.get(key) for name, key in keys.items()}
    if config.get("do_sample") is False:
        given["temperature"] = 0.0
    for key, neutral in _UNUSED.items():
        if config.get(key) not in (None, *neutral):
            _logger.warning("the model suggests %s, which is not supported and ignored", key)
    found: dict[str, Any] = {}
    for name, value in given.items():
        if value is not None and SETTINGS[name].kind.accepts(value):
            found[name] = SETTINGS[name].kind.read(value)
        elif value is not None:
            _logger.warning("the model suggests a wrong %s, which is ignored: %.40r", name, value)
    if found.get("temperature") == 0:
        _logger.info("replies are greedy: the model's files suggest a temperature of 0")
    return found
