"""What a worker has loaded for an assignment: the layers, ready to compute steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from mrs.distributed.messages import Assignment
from mrs.distributed.model_part import (
    fingerprint,
    load_part,
    one_device_plan,
    own_parameters,
    read_request,
    weights_sample,
)
from mrs.errors import DoesNotFit, NotReadable
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.request import RunRequest
from mrs.units import human_bytes

if TYPE_CHECKING:
    from mrs.distributed.stage import Stage


#: Reads the headers of a request's model.
NewPlanner = Callable[[RunRequest], Planner]


class LoadedPart(NamedTuple):
    """A stage, the plan that it belongs to, and the most tokens of a step."""

    stage: Stage
    plan_hash: str
    weight_bytes: int
    most_tokens: int


def load_assigned(
    assignment: Assignment, model_id: str | None, new_planner: NewPlanner
) -> LoadedPart:
    """Load the assigned layers from this machine's copy of the model, or from the hub.

    Raises NotReadable if that is another model, DoesNotFit, and what a plan raises.
    """
    request = read_request(assignment.request)
    if model_id is not None:
        request = replace(request, source=replace(request.source, model_id=model_id))
    planner = new_planner(request)
    plan = one_device_plan(planner, request)
    layers = range(assignment.first, assignment.end)
    parameters = own_parameters(planner.description, layers, is_head=False)
    _compare(assignment, "model", fingerprint(plan, planner.description.spec), "fingerprint")
    _compare(assignment, "type of weights", plan.dense.name, "dense")
    _compare(assignment, "type of the KV cache", plan.cache_format.name, "cache_format")
    sample = weights_sample(planner.checkpoint, parameters)
    _compare(assignment, "weights", sample, "sample")
    _require_fit(plan, layers)

    import torch

    from mrs.cache.cache_space import CacheConfig
    from mrs.distributed.stage import Stage
    from mrs.load.tensor_reader import TORCH_DTYPES
    from mrs.model.decoder import LayerStack
    from mrs.sizes.blocks import CacheSize

    weights = load_part(planner, plan, parameters)
    device = torch.device(plan.devices[0].torch_device)
    dtype, cache_dtype = TORCH_DTYPES[plan.dense.name], TORCH_DTYPES[plan.cache_format.name]
    spec = planner.description.spec
    stack = LayerStack(spec, weights, [device] * len(layers), dtype, assignment.first)
    size = CacheSize(
        assignment.tokens,
        assignment.sequences,
        assignment.chunk_tokens,
        assignment.block_tokens,
        assignment.pool_blocks,
    )
    stage = Stage(stack, spec.hidden_size, CacheConfig(size, cache_dtype))
    weight_bytes = sum(weights.bytes_by_device().values())
    return LoadedPart(stage, assignment.plan_hash, weight_bytes, size.chunk_tokens + 65536)


def _compare(assignment: Assignment, what: str, own: str, field: str) -> None:
    wanted = getattr(assignment, field)
    if own != wanted:
        raise NotReadable(
            f"the {what} differs from the head's: {own[:12]} here and {wanted[:12]} there",
            hint="give both sides the same files; mrs worker -m PATH names this machine's copy",
        )


def _require_fit(plan: Plan, layers: range) -> None:
    """Raises DoesNotFit if the layers and their caches exceed this machine's memory."""
    needed = sum(plan.layer_bytes[n] + plan.kv_bytes[n] for n in layers)
    free_bytes = plan.devices[0].available_bytes
    if needed > free_bytes:
        raise DoesNotFit(
            f"layers {layers.start} to {layers.stop - 1} need {human_bytes(needed)} and there is "
            f"{human_bytes(free_bytes)} on {plan.devices[0].label}",
            missing_bytes=needed - free_bytes,
        )
