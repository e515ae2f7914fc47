"""Read rope whose base, and a window, differ from layer to layer."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.config import Config
from mrs.architecture.norm_rope import Rope
from mrs.architecture.readers.layer_kinds_reader import of_layers, windows
from mrs.architecture.readers.layer_reader import read_head_rope

#: The key that lists the base of each layer, 0 for none.
LAYER_BASES = "layer_rope_theta"


def read_layered_rope(config: Config) -> list[tuple[Rope | None, int | None]]:
    """Rope and window of each layer. The first of four has no window if the config lists none.

    A layer whose base is 0 has no rope.
    """
    rope, local = read_head_rope(config), windows(config, period=4, full_first=True)
    if not config.has(LAYER_BASES):
        return [(rope, window) for window in local]
    ropes = [
        _with_base(rope, Config({LAYER_BASES: base}, config.where))
        for base in of_layers(config, LAYER_BASES)
    ]
    return list(zip(ropes, local, strict=True))


def _with_base(rope: Rope, config: Config) -> Rope | None:
    if not config.number(LAYER_BASES):
        return None
    return replace(rope, base=config.positive_number(LAYER_BASES, above=1))
