"""A plan drawn on a terminal: bars of memory, a strip of layers, the limit, and suggestions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from mrs.plan.report.bottleneck import binding
from mrs.plan.report.conversions import conversion_text
from mrs.units import human_bytes
from mrs_cli.environment import Environment
from mrs_cli.render.plan import plan_facts
from mrs_cli.render.plan.plan_facts import PARTS, bytes_range, is_idle, layer_ranges, part_bytes
from mrs_cli.render.safe_text import one_line
from mrs_cli.render.theme import console

if TYPE_CHECKING:
    from rich.console import Console

    from mrs.devices.device import Device
    from mrs.plan.memory.breakdown import MemoryBreakdown
    from mrs.plan.plan import Plan
    from mrs.plan.report.suggestions import Suggestion

MAX_COLUMNS = 120
INDENT = "  "
#: Colours of neighbours in the strip of layers.
RUN_STYLES = ("cyan", "magenta")


def draw_plan(
    environment: Environment,
    plan: Plan,
    changes: Sequence[Suggestion],
    at_once: int,
    served: Plan | None,
) -> None:
    screen = console(environment, environment.stdout)
    width = min(screen.width, MAX_COLUMNS) - 2 * len(INDENT)
    lines = [
        Text(),
        Text(one_line(plan.model.model_id), style="bold"),
        Text(plan_facts.model_facts(plan), style="quiet"),
    ]
    if weights := conversion_text(plan):
        lines.append(Text(weights, style="quiet"))
    lines += [Text(f"planned for {plan_facts.workload(plan)}", style="quiet"), Text()]
    for index in plan.visible_devices:
        lines += [*_device(plan.devices[index], plan.breakdowns[index], width), Text()]
    lines += [_layers(plan, width), Text(), *_table(plan), Text()]
    lines += [*_findings(plan, at_once, served), Text()]
    lines += _changes(plan, changes)
    lines += [Text(f"! {one_line(warning)}", style="yellow") for warning in plan.warnings]
    _print(screen, lines)


def _print(screen: Console, lines: Sequence[Text]) -> None:
    while lines and not lines[-1]:
        lines = lines[:-1]
    for line in [*lines, Text()]:
        # Padding indents the continuation of a long line, too.
        indent = len(line.plain) - len(line.plain.lstrip(" "))
        screen.print(Padding(line[indent:], (0, 0, 0, len(INDENT) + indent)))


def _device(device: Device, breakdown: MemoryBreakdown, width: int) -> list[Text]:
    """The name and the memory of a device, above its bar."""
    if is_idle(breakdown):
        free = f"not used, {human_bytes(breakdown.available_bytes)} free"
        return [_title(device, free, width, "quiet")]
    used = f"{bytes_range(*breakdown.total)} of {human_bytes(breakdown.available_bytes)}"
    style = "error" if breakdown.missing_bytes else ""
    return [_title(device, used, width, style), _bar(breakdown, width)]


def _title(device: Device, right: str, width: int, style: str) -> Text:
    """Label and name on the left, `right` on the right; a long name is cut."""
    label, name = device.label, one_line(device.name)
    room = max(0, width - len(label) - len(right) - 4)
    name = name if len(name) <= room else f"{name[: max(0, room - 1)]}\u2026"
    gap = " " * max(2, width - len(label) - len(name) - len(right) - 2)
    return Text.assemble((label, "bold"), (f"  {name}{gap}", "quiet"), (right, style))


def _bar(breakdown: MemoryBreakdown, width: int) -> Text:
    """The parts of the memory as cells; what exceeds it is red."""
    bar, sizes = Text(), part_bytes(breakdown)
    for (_, style, glyph), cells in zip(PARTS, _cells(sizes, width), strict=True):
        bar.append(glyph * cells, style=style)
    if breakdown.missing_bytes:
        bar.stylize("error", width * breakdown.available_bytes // max(1, sum(sizes)))
    return bar


def _cells(sizes: Sequence[int], width: int) -> list[int]:
    """Shares of `width` cells: at least one for each size above 0, at the cost of the largest."""
    total = max(1, sum(sizes))
    cells = [max(1, round(size * width / total)) if size else 0 for size in sizes]
    largest = max(range(len(cells)), key=lambda index: cells[index])
    cells[largest] += width - sum(cells)
    return cells


def _layers(plan: Plan, width: int) -> Text:
    """One strip: which layers are on which device."""
    strip = Text()
    cells = _cells([count for _, count in plan.runs], width)
    for number, ((index, layers), share) in enumerate(zip(layer_ranges(plan), cells, strict=True)):
        device = plan.devices[index].label
        spilled = plan.spilled_layers and plan.devices[index].kind == "cpu"
        style = "yellow" if spilled else RUN_STYLES[number % 2]
        label = f" layers {layers} on {device} "
        for shorter in (f" {layers} {device} ", f" {layers} ", ""):
            label = label if len(label) <= share - 2 else shorter
        inner = label.center(max(0, share - 2), "\u2500")
        strip.append(f"\u251c{inner}\u2524"[:share], style=style)
    return strip


def _table(plan: Plan) -> list[Text]:
    """The sizes of the parts; the heading is the legend of the bars."""
    used = [
        (device.label, breakdown)
        for device, breakdown in zip(plan.devices, plan.breakdowns, strict=True)
        if not is_idle(breakdown)
    ]
    rows = [
        [human_bytes(size) if size else "\u2013" for size in part_bytes(breakdown)]
        for _, breakdown in used
    ]
    heads = [f"{glyph} {name}" for name, _, glyph in PARTS]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    label_width = max(len(label) for label, _ in used)
    legend = Text(" " * label_width)
    for (name, style, glyph), column in zip(PARTS, widths, strict=True):
        legend.append("  " + " " * (column - len(name) - 2))
        legend.append(glyph, style=style)
        legend.append(f" {name}", style="quiet")
    lines = [legend]
    for (label, _), cells in zip(used, rows, strict=True):
        numbers = [f"  {cell.rjust(column)}" for cell, column in zip(cells, widths, strict=True)]
        lines.append(Text.assemble((label.ljust(label_width), "bold"), *numbers))
    return lines


def _findings(plan: Plan, at_once: int, served: Plan | None) -> list[Text]:
    mark, style = ("\u2713", "green") if plan.fits else ("\u2717", "error")
    if plan.fits and plan.spilled_layers:
        mark, style = "!", "yellow"
    lines = [
        Text(f"{mark} {plan.verdict}", style=style),
        Text(f"  {binding(plan).text}"),
    ]
    facts = (
        plan_facts.speed(plan),
        plan_facts.images(plan),
        plan_facts.idle_accelerators(plan),
        plan_facts.draft_model(plan),
        plan_facts.conversations(plan, at_once),
        plan_facts.prefix_cache(plan),
        plan_facts.server(served),
    )
    lines += [Text(f"  {fact}", style="quiet") for fact in facts if fact]
    return lines


def _changes(plan: Plan, changes: Sequence[Suggestion]) -> list[Text]:
    if not changes:
        return []
    has_room = plan.fits and not plan.spilled_layers
    lines = [Text("also fits" if has_room else "suggestions", style="bold")]
    column = max(len(change.flags) for change in changes)
    for change in changes:
        flags = f"  {change.flags.ljust(column)}  "
        lines.append(Text.assemble((flags, "accent"), plan_facts.change_effect(change)))
    return [*lines, Text()]
