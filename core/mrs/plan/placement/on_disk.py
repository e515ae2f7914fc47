"""What stays on disk where memory is too small for all, and the memory that it shares.

A token needs one row of the embeddings, so tables of them go first, unless they are the output head
as well; then layers.

One rule fills every memory: what each token needs comes first, in the fastest one, and of experts
as many as it then has room for; the next ones have the next memory, and the last are on disk.
`place` does so between accelerators and the CPU, this module between the CPU and the disk.

Layers are computed on the CPU as if they were in its memory. Each step reads them again, one while
another is computed. Layers on disk and layers in memory alternate as evenly as can be, so that
reading never waits long for memory that is in use. Of mixtures only experts are on disk, and those
that are used most stay in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mrs.devices.device import Device
from mrs.devices.disk import model_folder
from mrs.devices.expert_uses import hit_rate, read_uses
from mrs.errors import Unsupported, UsageError
from mrs.layers.mixer import Routing
from mrs.plan.memory.breakdown import MemoryBreakdown, host_index
from mrs.plan.memory.device_sizes import ModelSizes
from mrs.plan.placement.placement import Placement
from mrs.process.direct_file import CAN_READ
from mrs.quantization.layer_layout import (
    EXPERT_ROOMS,
    LAYERS_IN_MEMORY,
    LayerLayout,
    TableLayout,
    layer_layouts,
    table_layouts,
)
from mrs.request import RunRequest

FLAG = "--disk-layers"
#: The share of free memory that experts take; the rest is for the prefix cache.
_EXPERTS_SHARE = 0.9


@dataclass(frozen=True)
class OnDisk:
    """The layers on disk, by index, with the layout of each; and tables, by their names.

    Of mixtures only the experts are there, and `expert_slots` of all have memory. A token chooses
    at most `top_k` of a layer. `hit_rate` is the share of uses in earlier runs that those with
    memory had: the ones that are used most.
    """

    layouts: Mapping[int, LayerLayout] = field(default_factory=dict)
    expert_slots: int = 0
    top_k: int = 0
    tables: Mapping[str, TableLayout] = field(default_factory=dict)
    hit_rate: float | None = None

    def __bool__(self) -> bool:
        return bool(self.layouts or self.tables)

    @property
    def row_bytes(self) -> int:
        """What each token reads of tables."""
        return sum(each.read_bytes for each in self.tables.values())

    @property
    def layer_bytes(self) -> int:
        """What each step reads of layers that are no mixtures."""
        return sum(each.size_bytes for each in self._of(is_mixture=False))

    @property
    def expert_bytes(self) -> int:
        """All experts, less the share that is in memory."""
        mixtures = self._of(is_mixture=True)
        return int(self._share_missing * sum(each.size_bytes for each in mixtures))

    @property
    def missing_use(self) -> float:
        """How often an expert without memory is chosen, beside a choice of all alike."""
        if self.hit_rate is None or not self._share_missing:
            return 1.0
        return min(1.0, (1 - self.hit_rate) / self._share_missing)

    @property
    def _share_missing(self) -> float:
        """The share of experts without memory."""
        experts = sum(len(each.parts) for each in self._of(is_mixture=True)) or 1
        return max(0.0, 1 - self.expert_slots / experts)

    @property
    def read_bytes(self) -> int:
        """What a token reads."""
        experts = max((len(each.parts) for each in self._of(is_mixture=True)), default=1)
        chosen = int(self.missing_use * self.expert_bytes * self.top_k / experts)
        return self.row_bytes + self.layer_bytes + chosen

    @property
    def shared_bytes(self) -> int:
        """The memory of layers that take turns, of experts, and of the rows that are read."""
        layers, mixtures = self._of(is_mixture=False), self._of(is_mixture=True)
        turns = LAYERS_IN_MEMORY if layers else 0
        rows = sum(each.memory_bytes for each in self.tables.values())
        experts = self.expert_slots + EXPERT_ROOMS
        return rows + turns * _largest_part(layers) + experts * _largest_part(mixtures)

    @property
    def saved_bytes(self) -> int:
        """How much less memory is needed than for all of it."""
        layers = sum(each.weight_bytes for each in self.layouts.values())
        tables = sum(each.weight_bytes for each in self.tables.values())
        return layers + tables - self.shared_bytes

    def changed(self, host: MemoryBreakdown) -> MemoryBreakdown:
        """The memory of the host, with these layers on disk."""
        return replace(
            host,
            weight_bytes=host.weight_bytes - self.saved_bytes,
            loading_bytes=host.loading_bytes - self.saved_bytes,
        )

    def with_experts_in(self, free_bytes: int) -> OnDisk:
        """With as many slots as have room; all that are left without mixtures."""
        mixtures = self._of(is_mixture=True)
        if not mixtures:
            return self
        room = int(_EXPERTS_SHARE * free_bytes) // _largest_part(mixtures) - EXPERT_ROOMS
        experts = sum(len(each.parts) for each in mixtures)
        return replace(self, expert_slots=min(experts, max(self.expert_slots, room)))

    def with_uses(self, model_id: str) -> OnDisk:
        """With the uses of earlier runs of a model, if there were enough."""
        mixtures = {n: len(each.parts) for n, each in self.layouts.items() if each.is_mixture}
        if not mixtures:
            return self
        uses = read_uses(model_folder(model_id), mixtures)
        return replace(self, hit_rate=hit_rate(uses, self.expert_slots))

    def _of(self, *, is_mixture: bool) -> list[LayerLayout]:
        return [each for each in self.layouts.values() if each.is_mixture == is_mixture]


def _largest_part(layouts: Sequence[LayerLayout]) -> int:
    return max((each.part_bytes for each in layouts), default=0)


def layers_on_disk(
    request: RunRequest,
    sizes: ModelSizes,
    devices: Sequence[Device],
    placement: Placement,
    host: MemoryBreakdown,
) -> OnDisk:
    """The layers that a request or a given placement leaves on disk.

    `auto` is the fewest with which the memory of the host is enough, none if it is anyway; tables
    that are read by rows are left on disk before any layer, which takes hardly any time. Of a
    model with mixtures these are the experts of all of them, with as many in memory as have room.
    Raises UsageError and Unsupported.
    """
    if placement.on_disk is None and not request.disk_layers:
        return OnDisk()
    candidates = _candidates(sizes, devices, placement)
    top_k = max((each.top_k for each in _routings(sizes).values()), default=0)
    if placement.on_disk is not None:
        some = {layer: candidates[layer] for layer in placement.on_disk}
        tables = _tables(sizes, devices, placement)
        kept = {name: tables[name] for name in placement.tables_on_disk}
        chosen = OnDisk(some, placement.expert_slots, top_k, kept)
    elif request.disk_layers == "auto":
        least_free = 0 if sizes.budget is None else sizes.budget.least.total_bytes
        available = replace(host, available_bytes=host.available_bytes - least_free)
        chosen = _fewest(candidates, _tables(sizes, devices, placement), available, top_k)
    else:
        assert request.disk_layers is not None
        chosen = _spread(candidates, request.disk_layers, top_k)
    if chosen:
        _refuse(request)
    return chosen.with_uses(request.source.model_id)


def _routings(sizes: ModelSizes) -> dict[int, Routing]:
    """How each layer chooses experts, of those that do."""
    routings = enumerate(each.feed_forward.routing for each in sizes.spec.layers)
    return {layer: routing for layer, routing in routings if routing is not None}


def _candidates(
    sizes: ModelSizes, devices: Sequence[Device], placement: Placement
) -> dict[int, LayerLayout]:
    """The layers that may stay on disk: those of the CPU, with weights of the native kernels.

    Of a layer on an accelerator whose experts are on the CPU, that is the experts.
    """
    host = host_index(devices)
    if devices[host].torch_device != "cpu":
        return {}
    layers = {n for n, index in enumerate(placement.layer_devices) if index == host}
    guests = {n for n, index in placement.experts.items() if index == host}
    storage = sizes.on(devices[host]).storage
    return layer_layouts(sizes.parameters, storage, layers | guests, _routings(sizes))


def _tables(
    sizes: ModelSizes, devices: Sequence[Device], placement: Placement
) -> dict[str, TableLayout]:
    """The tables that may stay on disk: those of the CPU that save more than their buffers."""
    host = host_index(devices)
    if devices[host].torch_device != "cpu" or placement.first_device != host:
        return {}
    storage = sizes.on(devices[host]).storage
    tables = table_layouts(sizes.parameters, storage, sizes.spec.head_weight)
    return {n: each for n, each in tables.items() if each.memory_bytes < each.weight_bytes}


def _fewest(
    candidates: Mapping[int, LayerLayout],
    tables: Mapping[str, TableLayout],
    host: MemoryBreakdown,
    top_k: int,
) -> OnDisk:
    """The fewest with which the host has enough memory; all if it never has."""
    if host.needed_bytes <= host.available_bytes:
        return OnDisk()
    rows = OnDisk(tables=tables)
    host = rows.changed(host)
    if host.needed_bytes <= host.available_bytes:
        return rows
    return replace(_fewest_layers(candidates, host, top_k), tables=tables)


def _fewest_layers(
    candidates: Mapping[int, LayerLayout], host: MemoryBreakdown, top_k: int
) -> OnDisk:
    mixtures = {layer: each for layer, each in candidates.items() if each.is_mixture}
    if mixtures:
        chosen = _spread(mixtures, len(mixtures), top_k)
        changed = chosen.changed(host)
        return chosen.with_experts_in(
            changed.available_bytes - changed.needed_bytes + chosen.shared_bytes
        )
    for count in range(1, len(candidates)):
        chosen = _spread(candidates, count, top_k)
        if chosen.changed(host).needed_bytes <= host.available_bytes:
            return chosen
    return OnDisk(candidates)


def _spread(candidates: Mapping[int, LayerLayout], count: int, top_k: int) -> OnDisk:
    """So many of the candidates, as evenly as can be; and the experts that two of them choose.

    Raises UsageError.
    """
    most, every = len(candidates), enumerate(candidates.items())
    if count > most:
        raise UsageError(
            f"{count} layers cannot stay on disk: {most} are on the CPU, for its native kernels",
            where=FLAG,
            hint=f"give at most {most}, or auto",
        )
    chosen = dict(each for n, each in every if (n + 1) * count // most > n * count // most)
    experts = sum(len(each.parts) for each in chosen.values() if each.is_mixture)
    return OnDisk(chosen, min(experts, max(2, LAYERS_IN_MEMORY * top_k)), top_k)


def _refuse(request: RunRequest) -> None:
    """Raises Unsupported for what reads all weights otherwise than step by step."""
    reasons = {
        "adapters": bool(request.adapters),
        "several processes": request.cluster is not None,
        "--calibration-file": request.calibration_file is not None,
        "this system": not CAN_READ,
    }
    for what, is_so in reasons.items():
        if is_so:
            raise Unsupported(
                f"layers cannot stay on disk with {what}", where=FLAG, hint="leave it out"
            )
