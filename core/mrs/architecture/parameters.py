"""List every tensor that a running model holds, with its shape and where a file keeps it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mrs.architecture.binding import Parameter, Piece, Role, WeightTransform
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.slots import Kind, Slot, layer_slots, model_slots
from mrs.architecture.tensor_names import INTERLEAVED, JOINT, TRANSPOSED
from mrs.architecture.vision_slots import vision_slots
from mrs.architecture.vision_spec import Vision


def list_parameters(
    spec: ModelSpec,
    names: Mapping[str, str],
    tensors: Collection[str] = (),
    *,
    tensor_prefix: str = "",
    changes: Mapping[Kind, WeightTransform] | None = None,
) -> list[Parameter]:
    """Every parameter of the model, bound to the names of one container.

    `names` is a slot table as in `names.py`, the family's changes included; `tensors` are the
    file's, which decide where parts can be kept in one tensor or in several. All names in the
    file start with `tensor_prefix`, and it stores weights of some kinds with `changes`.
    """
    bind = _Binding(names, tensors, changes or {})
    parameters = list(bind.slots(list(model_slots(spec)), "", tensor_prefix, None))
    for index, (number, layer) in enumerate(zip(spec.layer_numbers, spec.layers, strict=True)):
        slots = list(layer_slots(layer, spec.hidden_size))
        prefix = tensor_prefix + names["layer"].format(layer=number)
        parameters += bind.slots(slots, f"layers.{index}.", prefix, index)
    return parameters


def list_vision_parameters(
    vision: Vision,
    hidden_size: int,
    names: Mapping[str, str],
    tensors: Collection[str],
    *,
    changes: Mapping[Kind, WeightTransform],
) -> list[Parameter]:
    """Every parameter of what sees for a language model of `hidden_size`.

    `names` is the family's slot table, with whole module names for all but the parts of layers.
    The file stores weights of some kinds with `changes`.
    """
    bind = _Binding(names, tensors, changes)
    parts = (vision.tower, vision.projector)
    slots = [slot for part in parts for slot in vision_slots(part, hidden_size)]
    found = list(bind.slots(slots, "vision.", "", None))
    for key, layers in vision.tower.stacks.items():
        for index, layer in enumerate(layers):
            own, file = f"vision.{key}.{index}.", names[key].format(layer=index)
            slots = list(layer_slots(layer, vision.tower.hidden_size))
            found += bind.slots(slots, own, file, None)
    return [p._replace(role="tower") if p.role == "matrix" else p for p in found]


@dataclass(frozen=True)
class _Place:
    """The stretches of rows that a slot has in a file's tensors of slot `name`.

    `height` counts the rows of the whole tensor, or where it stacks experts, of one of them.
    """

    name: str
    stretches: tuple[range, ...]
    height: int


@dataclass(frozen=True)
class _Source:
    """Where the numbers of a slot lie for every expert, or for one part that is no expert's."""

    tensor: str
    place: _Place
    stacked: bool
    transform: WeightTransform | None
    transposed: bool

    def pieces(self, expert: int) -> tuple[Piece, ...]:
        tensor, place = self.tensor.format(expert=expert), self.place
        if not self.stacked and place.stretches == (range(place.height),):
            return (Piece(tensor, None, self.transform, self.transposed),)
        first = expert * place.height if self.stacked else 0
        return tuple(
            Piece(
                tensor,
                range(rows.start + first, rows.stop + first, rows.step),
                self.transform,
                self.transposed,
            )
            for rows in place.stretches
        )


@dataclass(frozen=True)
class _Binding:
    names: Mapping[str, str]
    tensors: Collection[str]
    changes: Mapping[Kind, WeightTransform]

    def slots(
        self, slots: Sequence[Slot], own_prefix: str, file_prefix: str, layer: int | None
    ) -> Iterator[Parameter]:
        """The parameters of one layer, or of what belongs to none."""
        joint = self._joint_places(slots, file_prefix)
        for slot in slots:
            place = joint.get(slot.name) or _Place(slot.name, (range(slot.rows),), slot.rows)
            parts: list[tuple[str, tuple[int, ...], Role]] = [(slot.suffix, slot.shape, slot.role)]
            if slot.bias:
                parts.append((".bias", slot.shape[:1], "vector"))
            for suffix, shape, role in parts:
                source = self._source(slot, place, file_prefix, suffix)
                for expert in range(max(slot.experts, 1)):
                    name = own_prefix + slot.name.format(expert=expert) + suffix
                    yield Parameter(name, shape, role, layer, source.pieces(expert))

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
        if self._has(joint, prefix, ".weight"):
            return True
        if any(part.name not in self.names for part in parts):
            return True
        return not any(self._has(part.name, prefix, part.suffix) for part in parts)

    def _has(self, slot_name: str, prefix: str, suffix: str) -> bool:
        return prefix + self._tensor(slot_name, suffix)[0].format(expert=0) in self.tensors

    def _tensor(self, slot_name: str, suffix: str) -> tuple[str, bool]:
        """A tensor's name in the file, and whether it holds transposed matrices.

        A table may give the name with its suffix, too.
        """
        exact = self.names.get(slot_name + suffix)
        module = self.names[slot_name] if exact is None else exact
        name = module.removesuffix(TRANSPOSED) + (suffix if exact is None else "")
        return name, suffix == ".weight" and module.endswith(TRANSPOSED)

    def _source(self, slot: Slot, place: _Place, prefix: str, suffix: str) -> _Source:
        tensor, transposed = self._tensor(place.name, suffix)
        return _Source(
            prefix + tensor,
            place,
            stacked=slot.experts > 0 and "{expert}" not in tensor,
            transform=self.changes.get(slot.kind) if suffix == slot.suffix else None,
            transposed=transposed,
        )


def _places(joint: str, parts: Sequence[Slot]) -> dict[str, _Place]:
    """Where each part lies in a joint tensor, by slot name."""
    alternates = joint in INTERLEAVED
    interleave_groups = parts[0].interleave_groups if alternates else 1
    heights = [part.rows // interleave_groups for part in parts]
    turn, start, places = sum(heights), 0, {}
    for part, height in zip(parts, heights, strict=True):
        if height == 1:
            stretches: tuple[range, ...] = (range(start, turn * interleave_groups, turn),)
        else:
            firsts = range(start, turn * interleave_groups, turn)
            stretches = tuple(range(first, first + height) for first in firsts)
        places[part.name] = _Place(joint, stretches, turn * interleave_groups)
        start += height
    return places
