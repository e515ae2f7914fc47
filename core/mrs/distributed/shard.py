"""A rank's shard of a model: some of the layers, whole or a shard of each.

Which parameters it has, how both sides compare the model that they take them from, and the plans of
ranks that share layers. Without torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from mrs.architecture.description import Description
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.shards import FLAG
from mrs.distributed.access import without_coordinator_files
from mrs.distributed.protocol.channel import Damaged
from mrs.distributed.protocol.messages import Assignment
from mrs.errors import NotReadable, Unsupported
from mrs.layers.attention.spec import SharedAttention
from mrs.layers.cross_attention.spec import CrossAttention
from mrs.layers.known_fields import Known, require_only
from mrs.layers.latent_attention.spec import BorrowedChoiceAttention
from mrs.plan.placement.placement import Placement
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.plan.shared_layers import shard_planners
from mrs.request import RunRequest
from mrs.source.checkpoint import Checkpoint
from mrs.source.weights import Weights
from mrs.weights.binding import Parameter, Piece

if TYPE_CHECKING:
    from torch import Tensor

    from mrs.model.model_weights import ModelWeights

#: What is computed before the layers, after them, or of what comes with each step.
_KNOWN: Known = {
    "ModelSpec": "family vocab_size hidden_size layers norm tied_head context_tokens "
    "embedding_scale embedding_norm logit_scale logit_softcap head_bias vision extra_tokens "
    "file_layers layer_inputs altup input pooler ranking embedding_size",
    "LayerInputs": "vocab_size size norm image_row",
    "AltUp": "streams active scaled norm",
    "Norm": "eps kind bias learned",
}
_NOT_IN_LAYERS = ("layers", "vision", "input", "pooler", "ranking")
#: How many bytes of each tensor are compared.
_SAMPLE_BYTES = 1024
#: Values of a process that the ranks of a group exchange at once.
TILE_VALUES = 1 << 18
#: More sequences than ever decode at the same time.
_MOST_SEQUENCES = 65536


def request_json(request: RunRequest) -> bytes:
    """The request for a worker: without what only the coordinator needs, and without secrets."""
    source = replace(request.source, token_source="cache", cache_path=None)
    return msgspec.json.encode(
        replace(without_coordinator_files(request), source=source, server=None)
    )


def read_request(data: bytes) -> RunRequest:
    """Raises NotReadable."""
    try:
        return msgspec.json.decode(data, type=RunRequest)
    except (ValueError, RecursionError) as error:  # of msgspec, and of its strings
        raise NotReadable("the coordinator's request cannot be read", where=str(error)) from error


def one_device_plan(planner: Planner, request: RunRequest) -> Plan:
    """A plan with all layers on the first device: a rank has one device."""
    layers = len(planner.description.spec.layers)
    return planner.plan(replace(request, layer_map=None), Placement([(0, layers)]))


def require_splittable(spec: ModelSpec) -> None:
    """Raises Unsupported.

    A worker has the layers alone, and gets hidden states and the inputs of its layers.
    """
    hint = "leave out --workers and --wait-for"
    require_only(spec, _KNOWN, "--workers", apart=_NOT_IN_LAYERS, hint=hint)
    if any(isinstance(layer.mixer, CrossAttention) for layer in spec.layers):
        what = "layers that attend to images"
        raise Unsupported(f"{what} cannot be in several processes", hint=hint)
    if spec.vision is not None and spec.vision.enters != "embeddings":
        raise Unsupported(
            "images that enter between layers cannot be in several processes", hint=hint
        )
    if spec.vision is not None and spec.vision.deep_layers:
        what = "layers that get features of images"
        raise Unsupported(f"{what} cannot be in several processes", hint=hint)


def states_width(spec: ModelSpec) -> int:
    """The values of a token that go from one layer to the next."""
    return spec.hidden_size * (spec.altup.streams if spec.altup else 1)


def most_step_tokens(chunk_tokens: int) -> int:
    """The most tokens of a step: a chunk of a prompt, and one of each sequence that decodes."""
    return chunk_tokens + _MOST_SEQUENCES


def joined_layers(spec: ModelSpec) -> set[int]:
    """Layers that belong to one process with the layer before them.

    Those from one whose keys and values others read to the last that reads them, and those that
    attend to tokens that an earlier layer has chosen.
    """
    mixers = [layer.mixer for layer in spec.layers]
    shared = {
        n: mixer.layer for n, mixer in enumerate(mixers) if isinstance(mixer, SharedAttention)
    }
    joined = {n for n, mixer in enumerate(mixers) if isinstance(mixer, BorrowedChoiceAttention)}
    return joined | (set(range(min(shared.values()) + 1, max(shared) + 1)) if shared else set())


def shard_parameters(
    description: Description, layers: range, *, is_coordinator: bool
) -> list[Parameter]:
    """The parameters of some layers; for the coordinator also those of no layer."""
    return [
        parameter
        for parameter in description.parameters
        if parameter.layer in layers
        or (parameter.layer is None and (is_coordinator or parameter.name.startswith("rope.")))
    ]


def importance_for(request: RunRequest, description: Description) -> dict[str, Tensor]:
    """The importance (columns,) of the whole model's parameters; empty without `--imatrix`.

    Raises NotReadable.
    """
    if request.imatrix is None:
        return {}
    from mrs.load.importance import importance_by_parameter
    from mrs.source.importance_file import read_importance

    return importance_by_parameter(read_importance(request.imatrix), description, request.imatrix)


def load_parameters(
    planner: Planner,
    plan: Plan,
    parameters: list[Parameter],
    importance: Mapping[str, Tensor],
) -> ModelWeights:
    """These parameters of the model on the plan's first device; nothing else is read.

    `importance` is that of the whole model.
    """
    import torch

    from mrs.load.load import load_to_run

    device = torch.device(plan.devices[0].torch_device)
    devices = {parameter.name: device for parameter in parameters}
    importance_here = {
        parameter.name: _columns_of(importance[parameter.name], parameter)
        for parameter in parameters
        if parameter.name in importance
    }
    return load_to_run(
        planner.checkpoint,
        parameters,
        plan.storage,
        devices,
        lambda name, size_bytes: None,
        importance_here,
    )


def _columns_of(values: Tensor, parameter: Parameter) -> Tensor:
    """The `values` of the columns that a process has of a parameter."""
    columns = parameter.pieces[0].columns
    return values if columns is None else values[list(chain(*columns))]


def fingerprint(plan: Plan, spec: ModelSpec) -> str:
    """A hash of the model's architecture and of its tensors' names, formats and shapes."""
    return _hash([repr(spec), plan.model.fingerprint])


def weights_sample(checkpoint: Checkpoint, parameters: Iterable[Parameter]) -> str:
    """A hash of some bytes of each tensor: fine-tuned models differ in nothing but weights."""
    digest = hashlib.sha256()
    pieces = [piece for parameter in parameters for piece in _pieces(parameter)]
    names = sorted({name for piece in pieces for name in piece.tensors})
    with Weights(checkpoint) as weights:
        for name in names:
            info = checkpoint.tensors[name]
            sample = bytearray(min(_SAMPLE_BYTES, info.size_bytes))
            weights.read_into(memoryview(sample), info, (info.size_bytes - len(sample)) // 2)
            digest.update(sample)
    return digest.hexdigest()


def _pieces(parameter: Parameter) -> Iterator[Piece]:
    """What is read for a parameter, adapters included."""
    yield from parameter.pieces
    for update in parameter.updates:
        yield from (*update.down, *update.up, *update.magnitude)


def plan_hash(assignment: Assignment) -> str:
    """A hash of what a rank loads by its assignment: of all but its number."""
    facts = {**msgspec.structs.asdict(assignment), "place": assignment.place}
    for name in ("rank", "world", "plan_hash"):
        del facts[name]
    facts["request"] = assignment.request.decode("utf-8", "replace")
    return _hash([json.dumps(facts, sort_keys=True)])


def require_consistent(assignment: Assignment) -> None:
    """Raises Damaged, with the name of the field that contradicts the others."""
    if assignment.rank >= assignment.world:
        raise _wrong("rank", f"{assignment.rank} of {assignment.world}")
    if assignment.world % assignment.group_size:
        raise _wrong("group_size", f"{assignment.world} ranks in groups of {assignment.group_size}")
    layers = f"layers {assignment.first} to {assignment.end - 1}"
    if assignment.end <= assignment.first:
        raise _wrong("end", layers)
    if assignment.is_first != (assignment.first == 0):
        raise _wrong("first", f"{layers} of rank {assignment.rank}")
    if assignment.plan_hash != plan_hash(assignment):
        raise _wrong("plan_hash", "it is the hash of something else")


def require_of_plan(assignment: Assignment, plan: Plan) -> None:
    """Raises Damaged for other layers than those of the model, or for longer steps."""
    count = len(plan.layer_bytes)
    if assignment.end > count or assignment.is_last != (assignment.end == count):
        raise _wrong("end", f"{assignment.end} of {count} layers")
    if assignment.chunk_tokens > plan.workload.chunk_tokens:
        raise _wrong("chunk_tokens", f"{assignment.chunk_tokens} of {plan.workload.chunk_tokens}")


def _wrong(field: str, text: str) -> Damaged:
    return Damaged(f"an assignment's {field!r} contradicts the rest of it", where=text)


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def memory_bytes(ranks: int) -> int:
    """The bytes of memory in which `ranks` processes of a machine exchange values."""
    return 2 * ranks * TILE_VALUES * 4


class RankPlan(NamedTuple):
    """A rank's planner and plan, and its rows of each table of tokens."""

    planner: Planner
    plan: Plan
    rows: Mapping[str, range]

    @property
    def vocabulary(self) -> range:
        """The tokens whose logits it computes."""
        return self.rows[self.planner.description.spec.head_weight]

    @property
    def weight_bytes(self) -> int:
        return sum(device.weight_bytes for device in self.plan.breakdowns)

    @property
    def kv_bytes(self) -> int:
        return sum(self.plan.kv_bytes)


def rank_plans(planner: Planner, plan: Plan, request: RunRequest, ranks: int) -> list[RankPlan]:
    """The plans of all ranks of a model whose `plan` is for one process.

    Raises Unsupported for other devices than a CPU and NVIDIA's cards, and for what cannot be
    shared, and UsageError for too many ranks.
    """
    device = plan.devices[0]
    if device.torch_device.split(":")[0] not in ("cpu", "cuda"):
        raise Unsupported(
            f"processes on {device.label} cannot share layers yet",
            where=FLAG,
            hint="add --cpu, or leave the flag out",
        )
    if plan.workload.pool_blocks is not None:  # the pools of all have as many blocks
        tokens = plan.workload.cache.total_tokens
        request = replace(request, paged=replace(request.paged, pool=True, context_tokens=tokens))
    return [
        RankPlan(rank_planner, one_device_plan(rank_planner, request), rows)
        for rank_planner, rows in shard_planners(planner, plan, ranks)
    ]


def needed_bytes(plans: Sequence[RankPlan]) -> int:
    """The memory that all ranks need together."""
    shared_bytes = memory_bytes(len(plans))
    return shared_bytes + sum(rank.plan.breakdowns[0].needed_bytes for rank in plans)


def available_bytes(plans: Sequence[RankPlan]) -> int:
    """The memory that there is for the ranks: that of the CPU, or of the cards they share out."""
    devices = plans[0].planner.devices
    cards = [device for device in devices if device.torch_device.startswith("cuda")]
    used = cards[: len(plans)] or plans[0].plan.devices[:1]
    return sum(device.available_bytes for device in used)


def ranks_fit(plans: Sequence[RankPlan]) -> bool:
    return needed_bytes(plans) <= available_bytes(plans)
