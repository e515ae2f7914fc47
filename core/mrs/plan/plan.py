"""The plan: where every layer sits and how every parameter is kept, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from mrs.errors import Unsupported
from mrs.families.find import Description
from mrs.formats import Format
from mrs.plan.device import Device, placement_devices
from mrs.plan.fill import auto_map
from mrs.plan.kv import layer_kv_bytes
from mrs.plan.layer_map import parse_layer_map, place_by_hand
from mrs.plan.placement import Placement
from mrs.plan.storage import Storage, resolve_dtype, store
from mrs.request import RunRequest
from mrs.source.checkpoint import Checkpoint
from mrs.units import human_bytes


@dataclass(frozen=True)
class Plan:
    """What a run will do.

    `layer_devices` has one index into `devices` a layer; embedding, final norm and head sit on
    `devices[home]`. `storage` and `parameter_devices` are keyed by parameter name.
    """

    model_id: str
    family: str
    devices: tuple[Device, ...]
    layer_devices: tuple[int, ...]
    home: int
    dense: Format
    storage: Mapping[str, Storage]
    parameter_devices: Mapping[str, int]
    kv_bytes: tuple[int, ...]
    warnings: tuple[str, ...]

    def weight_bytes(self) -> dict[int, int]:
        """Bytes of weights by device index, for the devices that hold any."""
        totals: dict[int, int] = {}
        for name, index in self.parameter_devices.items():
            totals[index] = totals.get(index, 0) + self.storage[name].size_bytes
        return totals

    @property
    def summary(self) -> str:
        """One line: what runs where."""
        total = human_bytes(sum(self.weight_bytes().values()))
        runs = [
            f"{self.devices[index].label} ({len(list(layers))} layers)"
            for index, layers in groupby(self.layer_devices)
        ]
        return f"{self.model_id}: {self.family}, {self.dense.name}, {total} on {', '.join(runs)}"


def make_plan(
    request: RunRequest,
    checkpoint: Checkpoint,
    description: Description,
    devices: Sequence[Device],
) -> Plan:
    """Place a model on `devices` (accelerators in order, the CPU last).

    Raises UsageError for a layer map that cannot be, DoesNotFit, and Unsupported.
    """
    if request.isq is not None:
        raise Unsupported("--isq is not applied yet", hint="run without it, or use a GGUF file")
    parameters = description.parameters
    stored = [
        checkpoint.tensors[piece.tensor].format
        for parameter in parameters
        if parameter.role != "vector"
        for piece in parameter.pieces
    ]
    dense = resolve_dtype(request.dtype, stored)
    storage = {parameter.name: store(parameter, dense) for parameter in parameters}
    kv_bytes = tuple(
        layer_kv_bytes(layer, request.max_seq_len, dense, batch=request.max_batch_size)
        for layer in description.spec.layers
    )
    placement = _place(request, description, storage, kv_bytes, devices)
    layer_devices = tuple(placement.layer_devices)
    home = placement.first_device
    return Plan(
        model_id=checkpoint.model_id,
        family=description.spec.family,
        devices=tuple(devices),
        layer_devices=layer_devices,
        home=home,
        dense=dense,
        storage=storage,
        parameter_devices={
            p.name: home if p.layer is None else layer_devices[p.layer] for p in parameters
        },
        kv_bytes=kv_bytes,
        warnings=tuple(placement.warnings),
    )


def _place(
    request: RunRequest,
    description: Description,
    storage: Mapping[str, Storage],
    kv_bytes: Sequence[int],
    devices: Sequence[Device],
) -> Placement:
    layer_bytes = [0] * len(kv_bytes)
    non_mapped_bytes = 0
    for parameter in description.parameters:
        size_bytes = storage[parameter.name].size_bytes
        if parameter.layer is None:
            non_mapped_bytes += size_bytes
        else:
            layer_bytes[parameter.layer] += size_bytes
    candidates = placement_devices(devices)
    if request.layer_map is not None:
        return place_by_hand(parse_layer_map(request.layer_map), len(layer_bytes), candidates)
    return auto_map(
        layer_bytes=layer_bytes,
        non_mapped_bytes=non_mapped_bytes,
        kv_bytes_per_layer=kv_bytes,
        mapped_act_bytes=0,
        non_mapped_act_bytes=0,
        devices=candidates,
    )
