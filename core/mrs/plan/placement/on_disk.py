"""Which layers stay on disk where memory is too small for all, and the memory that they share.

They are computed on the CPU as if they were in its memory. Each step reads them again, one while
another is computed. Layers on disk and layers in memory alternate as evenly as can be, so that
reading never waits long for memory that is in use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mrs.devices.device import Device
from mrs.errors import Unsupported, UsageError
from mrs.plan.memory.breakdown import MemoryBreakdown, host_index
from mrs.plan.memory.device_sizes import ModelSizes
from mrs.plan.placement.placement import Placement
from mrs.process.direct_file import CAN_READ
from mrs.quantization.layer_layout import LAYERS_IN_MEMORY, LayerLayout, layer_layouts
from mrs.request import RunRequest

FLAG = "--disk-layers"


@dataclass(frozen=True)
class OnDisk:
    """The layers on disk, by index, with the layout of each."""

    layouts: Mapping[int, LayerLayout] = field(default_factory=dict)

    @property
    def read_bytes(self) -> int:
        """What each step reads."""
        return sum(each.size_bytes for each in self.layouts.values())

    @property
    def shared_bytes(self) -> int:
        """The memory that the layers share."""
        most = max((each.size_bytes for each in self.layouts.values()), default=0)
        return most * min(LAYERS_IN_MEMORY, len(self.layouts))

    @property
    def saved_bytes(self) -> int:
        """How much less memory is needed than for all layers."""
        weights = sum(each.weight_bytes for each in self.layouts.values())
        return weights - self.shared_bytes

    def changed(self, host: MemoryBreakdown) -> MemoryBreakdown:
        """The memory of the host, with these layers on disk."""
        return replace(
            host,
            weight_bytes=host.weight_bytes - self.saved_bytes,
            loading_bytes=host.loading_bytes - self.saved_bytes,
        )


def layers_on_disk(
    request: RunRequest,
    sizes: ModelSizes,
    devices: Sequence[Device],
    placement: Placement,
    host: MemoryBreakdown,
) -> OnDisk:
    """The layers that a request or a given placement leaves on disk.

    `auto` is the fewest with which the memory of the host is enough, none if it is anyway. Raises
    UsageError and Unsupported.
    """
    if placement.on_disk is None and not request.disk_layers:
        return OnDisk()
    candidates = _candidates(sizes, devices, placement)
    if placement.on_disk is not None:
        chosen = OnDisk({layer: candidates[layer] for layer in placement.on_disk})
    elif request.disk_layers == "auto":
        least_free = 0 if sizes.budget is None else sizes.budget.least.total_bytes
        chosen = _fewest(candidates, host, least_free)
    else:
        assert request.disk_layers is not None
        chosen = _spread(candidates, request.disk_layers)
    if chosen.layouts:
        _refuse(request, sizes)
    return chosen


def _candidates(
    sizes: ModelSizes, devices: Sequence[Device], placement: Placement
) -> dict[int, LayerLayout]:
    """The layers that may stay on disk: those of the CPU, with weights of the native kernels."""
    host = host_index(devices)
    if devices[host].torch_device != "cpu":
        return {}
    layers = {n for n, index in enumerate(placement.layer_devices) if index == host}
    return layer_layouts(sizes.parameters, sizes.on(devices[host]).storage, layers)


def _fewest(
    candidates: Mapping[int, LayerLayout], host: MemoryBreakdown, least_free: int
) -> OnDisk:
    """The fewest with which the host has enough memory; all if it never has."""
    for count in range(len(candidates) + 1):
        chosen = _spread(candidates, count)
        if chosen.changed(host).needed_bytes + least_free <= host.available_bytes:
            return chosen
    return OnDisk(candidates)


def _spread(candidates: Mapping[int, LayerLayout], count: int) -> OnDisk:
    """So many of the candidates, as evenly as can be. Raises UsageError."""
    most, every = len(candidates), enumerate(candidates.items())
    if count > most:
        raise UsageError(
            f"{count} layers cannot stay on disk: {most} are on the CPU, for its native kernels",
            where=FLAG,
            hint=f"give at most {most}, or auto",
        )
    return OnDisk(dict(each for n, each in every if (n + 1) * count // most > n * count // most))


def _refuse(request: RunRequest, sizes: ModelSizes) -> None:
    """Raises Unsupported for what reads all weights otherwise than step by step."""
    reasons = {
        "adapters": bool(request.adapters),
        "several processes": request.cluster is not None,
        "--calibration-file": request.calibration_file is not None,
        "a mixture of experts": any(each.feed_forward.routing for each in sizes.spec.layers),
        "this system": not CAN_READ,
    }
    for what, is_so in reasons.items():
        if is_so:
            raise Unsupported(
                f"layers cannot stay on disk with {what}", where=FLAG, hint="leave it out"
            )
