"""List every parameter of a model, with its shape and the rows of the file that it consists of."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mrs.architecture.fused_names import FUSED, INTERLEAVED, SPLIT
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.tensor_names import ROW, TRANSPOSED
from mrs.layers.slots import Slot, WeightKind
from mrs.weights.binding import Parameter, Piece, WeightTransform
from mrs.weights.role import Role
from mrs.weights.weight_scheme import Quantization

if TYPE_CHECKING:
    from mrs.architecture.vision_spec import Vision


def list_parameters(
    spec: ModelSpec,
    names: Mapping[str, str],
    tensors: Collection[str] = (),
    *,
    tensor_prefix: str = "",
    transforms: Mapping[WeightKind, WeightTransform] | None = None,
    quantization: Quantization | None = None,
) -> list[Parameter]:
    """Every parameter of the language model, bound to the tensor names of one container.

    `names` is a table as in `tensor_names.py`, with the family's names merged in. `tensors` are the
    tensor names of the file; they show which weights are fused into one tensor. All names in the
    file start with `tensor_prefix`. `transforms` are those that the file's weights need, by kind.
    `quantization` says which weights are stored in several tensors.
    """
    quantization = quantization or Quantization()
    known = {*tensors, *quantization.weights(tensors)}
    bind = _Binding(names, known, transforms or {}, quantization)
    parameters = list(bind.slots(list(spec.slots()), "", tensor_prefix, None))
    for index, (file_index, layer) in enumerate(
        zip(spec.file_layer_indices, spec.layers, strict=True)
    ):
        slots = list(layer.slots(spec.hidden_size))
        prefix = tensor_prefix + names["layer"].format(layer=file_index)
        parameters += bind.slots(slots, f"layers.{index}.", prefix, index)
    return parameters


def list_vision_parameters(
    vision: Vision,
    hidden_size: int,
    names: Mapping[str, str],
    tensors: Collection[str],
    *,
    transforms: Mapping[WeightKind, WeightTransform],
) -> list[Parameter]:
    """Every parameter of the tower and projector for a language model of `hidden_size`.

    `names` is the family's table; its names are complete, except those of slots inside a layer,
    which follow the name of the layer. `transforms` as in `list_parameters`.
    """
    from mrs.architecture.vision_slots import vision_slots

    bind = _Binding(names, tensors, transforms, Quantization())
    modules = (vision.tower, vision.projector)
    slots = [slot for module in modules for slot in vision_slots(module, hidden_size)]
    parameters = list(bind.slots(slots, "vision.", "", None))
    for stack, layers in vision.tower.stacks.items():
        for index, layer in enumerate(layers):
            slots = list(layer.slots(vision.tower.hidden_size))
            file_prefix = names[stack].format(layer=index)
            parameters += bind.slots(slots, f"vision.{stack}.{index}.", file_prefix, None)
    return [p._replace(role="tower") if p.role == "matrix" else p for p in parameters]


@dataclass(frozen=True)
class _SlotRows:
    """The rows of one slot in the file's tensor for the slot `name`, its own or a fused one.

    `total_rows` are all rows of that tensor; of one expert, if the tensor stacks the experts.
    """

    name: str
    row_ranges: tuple[range, ...]
    total_rows: int


@dataclass(frozen=True)
class _Source:
    """The tensor of one slot, for all of its experts if it has any."""

    tensor: str
    rows: _SlotRows
    stacked: bool
    transform: WeightTransform | None
    transposed: bool
    binding: _Binding

    def pieces(self, expert: int) -> tuple[Piece, ...]:
        rows = self.rows
        if ROW in self.tensor:
            names = (self.tensor.replace(ROW, str(row)) for row in range(rows.total_rows))
            return tuple(self._piece(name, range(1)) for name in names)
        tensor = self.tensor.format(expert=expert)
        if self.is_whole:
            return (self._piece(tensor, None),)
        first = expert * rows.total_rows if self.stacked else 0
        return tuple(
            self._piece(tensor, range(each.start + first, each.stop + first, each.step))
            for each in rows.row_ranges
        )

    @cached_property
    def is_whole(self) -> bool:
        """Whether the slot is all rows of the tensor."""
        return not self.stacked and self.rows.row_ranges == (range(self.rows.total_rows),)

    def _piece(self, tensor: str, rows: range | None) -> Piece:
        packed = self.binding.quantization.bind(tensor, self.binding.tensors)
        # Quantized weights are never transposed: a scheme knows how its matrices lie.
        is_transposed = self.transposed and packed is None
        return Piece(tensor, rows, self.transform, is_transposed, packed)


@dataclass(frozen=True)
class _Binding:
    """The tensor names of one container, and the tensors that one file has."""

    names: Mapping[str, str]
    tensors: Collection[str]
    transforms: Mapping[WeightKind, WeightTransform]
    quantization: Quantization

    def slots(
        self, slots: Sequence[Slot], own_prefix: str, file_prefix: str, layer: int | None
    ) -> Iterator[Parameter]:
        """The parameters of `slots`, which are those of one layer or all outside of layers."""
        fused = self._fused_rows(slots, file_prefix)
        for slot in slots:
            rows = fused.get(slot.name) or _SlotRows(slot.name, (range(slot.rows),), slot.rows)
            tensors: list[tuple[str, tuple[int, ...], Role]] = [
                (slot.suffix, slot.shape, slot.role)
            ]
            if slot.bias:
                tensors.append((".bias", slot.shape[:1], "vector"))
            for suffix, shape, role in tensors:
                source = self._source(slot, rows, file_prefix, suffix)
                split = self._split_pieces(slot, file_prefix, suffix)
                for expert in range(max(slot.experts, 1)):
                    name = own_prefix + slot.name.format(expert=expert) + suffix
                    yield Parameter(name, shape, role, layer, split or source.pieces(expert))

    def _split_pieces(self, slot: Slot, prefix: str, suffix: str) -> tuple[Piece, ...]:
        """The tensors of a slot that the file stores in several ones; () for others."""
        parts = SPLIT.get(slot.name, ())
        if not parts or any(part not in self.names for part in parts):
            return ()
        return tuple(
            Piece(prefix + self.names[part] + suffix, range(rows))
            for part, rows in zip(parts, slot.row_sections, strict=True)
        )

    def _fused_rows(self, slots: Sequence[Slot], prefix: str) -> dict[str, _SlotRows]:
        """The rows of every slot that the file stores in a fused tensor, by slot name."""
        by_name = {slot.name: slot for slot in slots}
        slot_rows: dict[str, _SlotRows] = {}
        for fused, names in FUSED.items():
            present = [by_name[name] for name in names if name in by_name]
            if len(present) == len(names) and self._is_fused(fused, present, prefix):
                slot_rows |= _rows_of_fused(fused, present)
        return slot_rows

    def _is_fused(self, fused: str, slots: Sequence[Slot], prefix: str) -> bool:
        """Whether the file has the fused tensor; assumed if it has none of the separate ones."""
        if fused not in self.names and f"{fused}.weight" not in self.names:
            return False
        if self._has(fused, prefix, ".weight"):
            return True
        if any(slot.name not in self.names for slot in slots):
            return True
        return not any(self._has(slot.name, prefix, slot.suffix) for slot in slots)

    def _has(self, slot_name: str, prefix: str, suffix: str) -> bool:
        return self._is_there(prefix + self._tensor(slot_name, prefix, suffix)[0])

    def _is_there(self, name: str) -> bool:
        return name.replace(ROW, "0").format(expert=0) in self.tensors

    def _tensor(self, slot_name: str, prefix: str, suffix: str) -> tuple[str, bool]:
        """(name of the tensor in the file, whether it stores transposed matrices).

        A table may have an entry for the slot with its suffix, which is then the complete name,
        unless the file has the tensor of the entry without it.
        """
        exact, usual = self.names.get(slot_name + suffix), self.names.get(slot_name)
        if exact is not None and usual is not None and self._is_there(prefix + usual + suffix):
            exact = None
        module = self.names[slot_name] if exact is None else exact
        name = module.removesuffix(TRANSPOSED) + (suffix if exact is None else "")
        return name, suffix == ".weight" and module.endswith(TRANSPOSED)

    def _source(self, slot: Slot, rows: _SlotRows, prefix: str, suffix: str) -> _Source:
        tensor, transposed = self._tensor(rows.name, prefix, suffix)
        return _Source(
            prefix + tensor,
            rows,
            stacked=slot.experts > 0 and "{expert}" not in tensor,
            transform=self.transforms.get(slot.kind) if suffix == slot.suffix else None,
            transposed=transposed,
            binding=self,
        )


def _rows_of_fused(fused: str, slots: Sequence[Slot]) -> dict[str, _SlotRows]:
    """The rows of each slot in a fused tensor, by slot name.

    The tensor repeats `groups` times: the rows of the first slot in this group, then those of the
    second one, and so on. A tensor that is not interleaved is one group.
    """
    groups = slots[0].interleave_groups if fused in INTERLEAVED else 1
    rows_in_group = [slot.rows // groups for slot in slots]
    group_rows = sum(rows_in_group)
    total_rows = group_rows * groups
    start, slot_rows = 0, {}
    for slot, rows in zip(slots, rows_in_group, strict=True):
        firsts = range(start, total_rows, group_rows)
        if rows == 1:
            row_ranges: tuple[range, ...] = (firsts,)
        else:
            row_ranges = tuple(range(first, first + rows) for first in firsts)
        slot_rows[slot.name] = _SlotRows(fused, row_ranges, total_rows)
        start += rows
    return slot_rows
