"""Names of experts in UQFF files, where one tensor has a matrix of all experts of a layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

_EXPERT = ".{expert}"
_SLOTS = "ffn.experts.{expert}."
_MATRICES = ("gate", "up", "down")


def with_stacked_experts(names: Mapping[str, str], tensors: Collection[str]) -> Mapping[str, str]:
    """A family's names, with those of UQFF for experts if the file has any of these tensors."""
    usual = names.get(f"{_SLOTS}gate", "")
    module = usual.partition(_EXPERT)[0]
    if not module or not any(name.endswith(f"{module}.gate_proj.weight") for name in tensors):
        return names
    others = {slot: name for slot, name in names.items() if not slot.startswith(_SLOTS)}
    return others | {f"{_SLOTS}{each}": f"{module}.{each}_proj" for each in _MATRICES}
