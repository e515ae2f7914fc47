"""The plan: where every layer sits and where every byte goes, before anything is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from mrs.errors import DoesNotFit
from mrs.families.spec import Parameter
from mrs.formats import Format
from mrs.isq import parse_isq
from mrs.plan.account import Correction, DeviceTerms, device_terms
from mrs.plan.device import Device
from mrs.plan.estimate import estimate_speed
from mrs.plan.facts import ModelFacts, weights_format
from mrs.plan.kept import KeptWeights, ModelFiles
from mrs.plan.place import place
from mrs.plan.placement import Placement
from mrs.plan.prefix import prefix_budgets
from mrs.plan.remarks import remarks
from mrs.plan.speed import SpeedEstimate
from mrs.plan.storage import Storage
from mrs.plan.terms import Load, ModelSizes
from mrs.plan.vision import VisionTerms, pictures
from mrs.request import DEFAULT_SEQ_TOKENS, RunRequest, Strategy
from mrs.source.address import model_name
from mrs.units import human_bytes


@dataclass(frozen=True)
class Plan:
    """What a run will do.

    `layer_devices` has one index into `devices` a layer; embedding, final norm and head sit on
    `devices[home]`. `kept` are the weights as each device would keep them, `stored` is how the
    files do, by parameter name. `kv_bytes_per_token` is the average over the planned length,
    `kv_bytes_per_further_token` what one more would take. `terms` has one entry a device, and so
    has `prefix_bytes`: what past sequences may be remembered in. `vision` is what sees, on
    `devices[home]`, a part of its terms; None where nothing does. `corrected` says that
    measurements of this machine were used.
    """

    model: ModelFacts
    load: Load
    dense: Format
    isq: str | None
    strategy: Strategy
    devices: tuple[Device, ...]
    layer_devices: tuple[int, ...]
    home: int
    parameters: Sequence[Parameter]
    kept: tuple[KeptWeights, ...]
    stored: Mapping[str, Storage]
    layer_bytes: tuple[int, ...]
    kv_bytes: tuple[int, ...]
    kv_bytes_per_token: int
    kv_bytes_per_further_token: int
    terms: tuple[DeviceTerms, ...]
    prefix_bytes: tuple[int, ...]
    speed: SpeedEstimate
    warnings: tuple[str, ...]
    vision: VisionTerms | None = None
    corrected: bool = False

    @property
    def missing_bytes(self) -> int:
        """What all devices together lack; 0 where the model fits."""
        return sum(terms.missing_bytes for terms in self.terms)

    @property
    def fits(self) -> bool:
        return not self.missing_bytes

    @property
    def spilled_layers(self) -> int:
        """Layers on the CPU although there is an accelerator."""
        if self.devices[0].kind == "cpu":
            return 0
        return sum(self.devices[index].kind == "cpu" for index in self.layer_devices)

    @property
    def visible_devices(self) -> list[int]:
        """Devices to show: without an unused CPU whose memory is an accelerator's."""
        shared = any(device.shares_host_memory for device in self.devices)
        rows = enumerate(zip(self.devices, self.terms, strict=True))
        return [
            index
            for index, (device, terms) in rows
            if not (shared and device.kind == "cpu") or terms.is_used
        ]

    @property
    def verdict(self) -> str:
        """Whether it fits, and what of it is on the CPU, in a few words."""
        if not self.fits:
            return f"does not fit, {human_bytes(self.missing_bytes)} missing"
        if not self.spilled_layers:
            return "fits"
        return f"fits with {self.spilled_layers} of {self.model.layers} layers on the CPU"

    @cached_property
    def parameter_devices(self) -> Mapping[str, int]:
        """The index into `devices` of each parameter's, by its name."""
        return {
            p.name: self.home if p.layer is None else self.layer_devices[p.layer]
            for p in self.parameters
        }

    @cached_property
    def storage(self) -> Mapping[str, Storage]:
        """How each parameter is kept, by its name."""
        devices = self.parameter_devices.items()
        return {name: self.kept[index].storage[name] for name, index in devices}

    @cached_property
    def weights_format(self) -> str:
        return weights_format(self.storage)

    def weight_bytes(self) -> dict[int, int]:
        """Bytes of weights by device index, for the devices that hold any."""
        return {i: t.weight_bytes for i, t in enumerate(self.terms) if t.weight_bytes}

    def prefix_budgets(self) -> dict[str, int]:
        """`prefix_bytes` by torch device, for the devices that hold anything."""
        budgets: Counter[str] = Counter()
        for device, terms, size_bytes in zip(
            self.devices, self.terms, self.prefix_bytes, strict=True
        ):
            if terms.is_used:
                budgets[device.torch_device] += size_bytes
        return dict(budgets)

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Device index and number of layers of each run of layers, in order."""
        return [(index, len(list(layers))) for index, layers in groupby(self.layer_devices)]

    @property
    def summary(self) -> str:
        """One line: what runs where."""
        total = human_bytes(sum(terms.weight_bytes for terms in self.terms))
        runs = ", ".join(f"{self.devices[i].label} ({count} layers)" for i, count in self.runs)
        name = model_name(self.model.model_id)
        return f"{name}: {self.model.family}, {self.weights_format}, {total} on {runs}"

    def require_fit(self) -> None:
        """Raise DoesNotFit if a device lacks memory."""
        if self.fits:
            return
        lacking = [
            f"{device.label} needs {human_bytes(terms.needed_bytes)} and has "
            f"{human_bytes(terms.available_bytes)}"
            for device, terms in zip(self.devices, self.terms, strict=True)
            if terms.missing_bytes
        ]
        raise DoesNotFit(
            f"the model exceeds the devices by {human_bytes(self.missing_bytes)}",
            missing_bytes=self.missing_bytes,
            where="; ".join(lacking),
            hint="mrs plan with the same flags says what would help",
        )


def make_plan(
    request: RunRequest,
    files: ModelFiles,
    devices: Sequence[Device],
    *,
    cpu_packs: bool = False,
    corrections: Mapping[str, Correction] | None = None,
    placement: Placement | None = None,
) -> Plan:
    """Plan the model in `files` on `devices` (accelerators in order, the CPU last).

    `cpu_packs` says that this machine has the native CPU kernels, `corrections` what was measured
    on devices by their labels; a `placement` is taken instead of looking for one. A model that
    does not fit is planned all the same and says what is missing. Raises UsageError for a layer
    map that cannot be, and Unsupported.
    """
    spec = files.spec
    dense = files.dense_format(request.dtype)
    level = None if request.isq is None else parse_isq(request.isq)
    wanted_tokens = request.max_seq_len or DEFAULT_SEQ_TOKENS
    context_tokens = min(wanted_tokens, spec.context_tokens)
    load = Load(context_tokens, request.max_batch_size)
    shown = pictures(spec, request.vision)
    sizes = ModelSizes(files, load, dense, level, cpu_packs=cpu_packs, shown=shown)
    used_corrections = corrections or {}
    if placement is None:
        placement = place(request, sizes, devices, used_corrections)
    layer_devices, home = tuple(placement.layer_devices), placement.first_device
    on = [sizes.on(device) for device in devices]
    terms = device_terms(sizes, devices, layer_devices, home, used_corrections)
    vision = on[home].vision
    return Plan(
        model=files.facts,
        load=load,
        dense=dense,
        isq=None if level is None else level.name,
        strategy=request.strategy,
        devices=tuple(devices),
        layer_devices=layer_devices,
        home=home,
        stored=files.stored_as,
        parameters=sizes.parameters,
        kept=tuple(each.kept for each in on),
        layer_bytes=tuple(on[i].layer_bytes[n] for n, i in enumerate(layer_devices)),
        kv_bytes=sizes.kv_bytes,
        kv_bytes_per_token=sizes.kv_bytes_per_token,
        kv_bytes_per_further_token=sizes.kv_bytes_per_further_token,
        terms=terms,
        prefix_bytes=prefix_budgets(request, terms),
        speed=estimate_speed(sizes, placement, devices),
        warnings=remarks(request, spec, placement, devices, terms, vision, context_tokens),
        vision=vision,
        corrected=any(device.label in used_corrections for device in devices),
    )
