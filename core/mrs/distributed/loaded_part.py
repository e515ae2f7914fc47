"""What a worker has loaded for an assignment: the layers, ready to compute steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mrs.architecture.model_spec import ModelSpec
from mrs.distributed.access import Access, ModelDiffers
from mrs.distributed.messages import Assignment
from mrs.distributed.model_part import (
    fingerprint,
    importance_for,
    load_part,
    most_step_tokens,
    one_device_plan,
    own_parameters,
    read_request,
    require_of_plan,
    require_splittable,
    weights_sample,
)
from mrs.distributed.tensor_shares import RankPlan, rank_plans
from mrs.errors import DoesNotFit
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.request import RunRequest
from mrs.units import human_bytes

if TYPE_CHECKING:
    import torch

    from mrs.cache.cache_space import CacheConfig
    from mrs.distributed.shared_decoder import JoinedGroup, SharedDecoder
    from mrs.distributed.stage import Stage
    from mrs.model.layer_stack import LayerStack
    from mrs.model.model_weights import ModelWeights


#: Reads the headers of a request's model.
NewPlanner = Callable[[RunRequest], Planner]


class LoadedPart(NamedTuple):
    """A stage, the plan that it belongs to, and the most tokens of a step.

    `group` are the ranks that share its layers, `decoder` is the model if these are the first ones.
    """

    stage: Stage
    group: JoinedGroup
    decoder: SharedDecoder | None
    plan_hash: str
    weight_bytes: int
    most_tokens: int
    device: torch.device


def load_assigned(
    assignment: Assignment, access: Access | None, new_planner: NewPlanner
) -> LoadedPart:
    """Load the assigned layers from this machine's copy of the model, or from the hub.

    Without `access` the head may name any file. Raises NotAllowed before a file is touched,
    ModelDiffers if that is another model, DoesNotFit, and what a plan raises.
    """
    request = read_request(assignment.request)
    if access is not None:
        request = access.checked(request)
    planner = new_planner(request)
    plan = one_device_plan(planner, request)
    require_of_plan(assignment, plan)
    layers = range(assignment.first, assignment.end)
    _compare(
        assignment, "model differs", fingerprint(plan, planner.description.spec), "fingerprint"
    )
    _compare(assignment, "type of weights differs", plan.dense.name, "dense")
    _compare(assignment, "type of the KV cache differs", plan.cache_format.name, "cache_format")
    if assignment.world > assignment.group_size:
        require_splittable(planner.description.spec)
    importance = importance_for(request, planner.description)
    shares: Sequence[RankPlan] = ()
    if assignment.group_size > 1:
        shares = rank_plans(planner, plan, request, assignment.group_size)
        planner, plan, _ = shares[assignment.place]
    parameters = own_parameters(planner.description, layers, is_head=assignment.is_first)
    _compare(assignment, "weights differ", weights_sample(planner.checkpoint, parameters), "sample")
    _require_fit(plan, layers)
    if shares:
        from mrs.distributed.shared_decoder import use_own_threads

        use_own_threads(assignment.place, assignment.group_size)
    weights = load_part(planner, plan, parameters, importance)
    return _loaded(assignment, planner.description.spec, plan, weights, shares)


def _loaded(
    assignment: Assignment,
    spec: ModelSpec,
    plan: Plan,
    weights: ModelWeights,
    shares: Sequence[RankPlan],
) -> LoadedPart:
    import torch

    from mrs.distributed.shared_decoder import JoinedGroup, SharedDecoder
    from mrs.distributed.stage import Stage

    layers, group, decoder = assignment.end - assignment.first, JoinedGroup(), None
    if assignment.is_first:
        decoder = SharedDecoder(weights, shares, assignment.place, layers)
        group, stack = decoder.group, decoder.stack
    else:
        stack = _layer_stack(assignment, spec, plan, weights, group if shares else None)
    most_tokens = most_step_tokens(assignment.chunk_tokens)
    stage = Stage(
        stack,
        spec,
        _cache_config(assignment),
        most_tokens=most_tokens,
        cache_bytes=plan.devices[0].available_bytes,
        is_first=assignment.is_first,
    )
    weight_bytes = sum(weights.bytes_by_device().values())
    device = torch.device(plan.devices[0].torch_device)
    return LoadedPart(
        stage, group, decoder, assignment.plan_hash, weight_bytes, most_tokens, device
    )


def _layer_stack(
    assignment: Assignment,
    spec: ModelSpec,
    plan: Plan,
    weights: ModelWeights,
    group: JoinedGroup | None,
) -> LayerStack:
    """The layers of a later stage."""
    import torch

    from mrs.load.tensor_reader import TORCH_DTYPES
    from mrs.model.layer_stack import LayerStack

    devices = [torch.device(plan.devices[0].torch_device)] * (assignment.end - assignment.first)
    dtype = TORCH_DTYPES[plan.dense.name]
    own = weights if group is None else weights.shared_by(group.sum)
    return LayerStack(spec, own, devices, dtype, assignment.first)


def _cache_config(assignment: Assignment) -> CacheConfig:
    from mrs.cache.cache_space import CacheConfig
    from mrs.quants.unquantized import DTYPES
    from mrs.sizes.blocks import CacheSize

    size = CacheSize(
        assignment.tokens,
        assignment.sequences,
        assignment.chunk_tokens,
        assignment.block_tokens,
        assignment.pool_blocks,
    )
    return CacheConfig(size, DTYPES[assignment.cache_format])


def _compare(assignment: Assignment, fault: str, own: str, field: str) -> None:
    wanted = getattr(assignment, field)
    if own != wanted:
        raise ModelDiffers(
            f"the {fault} from the head's: {own[:12]} here and {wanted[:12]} there",
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
