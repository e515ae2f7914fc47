"""Replay a saved plan exactly, or say why it is no longer valid."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from mrs.devices.device import Device
from mrs.errors import DoesNotFit, NotReadable, UsageError, described
from mrs.formats import kv_format_of
from mrs.plan.memory.model_facts import model_facts
from mrs.plan.placement.layer_map import manual_placement, parse_layer_map
from mrs.plan.placement.placement import Placement
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.plan.report.document import VERSION
from mrs.process.files import read_at_most
from mrs.quantization.isq import isq_name, parse_isq
from mrs.quantization.storage import CACHE_TYPE_NAMES, DTYPE_NAMES
from mrs.request import ACTIVATION_BITS, ActivationBits, PagedRequest, RunRequest
from mrs.topology import Topology, topology_of
from mrs.units import human_bytes

_logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 64 * 1024**2
#: How far a device's total memory may differ: drivers and hosts round it differently.
TOTAL_TOLERANCE = 0.01


def replay(planner: Planner, request: RunRequest, path: Path) -> Plan:
    """The plan of a file, checked against this model and these devices.

    Lengths, types, quantization and the devices of layers are those of the file, not those of the
    request. NotReadable if the file is not a plan, UsageError if the model or the devices are not
    those of the plan, DoesNotFit if the devices no longer have enough memory.
    """
    saved = _read(path)
    try:
        return _replay(planner, request, saved, str(path))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise NotReadable("the plan is damaged", where=str(path), hint=str(error)) from error


def _replay(planner: Planner, request: RunRequest, saved: Mapping[str, Any], where: str) -> Plan:
    _check_model(planner, saved["model"], where)
    planned = saved["planned"]
    settled = replace(
        request,
        max_seq_len=_count(planned["context_tokens"]),
        max_batch_size=_count(planned["batch"]),
        dtype=DTYPE_NAMES[planned["dtype"]],
        activations=_activations(planned.get("activations", 8)),
        isq=None if planned["isq"] is None else isq_name(planned["isq"]),
        strategy=planned["strategy"],
        paged=_paged(planned["kv_cache"]),
        layer_map=None,
        topology=_topology(planned.get("topology"), where),
    )
    indices = _devices(planner.devices, saved, where)
    layers = saved["layers"]
    labels = [layer["device"] for layer in layers]
    if len(labels) != len(planner.description.spec.layers):
        raise ValueError(f"{len(labels)} layers")
    runs = [(indices[label], len(list(group))) for label, group in groupby(labels)]
    experts = {
        n: indices[layer["experts_device"]]
        for n, layer in enumerate(layers)
        if "experts_device" in layer
    }
    on_disk = [n for n, layer in enumerate(layers) if layer.get("on_disk")]
    slots = planned.get("disk_expert_slots", 0)
    tables = planned.get("tables_on_disk", ())
    placement = Placement(
        runs, experts=experts, on_disk=on_disk, expert_slots=slots, tables_on_disk=tables
    )
    plan = planner.plan(settled, placement)
    _check_bytes(plan, saved, where)
    for flag, value in contradictions(request, plan):
        _logger.warning("%s is ignored: the plan in %s has %s", flag, where, value)
    return plan


def _topology(saved: Sequence[Mapping[str, str]] | None, where: str) -> Topology | None:
    """What quantized single layers and tensors."""
    if not saved:
        return None
    return topology_of({rule["selector"]: {"isq": rule["isq"]} for rule in saved}, where)


def _activations(saved: object) -> ActivationBits:
    for bits in ACTIVATION_BITS:
        if saved == bits:
            return bits
    raise ValueError(f"{described(saved)} is not a number of bits of activations")


def _paged(saved: Mapping[str, Any]) -> PagedRequest:
    """The request that has exactly the saved cache."""
    cache = kv_format_of(saved["dtype"])
    return PagedRequest(
        pool=not saved["grows"],
        context_tokens=None if saved["grows"] else _count(saved["tokens"]),
        block_tokens=_count(saved["block_tokens"]),
        key_cache_type=CACHE_TYPE_NAMES[cache.keys.name],
        value_cache_type=CACHE_TYPE_NAMES[cache.values.name],
    )


def contradictions(request: RunRequest, plan: Plan) -> Iterator[tuple[str, str]]:
    """Flags that contradict a plan, as the user wrote them, and the plan's values.

    A flag with its default value counts as not given.
    """
    load, wanted_tokens = plan.workload, request.max_seq_len
    if wanted_tokens and min(wanted_tokens, plan.model.context_tokens) != load.context_tokens:
        yield f"--max-seq-len {wanted_tokens}", str(load.context_tokens)
    if request.max_batch_size not in (1, load.batch):
        yield f"--max-batch-size {request.max_batch_size}", str(load.batch)
    dtype = DTYPE_NAMES[plan.dense.name]
    if request.dtype not in ("auto", dtype):
        yield f"--dtype {request.dtype}", dtype
    if request.activations not in (RunRequest.activations, plan.activations):
        yield f"--activations {request.activations}", str(plan.activations)
    if request.isq is not None and parse_isq(request.isq).name != plan.isq:
        yield f"--isq {request.isq}", "no --isq" if plan.isq is None else isq_name(plan.isq)
    if request.strategy not in (RunRequest.strategy, plan.strategy):
        yield f"--strategy {request.strategy}", plan.strategy
    yield from _cache_contradictions(request.paged, plan)
    runs = [(plan.devices[index].label, count) for index, count in plan.runs]
    where = ", ".join(f"{count} layers on {label}" for label, count in runs)
    if request.layer_map is not None and _mapped(request.layer_map, plan) != plan.runs:
        yield f"--num-device-layers {request.layer_map}", where
    if not request.cpu_spill and plan.spilled_layers:
        yield "--no-cpu-spill", where


def _cache_contradictions(paged: PagedRequest, plan: Plan) -> Iterator[tuple[str, str]]:
    size, cache = plan.workload.cache, plan.cache_format
    pool = f"a pool of {size.total_tokens} tokens" if size.is_pool else "a KV cache that grows"
    for flag in paged.sizes:
        if not size.is_pool or paged.context_tokens != size.total_tokens:
            yield flag, pool
    if paged.pool not in (None, size.is_pool):
        yield "--paged-attn" if paged.pool else "--no-paged-attn", pool
    if paged.block_tokens not in (PagedRequest.block_tokens, size.block_tokens):
        yield f"--pa-blk-size {paged.block_tokens}", str(size.block_tokens)
    keys, values = CACHE_TYPE_NAMES[cache.keys.name], CACHE_TYPE_NAMES[cache.values.name]
    alone = {
        "--cache-type-k": (paged.key_cache_type, keys),
        "--cache-type-v": (paged.value_cache_type, values),
    }
    both = {(paged.cache_type, planned) for given, planned in alone.values() if given is None}
    for flag, each in (*(("--pa-cache-type", each) for each in sorted(both)), *alone.items()):
        wanted, planned = each
        if wanted not in (None, "auto", planned):
            yield f"{flag} {wanted}", planned


def _mapped(layer_map: str, plan: Plan) -> list[tuple[int, int]]:
    """The device and the number of layers of each run in a map; none if it names other devices."""
    pairs = parse_layer_map(layer_map)
    try:
        memories = [device.memory for device in plan.devices]
        return manual_placement(pairs, plan.model.layers, memories).layers
    except UsageError:
        return []


def _count(value: object) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{described(value)} is not a count")
    return value


def _read(path: Path) -> Mapping[str, Any]:
    try:
        saved = json.loads(read_at_most(path, MAX_FILE_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise NotReadable(
            "cannot read the plan", where=str(path), hint=error.strerror or ""
        ) from error
    except (ValueError, RecursionError) as error:
        raise NotReadable("the plan is not JSON", where=str(path), hint=str(error)) from error
    if not isinstance(saved, dict) or "version" not in saved:
        raise NotReadable(
            "this file is not a plan", where=str(path), hint="save one with mrs plan --json"
        )
    if saved["version"] != VERSION:
        raise NotReadable(
            f"the plan has version {described(saved['version'])}, this program reads {VERSION}",
            where=str(path),
            hint="plan again",
        )
    return saved


def _check_model(planner: Planner, saved: Mapping[str, Any], where: str) -> None:
    facts = model_facts(planner.checkpoint, planner.description)
    if facts.fingerprint != saved["fingerprint"]:
        raise UsageError(
            f"the plan is for another model: {saved['model_id']} with {saved['parameters']} "
            f"parameters, and {facts.model_id} has other tensors",
            where=where,
            hint="plan again for this model",
        )


def _devices(devices: Sequence[Device], saved: Mapping[str, Any], where: str) -> dict[str, int]:
    """The index of each device that the plan uses; UsageError if one is missing."""
    here = {device.label: index for index, device in enumerate(devices)}
    used = {layer["device"] for layer in saved["layers"]} | {saved["home"]}
    used |= {layer["experts_device"] for layer in saved["layers"] if "experts_device" in layer}
    for wanted in saved["devices"]:
        label = wanted["label"]
        if label not in used:
            continue
        device = devices[here[label]] if label in here else None
        if device is None or not _same(device, wanted):
            what = f"{device.name}, {human_bytes(device.total_bytes)}" if device else "none"
            raise UsageError(
                f"the plan needs {label} = {wanted['name']}, "
                f"{human_bytes(wanted['total_bytes'])}; here it is {what}",
                where=where,
                hint="plan again on this machine",
            )
    return {label: here[label] for label in used}


def _same(device: Device, wanted: Mapping[str, Any]) -> bool:
    total_bytes = int(wanted["total_bytes"])
    off = abs(device.total_bytes - total_bytes)
    return bool(device.name == wanted["name"]) and off <= TOTAL_TOLERANCE * total_bytes


def _check_bytes(plan: Plan, saved: Mapping[str, Any], where: str) -> None:
    """Require that the plan has the same bytes as the file, and that they are still free."""
    then = {device["label"]: device["bytes"] for device in saved["devices"]}
    for device, breakdown in zip(plan.devices, plan.breakdowns, strict=True):
        if not breakdown.is_used:
            continue
        planned = then[device.label]
        sizes_bytes = breakdown.weight_bytes, breakdown.kv_bytes
        if sizes_bytes != (planned["weights"], planned["kv_cache"]):
            raise UsageError(
                f"{device.label} needs {human_bytes(breakdown.weight_bytes)} for weights, but the "
                f"plan says {human_bytes(planned['weights'])}",
                where=where,
                hint="another version made it, or one without the native kernels: plan again",
            )
    if not plan.fits:
        try:
            plan.require_fit()
        except DoesNotFit as error:
            raise DoesNotFit(
                "the plan no longer fits",
                missing_bytes=error.missing_bytes,
                where=error.where,
                hint="free memory, or plan again",
            ) from error
