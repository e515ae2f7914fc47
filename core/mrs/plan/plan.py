"""The plan: where every layer sits and how every parameter is kept, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from mrs.families.find import Description
from mrs.families.spec import Parameter
from mrs.formats import Format
from mrs.isq import parse_isq
from mrs.plan.device import Device, placement_devices
from mrs.plan.fill import auto_map
from mrs.plan.kv import layer_kv_bytes
from mrs.plan.layer_map import parse_layer_map, place_by_hand
from mrs.plan.placement import Placement
from mrs.plan.storage import Storage, StorageRules, resolve_dtype, store
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
    *,
    cpu_packs: bool = False,
) -> Plan:
    """Place a model on `devices` (accelerators in order, the CPU last).

    `cpu_packs` says that this machine has the native CPU kernels. Raises UsageError for a layer
    map that cannot be, DoesNotFit, and Unsupported.
    """
    parameters = description.parameters
    stored = {p.name: _stored_formats(p, checkpoint) for p in parameters}
    matrices = [f for p in parameters if p.role != "vector" for f in stored[p.name]]
    dense = resolve_dtype(request.dtype, matrices)
    level = None if request.isq is None else parse_isq(request.isq)
    # Sizes differ a little between devices (packed rows are padded): placed by the first one's.
    packs = cpu_packs and devices[0].torch_device == "cpu"
    rules = StorageRules(dense, level, packs)
    storage = {p.name: store(p, stored[p.name], rules) for p in parameters}
    kv_bytes = tuple(
        layer_kv_bytes(layer, request.max_seq_len, dense, batch=request.max_batch_size)
        for layer in description.spec.layers
    )
    placement = _place(request, description, storage, kv_bytes, devices)
    layer_devices = tuple(placement.layer_devices)
    home = placement.first_device
    parameter_devices = {
        p.name: home if p.layer is None else layer_devices[p.layer] for p in parameters
    }
    for p in parameters:
        packs = cpu_packs and devices[parameter_devices[p.name]].torch_device == "cpu"
        storage[p.name] = store(p, stored[p.name], StorageRules(dense, level, packs))
    return Plan(
        model_id=checkpoint.model_id,
        family=description.spec.family,
        devices=tuple(devices),
        layer_devices=layer_devices,
        home=home,
        dense=dense,
        storage=storage,
        parameter_devices=parameter_devices,
        kv_bytes=kv_bytes,
        warnings=tuple(placement.warnings),
    )


def _stored_formats(parameter: Parameter, checkpoint: Checkpoint) -> list[Format]:
    return [checkpoint.tensors[piece.tensor].format for piece in parameter.pieces]


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
