"""What `mrs fit` and `mrs plan` know, as pages of charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mrs.plan.report.bottleneck import binding
from mrs.source.address import model_name
from mrs.units import human_bytes
from mrs_cli.render.plan import plan_facts
from mrs_cli.render.plan.chart import LEAST_TOKENS, Point, Series
from mrs_cli.render.plan.fit_table import NOTE, fit_rows, needs_lines
from mrs_cli.render.plan.html_page import Bar, Page

if TYPE_CHECKING:
    from mrs.plan.plan import Plan
    from mrs.plan.report.fit import FormatFit, MachineFit
    from mrs.plan.report.suggestions import Suggestion


def fit_page(model_id: str, fits: Sequence[MachineFit]) -> Page:
    """A line and a bar for each machine, or for each format if there is only one machine."""
    shown = list(_shown(fits))
    return Page(
        f"What fits: {model_name(model_id)}",
        _facts(fits[0].formats[0].plan),
        [
            Series(name, _points(each.longest or each.plan))
            for name, each in shown
            if each.plan.fits
        ],
        [_bar(name, each) for name, each in shown if each.plan.fits],
        fit_rows(fits),
        [*needs_lines(fits), NOTE],
    )


def plan_page(plan: Plan, changes: Sequence[Suggestion]) -> Page:
    """A line for the model, and a bar for each device."""
    devices = [(plan.devices[i], plan.breakdowns[i]) for i in plan.visible_devices]
    used = [(device, each) for device, each in devices if not plan_facts.is_idle(each)]
    heads = ("device", "layers", *(name for name, _, _ in plan_facts.PARTS), "needs", "has")
    return Page(
        f"Plan: {model_name(plan.model.model_id)}",
        f"{_facts(plan)} \u00b7 {plan.verdict}",
        [Series(model_name(plan.model.model_id), _points(plan))] if plan.fits else [],
        [
            Bar(
                f"{device.label} ({device.name})",
                plan_facts.part_bytes(each),
                f"{human_bytes(each.total.expected)} of {human_bytes(each.available_bytes)}",
            )
            for device, each in used
        ],
        [
            heads,
            *(
                (
                    device.label,
                    str(each.layers),
                    *map(human_bytes, plan_facts.part_bytes(each)),
                    human_bytes(each.total.expected),
                    human_bytes(each.available_bytes),
                )
                for device, each in used
            ),
        ],
        [
            f"bottleneck: {binding(plan).text}",
            *filter(None, [plan_facts.speed(plan)]),
            *(f"{each.flags}: {plan_facts.change_effect(each)}" for each in changes),
            *plan.warnings,
        ],
    )


def _shown(fits: Sequence[MachineFit]) -> Iterator[tuple[str, FormatFit]]:
    """The best format of each machine, or all formats of the only one."""
    if len(fits) == 1:
        yield from ((each.isq, each) for each in fits[0].formats)
        return
    for fit in fits:
        if fit.best is not None:
            best = fit.formats[fit.best]
            yield f"{fit.name}, {best.isq}", best


def _facts(plan: Plan) -> str:
    model = plan.model
    return (
        f"{plan_facts.model_facts(plan)} \u00b7 contexts of up to {model.context_tokens:,} tokens"
    )


def _points(plan: Plan) -> list[Point]:
    """Rates after powers of two of tokens, up to the planned ones."""
    longest = plan.workload.context_tokens
    lengths = [LEAST_TOKENS << bits for bits in range(longest.bit_length())]
    shorter = [tokens for tokens in lengths if tokens < longest]
    return [Point(tokens, *plan.speed.decode_at(tokens)) for tokens in (*shorter, longest)]


def _bar(name: str, fit: FormatFit) -> Bar:
    """The memory of all devices in use together, for the planned context."""
    used = [each for each in fit.plan.breakdowns if each.is_used]
    parts = [sum(sizes) for sizes in zip(*map(plan_facts.part_bytes, used), strict=True)]
    needed = human_bytes(sum(each.total.expected for each in used))
    has = human_bytes(sum(each.available_bytes for each in used))
    text = f"{needed} of {has} for {fit.plan.workload.context_tokens:,} tokens"
    accelerators = [device for device in fit.plan.devices if device.kind != "cpu"]
    if len(used) < len(accelerators):
        text += f", on {len(used)} of {len(accelerators)} devices"
    return Bar(name, parts, text)
