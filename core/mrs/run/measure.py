"""Loads a planned model, runs its workload, and compares memory and speed with the plan."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from mrs.devices.bandwidth import has_room_to_measure
from mrs.devices.host_memory import forget_peak, resident_bytes
from mrs.errors import MrsError
from mrs.events import OnProgress
from mrs.plan.calibration import remember
from mrs.plan.report.reconcile import HostMeasured, Reconciliation, reconcile
from mrs.plan.speed.activation_cost import ActivationCost, remember_cost
from mrs.process.address_space import require_address_space_for_torch
from mrs.run.planned_model import PlannedModel, no_report

if TYPE_CHECKING:
    from mrs.distributed.measure import MeasuredRun


def measure(model: PlannedModel, on_progress: OnProgress | None = None) -> Reconciliation:
    """Load the model, run the planned workload, and compare its memory with the plan.

    Later plans on this machine use the measurements. A draft model is left out.
    """
    model.settle(model.request, model.plan.without_draft)
    model.plan.require_fit()
    report = on_progress or no_report
    model.fetch(report)
    require_address_space_for_torch()
    for variable, silent in (("KINETO_LOG_LEVEL", "99"), ("TORCH_CPP_LOG_LEVEL", "ERROR")):
        os.environ.setdefault(variable, silent)  # torch's profiler writes to standard error
    from mrs.run.read_text import read_text

    text = None
    with suppress(MrsError):  # a plan does not need a tokenizer, but its memory counts
        text = read_text(model)
    import mrs.engine.reply  # noqa: F401
    from mrs.engine.profile.learn import learn_speed_of
    from mrs.engine.profile.run import measure, profile_run

    program_bytes = resident_bytes()
    forget_peak()
    decoder, weights = model.load_decoder(report)
    plan, vision = model.plan, model.plan.vision
    images, edge = (vision.images, vision.image_edge) if vision else (0, 0)
    profile = profile_run(decoder, plan.workload.cache, images=images, edge=edge)
    free_before = {device.torch_device: device.available_bytes for device in plan.devices}
    result = reconcile(
        plan,
        model.planner.corrections if model.request.calibration else {},
        measure(profile, weights, free_before, plan.on_disk.shared_bytes),
        HostMeasured(program_bytes, profile.process_bytes),
        profile.prompt_tokens_per_s,
        profile.decode_tokens_per_s,
    )
    del text
    remember(result.corrections)
    learn_speed_of(profile, plan)
    return result


def learn_activation_cost(model: PlannedModel) -> None:
    """Measure what 16-bit activations cost here, if the plan needs that, and plan with it."""
    from mrs.plan.memory.model_facts import main_format

    cost = model.plan.activation_cost
    if cost is None or cost.is_measured or not has_room_to_measure():
        return
    require_address_space_for_torch()
    from mrs.kernels.cpu.peaks import residual_shares

    name = main_format(model.plan.storage)
    shares = residual_shares(name)
    if shares is not None:
        remember_cost(name, ActivationCost(*shares))
        model.plan_again()


def measure_processes(model: PlannedModel, on_progress: OnProgress | None = None) -> MeasuredRun:
    """Load the model in the request's processes, and measure each of them and all together."""
    from mrs.distributed.cluster import Cluster
    from mrs.distributed.measure import measure_run

    model.fetch(on_progress or no_report)
    require_address_space_for_torch()
    assert model.request.cluster is not None
    # Nothing is measured again after a failure.
    once = replace(model.request.cluster, rejoin_limit_s=0.0)
    request = replace(model.request, cluster=once)
    cluster = Cluster.gather(request, model.planner, model.plan, model.rank_plans)
    try:
        return measure_run(cluster, cluster.decoder(), model.plan, request)
    finally:
        cluster.close()
