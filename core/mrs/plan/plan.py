"""The plan: where every layer sits and where every byte goes, before anything is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

from mrs.architecture.model_spec import ModelSpec
from mrs.devices.cpu_path import cpu_path
from mrs.devices.device import Device
from mrs.devices.disk import disk_bandwidth
from mrs.errors import DoesNotFit, Unsupported, UsageError
from mrs.formats import FORMATS, Format, KVFormat
from mrs.kernels.workspace.products import rounds_activations
from mrs.layers.cross_attention.spec import CrossAttention
from mrs.layers.first_input.spec import FirstInput
from mrs.plan.memory.breakdown import (
    Correction,
    MemoryBreakdown,
    host_index,
    memory_breakdowns,
)
from mrs.plan.memory.device_sizes import ModelSizes, Workload
from mrs.plan.memory.draft_memory import devices_without, draft_breakdown
from mrs.plan.memory.model_facts import ModelFacts, weights_format
from mrs.plan.memory.overhead import Estimate, model_objects_bytes
from mrs.plan.memory.prefix_budget import prefix_budgets
from mrs.plan.memory.stored_weights import ModelWeightsInfo, StoredWeights
from mrs.plan.placement.kv_pool import place_with_pool
from mrs.plan.placement.on_disk import OnDisk, layers_on_disk
from mrs.plan.placement.placement import Placement
from mrs.plan.speed.activation_cost import ActivationCost, activation_cost
from mrs.plan.speed.draft_gain import FIRST_CHANCE, DraftGain, draft_cost
from mrs.plan.speed.draft_record import DraftRecord
from mrs.plan.speed.estimate import estimate_speed, with_disk
from mrs.plan.speed.roofline import SpeedEstimate
from mrs.plan.warnings import plan_warnings
from mrs.quantization.storage import CACHE_TYPE_NAMES, Storage, quantization
from mrs.request import (
    DEFAULT_SEQ_TOKENS,
    PREFILL_CHUNK_TOKENS,
    ActivationBits,
    RunRequest,
    Strategy,
)
from mrs.source.address import model_name
from mrs.topology import Topology, is_expert
from mrs.units import human_bytes, rounded_rate
from mrs.weights.binding import Parameter

if TYPE_CHECKING:
    from mrs.plan.memory.server_budget import ServerBudget
    from mrs.plan.memory.vision_sizes import VisionSizes


@dataclass(frozen=True, repr=False)
class Plan:
    """What a run will do.

    layer_devices                 an index into `devices` for each layer
    primary_device                the index of the device of embedding, final norm and head
    kept, stored                  weights as each device would store them; as files do, by parameter
    cache_format                  the types of keys and values
    kv_bytes_per_token            the average over the planned length
    kv_bytes_per_further_token    the bytes that one more token needs
    breakdowns, prefix_bytes      memory of each device; and how much its prefix cache may use
    expert_devices                devices of experts that are not on that of their layer, by layer
    on_disk                       layers of the CPU that are read from disk for each step
    topology                      what quantizes single layers and tensors, if anything does
    vision                        tower and projector; part of the primary device's breakdown
    draft                         the draft model's plan: on the first device, in its breakdown
    draft_record                  what drafts did in earlier runs, if that is known
    without_head                  why the model's own draft head is not used, if it has one
    budget                        what requests to a server need, in the host's breakdown
    corrected                     whether measurements of this machine were used
    activations                   significant bits of activations in products on the CPU
    activation_cost               what these cost beside 8; None if they change nothing
    """

    model: ModelFacts
    workload: Workload
    dense: Format
    cache_format: KVFormat
    isq: str | None
    strategy: Strategy
    devices: tuple[Device, ...]
    layer_devices: tuple[int, ...]
    primary_device: int
    parameters: Sequence[Parameter]
    stored_weights: tuple[StoredWeights, ...]
    stored: Mapping[str, Storage]
    layer_bytes: tuple[int, ...]
    kv_bytes: tuple[int, ...]
    kv_bytes_per_token: int
    kv_bytes_per_further_token: int
    breakdowns: tuple[MemoryBreakdown, ...]
    prefix_bytes: tuple[int, ...]
    speed: SpeedEstimate
    warnings: tuple[str, ...]
    vision: VisionSizes | None = None
    draft: Plan | None = None
    draft_record: DraftRecord | None = None
    without_head: str = ""
    budget: ServerBudget | None = None
    corrected: bool = False
    activations: ActivationBits = 8
    activation_cost: ActivationCost | None = None
    expert_devices: Mapping[int, int] = field(default_factory=dict)
    topology: Topology | None = None
    on_disk: OnDisk = field(default_factory=OnDisk)

    @property
    def objects(self) -> Estimate:
        """Bytes of the tokenizer and of the Python objects of the model."""
        vocabulary = 0 if self.model.is_head else self.model.vocabulary
        return model_objects_bytes(vocabulary, len(self.parameters))

    @property
    def drafter(self) -> str:
        """What drafts tokens: `head`, the draft model's id, or else `lookup`."""
        if self.draft is None:
            return "lookup"
        return "head" if self.draft.model.is_head else self.draft.model.model_id

    @property
    def draft_key(self) -> str:
        """The key of what drafts do for this model on this machine."""
        return f"{self.model.model_id} {self.weights_format} {self.drafter}"

    @property
    def draft_gain(self) -> DraftGain | None:
        """How much drafts save: as in earlier runs, or as a draft model should; else None."""
        record = self.draft_record
        if record is not None:
            return DraftGain(record.gain, record.accepted_share, is_measured=True)
        if self.draft is None:
            return None
        cost = draft_cost(self.speed, self.draft.speed, self.draft.model.heads)
        # Where none saves time, there are hardly any.
        length = cost.best_length(FIRST_CHANCE, cost.most_tokens)
        return DraftGain(cost.gain(FIRST_CHANCE, length), FIRST_CHANCE, is_measured=False)

    @property
    def host_bytes(self) -> int:
        """The most that the process needs on the host: all of it, prefix cache included."""
        index = host_index(self.devices)
        of_cpu = self.prefix_bytes[index] if self.devices[index].torch_device == "cpu" else 0
        return self.breakdowns[index].total.high + of_cpu

    @property
    def without_draft(self) -> Plan:
        """The same plan without the memory of a draft model."""
        breakdowns = tuple(replace(each, draft=None) for each in self.breakdowns)
        return replace(self, draft=None, breakdowns=breakdowns)

    @property
    def missing_bytes(self) -> int:
        """Bytes that all devices together lack; 0 if the model fits."""
        return sum(breakdown.missing_bytes for breakdown in self.breakdowns)

    @property
    def fits(self) -> bool:
        return not self.missing_bytes

    @property
    def longest_tokens(self) -> int:
        """The most tokens of a sequence: those of the model, or of the pool of KV blocks."""
        size = self.workload.cache
        tokens = self.model.context_tokens
        return min(tokens, size.total_tokens) if size.is_pool else tokens

    @property
    def spilled_layers(self) -> int:
        """Layers that are on the CPU, or whose experts are, although there is an accelerator."""
        return self._spilled_whole + self._spilled_experts

    @property
    def has_spilled_layers(self) -> bool:
        """Whether whole layers are on the CPU although there is an accelerator."""
        return self._spilled_whole > 0

    @property
    def _spilled_whole(self) -> int:
        if self.devices[0].kind == "cpu":
            return 0
        return sum(self.devices[index].kind == "cpu" for index in self.layer_devices)

    @property
    def _spilled_experts(self) -> int:
        return sum(self.devices[index].kind == "cpu" for index in self.expert_devices.values())

    @property
    def spilled(self) -> str:
        """What is on the CPU although there is an accelerator, in a few words; empty if nothing."""
        whole, experts, count = self._spilled_whole, self._spilled_experts, self.model.layers
        parts = [f"{whole} of {count} layers"] * bool(whole)
        parts += [f"experts of {experts} of {count} layers"] * bool(experts)
        return " and ".join(parts)

    @property
    def visible_devices(self) -> list[int]:
        """Indices of all devices but an unused CPU that shares an accelerator's memory."""
        shared = any(device.shares_host_memory for device in self.devices)
        rows = enumerate(zip(self.devices, self.breakdowns, strict=True))
        return [
            index
            for index, (device, breakdown) in rows
            if not (shared and device.kind == "cpu") or breakdown.is_used
        ]

    @property
    def verdict(self) -> str:
        """Whether the model fits, and how many layers are on the CPU, in a few words."""
        if not self.fits:
            return f"does not fit, {human_bytes(self.missing_bytes)} missing"
        parts = []
        if self.spilled:
            parts.append(f"{self.spilled} on the CPU")
        if self.on_disk:
            parts.append(f"{' and '.join(self._kept_on_disk)} on disk")
        return f"fits with {' and '.join(parts)}" if parts else "fits"

    @property
    def _kept_on_disk(self) -> list[str]:
        """What is on disk: tables, layers or the experts of some."""
        tables, layers = len(self.on_disk.tables), len(self.on_disk.layouts)
        what = "experts of " if self.on_disk.expert_slots else ""
        return ["1 table" if tables == 1 else f"{tables} tables"] * bool(tables) + [
            f"{what}{layers} of {self.model.layers} layers"
        ] * bool(layers)

    @property
    def read_from_disk(self) -> str:
        """What each token reads from disk: rows of tables, layers or experts; or nothing."""
        rows = "rows of " if self.on_disk.tables else ""
        return rows + " and ".join(self._kept_on_disk)

    @property
    def disk_note(self) -> str:
        """What layers on disk cost; empty without any."""
        if not self.on_disk:
            return ""
        read = human_bytes(self.on_disk.read_bytes)
        bytes_per_s, is_measured = disk_bandwidth()
        source = "" if is_measured else " (assumed: mrs doctor measures it)"
        whole, saved_bytes = with_disk(self.speed, 0, 0, 0), self.on_disk.saved_bytes
        more = f"with {human_bytes(saved_bytes)} more memory" if saved_bytes else "from memory"
        slots = self.on_disk.expert_slots
        hits = self.on_disk.hit_rate
        by_use = "" if hits is None else f": by use of earlier runs, {hits:.0%} of what is chosen"
        kept = f" ({slots} experts in memory{by_use})" if slots else ""
        return (
            f"{self.read_from_disk} are read from disk for each token{kept}, {read} at "
            f"{bytes_per_s / 1e9:.2g} GB/s{source}: {rounded_rate(self.speed.decode.expected)} "
            f"tokens/s, and {rounded_rate(whole.decode.expected)} {more}"
        )

    @property
    def activation_note(self) -> str:
        """What more bits of activations cost; empty for 8."""
        cost = self.activation_cost
        if self.activations == 8:
            return ""
        if cost is None:
            return "16 bits change nothing here: no product on the CPU rounds activations to 8"
        source = "measured here" if cost.is_measured else "expected, mrs plan measures it"
        return (
            f"16 bits leave {cost.reply:.0%} of the speed of replies with 8 bits, and "
            f"{cost.prompt:.0%} of that of prompts ({source})"
        )

    @cached_property
    def parameter_devices(self) -> Mapping[str, int]:
        """The index into `devices` of each parameter's, by its name."""
        return {p.name: self._device_of(p) for p in self.parameters}

    def _device_of(self, parameter: Parameter) -> int:
        layer = parameter.layer
        if layer is None:
            return self.primary_device
        device = self.layer_devices[layer]
        return self.expert_devices.get(layer, device) if is_expert(parameter.name) else device

    @property
    def placement(self) -> Placement:
        """The devices of layers and experts, and the layers on disk, to plan again with."""
        return Placement(
            self.runs,
            experts=self.expert_devices,
            on_disk=tuple(self.on_disk.layouts),
            expert_slots=self.on_disk.expert_slots,
            tables_on_disk=tuple(self.on_disk.tables),
        )

    @cached_property
    def storage(self) -> Mapping[str, Storage]:
        """How each parameter is kept, by its name."""
        devices = self.parameter_devices.items()
        return {name: self.stored_weights[index].storage[name] for name, index in devices}

    @cached_property
    def weights_format(self) -> str:
        """The formats of most weights in memory, and the scheme of most that had one in files."""
        schemes = Counter[str]()
        for each in self.stored.values():
            if each.scheme:
                schemes[each.scheme] += each.size_bytes
        names = [f" from {scheme}" for scheme, _ in schemes.most_common(1)]
        return weights_format(self.storage) + "".join(names)

    def weight_bytes(self) -> dict[int, int]:
        """Bytes of weights by device index, for the devices that hold any."""
        return {i: t.weight_bytes for i, t in enumerate(self.breakdowns) if t.weight_bytes}

    @property
    def total_weight_bytes(self) -> int:
        """Bytes of weights on all devices together."""
        return sum(self.weight_bytes().values())

    def prefix_budgets(self) -> dict[str, int]:
        """`prefix_bytes` by torch device, for the devices in use."""
        budgets: Counter[str] = Counter()
        for device, breakdown, size_bytes in zip(
            self.devices, self.breakdowns, self.prefix_bytes, strict=True
        ):
            if breakdown.is_used:
                budgets[device.torch_device] += size_bytes
        return dict(budgets)

    @property
    def runs(self) -> list[tuple[int, int]]:
        """(device index, number of layers) of consecutive layers on one device, in order."""
        return [(index, len(list(layers))) for index, layers in groupby(self.layer_devices)]

    def __repr__(self) -> str:
        return f"<Plan of {self.summary}>"

    @property
    def summary(self) -> str:
        """One line: the model, its weights and the devices of its layers."""
        total = human_bytes(sum(breakdown.weight_bytes for breakdown in self.breakdowns))
        runs = ", ".join(f"{self.devices[i].label} ({count} layers)" for i, count in self.runs)
        experts = Counter(self.devices[index].label for index in self.expert_devices.values())
        runs += "".join(f", {label} (experts of {n} layers)" for label, n in experts.items())
        name = model_name(self.model.model_id)
        return f"{name}: {self.model.family}, {self.weights_format}, {total} on {runs}"

    def require_fit(self) -> None:
        """Raise DoesNotFit if a device lacks memory."""
        if self.fits:
            return
        lacking = [
            f"{device.label} needs {human_bytes(breakdown.needed_bytes)} and has "
            f"{human_bytes(breakdown.available_bytes)}"
            for device, breakdown in zip(self.devices, self.breakdowns, strict=True)
            if breakdown.missing_bytes
        ]
        raise DoesNotFit(
            f"the model exceeds the devices by {human_bytes(self.missing_bytes)}",
            missing_bytes=self.missing_bytes,
            where="; ".join(lacking),
            hint="run mrs plan with the same flags: it suggests what helps",
        )


def _cache_format(
    request: RunRequest, files: ModelWeightsInfo, dense: Format, devices: Sequence[Device]
) -> KVFormat:
    """The types of keys and values. Raises Unsupported for two that do not go together.

    A quantized model computes in float32 on a CPU. Its keys are rounded to f16 there, which has
    three bits more than bf16, as llama.cpp does. With activations of 16 bits nothing is rounded: it
    would be the largest error left.
    """
    is_quantized = request.isq is not None or files.is_quantized
    on_cpu = all(device.torch_device == "cpu" for device in devices)
    rounds_less = request.dtype == "auto" and dense.name == "BF16" and is_quantized and on_cpu
    default = FORMATS["F16"] if rounds_less else dense
    if request.activations == 16 and on_cpu:
        default = FORMATS["F32"]
    formats = {kind: FORMATS[name] for name, kind in CACHE_TYPE_NAMES.items()}
    keys, values = (formats.get(wanted, default) for wanted in request.paged.cache_types)
    if keys != values and not (keys.is_quantized and values.is_quantized):
        names = CACHE_TYPE_NAMES[keys.name], CACHE_TYPE_NAMES[values.name]
        raise Unsupported(
            f"keys of type {names[0]} with values of type {names[1]} are not supported",
            where="--cache-type-k, --cache-type-v",
            hint="give both q8_0 or q4_0, or one type for both",
        )
    return KVFormat(keys, values)


def _require_positions(request: RunRequest, spec: ModelSpec) -> None:
    """Raise UsageError for a wished length beyond a table of learned positions."""
    if not isinstance(spec.input, FirstInput) or not spec.input.positions:
        return
    most = spec.input.positions - spec.input.first_position
    if request.max_seq_len is not None and request.max_seq_len > most:
        raise UsageError(
            f"the model has learned {most} positions, not {request.max_seq_len}",
            where="--max-seq-len",
            hint=f"give at most {most}",
        )


def _check_cache(cache: KVFormat, spec: ModelSpec, devices: Iterable[Device]) -> None:
    """Raises Unsupported if layers on the used devices cannot have such keys and values."""
    if cache.is_quantized:
        others = {each.label for each in devices if each.torch_device != "cpu"}
        wanted, only = "CPUs", "the CPU"
    else:
        others = {each.label for each in devices if not each.is_cuda}
        wanted, only = "NVIDIA GPUs", "GPUs"
    name = CACHE_TYPE_NAMES[cache.keys.name]
    if others:
        raise Unsupported(
            f"a KV cache of type {name} is for {wanted}, not for {min(others)}",
            where="--pa-cache-type",
            hint=f"give auto or f16, or a --num-device-layers with {only} only",
        )
    if any(isinstance(layer.mixer, CrossAttention) for layer in spec.layers):
        raise Unsupported(
            f"layers that attend to images have no KV cache of type {name}",
            where="--pa-cache-type",
            hint="give auto or f16",
        )


def _check_heads(cache: KVFormat, spec: ModelSpec) -> None:
    """Raises Unsupported if the cached rows of a layer cannot be quantized."""
    fault = ""
    for shape in (layer.mixer.cache_shape for layer in spec.layers):
        if shape.token_rows and not shape.head_dims:
            fault = "its attention (latent, or with ALiBi) caches other rows than keys and values"
        elif odd := [dim for dim in shape.head_dims if dim % cache.keys.block_elements]:
            fault = f"heads of {odd[0]} values are no multiple of {cache.keys.block_elements}"
    if fault:
        raise Unsupported(
            f"the KV cache of this model is not quantized: {fault}",
            where="--pa-cache-type",
            hint="give auto or f16",
        )


def _decode_rate(sizes: ModelSizes, placement: Placement, devices: Sequence[Device]) -> float:
    return estimate_speed(sizes, placement, devices).decode.expected


def make_plan(
    request: RunRequest,
    files: ModelWeightsInfo,
    devices: Sequence[Device],
    *,
    cpu_packs: bool = False,
    corrections: Mapping[str, Correction] | None = None,
    placement: Placement | None = None,
    draft: Plan | None = None,
    sizes_of: Callable[..., ModelSizes] = ModelSizes,
) -> Plan:
    """Plan the model in `files` on `devices` (accelerators in order, the CPU last).

    `cpu_packs` is true if this machine has the native CPU kernels. `corrections` are from
    measurements, by device label. A given `placement` is used as it is. The model of the plan
    `draft` is loaded as well. A model that does not fit is planned, too, and `missing_bytes` is
    above 0. `sizes_of` makes sizes, or has made them for another plan. Raises UsageError for an
    impossible layer map, and Unsupported.
    """
    spec = files.spec
    dense = files.dense_format(request.dtype)
    isq, topology = quantization(request, files.parameters)
    _require_positions(request, spec)
    wanted_tokens = request.max_seq_len or DEFAULT_SEQ_TOKENS
    context_tokens = min(wanted_tokens, spec.context_tokens)
    paged = request.paged
    # An encoder computes a whole text at once.
    chunk = context_tokens if spec.attends_both_ways else PREFILL_CHUNK_TOKENS
    workload = Workload(context_tokens, request.max_batch_size, chunk, paged.block_tokens)
    cache_format = _cache_format(request, files, dense, devices)
    if cache_format.is_quantized:
        _check_heads(cache_format, spec)
    images = None
    if request.vision is not None:
        from mrs.plan.memory.vision_sizes import planned_images

        images = planned_images(spec, request.vision)
    budget = None
    if request.server is not None:
        from mrs.plan.memory.server_budget import server_budget

        budget = server_budget(request.server, request.max_seqs, spec.context_tokens, images)
    sizes = sizes_of(
        files,
        workload,
        dense,
        isq,
        cpu_packs=cpu_packs,
        cache=cache_format,
        images=images,
        topology=topology,
        budget=budget,
        activations=request.activations,
    )
    used_corrections = corrections or {}
    free_devices, added = devices, None
    if draft is not None:
        added = draft_breakdown(draft.breakdowns[0], draft.objects)
        free_devices = devices_without(added, devices)
    sizes, placement = place_with_pool(
        request, sizes, free_devices, used_corrections, _decode_rate, placement
    )
    layer_devices, primary_device = tuple(placement.layer_devices), placement.first_device
    if cache_format.is_quantized or cache_format.keys.name == "F8_E4M3":
        _check_cache(cache_format, spec, (devices[index] for index in layer_devices))
    on = [sizes.on(device) for device in devices]
    breakdowns = memory_breakdowns(
        sizes, devices, layer_devices, primary_device, used_corrections, placement.experts
    )
    breakdowns = (replace(breakdowns[0], draft=added), *breakdowns[1:])
    host = host_index(devices)
    on_disk = layers_on_disk(request, sizes, devices, placement, breakdowns[host])
    changed = on_disk.changed(breakdowns[host])
    breakdowns = (*breakdowns[:host], changed, *breakdowns[host + 1 :])
    if budget is not None:
        budget = budget.within(breakdowns[host].free_bytes)
        with_requests = replace(breakdowns[host], request_bytes=budget.total_bytes)
        breakdowns = (*breakdowns[:host], with_requests, *breakdowns[host + 1 :])
    vision = on[primary_device].vision
    speed = with_disk(
        estimate_speed(sizes, placement, devices),
        on_disk.layer_bytes,
        on_disk.expert_bytes,
        on_disk.row_bytes,
        on_disk.missing_use,
    )
    return Plan(
        model=files.facts,
        workload=sizes.workload,
        dense=dense,
        cache_format=cache_format,
        isq=None if isq is None else isq.name,
        strategy=request.strategy,
        devices=tuple(devices),
        layer_devices=layer_devices,
        primary_device=primary_device,
        stored=files.file_storage,
        parameters=sizes.parameters,
        stored_weights=tuple(each.weights for each in on),
        layer_bytes=tuple(
            on[i].layer_bytes_on(n, on[placement.experts.get(n, i)])
            for n, i in enumerate(layer_devices)
        ),
        kv_bytes=sizes.kv_bytes,
        kv_bytes_per_token=sizes.kv_bytes_per_token,
        kv_bytes_per_further_token=sizes.kv_bytes_per_further_token,
        breakdowns=breakdowns,
        prefix_bytes=prefix_budgets(
            request if files.facts.makes_replies else replace(request, prefix_cache_n=0),
            breakdowns,
            _on_devices(sizes.remembered_bytes(request.prefix_cache_n), layer_devices, devices),
        ),
        speed=speed,
        warnings=files.warnings
        + plan_warnings(request, spec, placement, devices, breakdowns, vision, sizes.workload),
        vision=vision,
        draft=draft,
        budget=budget,
        expert_devices=placement.experts,
        topology=topology and topology.of_isq,
        on_disk=on_disk,
        corrected=any(device.label in used_corrections for device in devices),
        activations=request.activations,
        activation_cost=_activation_cost(sizes, placement, devices),
    )


def _activation_cost(
    sizes: ModelSizes, placement: Placement, devices: Sequence[Device]
) -> ActivationCost | None:
    """What the activations' bits cost beside 8 in a placement; None if they change no product."""
    used = {*placement.layer_devices, *placement.experts.values(), placement.first_device}
    on_cpu = [devices[index] for index in used if devices[index].torch_device == "cpu"]
    changed = [
        each
        for device in on_cpu
        for each in sizes.on(device).storage.values()
        if each.residuals and rounds_activations(cpu_path(), each.format.name)
    ]
    if sizes.activations == 8 or not changed:
        return None
    speed = estimate_speed(sizes, placement, devices)
    plain = estimate_speed(sizes, placement, devices, activations=8)
    known = activation_cost(sizes.on(on_cpu[0]).weights.main_format)
    return ActivationCost(
        min(speed.decode.expected / plain.decode.expected, 1.0),
        min(speed.prompt.expected / plain.prompt.expected, 1.0),
        known.is_measured and not any(device.is_hypothetical for device in on_cpu),
    )


def _on_devices(
    layer_bytes: Sequence[int], layer_devices: Sequence[int], devices: Sequence[Device]
) -> list[int]:
    """The sum of the bytes of each device's layers."""
    sums = [0] * len(devices)
    for size_bytes, index in zip(layer_bytes, layer_devices, strict=True):
        sums[index] += size_bytes
    return sums
