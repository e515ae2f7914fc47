"""The plan as a JSON document: versioned, in bytes, described by `plan.schema.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mrs.devices.device import Device
from mrs.plan.memory.breakdown import MemoryBreakdown
from mrs.plan.memory.overhead import Estimate
from mrs.plan.plan import Plan
from mrs.plan.report.bottleneck import binding
from mrs.plan.report.conversions import conversion_text, conversions, memory_bytes
from mrs.plan.report.reconcile import Reconciliation
from mrs.plan.report.suggestions import Suggestion
from mrs.plan.speed.draft_gain import DraftGain

VERSION = 5
#: The facts of the model in a document.
MODEL_FACTS = (
    "model_id",
    "container",
    "family",
    "parameters",
    "layers",
    "context_tokens",
    "fingerprint",
)
SCHEMA = Path(__file__).with_name("plan.schema.json")


def to_document(
    plan: Plan,
    changes: Sequence[Suggestion] = (),
    result: Reconciliation | None = None,
    at_once: int = 0,
    served: Plan | None = None,
) -> dict[str, Any]:
    """Every fact of a plan; `SCHEMA` says what each means.

    `at_once` counts the conversations that fit, as `conversations_at_once` does; 0 if not known.
    `served` is the plan of a server of the same model.
    """
    bound, cost = binding(plan), plan.activation_cost
    return {
        "version": VERSION,
        "summary": plan.summary,
        "verdict": plan.verdict,
        "weights": {
            "file_bytes": plan.model.file_bytes,
            "memory_bytes": memory_bytes(plan),
            "conversions": [
                {key: value for key, value in asdict(each).items() if key != "is_exact"}
                for each in conversions(plan)
            ],
            "text": conversion_text(plan),
        },
        "model": {
            **{fact: getattr(plan.model, fact) for fact in MODEL_FACTS},
            "weights_format": plan.weights_format,
            "kv_bytes_per_token": plan.kv_bytes_per_token,
            "kv_bytes_per_further_token": plan.kv_bytes_per_further_token,
        },
        "planned": {
            "context_tokens": plan.workload.context_tokens,
            "batch": plan.workload.batch,
            "chunk_tokens": plan.workload.chunk_tokens,
            "kv_cache": _kv_cache(plan),
            "dtype": plan.dense.name,
            "activations": plan.activations,
            "isq": plan.isq,
            "strategy": plan.strategy,
            "conversations_at_once": at_once or None,
            **({"disk_expert_slots": slots} if (slots := plan.on_disk.expert_slots) else {}),
            **({} if (hits := plan.on_disk.hit_rate) is None else {"disk_expert_hit_rate": hits}),
            **({"tables_on_disk": list(tables)} if (tables := plan.on_disk.tables) else {}),
            **({"topology": plan.topology.to_json()} if plan.topology else {}),
        },
        "fits": plan.fits,
        "missing_bytes": plan.missing_bytes,
        "spilled_layers": plan.spilled_layers,
        "devices": [
            _device(plan.devices[index], plan.breakdowns[index], plan.prefix_bytes[index])
            for index in plan.visible_devices
        ],
        "home": plan.devices[plan.primary_device].label,
        "vision": None if plan.vision is None else asdict(plan.vision),
        "draft_model": None if plan.draft is None else _draft(plan.draft),
        "drafts": None if (gain := plan.draft_gain) is None else _gain(plan, gain),
        "server": None if served is None else _server(served),
        "layers": [
            {
                "device": plan.devices[index].label,
                "weight_bytes": weights,
                "kv_bytes": kv,
                **_experts(plan, layer),
                **({"on_disk": True} if layer in plan.on_disk.layouts else {}),
            }
            for layer, (index, weights, kv) in enumerate(
                zip(plan.layer_devices, plan.layer_bytes, plan.kv_bytes, strict=True)
            )
        ],
        "binding": {**asdict(bound), "text": bound.text},
        "speed": {
            "decode_tokens_per_s": plan.speed.decode._asdict(),
            "decode_when_full_tokens_per_s": plan.speed.decode_when_full._asdict(),
            "prompt_tokens_per_s": plan.speed.prompt._asdict(),
            "activation_cost": cost and cost._asdict(),
        },
        "corrected": plan.corrected,
        "warnings": list(plan.warnings),
        "changes": [
            {"flags": change.flags, "effect": change.effect, **_outcome(change.plan)}
            for change in changes
        ],
        "measured": None if result is None else _measured(result),
    }


def dumps(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)


def _kv_cache(plan: Plan) -> dict[str, Any]:
    size = plan.workload.cache
    return {
        "dtype": plan.cache_format.name,
        "block_tokens": size.block_tokens,
        "blocks": size.blocks(),
        "tokens": size.total_tokens,
        "grows": not size.is_pool,
    }


def _server(plan: Plan) -> dict[str, Any] | None:
    budget = plan.budget
    if budget is None:
        return None
    from mrs.plan.memory.server_budget import BOUNDS

    return {
        "fits": plan.fits,
        "host_bytes": plan.host_bytes,
        "batch": plan.workload.batch,
        "requests_bytes": budget.total_bytes,
        "prefix_cache_bytes": sum(plan.prefix_bytes),
        "parts": [
            {"name": name, "bytes": size_bytes, "bounds": BOUNDS[name]}
            for name, size_bytes in budget.parts.items()
        ],
    }


def _draft(plan: Plan) -> dict[str, Any]:
    return {
        "model_id": plan.model.model_id,
        "is_head": plan.model.is_head,
        "weights_format": plan.weights_format,
        "context_tokens": plan.workload.context_tokens,
    }


def _gain(plan: Plan, gain: DraftGain) -> dict[str, Any]:
    return {
        "drafter": plan.drafter,
        "gain": gain.factor,
        "accepted_share": gain.accepted_share,
        "is_measured": gain.is_measured,
        "decode_tokens_per_s": gain.factor * plan.speed.decode.expected,
    }


def _experts(plan: Plan, layer: int) -> dict[str, str]:
    """The device of a layer's experts, if it is not that of the layer."""
    index = plan.expert_devices.get(layer)
    return {} if index is None else {"experts_device": plan.devices[index].label}


def _device(device: Device, breakdown: MemoryBreakdown, prefix_bytes: int) -> dict[str, Any]:
    return {
        "label": device.label,
        **asdict(device),
        "layers": breakdown.layers,
        "bytes": {
            "weights": breakdown.weight_bytes,
            "kv_cache": breakdown.kv_bytes,
            "activations": _range(breakdown.activations),
            "runtime": _range(breakdown.runtime),
            "allocator": _range(breakdown.allocator),
            "reserve": breakdown.reserve_bytes,
            "free": breakdown.free_bytes,
            "prefix_cache": prefix_bytes,
            "loading": breakdown.loading_bytes,
            "draft_model": _range(breakdown.draft_total),
            "total": _range(breakdown.total),
        },
        "missing_bytes": breakdown.missing_bytes,
    }


def _range(estimate: Estimate) -> dict[str, int]:
    return estimate._asdict()


def _outcome(plan: Plan) -> dict[str, Any]:
    return {
        "fits": plan.fits,
        "missing_bytes": plan.missing_bytes,
        "spilled_layers": plan.spilled_layers,
        "total_bytes": sum(breakdown.total.expected for breakdown in plan.breakdowns),
        "decode_tokens_per_s": plan.speed.decode._asdict(),
    }


def _measured(result: Reconciliation) -> dict[str, Any]:
    return {
        "terms": [asdict(row) for row in result.rows],
        "prompt_tokens_per_s": result.prompt_tokens_per_s,
        "decode_tokens_per_s": result.decode_tokens_per_s,
    }
