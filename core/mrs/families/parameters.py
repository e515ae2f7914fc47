"""List every tensor that a running model holds, with its shape and where a file keeps it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mrs.families.names import ALTERNATING, JOINT, TRANSPOSED
from mrs.families.slots import Kind, Slot, layer_slots, model_slots
from mrs.families.spec import Change, ModelSpec, Parameter, Piece, Role


def list_parameters(
    spec: ModelSpec,
    names: Mapping[str, str],
    tensors: Collection[str] = (),
    *,
    tensor_prefix: str = "",
    changes: Mapping[Kind, Change] | None = None,
) -> list[Parameter]:
    """Every parameter of the model, bound to the names of one container.

    `names` is a slot table as in `names.py`, the family's changes included; `tensors` are the
    file's, which decide where parts can be kept in one tensor or in several. All names in the
    file start with `tensor_prefix`, and it stores weights of some kinds with `changes`.
    """
    bind = _Binding(names, tensors, changes or {})
    parameters = list(bind.slots(list(model_slots(spec)), "", tensor_prefix, None))
    for index, layer in enumerate(spec.layers):
        slots = list(layer_slots(layer, spec.hidden_size))
        prefix = tensor_prefix + names["layer"].format(layer=index)
        parameters += bind.slots(slots, f"layers.{index}.", prefix, index)
    return parameters


@dataclass(frozen=True)
class _Place:
    """The stretches of rows that a slot has in a file's tensors of slot `name`.

    `height` counts the rows of the whole tensor, or where it stacks experts, of one of them.
    """

    name: str
    stretches: tuple[range, ...]
    height: int


@dataclass(frozen=True)
class _Binding:
    names: Mapping[str, str]
    tensors: Collection[str]
    changes: Mapping[Kind, Change]

    def slots(
        self, slots: Sequence[Slot], own_prefix: str, file_prefix: str, layer: int | None
    ) -> Iterator[Parameter]:
        """The parameters of one layer, or of what belongs to none."""
        joint = self._joint_places(slots, file_prefix)
        for slot in slots:
            rows = slot.rows
            place = joint.get(slot.name) or _Place(slot.name, (range(rows),), rows)
            for expert in range(slot.experts) if slot.experts else (None,):
                name = own_prefix + slot.name.format(expert=expert)
                pieces = self._pieces(slot, place, file_prefix, slot.suffix, expert)
                yield Parameter(name + slot.suffix, slot.shape, slot.role, layer, pieces)
                if slot.bias:
                    pieces = self._pieces(slot, place, file_prefix, ".bias", expert)
                    role: Role = "vector"
                    yield Parameter(f"{name}.bias", slot.shape[:1], role, layer, pieces)

    def _joint_places(self, slots: Sequence[Slot], prefix: str) -> dict[str, _Place]:
        by_name = {slot.name: slot for slot in slots}
        found: dict[str, _Place] = {}
        for joint, parts in JOINT.items():
            present = [by_name[part] for part in parts if part in by_name]
            if len(present) == len(parts) and self._is_joint(joint, present, prefix):
                found |= _places(joint, present)
        return found

    def _is_joint(self, joint: str, parts: Sequence[Slot], prefix: str) -> bool:
        """Whether the file has the joint tensor, or neither it nor all of its parts."""
        if joint not in self.names and f"{joint}.weight" not in self.names:
            return False
        if self._tensor(joint, prefix, ".weight", 0) in self.tensors:
            return True
        if any(part.name not in self.names for part in parts):
            return True
        return not any(
            self._tensor(part.name, prefix, part.suffix, 0) in self.tensors for part in parts
        )

    def _tensor(self, slot_name: str, prefix: str, suffix: str, expert: int | None) -> str:
        """A tensor's name in the file; a table may also name one with its suffix."""
        module = self.names.get(slot_name + suffix)
        if module is None:
            module = self.names[slot_name].removesuffix(TRANSPOSED) + suffix
        return prefix + module.removesuffix(TRANSPOSED).format(expert=expert)

    def _pieces(
        self, slot: Slot, place: _Place, prefix: str, suffix: str, expert: int | None
    ) -> tuple[Piece, ...]:
        tensor = self._tensor(place.name, prefix, suffix, expert)
        stacked = slot.experts > 0 and tensor == self._tensor(place.name, prefix, suffix, -1)
        first = expert * place.height if stacked and expert is not None else 0
        change = self.changes.get(slot.kind) if suffix == slot.suffix else None
        transposed = self._is_transposed(place.name, suffix)
        if not stacked and place.stretches == (range(place.height),):
            return (Piece(tensor, None, change, transposed),)
        return tuple(
            Piece(
                tensor,
                range(rows.start + first, rows.stop + first, rows.step),
                change,
                transposed,
            )
            for rows in place.stretches
        )

    def _is_transposed(self, slot_name: str, suffix: str) -> bool:
        module = self.names.get(slot_name + suffix) or self.names[slot_name]
        return suffix == ".weight" and module.endswith(TRANSPOSED)


def _places(joint: str, parts: Sequence[Slot]) -> dict[str, _Place]:
    """Where each part lies in a joint tensor, by slot name."""
    alternates = joint in ALTERNATING
    turns = parts[0].turns if alternates else 1
    heights = [part.rows // turns for part in parts]
    turn, start, places = sum(heights), 0, {}
    for part, height in zip(parts, heights, strict=True):
        if height == 1:
            stretches: tuple[range, ...] = (range(start, turn * turns, turn),)
        else:
            firsts = range(start, turn * turns, turn)
            stretches = tuple(range(first, first + height) for first in firsts)
        places[part.name] = _Place(joint, stretches, turn * turns)
        start += height
    return places
