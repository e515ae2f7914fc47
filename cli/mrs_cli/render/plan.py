"""A plan as a picture on a terminal, or as plain lines in a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from mrs.plan.report.bottleneck import binding
from mrs.plan.report.conversions import conversion_text
from mrs.plan.report.search import MOST_SEQUENCES
from mrs.units import human_bytes
from mrs_cli.environment import Environment
from mrs_cli.render.text import one_line, rate_range

if TYPE_CHECKING:
    from mrs.devices.device import Device
    from mrs.plan.memory.breakdown import MemoryBreakdown
    from mrs.plan.plan import Plan
    from mrs.plan.report.reconcile import Reconciliation
    from mrs.plan.report.solve import Solution
    from mrs.plan.report.suggestions import Suggestion

#: Name, style and glyph of each part of a device, in the order of the bar.
PARTS = (
    ("weights", "cyan", "\u2588"),
    ("KV cache", "blue", "\u2588"),
    ("activations", "magenta", "\u2588"),
    ("runtime", "green", "\u2588"),
    ("reserve", "quiet", "\u2592"),
    ("free", "quiet", "\u2591"),
)
#: More devices than this are not named one by one in a line.
MOST_NAMED = 2


def render_plan(
    environment: Environment,
    plan: Plan,
    changes: Sequence[Suggestion],
    solution: Solution | None,
    at_once: int,
) -> None:
    """The whole plan on standard output; `at_once` conversations fit."""
    if environment.can_animate(environment.stdout):
        from mrs_cli.render.plan_picture import draw_plan

        draw_plan(environment, plan, changes, solution, at_once)
        return
    for line in plain_lines(plan, changes, solution, at_once):
        indent = "  " if line.startswith(" ") else ""
        environment.stdout.write(f"{indent}{one_line(line)}\n")


def render_reconciliation(environment: Environment, plan: Plan, result: Reconciliation) -> None:
    """Predicted beside measured, term by term."""
    rows = [("device", "term", "predicted", "measured", "off by")]
    for row in result.rows:
        measured, off = "not known", ""
        if row.measured_bytes is not None:
            measured = human_bytes(row.measured_bytes)
            off = deviation(row.predicted_bytes, row.measured_bytes)
        rows.append((row.device, row.term, human_bytes(row.predicted_bytes), measured, off))
    for phase, predicted, seen in (
        ("prompt tokens/s", plan.speed.prompt, result.prompt_tokens_per_s),
        ("decode tokens/s", plan.speed.decode, result.decode_tokens_per_s),
    ):
        off = "slower" if seen < predicted.low else "faster" if seen > predicted.high else ""
        rows.append(("", phase, rate_range(*predicted), f"{seen:.3g}", off))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    environment.stdout.write("\n")
    for cells in rows:
        left = (cell.ljust(width) for cell, width in zip(cells[:2], widths, strict=False))
        right = (cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True))
        environment.stdout.write("  ".join((*left, *right)).rstrip() + "\n")


def plain_lines(
    plan: Plan, changes: Sequence[Suggestion], solution: Solution | None, at_once: int
) -> Iterator[str]:
    """The same facts as the picture, one a line."""
    yield f"model: {plan.model.model_id}"
    yield f"  {model_facts(plan)}"
    if weights := conversion_text(plan):
        yield f"weights: {weights}"
    yield f"planned for: {planned_for(plan)}"
    for index in plan.visible_devices:
        device, terms = plan.devices[index], plan.terms[index]
        yield f"{device.label}: {device_line(device, terms)}"
        if terms.is_used:
            sizes = zip(PARTS, part_bytes(terms), strict=True)
            yield "  " + ", ".join(f"{name} {human_bytes(size)}" for (name, _, _), size in sizes)
    yield f"layers: {', '.join(layer_runs(plan))}"
    yield f"result: {plan.verdict}"
    yield f"limit: {binding(plan).text}"
    if rates := speed(plan):
        yield f"speed: {rates}"
    if images := seeing(plan):
        yield f"images: {images}"
    yield from filter(None, (conversations(plan, at_once), past_conversations(plan)))
    for flags, *facts in solved_rows(solution):
        yield f"searched: {flags}: {', '.join(filter(None, facts))}"
    for change in changes:
        yield f"change: {change.flags}: {change_effect(change)}"
    for warning in plan.warnings:
        yield f"warning: {warning}"


def part_bytes(terms: MemoryBreakdown) -> tuple[int, ...]:
    """The sizes that belong to `PARTS`."""
    return (
        terms.weight_bytes,
        terms.kv_bytes,
        terms.activations.expected,
        terms.runtime.expected + terms.allocator.expected,
        terms.reserve_bytes,
        max(0, terms.free_bytes),
    )


def model_facts(plan: Plan) -> str:
    facts = [
        plan.model.family,
        f"{_count(plan.model.parameters)} parameters",
        plan.weights_format,
        f"{plan.model.layers} layers",
        _kv_a_token(plan),
    ]
    return " \u00b7 ".join(facts)


def _kv_a_token(plan: Plan) -> str:
    """The average, and what a further token takes where that is something else."""
    average = f"{human_bytes(plan.kv_bytes_per_token)} of KV a token"
    if plan.kv_bytes_per_token == plan.kv_bytes_per_further_token:
        return average
    further = human_bytes(plan.kv_bytes_per_further_token)
    return f"{average} on average, {further} for each further one"


def _count(number: int) -> str:
    """`70.6 B`, `494 M`."""
    return f"{number / 1e9:.3g} B" if number >= 999.5e6 else f"{number / 1e6:.3g} M"


def planned_for(plan: Plan) -> str:
    load = plan.load
    batch = "" if load.batch == 1 else f" in each of {load.batch} sequences"
    parts = [f"{load.context_tokens:,} tokens{batch}"]
    if plan.isq is not None:
        parts.append(f"quantized to {plan.isq}")
    parts.append(f"{plan.cache_format.name} cache{_pool(plan)}")
    if plan.strategy != "fill":
        parts.append(f"placed by {plan.strategy}")
    if plan.corrected:
        parts.append("corrected by what was measured on this machine")
    return ", ".join(parts)


def _pool(plan: Plan) -> str:
    """The blocks that it is limited to, if it is."""
    size = plan.load.cache
    if not size.is_pool:
        return ""
    return (
        f" of {size.blocks():,} blocks of {size.block_tokens} tokens ({size.total_tokens:,} tokens)"
    )


def device_line(device: Device, terms: MemoryBreakdown) -> str:
    """Its name, its layers, and what it is expected to hold of what it has."""
    available = human_bytes(terms.available_bytes)
    if not terms.is_used:
        return f"{device.name}, not used, {available} free"
    layers = f"{terms.layers} layer{'s' if terms.layers != 1 else ''}"
    return f"{device.name}, {layers}, {bytes_range(*terms.total)} of {available}"


def bytes_range(low: int, expected: int, high: int) -> str:
    """What is expected, and from where to where it may be: `1.25 GiB (1.20\u20131.31)`."""
    ends = [_in_unit_of(expected, size) for size in (low, high)]
    if ends[0] == ends[1]:
        return human_bytes(expected)
    return f"{human_bytes(expected)} ({ends[0]}\u2013{ends[1]})"


def _in_unit_of(shown: int, size: int) -> str:
    """`size` with the unit and the digits of `human_bytes(shown)`."""
    text = human_bytes(shown).split()[0]
    digits = len(text.partition(".")[2])
    factor = shown / float(text) if float(text) else 1
    return f"{size / factor:.{digits}f}"


def layer_runs(plan: Plan) -> list[str]:
    """`0-45 cuda:0`, …"""
    ends = list(accumulate(count for _, count in plan.runs))
    return [
        f"{end - count}\u2013{end - 1} {plan.devices[index].label}"
        for (index, count), end in zip(plan.runs, ends, strict=True)
    ]


def speed(plan: Plan) -> str:
    """Tokens a second, and at which bandwidths where these are a guess; nothing without a fit."""
    if not plan.fits:
        return ""
    decode, prompt = rate_range(*plan.speed.decode), rate_range(*plan.speed.prompt)
    used = zip(plan.devices, plan.speed.devices, plan.terms, strict=True)
    guessed = {
        speed.bandwidth_bytes_per_s
        for device, speed, terms in used
        if terms.is_used and device.bandwidth_source == "assumed"
    }
    numbers = " and ".join(f"{bytes_per_s / 1e9:.0f}" for bytes_per_s in sorted(guessed))
    basis = f" (assuming memory at {numbers} GB/s)" if guessed else ""
    return f"{decode} tokens/s of reply, {prompt} of prompt{basis}"


def seeing(plan: Plan) -> str:
    """What images take of the context and of memory; nothing for a model of text alone."""
    vision = plan.vision
    if vision is None:
        return ""
    count = "1 image" if vision.images == 1 else f"{vision.images} images"
    activations = human_bytes(vision.activation_bytes + vision.feature_bytes)
    each = f"{vision.image_rows:,} tokens"
    if vision.image_keys:
        each = f"{vision.image_keys:,} keys"
    return (
        f"{count} of up to {vision.image_edge} pixels, {each} each; "
        f"weights of tower and projector {human_bytes(vision.weight_bytes)}, their activations "
        f"{activations}, "
        f"on {plan.devices[plan.primary_device].label}"
    )


def conversations(plan: Plan, at_once: int) -> str:
    """How many of the planned length fit at once; nothing without a fit."""
    if not at_once:
        return ""
    more = " or more" if at_once >= MOST_SEQUENCES else ""
    verb = "fits" if at_once == 1 else "fit"
    tokens = f"{plan.load.cache.tokens:,} tokens"
    return f"conversations: {at_once:,}{more} of {tokens} {verb} at once"


def past_conversations(plan: Plan) -> str:
    """What may hold them, of the free memory; of many devices the least and the most."""
    if not plan.fits:
        return ""
    if plan.load.cache.is_pool and any(plan.prefix_bytes):
        return "past conversations: stay in blocks that no other needs"
    sizes = {
        device.label: size_bytes
        for device, size_bytes in zip(plan.devices, plan.prefix_bytes, strict=True)
        if size_bytes
    }
    if not sizes:
        return ""
    if len(sizes) > MOST_NAMED:
        least, most = human_bytes(min(sizes.values())), human_bytes(max(sizes.values()))
        size = least if least == most else f"{least} to {most}"
        where = [f"{size} on each of {len(sizes)} devices"]
    else:
        where = [f"{human_bytes(size_bytes)} on {label}" for label, size_bytes in sizes.items()]
    return f"past conversations: may take {', '.join(where)}"


def deviation(predicted: int, measured: int) -> str:
    if not measured:
        return ""
    if predicted == measured:
        return "exact"
    return f"{100 * (predicted / measured - 1):+.1f} %"


def change_effect(change: Suggestion) -> str:
    return f"{change.effect}, {rate_range(*change.plan.speed.decode)} tokens/s"


def solved_rows(solution: Solution | None) -> list[tuple[str, str, str, str]]:
    """Value tried, what it takes, its speed, and how it ends; the best one is marked."""
    if solution is None:
        return []
    rows = []
    for value, plan in solution.tried:
        total = human_bytes(sum(terms.total.expected for terms in plan.terms))
        mark = " \u2190" if value == solution.best else ""
        rate = f"{rate_range(*plan.speed.decode)} tokens/s" if plan.fits else ""
        rows.append((f"--{solution.goal} {value}", total, rate, f"{_outcome(plan)}{mark}"))
    return rows


def _outcome(plan: Plan) -> str:
    """The verdict in fewer words."""
    if plan.fits and plan.spilled_layers:
        return f"{plan.spilled_layers} of {plan.model.layers} layers on the CPU"
    return plan.verdict
