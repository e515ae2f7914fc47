"""Where the matrices of a layer are that stays on disk: in its file, and in memory to read it into.

They have the layout of the native kernels, so that they are computed with as they are read. All
else of a layer, such as its norms, is small and stays in memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mrs.process.direct_file import whole_blocks
from mrs.quantization.storage import Storage
from mrs.weights.binding import Parameter

#: Layers that have memory at the same time: one is computed, another is read.
LAYERS_IN_MEMORY = 2
#: Each matrix begins at a cache line.
_LINE_BYTES = 64


@dataclass(frozen=True)
class LayerLayout:
    """The offset of each matrix of a layer by its name.

    The layer has `weight_bytes`, and with the gaps between its matrices `size_bytes`, whole blocks.
    """

    offsets: Mapping[str, int]
    weight_bytes: int
    size_bytes: int


def layer_layouts(
    parameters: Sequence[Parameter], storage: Mapping[str, Storage], layers: Collection[int]
) -> dict[int, LayerLayout]:
    """The layouts of those of `layers` that have matrices of the native kernels, in order."""
    names: dict[int, list[str]] = defaultdict(list)
    for parameter in parameters:
        name, layer = parameter.name, parameter.layer
        if layer is not None and layer in layers and storage[name].form == "packed":
            names[layer].append(name)
    return {layer: _layout(names[layer], storage) for layer in sorted(names)}


def packed_size(stored: Storage) -> int:
    """Bytes of a packed matrix itself: the order of its columns stays in memory."""
    return stored.size_bytes - stored.order_bytes


def _layout(names: Sequence[str], storage: Mapping[str, Storage]) -> LayerLayout:
    offsets: dict[str, int] = {}
    end = weight_bytes = 0
    for name in names:
        size = packed_size(storage[name])
        offsets[name] = end
        weight_bytes += size
        end += -(-size // _LINE_BYTES) * _LINE_BYTES
    return LayerLayout(offsets, weight_bytes, whole_blocks(end))
