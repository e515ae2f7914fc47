"""The facts of a plan as short texts, for the drawing on a terminal and for plain lines alike."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from mrs.plan.report.search import MOST_SEQUENCES
from mrs.source.address import model_name
from mrs.units import human_bytes, rounded_rate
from mrs_cli.render.safe_text import rate_with_error

if TYPE_CHECKING:
    from mrs.plan.memory.breakdown import MemoryBreakdown
    from mrs.plan.plan import Plan
    from mrs.plan.report.suggestions import Suggestion

#: Name, style and glyph of each part of a device's memory, in the order of the bar.
PARTS = (
    ("weights", "cyan", "\u2588"),
    ("KV cache", "blue", "\u2588"),
    ("activations", "magenta", "\u2588"),
    ("runtime", "green", "\u2588"),
    ("reserve", "quiet", "\u2592"),
    ("free", "quiet", "\u2591"),
)
#: So many of them are used by the model; the others stay free.
USED_PARTS = 4
#: The rate of at most so many replies together is told.
MOST_TOGETHER = 16
#: More devices than this are summed up instead of named in a line.
MAX_NAMED_DEVICES = 2
#: A full context is told of if it slows a reply below this share of its first tokens.
SLOWED = 0.9


def part_bytes(breakdown: MemoryBreakdown) -> tuple[int, ...]:
    """The sizes of `PARTS`, of the model and of a draft model together."""
    models = [each for each in (breakdown, breakdown.draft) if each is not None]
    return (
        sum(each.weight_bytes for each in models),
        sum(each.kv_bytes for each in models),
        sum(each.activations.expected for each in models),
        sum(each.runtime.expected + each.allocator.expected for each in models),
        breakdown.reserve_bytes,
        max(0, breakdown.free_bytes),
    )


def is_idle(breakdown: MemoryBreakdown) -> bool:
    """Whether a device has no part of the model, and memory for the program if that needs it."""
    return not breakdown.is_used and not breakdown.missing_bytes


def model_facts(plan: Plan) -> str:
    facts = [
        plan.model.family,
        f"{_count(plan.model.parameters)} parameters",
        plan.weights_format,
        f"{plan.model.layers} layers",
        _kv_per_token(plan),
    ]
    return " \u00b7 ".join(facts)


def _kv_per_token(plan: Plan) -> str:
    if not any(plan.kv_bytes):
        return "no KV cache"
    average = f"KV cache of {human_bytes(plan.kv_bytes_per_token)} per token"
    if plan.kv_bytes_per_token == plan.kv_bytes_per_further_token:
        return average
    further = human_bytes(plan.kv_bytes_per_further_token)
    return f"{average} on average, {further} per further token"


def _count(number: int) -> str:
    """`70.6 B`, `494 M`."""
    return f"{number / 1e9:.3g} B" if number >= 999.5e6 else f"{number / 1e6:.3g} M"


def workload(plan: Plan) -> str:
    """What the plan was made for."""
    load = plan.workload
    batch = "" if load.batch == 1 else f"{load.batch} sequences of "
    parts = [f"{batch}{load.context_tokens:,} tokens"]
    if plan.isq is not None:
        parts.append(f"quantized to {plan.isq}")
    if any(plan.kv_bytes):
        parts.append(f"{plan.cache_format.name} KV cache{_pool(plan)}")
    if plan.strategy != "fill":
        parts.append(f"strategy {plan.strategy}")
    if plan.corrected:
        parts.append("calibrated on this machine")
    return ", ".join(parts)


def _pool(plan: Plan) -> str:
    """The number and size of the blocks of a pool; empty without a pool."""
    size = plan.workload.cache
    if not size.is_pool:
        return ""
    tokens = f"{size.block_tokens} tokens ({size.total_tokens:,} tokens)"
    return f" of {size.blocks():,} blocks of {tokens}"


def bytes_range(low: int, expected: int, high: int) -> str:
    """The expected size and its bounds: `1.25 GiB (1.20\u20131.31)`."""
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


def layer_ranges(plan: Plan) -> list[tuple[int, str]]:
    """The index of a device and the layers it has, such as `0\u201345`, in the order of layers."""
    ends = accumulate(count for _, count in plan.runs)
    return [
        (index, f"{end - count}\u2013{end - 1}" if count > 1 else str(end - 1))
        for (index, count), end in zip(plan.runs, ends, strict=True)
    ]


def speed(plan: Plan) -> str:
    """Tokens per second, with assumed bandwidths; empty if the plan does not fit."""
    if not plan.fits:
        return ""
    decode, full = plan.speed.decode, plan.speed.decode_when_full
    prompt = rate_with_error(plan.speed.prompt)
    used = zip(plan.devices, plan.speed.devices, plan.breakdowns, strict=True)
    assumed = {
        speed.bandwidth_bytes_per_s
        for device, speed, breakdown in used
        if breakdown.is_used and device.bandwidth_source == "assumed"
    }
    numbers = " and ".join(f"{bytes_per_s / 1e9:.0f}" for bytes_per_s in sorted(assumed))
    basis = f" (assuming a memory bandwidth of {numbers} GB/s)" if assumed else ""
    if not plan.model.makes_replies:
        return f"texts {prompt}{basis}"
    reply = rate_with_error(decode)
    if full.expected < SLOWED * decode.expected:
        tokens = f"{plan.speed.context_tokens:,} tokens"
        reply += f", {rounded_rate(full.expected)} after {tokens}"
    return f"reply {reply}; prompt {prompt}{basis}"


def images(plan: Plan) -> str:
    """The tokens and the memory of images, or of audio; empty for a text model."""
    vision = plan.vision
    if vision is None:
        return ""
    activations = human_bytes(vision.activation_bytes + vision.feature_bytes)
    each = f"{vision.image_rows:,} tokens"
    sense = "audio" if vision.kind == "audio" else "vision"
    if vision.image_keys:
        each = f"{vision.image_keys:,} cross-attention keys"
    return (
        f"{vision.what}, {each} each; "
        f"{sense} weights {human_bytes(vision.weight_bytes)}, {sense} activations {activations}, "
        f"on {plan.devices[plan.primary_device].label}"
    )


def draft_model(plan: Plan) -> str:
    """The draft model or head and its memory, a part of a device's; empty without one."""
    draft, gain = plan.draft, _gain(plan)
    if draft is None:
        head = f"draft head: not used, {plan.without_head}" if plan.without_head else ""
        return "; ".join(filter(None, (head, f"prompt lookup: {gain}" if gain else "")))
    added = plan.breakdowns[0].draft_total
    heads = draft.model.heads
    name = "draft head" if heads == 1 else f"{heads} draft heads"
    if not heads:
        name = f"draft model {model_name(draft.model.model_id)}"
    return (
        f"{name}: {draft.weights_format}, {bytes_range(*added)} on {plan.devices[0].label}; {gain}"
    )


def _gain(plan: Plan) -> str:
    """How much faster replies are with drafts; empty if that is not known."""
    gain = plan.draft_gain
    if gain is None:
        return ""
    if not gain.is_measured and gain.factor <= 1:
        return f"drafts save no time unless more than {gain.accepted_share:.0%} are accepted"
    rate = rounded_rate(gain.factor * plan.speed.decode.expected)
    fast = f"replies {gain.factor:.1f} times as fast, {rate} tokens/s,"
    share = f"{gain.accepted_share:.0%} of its tokens"
    if gain.is_measured:
        return f"{fast} as in earlier runs, where {share} were accepted"
    return f"{fast} if {share} are accepted"


def conversations(plan: Plan, at_once: int) -> str:
    """How many of the planned length fit at the same time; empty if the plan does not fit."""
    if not at_once or not plan.model.makes_replies:
        return ""
    tokens = f"{plan.workload.cache.tokens:,} tokens"
    if at_once == 1:
        return f"conversations: 1 of {tokens} fits"
    more = " or more" if at_once >= MOST_SEQUENCES else ""
    fit = f"conversations: {at_once:,}{more} of {tokens} each fit at the same time"
    together = min(at_once, MOST_TOGETHER)
    rate = plan.speed.decode_of(together, plan.workload.context_tokens // 2)
    return f"{fit}; {together} replies together {rate_with_error(rate)}"


def idle_accelerators(plan: Plan) -> str:
    """How many accelerators stay empty though one is used, and how all are used; or nothing."""
    accelerators = [
        is_idle(breakdown)
        for device, breakdown in zip(plan.devices, plan.breakdowns, strict=True)
        if device.kind != "cpu"
    ]
    idle, used = sum(accelerators), accelerators.count(False)
    if not (plan.fits and idle and used):
        return ""
    stay = "stays" if idle == 1 else "stay"
    return (
        f"GPUs: {idle} of {idle + used} {stay} empty, since one process would not be faster with "
        "more; --tensor-parallel-size shares each layer over several"
    )


def prefix_cache(plan: Plan) -> str:
    """How much free memory the prefix cache may use; empty if the plan does not fit."""
    sizes = {
        device.label: size_bytes
        for device, size_bytes in zip(plan.devices, plan.prefix_bytes, strict=True)
        if size_bytes
    }
    if not (plan.fits and sizes):
        return ""
    if plan.workload.cache.is_pool:
        return "prefix cache: uses free blocks of the KV cache"
    if len(sizes) > MAX_NAMED_DEVICES:
        least, most = human_bytes(min(sizes.values())), human_bytes(max(sizes.values()))
        size = least if least == most else f"{least} to {most}"
        parts = [f"{size} on each of {len(sizes)} devices"]
    else:
        parts = [f"{human_bytes(size_bytes)} on {label}" for label, size_bytes in sizes.items()]
    return f"prefix cache: up to {', '.join(parts)}"


def server(served: Plan | None) -> str:
    """What a server of the model needs on the host; empty without its plan."""
    if served is None or served.budget is None:
        return ""
    parts = [f"{human_bytes(served.budget.total_bytes)} for requests"]
    if remembered := sum(served.prefix_bytes):
        parts.append(f"{human_bytes(remembered)} for the prefix cache")
    lacks = "" if served.fits else f" ({served.verdict})"
    return f"server: up to {human_bytes(served.host_bytes)} on the host, {', '.join(parts)}{lacks}"


def change_effect(change: Suggestion) -> str:
    return f"{change.effect}, {rate_with_error(change.plan.speed.decode)}"
