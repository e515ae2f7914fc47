"""A plan on standard output: a drawing on a terminal, plain lines in a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mrs.plan.report.bottleneck import binding
from mrs.plan.report.conversions import conversion_text
from mrs.units import human_bytes
from mrs_cli.environment import Environment
from mrs_cli.render.plan import plan_facts
from mrs_cli.render.plan.plan_facts import PARTS, bytes_range, layer_ranges, part_bytes
from mrs_cli.render.safe_text import one_line

if TYPE_CHECKING:
    from mrs.devices.device import Device
    from mrs.plan.memory.breakdown import MemoryBreakdown
    from mrs.plan.plan import Plan
    from mrs.plan.report.suggestions import Suggestion


def render_plan(
    environment: Environment,
    plan: Plan,
    changes: Sequence[Suggestion],
    at_once: int,
    served: Plan | None,
) -> None:
    """The whole plan; `at_once` conversations fit at the same time. `served` is a server's."""
    if environment.can_animate(environment.stdout):
        from mrs_cli.render.plan.plan_drawing import draw_plan

        draw_plan(environment, plan, changes, at_once, served)
        return
    for line in plain_lines(plan, changes, at_once, served):
        indent = "  " if line.startswith(" ") else ""
        environment.stdout.write(f"{indent}{one_line(line)}\n")


def plain_lines(
    plan: Plan,
    changes: Sequence[Suggestion],
    at_once: int,
    served: Plan | None,
) -> Iterator[str]:
    """The facts of the drawing, one per line."""
    yield f"model: {plan.model.model_id}"
    yield f"  {plan_facts.model_facts(plan)}"
    if weights := conversion_text(plan):
        yield f"weights: {weights}"
    yield f"planned for: {plan_facts.workload(plan)}"
    for index in plan.visible_devices:
        yield from _device_lines(plan.devices[index], plan.breakdowns[index])
    runs = (f"{layers} {plan.devices[index].label}" for index, layers in layer_ranges(plan))
    yield f"layers: {', '.join(runs)}"
    yield f"result: {plan.verdict}"
    if plan.disk_note:
        yield f"disk: {plan.disk_note}"
    if plan.activation_note:
        yield f"activations: {plan.activation_note}"
    yield f"bottleneck: {binding(plan).text}"
    if rates := plan_facts.speed(plan):
        yield f"speed: {rates}"
    if images := plan_facts.images(plan):
        yield f"images: {images}"
    yield from filter(
        None,
        (
            plan_facts.idle_accelerators(plan),
            plan_facts.draft_model(plan),
            plan_facts.conversations(plan, at_once),
            plan_facts.prefix_cache(plan),
            plan_facts.server(served),
        ),
    )
    for change in changes:
        yield f"change: {change.flags}: {plan_facts.change_effect(change)}"
    for warning in plan.warnings:
        yield f"warning: {warning}"


def _device_lines(device: Device, breakdown: MemoryBreakdown) -> Iterator[str]:
    """Name, layers and memory of a device, then the parts of the memory."""
    available = human_bytes(breakdown.available_bytes)
    if plan_facts.is_idle(breakdown):
        yield f"{device.label}: {device.name}, not used, {available} free"
        return
    layers = f"{breakdown.layers} layer{'s' if breakdown.layers != 1 else ''}"
    yield f"{device.label}: {device.name}, {layers}, {bytes_range(*breakdown.total)} of {available}"
    sizes = zip(PARTS, part_bytes(breakdown), strict=True)
    yield "  " + ", ".join(f"{name} {human_bytes(size)}" for (name, _, _), size in sizes)
