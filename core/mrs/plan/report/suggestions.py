"""Suggest changes of a request with which its plan fits, or fits better."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from mrs.errors import Unsupported
from mrs.plan.largest import largest
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.plan.report.search import ISQ_FORMATS, LENGTH_STEP, best_format, loses_little, loss_text
from mrs.request import RunRequest
from mrs.units import human_bytes

MOST_CHANGES = 3


@dataclass(frozen=True)
class Suggestion:
    """Flags, and the plan that results from them."""

    flags: str
    effect: str
    plan: Plan


def nearest_changes(planner: Planner, request: RunRequest, plan: Plan) -> list[Suggestion]:
    """At most three changes. Each alone is enough to need no layer on the CPU, or else to fit.

    Changes without layers on the CPU come first, then those with the fastest replies. A plan that
    fits on its accelerators gets one suggestion: how far its length can grow. If no change frees a
    plan that fits from the CPU, quantization that makes it faster is suggested.
    """
    if plan.fits and not plan.spilled_layers:
        if plan.workload.cache.is_pool:
            return []
        return list(_longer(planner, request, plan))[:1]
    kinds: tuple[ChangeMaker, ...] = (
        _smaller_pool,
        _shorter,
        _fewer,
        _narrower,
        _quantized,
        _by_itself,
    )
    goals: tuple[Reaches, ...] = (_no_spill,) if plan.fits else (_no_spill, _fits)
    changes = [
        change for kind in kinds for change in _reaching(goals, kind, planner, request, plan)
    ]
    if plan.fits and not changes:
        faster = (_narrower, _quantized)
        changes = [change for kind in faster for change in kind(planner, request, plan, _fits)]
    with_cpu = list(_with_cpu(planner, request, plan, _fits))
    on_disk = [] if plan.fits else list(_on_disk(planner, request))
    room = MOST_CHANGES - len(on_disk)
    if not plan.fits and not changes and not with_cpu:
        return [*list(_other_machines(planner, request))[:room], *on_disk]
    changes = [*sorted(changes, key=_rank)[: MOST_CHANGES - len(with_cpu)], *with_cpu]
    return [*changes, *on_disk][:MOST_CHANGES]


Reaches = Callable[[Plan], bool]
ChangeMaker = Callable[[Planner, RunRequest, Plan, Reaches], "Iterator[Suggestion]"]


def _reaching(
    goals: Sequence[Reaches], kind: ChangeMaker, planner: Planner, request: RunRequest, plan: Plan
) -> list[Suggestion]:
    """The change of a kind for the first goal that such a change reaches."""
    for goal in goals:
        if changes := list(kind(planner, request, plan, goal)):
            return changes
    return []


def _rank(change: Suggestion) -> tuple[bool, float]:
    """Changes without layers on the CPU come first, then those with faster replies."""
    return change.plan.spilled_layers > 0, -change.plan.speed.decode.expected


def _fits(plan: Plan) -> bool:
    return plan.fits


def _no_spill(plan: Plan) -> bool:
    return plan.fits and not plan.spilled_layers


def _longer(planner: Planner, request: RunRequest, plan: Plan) -> Iterator[Suggestion]:
    limit = plan.model.context_tokens

    def fits(tokens: int) -> bool:
        return _no_spill(planner.plan(replace(request, max_seq_len=tokens)))

    start = plan.workload.context_tokens
    tokens = largest(fits, start, limit, LENGTH_STEP) if start < limit else None
    if tokens is not None and tokens > start:
        longer = planner.plan(replace(request, max_seq_len=tokens))
        what = "the model's whole context" if tokens == limit else "the longest that fits"
        yield Suggestion(f"--max-seq-len {tokens}", f"{what}, KV {_kv(longer)}", longer)


def _smaller_pool(
    planner: Planner, request: RunRequest, plan: Plan, goal: Reaches
) -> Iterator[Suggestion]:
    size = plan.workload.cache
    if not size.is_pool:
        return

    def with_pool(tokens: int) -> Plan:
        return planner.plan(replace(request, paged=replace(request.paged, context_tokens=tokens)))

    low, high = size.block_tokens, size.total_tokens - size.block_tokens
    tokens = largest(lambda n: goal(with_pool(n)), low, high, low) if low <= high else None
    if tokens is not None:
        smaller = with_pool(tokens)
        effect = f"KV {_kv(smaller)} instead of {_kv(plan)}, {_where(smaller)}"
        yield Suggestion(f"--pa-ctxt-len {tokens}", effect, smaller)


def _shorter(
    planner: Planner, request: RunRequest, plan: Plan, goal: Reaches
) -> Iterator[Suggestion]:
    start = plan.workload.context_tokens
    low = min(LENGTH_STEP, start)
    tokens = largest(
        lambda n: goal(planner.plan(replace(request, max_seq_len=n))), low, start - 1, LENGTH_STEP
    )
    if tokens is not None and tokens >= low and start > low:
        shorter = planner.plan(replace(request, max_seq_len=tokens))
        yield Suggestion(
            f"--max-seq-len {tokens}",
            f"KV {_kv(shorter)} instead of {_kv(plan)}, {_where(shorter)}",
            shorter,
        )


def _fewer(
    planner: Planner, request: RunRequest, plan: Plan, goal: Reaches
) -> Iterator[Suggestion]:
    if plan.workload.batch == 1:
        return
    batch = largest(
        lambda n: goal(planner.plan(replace(request, max_batch_size=n))), 1, plan.workload.batch - 1
    )
    if batch is not None:
        fewer = planner.plan(replace(request, max_batch_size=batch))
        effect = f"KV {_kv(fewer)} instead of {_kv(plan)}, {_where(fewer)}"
        yield Suggestion(f"--max-batch-size {batch}", effect, fewer)


def _narrower(
    planner: Planner, request: RunRequest, plan: Plan, goal: Reaches
) -> Iterator[Suggestion]:
    if plan.dense.name == "F32":
        narrower = planner.plan(replace(request, dtype="bf16"))
        if goal(narrower):
            yield Suggestion("-d bf16", _smaller(plan, narrower), narrower)


def _quantized(
    planner: Planner, request: RunRequest, plan: Plan, goal: Reaches
) -> Iterator[Suggestion]:
    """The best format that is smaller than the weights are now and reaches the goal."""
    reaching: list[tuple[str, Plan]] = []
    for isq in ISQ_FORMATS:
        smaller = planner.plan(replace(request, isq=isq))
        if smaller.total_weight_bytes < plan.total_weight_bytes and goal(smaller):
            reaching.append((isq, smaller))
            if not smaller.spilled_layers:
                break
    if best := best_format(reaching):
        isq, smaller = best
        effect = _smaller(plan, smaller) + loss_text(isq, smaller)
        yield Suggestion(f"--isq {isq}", effect, smaller)


def _by_itself(
    planner: Planner, request: RunRequest, plan: Plan, goal: Reaches
) -> Iterator[Suggestion]:
    if request.layer_map is not None:
        automatic = planner.plan(replace(request, layer_map=None))
        if goal(automatic):
            yield Suggestion("without -n", _where(automatic), automatic)


def _with_cpu(
    planner: Planner, request: RunRequest, plan: Plan, goal: Reaches
) -> Iterator[Suggestion]:
    if not request.cpu_spill:
        spilling = planner.plan(replace(request, cpu_spill=True))
        if goal(spilling):
            yield Suggestion("without --no-cpu-spill", _where(spilling), spilling)


def _other_machines(planner: Planner, request: RunRequest) -> Iterator[Suggestion]:
    """Machines with room for the smallest format that loses little, where no flag is enough."""
    from mrs.plan.report.remedies import remedies

    formats = [
        (isq, planner.plan(replace(request, isq=isq))) for isq in (request.isq, *ISQ_FORMATS)
    ]
    isq, _ = min(
        (each for each in formats if each[0] is None or loses_little(each[0], each[1])),
        key=lambda each: each[1].total_weight_bytes,
    )
    for remedy in remedies(planner, replace(request, isq=isq)):
        words = f'--device "{remedy.machine}"'.replace(" + ", '" --device "')
        flags = f"--isq {isq} {words}" if isq else words
        weights = human_bytes(remedy.plan.total_weight_bytes)
        yield Suggestion(flags, f"weights {weights}, {_where(remedy.plan)}", remedy.plan)


def _on_disk(planner: Planner, request: RunRequest) -> Iterator[Suggestion]:
    """The slowest way if it reads layers; it always has room but for what cannot stay on disk."""
    try:
        reading = planner.plan(replace(request, disk_layers="auto"))
    except Unsupported:
        return
    if reading.fits and reading.on_disk:
        effect = f"{reading.read_from_disk} read from disk for each token"
        yield Suggestion("--disk-layers auto", effect, reading)


def _smaller(plan: Plan, smaller: Plan) -> str:
    now, then = human_bytes(plan.total_weight_bytes), human_bytes(smaller.total_weight_bytes)
    return f"weights {then} instead of {now}, {_where(smaller)}"


def _kv(plan: Plan) -> str:
    return human_bytes(sum(plan.kv_bytes))


def _where(plan: Plan) -> str:
    """The devices of the layers in a few words."""
    if plan.spilled:
        return f"{plan.spilled} on the CPU"
    used = list(dict.fromkeys(plan.devices[index].label for index in plan.layer_devices))
    return f"all on {used[0]}" if len(used) == 1 else f"all on {len(used)} devices"
