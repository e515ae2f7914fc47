"""EXAONE 4: norms only on what layers add, and no rope in the layers without a window."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_kinds_reader import layer_count, read_window, windows
from mrs.architecture.readers.layer_reader import (
    decoder,
    read_attention,
    read_head_rope,
    read_mlp,
    read_norm,
)


def read(config: Config) -> ModelSpec:
    norm, mlp = read_norm(config, default=1e-5), read_mlp(config)
    rope, has_windows = read_head_rope(config), read_window(config) is not None
    mixers = [
        read_attention(
            config, rope=rope if window or not has_windows else None, window=window, qk_norm=norm
        )
        for window in _windows(config)
    ]
    layers = [Layer(mixer, mlp, norm, style="post") for mixer in mixers]
    return decoder(config, "exaone4", layers, norm)


def _windows(config: Config) -> list[int | None]:
    if read_window(config) is None:
        return [None] * layer_count(config)
    if not config.has("layer_types") and config.has("sliding_window_pattern"):
        return windows(config, period=config.positive("sliding_window_pattern"))
    return windows(config, period=4)


FAMILY = Family(
    "exaone4",
    read,
    gguf_arch="exaone4",
    defaults={"rms_norm_eps": 1e-5},
)
