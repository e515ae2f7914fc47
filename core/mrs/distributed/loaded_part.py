"""What a worker has loaded for an assignment: the layers, ready to compute steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from mrs.architecture.binding import Parameter
from mrs.distributed.messages import Assignment
from mrs.distributed.model_part import (
    fingerprint,
    load_part,
    one_device_plan,
    own_parameters,
    read_request,
    weights_sample,
)
from mrs.distributed.tensor_shares import RankPlan, load_share, rank_plans
from mrs.errors import DoesNotFit, NotReadable
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.request import RunRequest
from mrs.units import human_bytes

if TYPE_CHECKING:
    from mrs.cache.cache_space import CacheConfig
    from mrs.distributed.shared_stage import SharedStage
    from mrs.distributed.stage import Stage
    from mrs.model.model_weights import ModelWeights


#: Reads the headers of a request's model.
NewPlanner = Callable[[RunRequest], Planner]


class LoadedPart(NamedTuple):
    """A stage, the plan that it belongs to, and the most tokens of a step.

    `share` is set if the stage has a share of each layer.
    """

    stage: Stage
    plan_hash: str
    weight_bytes: int
    most_tokens: int
    share: SharedStage | None = None


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
    _compare(assignment, "model", fingerprint(plan, planner.description.spec), "fingerprint")
    _compare(assignment, "type of weights", plan.dense.name, "dense")
    _compare(assignment, "type of the KV cache", plan.cache_format.name, "cache_format")
    shares: Sequence[RankPlan] = ()
    if assignment.is_share:
        shares = rank_plans(planner, plan, request, assignment.world)
        planner, plan = shares[assignment.rank][:2]
    is_head = assignment.is_share  # which has its share of everything
    parameters = own_parameters(planner.description, layers, is_head=is_head)
    _compare(assignment, "weights", weights_sample(planner.checkpoint, parameters), "sample")
    _require_fit(plan, layers)
    if shares:
        return _load_share(assignment, shares)
    return _load_layers(assignment, planner, plan, parameters)


def _load_layers(
    assignment: Assignment, planner: Planner, plan: Plan, parameters: list[Parameter]
) -> LoadedPart:
    import torch

    from mrs.distributed.stage import Stage
    from mrs.load.tensor_reader import TORCH_DTYPES
    from mrs.model.layer_stack import LayerStack

    weights, spec = load_part(planner, plan, parameters), planner.description.spec
    devices = [torch.device(plan.devices[0].torch_device)] * (assignment.end - assignment.first)
    dtype = TORCH_DTYPES[plan.dense.name]
    stack = LayerStack(spec, weights, devices, dtype, assignment.first)
    stage = Stage(stack, spec, _cache_config(assignment))
    return _loaded(assignment, stage, weights)


def _load_share(assignment: Assignment, shares: Sequence[RankPlan]) -> LoadedPart:
    from mrs.distributed.shared_decoder import SharedDecoder, use_own_threads
    from mrs.distributed.shared_stage import SharedStage
    from mrs.distributed.stage import Stage

    use_own_threads(assignment.rank, len(shares))
    weights = load_share(shares[assignment.rank])
    decoder = SharedDecoder(weights, shares, assignment.rank)
    stage = Stage(decoder.stack, decoder.spec, _cache_config(assignment))
    return _loaded(assignment, stage, weights)._replace(share=SharedStage(decoder, stage))


def _cache_config(assignment: Assignment) -> CacheConfig:
    from mrs.cache.cache_space import CacheConfig
    from mrs.load.tensor_reader import TORCH_DTYPES
    from mrs.sizes.blocks import CacheSize

    size = CacheSize(
        assignment.tokens,
        assignment.sequences,
        assignment.chunk_tokens,
        assignment.block_tokens,
        assignment.pool_blocks,
    )
    return CacheConfig(size, TORCH_DTYPES[assignment.cache_format])


def _loaded(assignment: Assignment, stage: Stage, weights: ModelWeights) -> LoadedPart:
    weight_bytes = sum(weights.bytes_by_device().values())
    most_tokens = assignment.chunk_tokens + 65536
    return LoadedPart(stage, assignment.plan_hash, weight_bytes, most_tokens)


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
