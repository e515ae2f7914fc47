"""Read residual streams and the low-rank term of layers (AltUp and LAuReL)."""

from __future__ import annotations

from mrs.architecture.altup import AltUp
from mrs.architecture.config import Config
from mrs.architecture.laurel import Laurel
from mrs.architecture.norm_rope import Norm
from mrs.errors import NotReadable

#: Bound on residual streams; a broken config must not make a huge list.
MOST_STREAMS = 64
#: Config key -> metadata key of GGUF files.
ALTUP_GGUF_KEYS = {
    "altup_active_idx": "altup.active_idx",
    "altup_num_inputs": "altup.num_inputs",
}


def read_altup(config: Config, norm: Norm) -> AltUp:
    streams, active = config.positive("altup_num_inputs", 4), config.integer("altup_active_idx", 0)
    if not 2 <= streams <= MOST_STREAMS or active >= streams:
        raise NotReadable(
            f"altup_active_idx = {active} is not one of {streams} streams", where=config.where
        )
    return AltUp(streams, active, config.flag("altup_correct_scale", True), norm)


def read_laurel(config: Config, norm: Norm) -> Laurel:
    return Laurel(config.positive("laurel_rank", 64), norm)
