"""The layers and the experts whose device a topology names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from mrs.devices.device import Device
from mrs.errors import Unsupported, UsageError
from mrs.plan.placement.placement import Placement
from mrs.topology import Rule, Topology, check_layers, is_expert, known_device
from mrs.weights.binding import Parameter


@dataclass(frozen=True)
class Pins:
    """The device index of each layer, and of the experts of each layer, that a topology names."""

    layers: Mapping[int, int] = field(default_factory=dict)
    experts: Mapping[int, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.layers or self.experts)

    def applied(self, placement: Placement, devices: Sequence[Device]) -> Placement:
        """`placement` with these devices. Raises Unsupported."""
        if not self:
            return placement
        used = [self.layers.get(n, index) for n, index in enumerate(placement.layer_devices)]
        runs = [(index, len(list(layers))) for index, layers in groupby(used)]
        experts = {n: index for n, index in self.experts.items() if index != used[n]}
        for layer, index in experts.items():
            if devices[used[layer]].kind == "cpu":
                raise Unsupported(
                    f"the experts of layer {layer} are on {devices[index].label}, the layer on the "
                    "CPU",
                    hint="put the layer on an accelerator, too",
                )
        return Placement(runs, placement.warnings, experts)


def find_pins(
    topology: Topology | None,
    parameters: Sequence[Parameter],
    layer_count: int,
    devices: Sequence[Device],
) -> Pins:
    """The pins of a topology. Raises UsageError and Unsupported."""
    if topology is None:
        return Pins()
    check_layers(topology, layer_count)
    layers: dict[int, int] = {}
    experts: dict[int, int] = {}
    labels = [device.label for device in devices]
    for rule in topology.rules:
        if rule.device is None:
            continue
        index = known_device(rule, labels, topology.where)
        if rule.layers is not None and not rule.experts_only:
            layers.update(dict.fromkeys(rule.layers, index))
            continue
        whole, only_experts = _selected(rule, parameters, topology.where)
        layers.update(dict.fromkeys(whole, index))
        experts.update(dict.fromkeys(only_experts, index))
    return Pins(layers, experts)


def _selected(
    rule: Rule, parameters: Sequence[Parameter], where: str
) -> tuple[list[int], list[int]]:
    """The layers that a rule selects whole, and those whose experts it selects."""
    where = f"{where}, {rule.selector}" if where else rule.selector
    selections: dict[int | None, list[bool]] = defaultdict(list)
    all_of: dict[int | None, list[bool]] = defaultdict(list)
    for parameter in parameters:
        all_of[parameter.layer].append(is_expert(parameter.name))
        if rule.matches(parameter.layer, names_of(parameter)):
            selections[parameter.layer].append(is_expert(parameter.name))
    if not selections:
        hint = "the model has no experts" if rule.experts_only else "see the names in the files"
        raise UsageError("no tensor is selected", where=where, hint=hint)
    whole, only_experts = [], []
    for layer, selected in selections.items():
        if layer is not None and len(selected) == len(all_of[layer]):
            whole.append(layer)
        elif layer is not None and all(selected) and len(selected) == sum(all_of[layer]):
            only_experts.append(layer)
        else:
            raise Unsupported(
                "a device is for whole layers, or for all experts of a layer",
                where=where,
                hint="let the expression match all of them, such as /experts/",
            )
    return whole, only_experts


def names_of(parameter: Parameter) -> list[str]:
    """Our name of a parameter, and those of its tensors in the files."""
    return [parameter.name, *(piece.tensor for piece in parameter.pieces)]
