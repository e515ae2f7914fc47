"""The layers of one worker, and the caches that the head's commands make and change."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from mrs.architecture.model_spec import ModelSpec
from mrs.cache.block_table import BlockTable
from mrs.cache.cache_space import CacheConfig
from mrs.cache.layer_cache import LayerSlice, OwnLayer
from mrs.cache.paged_kv import PagedKVCache
from mrs.cache.shared_kv import SharedKVCache
from mrs.distributed import messages
from mrs.distributed.channel import Damaged
from mrs.distributed.messages import CacheCommand, LayerCacheInfo, SequenceStep, Step
from mrs.distributed.model_part import states_width
from mrs.kernels.paged import PagedKV, Queries
from mrs.model.batch import ForwardBatch, attention_batches
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


class _GivenTable(NamedTuple):
    """A block table as the head describes it."""

    blocks: list[int]
    block_tokens: int

    def row(self) -> list[int]:
        return self.blocks

    def slots(self, start: int, end: int) -> list[int]:
        size = self.block_tokens
        return [self.blocks[at // size] * size + at % size for at in range(start, end)]


class Stage:
    """Computes steps. Caches are named by their index in this stage, as in all commands.

    Hidden states have `width` values. If the layers are the first ones, their inputs do not come
    with the steps. A message that contradicts the plan raises Damaged before anything is computed.
    """

    def __init__(
        self, stack: LayerStack, spec: ModelSpec, config: CacheConfig, *, is_first: bool = False
    ) -> None:
        self._stack = stack
        self.width = states_width(spec)
        inputs = None if is_first else spec.layer_inputs
        self._input_size = None if inputs is None else inputs.size
        self._config = config
        self._needs = self._new_needs()
        self.cache_infos = self._needs.infos()
        self._groups: Sequence[int] = ()
        self._blocks: dict[int, PagedKVCache] = {}
        self._shared: dict[int, SharedKVCache] = {}
        self._states: dict[int, OwnLayer] = {}
        self._copies: dict[int, LayerSlice | None] = {}

    @torch.inference_mode()
    def compute(self, step: Step, batch: ForwardBatch, x: Tensor) -> Tensor:
        """x (N, width) to (N, width), after the step's commands; `batch` is that of the step."""
        caches = [self._layers_of(each) for each in step.sequences]
        out = self._stack.forward(x, batch, caches, lambda: None)
        for layers, sequence in zip(caches, step.sequences, strict=True):
            for layer in layers:
                if not isinstance(layer, PagedKVCache | SharedKVCache):
                    layer.advance(sequence.count)
        return out

    @torch.inference_mode()
    def run(self, command: CacheCommand) -> None:
        """Do what a command says. Raises Damaged."""
        try:
            self._run(command)
        except (KeyError, IndexError, AssertionError) as error:
            raise Damaged(f"an impossible command: {command}") from error

    def _run(self, command: CacheCommand) -> None:
        match command:
            case messages.OpenSpace():
                self._open(command.groups)
            case messages.Resize():
                if not 0 <= command.blocks <= 1 << 31:
                    raise Damaged(f"{command.blocks} blocks")
                self._kv(command.cache).resize(command.blocks)
            case messages.CopyBlock():
                self._kv(command.cache).copy_block(command.source, command.target)
            case messages.NewState():
                self._states[command.id] = self._needs.states[command.cache]()
            case messages.ShareState():
                state = self._states[command.id]
                self._copies[command.copy] = state.export(_length(state) - 1, _length(state))
            case messages.AdoptState():
                self._states[command.id].restore(command.length, [self._copies[command.copy]])
            case messages.ResetState():
                self._states[command.id].rewind(0)
            case messages.Drop():
                self._states.pop(command.id, None)
                self._copies.pop(command.id, None)

    def _open(self, groups: Sequence[int]) -> None:
        """New caches; the layers refer to the new ones only."""
        self._states.clear()
        self._copies.clear()
        self._blocks.clear()
        self._needs = self._new_needs()
        self._groups = groups
        if len(groups) != self._stack.cache_count:
            raise Damaged(f"groups of {len(groups)} caches for {self._stack.cache_count}")
        nowhere = cast(BlockTable, None)  # the head has the tables
        for n, (kv, _) in self._needs.blocks.items():
            self._blocks[n] = PagedKVCache(kv, nowhere, groups[n])

        self._shared = {
            index: SharedKVCache(self._blocks[owner].kv, groups[owner])
            for index, owner in self._needs.shared.items()
        }

    def _new_needs(self) -> _LayerNeeds:
        needs = _LayerNeeds(self._config, self._stack.indices.start)
        self._stack.add_caches(needs)  # type: ignore[arg-type]
        return needs

    def _kv(self, cache: int) -> PagedKV:
        return self._blocks[cache].kv

    def _layers_of(self, sequence: SequenceStep) -> list[PagedKVCache | SharedKVCache | OwnLayer]:
        """The caches of a sequence in all layers of this stage."""
        try:
            states = iter([self._states[each] for each in sequence.states])
            return [
                self._blocks.get(n) or self._shared.get(n) or next(states)
                for n in range(self._stack.cache_count)
            ]
        except (KeyError, StopIteration) as error:
            raise Damaged(f"unknown states: {sequence.states}") from error

    def batch(self, step: Step) -> ForwardBatch:
        """The same batch as the head's, without token ids and images."""
        size = self._config.size.block_tokens
        spans = [range(each.start, each.start + each.count) for each in step.sequences]
        total = sum(map(len, spans))
        tables = [
            [_GivenTable(np.frombuffer(table, np.int32).tolist(), size) for table in each.tables]
            for each in step.sequences
        ]
        for row, span in zip(tables, spans, strict=True):
            for group, table in enumerate(row):
                self._check_table(group, table.blocks, span.stop)
        positions = torch.from_numpy(np.frombuffer(step.positions, np.int64).copy())
        ends = step.attention_ends
        starts = [0, *itertools.accumulate(map(len, spans))]
        if len(positions) not in (total, 3 * total) or not total:
            raise Damaged(f"{len(positions)} positions of {total} tokens")
        return ForwardBatch(
            torch.zeros(total, dtype=torch.int64),
            positions if len(positions) == total else positions.view(3, total),
            [
                Queries(slice(*rows), span.stop)
                for rows, span in zip(itertools.pairwise(starts), spans, strict=True)
            ],
            [each.rope_length for each in step.sequences],
            attention_batches(
                tables,
                starts,
                [span.stop for span in spans],
                None if ends is None else torch.from_numpy(np.frombuffer(ends, np.int64).copy()),
            ),
            (),
            layer_inputs=self._layer_inputs(step, total),
        )

    def _layer_inputs(self, step: Step, tokens: int) -> Tensor | None:
        """(N, layers, size): the inputs of the layers of this stage, if they have any."""
        if self._input_size is None:
            return None
        layers = len(self._stack.layers)
        if len(step.layer_inputs) != 4 * tokens * layers * self._input_size:
            raise Damaged(f"{len(step.layer_inputs)} bytes of inputs of {layers} layers")
        values = np.frombuffer(step.layer_inputs, np.float32).copy()
        return torch.from_numpy(values).view(tokens, layers, self._input_size)

    def _check_table(self, group: int, blocks: Sequence[int], tokens: int) -> None:
        """Raises Damaged unless all layers of a group have the blocks, for so many tokens."""
        kvs = [each.kv for each in self._blocks.values() if each.group == group]
        most = min((len(kv.keys) for kv in kvs), default=1 << 31)
        is_known = not blocks or 0 <= min(blocks) <= max(blocks) < most
        if not is_known or len(blocks) * self._config.size.block_tokens < tokens:
            raise Damaged(f"a table of {len(blocks)} blocks for {tokens} tokens is impossible")


def _length(state: OwnLayer) -> int:
    length: int = state.length  # type: ignore[attr-defined]
    return length
