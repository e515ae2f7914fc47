"""Where the matrices of a layer are that stays on disk: in its file, and in memory to read it into.

They have the layout of the native kernels, so that they are computed with as they are read. Of a
mixture of experts these are the experts, each a part of its own; of other layers, all matrices. All
else of a layer, such as its norms, stays in memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mrs.formats import Format
from mrs.kernels.packed_layout import GROUP_ROWS, packed_bytes
from mrs.process.direct_file import BLOCK_BYTES, whole_blocks
from mrs.quantization.storage import Storage
from mrs.topology import expert_number
from mrs.weights.binding import Parameter

#: Layers that have memory at the same time: one is computed, another is read.
LAYERS_IN_MEMORY = 2
#: The memory of so many further experts is room for what those that have been computed have made.
EXPERT_ROOMS = 1
#: Groups of rows of a table that are read at the same time, each into memory of its own.
TABLE_READS = 16
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


@dataclass(frozen=True)
class TableLayout:
    """A matrix that is only read by rows, (rows, columns): groups of them, one after another.

    A group begins anywhere in its file, whose blocks around it are read.
    """

    format: Format
    rows: int
    columns: int

    @property
    def groups(self) -> int:
        return -(-self.rows // GROUP_ROWS)

    @property
    def group_bytes(self) -> int:
        return packed_bytes(self.format, GROUP_ROWS, self.columns)

    @property
    def weight_bytes(self) -> int:
        return self.groups * self.group_bytes

    @property
    def read_bytes(self) -> int:
        """The most that is read for a row: the blocks around a group."""
        return whole_blocks(self.group_bytes) + BLOCK_BYTES

    @property
    def memory_bytes(self) -> int:
        return TABLE_READS * self.read_bytes


def table_layouts(
    parameters: Sequence[Parameter], storage: Mapping[str, Storage], head: str
) -> dict[str, TableLayout]:
    """The matrices of which a token needs one row: embeddings, if they are not the head as well."""
    layouts = {}
    for parameter in parameters:
        name, stored = parameter.name, storage[parameter.name]
        is_table = parameter.role == "embedding" and parameter.layer is None and name != head
        is_own = not (parameter.is_shared or parameter.updates) and len(parameter.pieces) == 1
        if is_table and is_own and stored.form == "packed" and not stored.is_permuted:
            layouts[name] = TableLayout(stored.format, parameter.rows, parameter.columns)
    return layouts


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
