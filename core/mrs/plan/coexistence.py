"""Whether a model fits in addition to the models that are loaded already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mrs.plan.placement.round_robin import GpuDemand, GpuMemory, predict_fit
from mrs.plan.plan import Plan


def fits_beside_others(plan: Plan) -> bool:
    """Whether the whole model of `plan` fits into the memory that its devices have available.

    The rule is Ollama's `predict_fit`, which leaves room for one more layer, for the devices of
    each kind. The host counts as a device of its own kind, because that rule never loads anything
    on a library named `cpu`.
    """
    return plan.fits and all(_fits(plan, indices) for indices in _devices_by_kind(plan))


def reserved_bytes(staying: Iterable[Plan], leaving: Iterable[Plan] = ()) -> dict[str, int]:
    """What loaded models take away from the available bytes of devices, by label.

    The available bytes of the host include all that this process has, so the models that stay
    count there, without the program, which every plan counts. Drivers of other devices subtract
    these models themselves; what the models that leave will free is added there.
    """
    reserved: Counter[str] = Counter()
    for plan in staying:
        rows = zip(plan.devices, plan.breakdowns, plan.prefix_bytes, strict=True)
        for device, breakdown, prefix_bytes in rows:
            if device.torch_device == "cpu" and breakdown.is_used:
                program_bytes = breakdown.runtime.high if breakdown.is_cpu else 0
                if plan.budget is not None and breakdown.request_bytes:
                    program_bytes += plan.budget.shared_bytes
                reserved[device.label] += breakdown.needed_bytes + prefix_bytes - program_bytes
    for plan in leaving:
        for device, breakdown in zip(plan.devices, plan.breakdowns, strict=True):
            if device.torch_device != "cpu" and breakdown.is_used:
                reserved[device.label] -= breakdown.needed_bytes
    return dict(reserved)


def _devices_by_kind(plan: Plan) -> list[list[int]]:
    """The indices of the devices that have layers, by kind."""
    used = sorted(set(plan.layer_devices))
    kinds = dict.fromkeys(plan.devices[index].kind for index in used)
    return [[i for i in used if plan.devices[i].kind == kind] for kind in kinds]


def _fits(plan: Plan, indices: list[int]) -> bool:
    """Whether the layers of these devices fit there, with all that each device needs as well."""
    layers = {index: 0 for index in indices}
    sizes = []
    for layer, index in enumerate(plan.layer_devices):
        if index in layers:
            sizes.append(plan.layer_bytes[layer] + plan.kv_bytes[layer])
            layers[index] += sizes[-1]
    others = [plan.breakdowns[index].needed_bytes - layers[index] for index in indices]
    demand = GpuDemand(
        layer_bytes=sizes,
        output_bytes=0,
        kv_bytes_total=0,
        graph_partial_bytes=0,
        graph_full_bytes=0,
        projector_bytes=max(others) - min(others),
        projector_graph_bytes=0,
        overhead_bytes=min(others),
    )
    memories = [GpuMemory("loaded", plan.breakdowns[i].available_bytes, 0) for i in indices]
    return predict_fit(demand, memories).fits
