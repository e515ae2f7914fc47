"""The layers of one worker, and the caches that the head's commands make and change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from mrs.architecture.model_spec import ModelSpec
from mrs.cache.block_table import BlockTable
from mrs.cache.cache_space import CacheConfig
from mrs.cache.layer_cache import LayerSlice, OwnLayer
from mrs.cache.paged_kv import PagedKVCache
from mrs.cache.shared_kv import SharedKVCache
from mrs.distributed.checked_step import (
    CheckedStep,
    FirstLayers,
    KnownState,
    StepLimits,
    checked_step,
)
from mrs.distributed.model_part import states_width
from mrs.distributed.protocol import messages
from mrs.distributed.protocol.channel import Damaged
from mrs.distributed.protocol.messages import CacheCommand, LayerCacheInfo, Step
from mrs.kernels.paged import AttentionBatch, PagedKV, Queries
from mrs.model.batch import ForwardBatch
from mrs.model.layer_stack import LayerStack


@dataclass
class _LayerNeeds:
    """Stands for a `CacheBuilder`, and collects what each layer asks it for."""

    config: CacheConfig

    first_layer: int

    def __post_init__(self) -> None:
        self.blocks: dict[int, tuple[PagedKV, int | None]] = {}
        self.states: dict[int, Callable[[], OwnLayer]] = {}
        #: The caches that read those of others.
        self.shared: dict[int, int] = {}

    @property
    def _count(self) -> int:
        return len(self.blocks) + len(self.states) + len(self.shared)

    def add_paged(self, kv: PagedKV, window: int | None = None) -> int:
        self.blocks[self._count] = kv, window
        return 0  # the head decides on groups

    def add_shared(self, layer: int) -> PagedKV:
        owner = layer - self.first_layer
        self.shared[self._count] = owner
        return self.blocks[owner][0]

    def add(self, new: Callable[[], OwnLayer]) -> None:
        self.states[self._count] = new

    def infos(self) -> list[LayerCacheInfo]:
        return [self._info(index) for index in range(self._count)]

    def _info(self, index: int) -> LayerCacheInfo:
        if index in self.blocks:
            kv, window = self.blocks[index]
            return LayerCacheInfo("blocks", kv.block_bytes, window)
        if index in self.shared:
            return LayerCacheInfo("shared", 0, owner=self.shared[index])
        return LayerCacheInfo("state", self.states[index]().nbytes)


class _State(NamedTuple):
    """A recurrent state of the cache with this index."""

    cache: int
    layer: OwnLayer


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
        for (rows, _), own in zip(batch.queries, states, strict=True):
            for state in own:
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
        nowhere = cast(BlockTable, None)  # the head has the tables
        for n, (kv, _) in self._needs.blocks.items():
            self._blocks[n] = PagedKVCache(kv, nowhere, groups[n])
        self._shared = {
            index: SharedKVCache(self._blocks[owner].kv, groups[owner])
            for index, owner in owners.items()
        }
        self._count_blocks()

    def _resize(self, command: messages.Resize) -> None:
        kv = self._blocks[command.cache].kv
        if not 0 <= command.blocks < 1 << 31:
            raise _impossible(command, "of so many blocks is no cache")
        self._require_bytes(command, command.blocks * kv.block_bytes - kv.nbytes)
        kv.resize(command.blocks)
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
        """So many more fit in the memory that the plan found on this machine."""
        caches = [each.cache for each in self._states.values()]
        caches += [each.cache for each in self._copies.values()]
        used = sum(each.kv.nbytes for each in self._blocks.values())
        used += sum(self.cache_infos[cache].size_bytes for cache in caches)
        if used + size_bytes > self._cache_bytes:
            raise _impossible(command, f"caches have {self._cache_bytes} bytes at most")

    def _count_blocks(self) -> None:
        """The blocks of each group: those that all of its caches have."""
        counts = self._limits.group_blocks
        counts.clear()
        for each in self._blocks.values():
            blocks = len(each.kv.keys)
            counts[each.group] = min(counts.get(each.group, blocks), blocks)

    def _new_needs(self) -> _LayerNeeds:
        needs = _LayerNeeds(self._config, self._stack.indices.start)
        self._stack.add_caches(needs)  # type: ignore[arg-type]
        return needs

    def _layers_of(
        self, states: Sequence[OwnLayer]
    ) -> list[PagedKVCache | SharedKVCache | OwnLayer]:
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
            for each in step.sequences
            for id in each.states
            if id in self._states
        }
        return checked_step(step, self._limits, known)

    def batch(self, step: CheckedStep) -> ForwardBatch:
        """The same batch as the head's, without token ids and images."""
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
                    *shared, torch.from_numpy(each.blocks), torch.from_numpy(each.slots), last
                )
                for each in step.tables
            ),
            (),
            layer_inputs=self._layer_inputs(step),
        )

    def _layer_inputs(self, step: CheckedStep) -> Tensor | None:
        """(N, layers, size): the inputs of the layers of this stage, if they have any."""
        if step.layer_inputs is None:
            return None
        given = torch.from_numpy(step.layer_inputs)
        return given.view(step.tokens, len(self._stack.layers), -1)


def _has_axes(stack: LayerStack, spec: ModelSpec) -> bool:
    """Whether the model has positions in three dimensions, and no rope here has one alone."""
    ropes = {each.mixer.rope for each in spec.layers}
    own = {rope for rope, _ in stack.rope_tables}
    return any(rope is not None and rope.axes for rope in ropes) and all(r.axes for r in own)


def _first_layers(spec: ModelSpec) -> FirstLayers:
    table = spec.input
    positions = table.positions - table.first_position if table and table.positions else None
    vocabulary = spec.vocab_size + spec.extra_tokens
    return FirstLayers(vocabulary, spec.hidden_size * (1 + len(spec.layers)), positions)


def _impossible(command: CacheCommand, why: str) -> Damaged:
    return Damaged(f"an impossible command: {command}", where=why)


def _length(state: OwnLayer) -> int:
    length: int = state.length  # type: ignore[attr-defined]
    return length
