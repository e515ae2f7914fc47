"""A worker's stage of a pipeline: its layers, loaded, and the caches that commands change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from mrs.architecture.model_spec import ModelSpec
from mrs.cache.block_table import BlockTable
from mrs.cache.cache_space import CacheConfig
from mrs.cache.layer_cache import LayerSlice, UnpagedLayer
from mrs.cache.paged_kv import PagedKVCache
from mrs.cache.shared_kv import SharedKVCache
from mrs.distributed.access import Access, ModelDiffers
from mrs.distributed.checked_step import (
    CheckedStep,
    FirstLayers,
    KnownState,
    StepLimits,
    checked_step,
)
from mrs.distributed.protocol import messages
from mrs.distributed.protocol.channel import Damaged
from mrs.distributed.protocol.messages import Assignment, CacheCommand, LayerCacheInfo, Step
from mrs.distributed.shard import (
    RankPlan,
    fingerprint,
    importance_for,
    load_parameters,
    most_step_tokens,
    one_device_plan,
    rank_plans,
    read_request,
    require_of_plan,
    require_splittable,
    shard_parameters,
    states_width,
    weights_sample,
)
from mrs.distributed.tensor_parallel import CurrentGroup, ShardedDecoder, use_own_threads
from mrs.errors import DoesNotFit
from mrs.kernels.paged import AttentionBatch, PagedKV, Queries
from mrs.layers.first_input.spec import FirstInput
from mrs.load.tensor_reader import TORCH_DTYPES
from mrs.model.batch import ForwardBatch
from mrs.model.layer_stack import LayerStack
from mrs.model.model_weights import ModelWeights
from mrs.plan.memory.cache_size import CacheSize
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.quantization.kv_type import kv_type
from mrs.request import RunRequest
from mrs.units import human_bytes


@dataclass
class _LayerNeeds:
    """Stands for a `CacheBuilder`, and collects what each layer asks it for."""

    config: CacheConfig

    first_layer: int

    def __post_init__(self) -> None:
        self.blocks: dict[int, tuple[PagedKV, int | None]] = {}
        self.states: dict[int, Callable[[], UnpagedLayer]] = {}
        #: The caches that read those of others.
        self.shared: dict[int, int] = {}

    @property
    def _count(self) -> int:
        return len(self.blocks) + len(self.states) + len(self.shared)

    def add_paged(self, kv: PagedKV, window: int | None = None) -> int:
        self.blocks[self._count] = kv, window
        return 0  # the coordinator decides on groups

    def add_shared(self, layer: int) -> PagedKV:
        owner = layer - self.first_layer
        self.shared[self._count] = owner
        return self.blocks[owner][0]

    def add(self, new: Callable[[], UnpagedLayer]) -> None:
        self.states[self._count] = new

    def infos(self) -> list[LayerCacheInfo]:
        return [self._info(index) for index in range(self._count)]

    def _info(self, index: int) -> LayerCacheInfo:
        if index in self.blocks:
            kv, window = self.blocks[index]
            return LayerCacheInfo("blocks", kv.block_bytes, window, slot_bytes=kv.slot_bytes)
        if index in self.shared:
            return LayerCacheInfo("shared", 0, owner=self.shared[index])
        return LayerCacheInfo("state", self.states[index]().nbytes)


class _State(NamedTuple):
    """A recurrent state of the cache with this index."""

    cache: int
    layer: UnpagedLayer


class _Copy(NamedTuple):
    """What a state of `cache` was after `length` tokens."""

    cache: int
    length: int
    contents: LayerSlice | None


class Stage:
    """Computes steps. Caches are named by their index in this stage, as in all commands.

    Hidden states have `width` values. If the layers are the first ones, their inputs do not come
    with the steps. Blocks and states have `cache_bytes` at most. A message that contradicts the
    plan raises Damaged: a command before it changes a cache, a step before anything is computed.
    """

    def __init__(
        self,
        stack: LayerStack,
        spec: ModelSpec,
        config: CacheConfig,
        *,
        most_tokens: int,
        cache_bytes: int,
        is_first: bool = False,
    ) -> None:
        self._stack = stack
        self.width = states_width(spec)
        self._config = config
        self._cache_bytes = cache_bytes
        self._needs = self._new_needs()
        self.cache_infos = self._needs.infos()
        self._blocks: dict[int, PagedKVCache] = {}
        self._shared: dict[int, SharedKVCache] = {}
        self._states: dict[int, _State] = {}
        self._copies: dict[int, _Copy] = {}
        inputs = None if is_first or spec.layer_inputs is None else spec.layer_inputs.size
        self._limits = StepLimits(
            config.size.block_tokens,
            most_tokens,
            0 if inputs is None else 4 * len(stack.layers) * inputs,
            _has_axes(stack, spec),
            _first_layers(spec) if is_first else None,
            {},
            list(self._needs.states),
        )

    @torch.inference_mode()
    def compute(self, step: CheckedStep, batch: ForwardBatch, x: Tensor) -> Tensor:
        """x (N, width) to (N, width), after the step's commands; `batch` is that of the step."""
        states = [[self._states[id].layer for id in ids] for ids in step.states]
        out = self._stack.forward(x, batch, list(map(self._layers_of, states)), lambda: None)
        for (rows, _), states_of_sequence in zip(batch.queries, states, strict=True):
            for state in states_of_sequence:
                state.advance(rows.stop - rows.start)
        return out

    def run(self, command: CacheCommand) -> None:
        """Do what a command says. Raises Damaged, and has changed nothing then."""
        try:
            with torch.inference_mode():
                self._run(command)
        except KeyError as error:
            raise _impossible(command, f"there is no {error}") from error

    def _run(self, command: CacheCommand) -> None:
        match command:
            case messages.OpenSpace():
                self._open(command)
            case messages.Resize():
                self._resize(command)
            case messages.CopyBlock():
                kv = self._blocks[command.cache].kv
                if not all(0 <= n < len(kv.keys) for n in (command.source, command.target)):
                    raise _impossible(command, f"the cache has {len(kv.keys)} blocks")
                kv.copy_block(command.source, command.target)
            case messages.AttachRests():
                kv = self._blocks[command.cache].kv
                slots = len(kv.rests[0]) if kv.rests else 0
                if not (0 <= command.block < len(kv.keys) and -1 <= command.slot < slots):
                    raise _impossible(command, f"it has {len(kv.keys)} blocks and {slots} slots")
                kv.attach(command.block, command.slot)
            case messages.NewState():
                self._new_state(command)
            case messages.ShareState():
                self._share(command)
            case messages.AdoptState():
                state, copy = self._states[command.id], self._copies[command.copy]
                if copy.cache != state.cache or copy.length != command.length:
                    raise _impossible(command, "the copy is of another cache or length")
                state.layer.restore(command.length, [copy.contents])
            case messages.ResetState():
                self._states[command.id].layer.rewind(0)
            case messages.Drop():
                self._states.pop(command.id, None)
                self._copies.pop(command.id, None)

    def _open(self, command: messages.OpenSpace) -> None:
        """New caches; the layers refer to the new ones only."""
        groups, owners = command.groups, self._needs.shared
        if len(groups) != self._stack.cache_count:
            raise _impossible(command, f"there are {self._stack.cache_count} caches")
        if any(groups[index] < 0 for index in self._needs.blocks):
            raise _impossible(command, "a cache in blocks has no group")
        self._states.clear()
        self._copies.clear()
        self._blocks.clear()
        self._needs = self._new_needs()
        nowhere = cast(BlockTable, None)  # the coordinator has the tables
        for n, (kv, _) in self._needs.blocks.items():
            self._blocks[n] = PagedKVCache(kv, nowhere, groups[n])
        self._shared = {
            index: SharedKVCache(self._blocks[owner].kv, groups[owner])
            for index, owner in owners.items()
        }
        self._count_blocks()

    def _resize(self, command: messages.Resize) -> None:
        kv = self._blocks[command.cache].kv
        if not (0 <= command.blocks < 1 << 31 and 0 <= command.slots < 1 << 31):
            raise _impossible(command, "of so many blocks is no cache")
        wanted = command.blocks * kv.block_bytes + command.slots * kv.slot_bytes
        self._require_bytes(command, wanted - kv.nbytes)
        kv.resize(command.blocks, command.slots)
        self._count_blocks()

    def _new_state(self, command: messages.NewState) -> None:
        new = self._needs.states[command.cache]
        self._require_new(command, command.id)
        self._require_bytes(command, self.cache_infos[command.cache].size_bytes)
        self._states[command.id] = _State(command.cache, new())

    def _share(self, command: messages.ShareState) -> None:
        state = self._states[command.id]
        self._require_new(command, command.copy)
        self._require_bytes(command, state.layer.nbytes)
        length = _length(state.layer)
        contents = state.layer.export(length - 1, length)
        self._copies[command.copy] = _Copy(state.cache, length, contents)

    def _require_new(self, command: CacheCommand, id: int) -> None:
        if id in self._states or id in self._copies:
            raise _impossible(command, f"there is a state {id}")

    def _require_bytes(self, command: CacheCommand, size_bytes: int) -> None:
        """Raise unless `size_bytes` more fit in the memory that the plan found on this machine."""
        caches = [state.cache for state in self._states.values()]
        caches += [copy.cache for copy in self._copies.values()]
        used = sum(cache.kv.nbytes for cache in self._blocks.values())
        used += sum(self.cache_infos[cache].size_bytes for cache in caches)
        if used + size_bytes > self._cache_bytes:
            raise _impossible(command, f"caches have {self._cache_bytes} bytes at most")

    def _count_blocks(self) -> None:
        """The blocks of each group: those that all of its caches have."""
        counts = self._limits.group_blocks
        counts.clear()
        for cache in self._blocks.values():
            blocks = len(cache.kv.keys)
            counts[cache.group] = min(counts.get(cache.group, blocks), blocks)

    def _new_needs(self) -> _LayerNeeds:
        needs = _LayerNeeds(self._config, self._stack.indices.start)
        self._stack.add_caches(needs)  # type: ignore[arg-type]
        return needs

    def _layers_of(
        self, states: Sequence[UnpagedLayer]
    ) -> list[PagedKVCache | SharedKVCache | UnpagedLayer]:
        """The caches of a sequence with these states in all layers of this stage."""
        rest = iter(states)
        return [
            self._blocks.get(n) or self._shared.get(n) or next(rest)
            for n in range(self._stack.cache_count)
        ]

    def checked(self, step: Step) -> CheckedStep:
        """The step as a value that this stage can compute, after its commands. Raises Damaged."""
        if len(self._blocks) != len(self._needs.blocks):
            raise Damaged("a step comes before there are caches")
        known = {
            id: KnownState(self._states[id].cache, _length(self._states[id].layer))
            for sequence in step.sequences
            for id in sequence.states
            if id in self._states
        }
        return checked_step(step, self._limits, known)

    def batch(self, step: CheckedStep) -> ForwardBatch:
        """The same batch as the coordinator's, without token ids and images."""
        starts, ends = step.starts.tolist(), step.attention_ends
        shared = torch.from_numpy(step.starts), torch.from_numpy(step.lengths)
        last = None if ends is None else torch.from_numpy(ends)
        return ForwardBatch(
            torch.zeros(step.tokens, dtype=torch.int64),
            torch.from_numpy(step.positions),
            list(map(Queries, map(slice, starts, starts[1:]), step.lengths.tolist())),
            step.rope_lengths,
            tuple(
                AttentionBatch(
                    *shared, torch.from_numpy(table.blocks), torch.from_numpy(table.slots), last
                )
                for table in step.tables
            ),
            (),
            layer_inputs=self._layer_inputs(step),
        )

    def _layer_inputs(self, step: CheckedStep) -> Tensor | None:
        """(N, layers, size): the inputs of the layers of this stage, if they have any."""
        if step.layer_inputs is None:
            return None
        inputs = torch.from_numpy(step.layer_inputs)
        return inputs.view(step.tokens, len(self._stack.layers), -1)


def _has_axes(stack: LayerStack, spec: ModelSpec) -> bool:
    """Whether the model has positions in three dimensions, and no rope here has one alone."""
    ropes = {layer.mixer.rope for layer in spec.layers}
    ropes_here = {rope for rope, _ in stack.rope_tables}
    return any(rope is not None and rope.axes for rope in ropes) and all(
        rope.axes for rope in ropes_here
    )


def _first_layers(spec: ModelSpec) -> FirstLayers:
    table, positions = spec.input, None
    if isinstance(table, FirstInput) and table.positions:
        positions = table.positions - table.first_position
    vocabulary = spec.vocab_size + spec.extra_tokens
    return FirstLayers(vocabulary, spec.hidden_size, len(spec.layers), positions)


def _impossible(command: CacheCommand, why: str) -> Damaged:
    return Damaged(f"an impossible command: {command}", where=why)


def _length(state: UnpagedLayer) -> int:
    length: int = state.length  # type: ignore[attr-defined]
    return length


#: Reads the headers of a request's model.
NewPlanner = Callable[[RunRequest], Planner]


class LoadedShard(NamedTuple):
    """A stage, the plan that it belongs to, and the most tokens of a step.

    `group` are the ranks that share its layers, `decoder` is the model if these are the first ones.
    """

    stage: Stage
    group: CurrentGroup
    decoder: ShardedDecoder | None
    plan_hash: str
    weight_bytes: int
    most_tokens: int
    device: torch.device


def load_assigned(
    assignment: Assignment, access: Access | None, new_planner: NewPlanner
) -> LoadedShard:
    """Load the assigned layers from this machine's copy of the model, or from the hub.

    Without `access` the coordinator may name any file. Raises NotAllowed before a file is touched,
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
    planner.description.spec.require_replies()
    if assignment.world > assignment.group_size:
        require_splittable(planner.description.spec)
    importance = importance_for(request, planner.description)
    plans: Sequence[RankPlan] = ()
    if assignment.group_size > 1:
        plans = rank_plans(planner, plan, request, assignment.group_size)
        planner, plan, _ = plans[assignment.place]
    parameters = shard_parameters(planner.description, layers, is_coordinator=assignment.is_first)
    _compare(assignment, "weights differ", weights_sample(planner.checkpoint, parameters), "sample")
    _require_fit(plan, layers)
    if plans:
        use_own_threads(assignment.place, assignment.group_size)
    weights = load_parameters(planner, plan, parameters, importance)
    return _loaded(assignment, planner.description.spec, plan, weights, plans)


def _loaded(
    assignment: Assignment,
    spec: ModelSpec,
    plan: Plan,
    weights: ModelWeights,
    plans: Sequence[RankPlan],
) -> LoadedShard:
    layers, group, decoder = assignment.end - assignment.first, CurrentGroup(), None
    if assignment.is_first:
        decoder = ShardedDecoder(weights, plans, assignment.place, layers)
        group, stack = decoder.group, decoder.stack
    else:
        stack = _layer_stack(assignment, spec, plan, weights, group if plans else None)
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
    return LoadedShard(
        stage, group, decoder, assignment.plan_hash, weight_bytes, most_tokens, device
    )


def _layer_stack(
    assignment: Assignment,
    spec: ModelSpec,
    plan: Plan,
    weights: ModelWeights,
    group: CurrentGroup | None,
) -> LayerStack:
    """The layers of a later stage."""
    devices = [torch.device(plan.devices[0].torch_device)] * (assignment.end - assignment.first)
    dtype = TORCH_DTYPES[plan.dense.name]
    if group is not None:
        weights = weights.shared_by(group.all_reduce)
    return LayerStack(spec, weights, devices, dtype, assignment.first)


def _cache_config(assignment: Assignment) -> CacheConfig:
    size = CacheSize(
        assignment.tokens,
        assignment.sequences,
        assignment.chunk_tokens,
        assignment.block_tokens,
        assignment.pool_blocks,
    )
    return CacheConfig(size, kv_type(assignment.cache_format))


def _compare(assignment: Assignment, fault: str, here: str, field: str) -> None:
    there = getattr(assignment, field)
    if here != there:
        raise ModelDiffers(
            f"the {fault} from the coordinator's: {here[:12]} here and {there[:12]} there",
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
