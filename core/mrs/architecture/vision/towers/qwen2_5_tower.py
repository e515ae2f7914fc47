"""The vision tower of Qwen2.5-VL: RMSNorm, gated MLPs and windowed attention."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.norm_rope import Norm
from mrs.architecture.vision.towers.qwen_tower import TOWER_DEFAULTS, QwenTower, read_tower
from mrs.errors import NotReadable

#: Defaults of transformers.
TOWER_2_5_DEFAULTS = {
    **TOWER_DEFAULTS,
    "hidden_size": 3584,
    "intermediate_size": 3420,
    "hidden_act": "silu",
    "window_size": 112,
    "tokens_per_second": 4,
    "fullatt_block_indexes": (7, 15, 23, 31),
}


def read_windowed_tower(tower: Config) -> QwenTower:
    mlp = Mlp(tower.positive("intermediate_size"), tower.activation(), bias=True)
    return read_tower(
        tower,
        tower.positive("hidden_size"),
        mlp,
        Norm(1e-6),
        window=_read_window(tower),
        full=_read_full_attention_layers(tower),
    )


def _read_window(tower: Config) -> int:
    """Patches along the edge of a window, a multiple of those that are merged to one row."""
    merge = tower.positive("spatial_merge_size")
    window = tower.positive("window_size") // merge // tower.positive("patch_size") * merge
    if not window:
        raise NotReadable(
            "window_size is smaller than the patches that are merged to one row", where=tower.where
        )
    return window


def _read_full_attention_layers(tower: Config) -> tuple[int, ...]:
    """The layers in which patches attend to the whole image."""
    key = "fullatt_block_indexes"
    return tuple(Config({key: index}, tower.where).integer(key) for index in tower.sequence(key))
