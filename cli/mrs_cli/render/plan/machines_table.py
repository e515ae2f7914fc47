"""A plan over machines as lines of text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mrs.plan.machines import MachinesPlan
from mrs.units import human_bytes


def machines_lines(plan: MachinesPlan) -> Iterator[str]:
    if not plan.stages:
        yield f"does not fit on these machines, {human_bytes(plan.missing_bytes)} missing"
        return
    for stage in plan.stages:
        yield (
            f"{stage.machine} {stage.device}: layers {stage.layers.start} to "
            f"{stage.layers.stop - 1}, {human_bytes(stage.weight_bytes)} of weights and "
            f"{human_bytes(stage.kv_bytes)} of KV cache, {human_bytes(stage.free_bytes)} free, "
            f"{1000 * stage.seconds:.3g} ms a token"
        )
    yield (
        f"one sequence: {_rate(plan.tokens_per_s)} tokens/s ({1000 * plan.token_seconds:.3g} ms a "
        f"token, {1000 * plan.hop_seconds:.3g} ms of it between devices)"
    )
    yield f"several sequences: at most {_rate(plan.most_tokens_per_s)} steps/s, the slowest stage's"
    for name in plan.unused:
        yield f"{name} is left out: the model fits without it, and a token takes no longer"


def machines_document(plan: MachinesPlan) -> dict[str, Any]:
    return {
        "fits": bool(plan.stages),
        "missing_bytes": plan.missing_bytes,
        "token_seconds": plan.token_seconds,
        "hop_seconds": plan.hop_seconds,
        "tokens_per_s": plan.tokens_per_s,
        "most_steps_per_s": plan.most_tokens_per_s,
        "unused": list(plan.unused),
        "stages": [
            {
                "machine": stage.machine,
                "device": stage.device,
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
