"""Where the matrices of a layer are that stays on disk: in its file, and in memory to read it into.

They have the layout of the native kernels, so that they are computed with as they are read. Of a
mixture of experts these are the experts, each a part of its own; of other layers, all matrices. All
else of a layer, such as its norms, stays in memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mrs.process.direct_file import whole_blocks
from mrs.quantization.storage import Storage
from mrs.topology import expert_number
from mrs.weights.binding import Parameter

#: Layers that have memory at the same time: one is computed, another is read.
LAYERS_IN_MEMORY = 2
#: Each matrix begins at a cache line.
_LINE_BYTES = 64


@dataclass(frozen=True)
class LayerLayout:
    """The parts of a layer, which are read at once, one after another in its file.

    Each part has the offset of each of its matrices in it, by name, and `part_bytes`, whole blocks.
    The matrices of the layer have `weight_bytes`.
    """

    parts: Sequence[Mapping[str, int]]
    part_bytes: int
    weight_bytes: int
    is_mixture: bool

    @property
    def size_bytes(self) -> int:
        return len(self.parts) * self.part_bytes


def layer_layouts(
    parameters: Sequence[Parameter],
    storage: Mapping[str, Storage],
    layers: Collection[int],
    mixtures: Collection[int],
) -> dict[int, LayerLayout]:
    """The layouts of those of `layers` that have such matrices, in order."""
    parts: dict[int, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for parameter in parameters:
        name, layer = parameter.name, parameter.layer
        if layer is None or layer not in layers or storage[name].form != "packed":
            continue
        number = expert_number(name)
        if (number is not None) == (layer in mixtures):
            parts[layer][number or 0].append(name)
    return {
        layer: _layout(list(parts[layer].values()), storage, is_mixture=layer in mixtures)
        for layer in sorted(parts)
    }


def packed_size(stored: Storage) -> int:
    """Bytes of a packed matrix itself: the order of its columns stays in memory."""
    return stored.size_bytes - stored.order_bytes


def _layout(
    parts: Sequence[Sequence[str]], storage: Mapping[str, Storage], *, is_mixture: bool
) -> LayerLayout:
    offsets: list[dict[str, int]] = []
    part_bytes = weight_bytes = 0
    for names in parts:
        end, own = 0, {}
        for name in names:
            size = packed_size(storage[name])
            own[name] = end
            weight_bytes += size
            end += -(-size // _LINE_BYTES) * _LINE_BYTES
        offsets.append(own)
        part_bytes = max(part_bytes, whole_blocks(end))
    return LayerLayout(offsets, part_bytes, weight_bytes, is_mixture)
