"""Read which layers have windows and rope in models that count layers from the last one."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.readers.layer_kinds_reader import (
    FULL,
    SLIDING,
    layer_count,
    of_layers,
    windows,
)
from mrs.architecture.readers.layer_reader import read_head_rope
from mrs.architecture.readers.layered_rope_reader import LAYER_BASES
from mrs.errors import Unsupported


def windows_from_end(config: Config, period: int) -> list[int | None]:
    """The window of each layer; None for the last one and each `period`-th before it.

    The config may list the types of layers instead.
    """
    kinds = [FULL if each else SLIDING for each in _every_from_end(config, period)]
    return windows(config if config.has("layer_types") else config.changed({"layer_types": kinds}))


def rotating_layers(config: Config, period: int) -> list[bool]:
    """Whether each layer has rope: by default all but the last one and each `period`-th before it.

    The config may list the base of each layer, 0 for none; others than the model's are refused.
    In GGUF files the layers with a window have rope.
    """
    if config.flag("rotates_in_windows", False):
        return [window is not None for window in windows_from_end(config, period)]
    if not config.has(LAYER_BASES):
        return [not each for each in _every_from_end(config, period)]
    bases, base = of_layers(config, LAYER_BASES), read_head_rope(config).base
    if any(each not in (0, base) for each in bases):
        raise Unsupported(f"{LAYER_BASES} = {list(bases)} is not supported", where=config.where)
    return [each != 0 for each in bases]


def _every_from_end(config: Config, period: int) -> list[bool]:
    """Whether each layer is the last one or a `period`-th before it."""
    count = layer_count(config)
    return [(count - 1 - layer) % period == 0 for layer in range(count)]
