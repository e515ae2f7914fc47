"""A plan over machines as lines of text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from mrs.plan.machines import GroupOption, MachinesPlan
from mrs.units import human_bytes


def machines_lines(plan: MachinesPlan) -> Iterator[str]:
    if not plan.stages:
        yield f"does not fit on these machines, {human_bytes(plan.missing_bytes)} missing"
        return
    for stage in plan.stages:
        shared = f"{stage.processes} processes share " if stage.processes > 1 else ""
        yield (
            f"{stage.machine} {stage.device}: {shared}layers {stage.layers.start} to "
            f"{stage.layers.stop - 1}, {human_bytes(stage.weight_bytes)} of weights and "
            f"{human_bytes(stage.kv_bytes)} of KV cache, {human_bytes(stage.free_bytes)} free, "
            f"{1000 * stage.seconds:.3g} ms a token"
        )
    yield (
        f"one sequence: {_rate(plan.tokens_per_s)} tokens/s ({1000 * plan.token_seconds:.3g} ms a "
        f"token, {1000 * plan.hop_seconds:.3g} ms of it between devices)"
    )
    yield f"several sequences: at most {_rate(plan.most_tokens_per_s)} steps/s, the slowest stage's"
    yield from map(_choice_line, plan.choices) if len(plan.choices) > 1 else ()
    yield _reason(plan)
    for name in plan.unused:
        yield f"{name} is left out: the model fits without it, and a token takes no longer"


def _choice_line(choice: GroupOption) -> str:
    """What was planned with groups of one size."""
    name = _choice_name(choice.group_size)
    if choice.refusal:
        return f"{name}: not possible, {choice.refusal}"
    stages = "1 stage" if choice.stages == 1 else f"{choice.stages} stages"
    return (
        f"{name}: {stages}, {_rate(1 / choice.token_seconds)} tokens/s for one sequence, at most "
        f"{_rate(1 / choice.slowest_seconds)} steps/s for several"
    )


def _choice_name(size: int) -> str:
    return f"{size} processes a stage (tensor parallelism)" if size > 1 else "one process a stage"


def _reason(plan: MachinesPlan) -> str:
    """Why these groups were chosen."""
    possible = [each for each in plan.choices if not each.refusal]
    if len(plan.choices) == 1:
        return (
            "layers are not shared: no machine has several accelerators or memory nodes, so "
            "processes would read no faster together than one"
        )
    name = _choice_name(plan.group_size)
    if len(possible) == 1:
        return f"{name} is chosen: nothing else is possible"
    goal = "several sequences (--max-batch-size)" if plan.is_for_many else "one sequence"
    return f"{name} is chosen: it is the fastest for {goal}"


def machines_document(plan: MachinesPlan) -> dict[str, Any]:
    return {
        "fits": bool(plan.stages),
        "missing_bytes": plan.missing_bytes,
        "token_seconds": plan.token_seconds,
        "hop_seconds": plan.hop_seconds,
        "tokens_per_s": plan.tokens_per_s,
        "most_steps_per_s": plan.most_tokens_per_s,
        "unused": list(plan.unused),
        "group_size": plan.group_size,
        "is_for_many": plan.is_for_many,
        "choices": [asdict(each) for each in plan.choices],
        "stages": [
            {
                "machine": stage.machine,
                "device": stage.device,
                "processes": stage.processes,
                "first_layer": stage.layers.start,
                "layers": len(stage.layers),
                "weight_bytes": stage.weight_bytes,
                "kv_bytes": stage.kv_bytes,
                "free_bytes": stage.free_bytes,
                "seconds": stage.seconds,
            }
            for stage in plan.stages
        ],
    }


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
