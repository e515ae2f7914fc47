"""Layers, or parts of them, and a whole model, in one call of the native library."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mrs.architecture.model_spec import ModelSpec
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.graph.layer_graph import native_embedding, native_final_norm, native_head
from mrs.graph.operations import Attend, AttendToImages, ChosenKeys, Given, Graph, Operation
from mrs.graph.program import program_of
from mrs.graph.step_rows import FEW_TOKENS
from mrs.kernels.chunked_attention import within_chunks
from mrs.kernels.cpu.library import NativeLibrary, native_library
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.kernels.native_structs import NativeStates
from mrs.layers.attention.spec import Attention
from mrs.layers.rope.module import RopeTable
from mrs.model.batch import ForwardBatch
from mrs.model.given_values import given_value
from mrs.model.model_weights import ModelWeights
from mrs.model.native_program import (
    Angles,
    CacheAccess,
    NativeCall,
    NativeProgram,
    NativeRun,
    Weights,
)

#: What a layer has cached of each sequence: keys or states, or a pair of both.
Caches = Any
#: A run ends once its layers have this many bytes of weights: Ctrl-C is handled between runs.
_RUN_BYTES = 2 << 30


class NativePart:
    """A part of a layer."""

    def __init__(
        self,
        library: NativeLibrary,
        operations: Sequence[Operation],
        graph: Graph,
        weights: ModelWeights,
        rope: RopeTable | None,
        index: int = 0,
    ) -> None:
        """`index` is that of the layer in the batch's `layer_inputs`."""
        self._index = index
        attends = [each.attention for each in operations if isinstance(each, Attend)]
        self._attention: Attention | None = attends[0] if attends else None
        self.rope = rope if attends else None
        #: Whether it attends to images.
        self.is_cross = any(isinstance(each, AttendToImages) for each in operations)
        plan = program_of(operations, graph)
        self.program = NativeProgram(library, plan, program_weights(weights))
        #: Whether it reads keys and values, and all of them: known once, since steps are short.
        self._reads_keys_alone = bool(attends) and not self.program.has_states
        #: Whether positions and lengths are all that differs for the next token of a sequence.
        self.only_counts = not plan.given and not self.is_cross
        if attends and attends[0].chunk is not None:
            self.only_counts = False
        if self.rope is not None and not self.rope.is_fixed:
            self.only_counts = False
        if plan.given or (attends and (attends[0].always_causal or attends[0].chunk)):
            self._reads_keys_alone = False
        self._run = NativeRun([self.program], [0 if self.rope else None])

    def __call__(
        self, x: Tensor, batch: ForwardBatch, cache: Caches, arena: Tensor | None = None
    ) -> None:
        """Change x (N, hidden), and what the layer has cached; its values may be in `arena`."""
        if x.shape[0]:
            angles = [] if self.rope is None else [self.rope.native_angles(batch)]
            self._run(x, [self.access(batch, cache)], angles, arena=arena)

    def arena_floats(self, tokens: int) -> int:
        """What its values take."""
        return self._run.arena_floats(tokens)

    def access(self, batch: ForwardBatch, cache: Caches) -> CacheAccess:
        """What this part reads of the caches of all sequences: of keys, of states, or a pair."""
        if self._reads_keys_alone:
            keys = cache[0]
            return CacheAccess(keys.kv, batch.attention[keys.group])
        if self.is_cross:
            keys = cache[0].whole_at(cache[0].length)
            return CacheAccess(keys, keys.read_by(batch.token_ids.shape[0]))
        attention, has_states = self._attention, self.program.has_states
        given = _given(batch, self.program.plan.given, self._index)
        if attention is None:
            return CacheAccess(states=_states(batch, cache) if has_states else None, given=given)
        keys, others = cache, ()
        if has_states or self.program.has_index:
            keys, others = cache
        kv, group = keys[0].kv, batch.attention[keys[0].group]
        if attention.always_causal:
            group = group.causal
        if attention.chunk is not None:
            group = within_chunks(group, attention.chunk, kv.block_tokens)
        states = _states(batch, others) if has_states else None
        index_kv = others[0].kv if others and not has_states else None
        return CacheAccess(kv, group, states, given, index_kv)


def _given(batch: ForwardBatch, kinds: Sequence[Given], index: int) -> Tensor | None:
    """What a step gives the layer `index`, one value after another; None for nothing."""
    values = [_given_once(batch, kind, index) for kind in kinds]
    if len(values) > 1:
        assert not any(isinstance(kind, ChosenKeys) for kind in kinds), "a copy would be lost"
        return torch.cat([each.flatten() for each in values])
    return values[0] if values else None


def _given_once(batch: ForwardBatch, kind: Given, index: int) -> Tensor:
    """The value, computed for the first of all layers that read the same."""
    if kind == "layer input" or isinstance(kind, ChosenKeys):
        return given_value(batch, kind, index)
    if kind not in batch.given:
        batch.given[kind] = given_value(batch, kind, index)
    return batch.given[kind]


def _states(batch: ForwardBatch, caches: Sequence[RecurrentStateCache]) -> NativeStates:
    """A cache has what a convolution remembers, and may have a state."""
    addresses = [each.addresses for each in caches]
    recent, state = [each[0] for each in addresses], [each[-1] for each in addresses]
    return NativeStates.of(batch.native_starts, recent, state)


class NativeLayers:
    """Adjacent layers of a model, by `layer_indices`."""

    def __init__(self, first: int, layers: Sequence[NativePart]) -> None:
        self.layer_indices = range(first, first + len(layers))
        self.layers = layers
        self._cross = [first + n for n, each in enumerate(layers) if each.is_cross]
        #: The different ropes of the layers.
        self.ropes = list(dict.fromkeys(each.rope for each in layers if each.rope is not None))
        self._run = NativeRun([each.program for each in layers], self.rope_indices)

    def supports(self, batch: ForwardBatch, caches: Sequence[Caches]) -> bool:
        """Whether all layers can be computed: those that attend to images, for one sequence."""
        if not self._cross:
            return True
        if len(batch.queries) > 1 or batch.images:
            return False
        return all(caches[n][0].whole_at(caches[n][0].length) is not None for n in self._cross)

    @property
    def rope_indices(self) -> list[int | None]:
        """Which of the ropes each layer has."""
        ropes = (each.rope for each in self.layers)
        return [None if rope is None else self.ropes.index(rope) for rope in ropes]

    def __call__(
        self,
        x: Tensor,
        batch: ForwardBatch,
        caches: Sequence[Caches],
        check: Callable[[], None] = lambda: None,
    ) -> Tensor:
        """x (N, hidden) to (N, hidden); `caches` are those of all layers of the model.

        A few tokens pass all layers in one call. More take so long that `check` is called between
        the layers, and may raise.
        """
        stream = x.clone(memory_format=torch.contiguous_format)
        own = [caches[index] for index in self.layer_indices]
        if 0 < x.shape[0] <= FEW_TOKENS:
            angles = [rope.native_angles(batch) for rope in self.ropes]
            self._run(stream, self.accesses(batch, own), angles)
        else:
            self._one_by_one(stream, batch, own, check)
        return stream

    def _one_by_one(
        self,
        stream: Tensor,
        batch: ForwardBatch,
        caches: Sequence[Caches],
        check: Callable[[], None],
    ) -> None:
        """Layers alike use the same memory: freeing it after each would fragment the heap."""
        arena = torch.empty(0)
        for index, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            if index:
                check()
            floats = layer.arena_floats(stream.shape[0])
            if floats != arena.numel():
                del arena  # before there is a new one
                arena = torch.empty(floats)
            layer(stream, batch, cache, arena)

    def accesses(self, batch: ForwardBatch, caches: Sequence[Caches]) -> list[CacheAccess]:
        """What each layer reads beside the stream."""
        return [
            layer.access(batch, cache) for layer, cache in zip(self.layers, caches, strict=True)
        ]


def find_runs(
    layers: Sequence[NativePart | None], alone: Container[object] = ()
) -> dict[int, NativeLayers]:
    """Adjacent native layers of a model by the index of the first; None: one is not native.

    Those that are `alone` are not in a run with others.
    """
    runs: dict[int, NativeLayers] = {}
    current: list[NativePart] = []
    for index, layer in enumerate([*layers, None]):
        is_full = sum(each.program.weight_bytes for each in current) >= _RUN_BYTES
        is_full = is_full or index in alone or index - 1 in alone
        if current and (layer is None or is_full):
            first = index - len(current)
            runs[first] = NativeLayers(first, current)
            current = []
        if layer is not None:
            current.append(layer)
    return runs


class NativeHead:
    """The logits: the output head after the final norm."""

    def __init__(self, program: NativeProgram, vocab_size: int) -> None:
        self.program, self.vocab_size = program, vocab_size
        self._run = NativeRun([program], [None])

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, hidden) to (N, vocab); x is overwritten."""
        logits = torch.empty(x.shape[0], self.vocab_size)
        if x.shape[0]:
            self._run(x, result=logits)
        return logits


class NativeModel:
    """A whole model, for a few tokens.

    After a decode step the weights have evicted the interpreter from the processor's caches, and
    all that it does until the next product takes about five times as long as it would otherwise.
    For a small model that is a good part of the step.
    """

    def __init__(
        self,
        hidden_size: int,
        first: NativeProgram,
        layers: NativeLayers,
        last: NativeHead,
        norm: NativeProgram,
    ) -> None:
        """`norm` is the final one, of the stream that `last` leaves."""
        self._layers, self._last, self._vocab_size = layers, last, last.vocab_size
        self._hidden_size = hidden_size
        body = [first, *(each.program for each in layers.layers)]
        ropes = [None, *layers.rope_indices]
        self._body = NativeRun(body, ropes)
        self._run = NativeRun([*body, last.program], [*ropes, None])
        self._normed_run = NativeRun([*body, last.program, norm], [*ropes, None, None])
        self._norm = NativeRun([norm], [None])
        #: Whether positions and lengths are all that differs for the next token of a sequence.
        self.only_counts = all(layer.only_counts for layer in layers.layers)
        #: Whether it is a draft head, which reads states beside the tokens.
        self.reads_states = bool(first.plan.given)

    def supports(self, batch: ForwardBatch) -> bool:
        """Whether all of a few tokens are texts, and logits follow each, unless a head reads."""
        tokens = batch.token_ids.shape[0]
        return (
            0 < tokens <= FEW_TOKENS
            and (len(batch.logits_rows) == tokens or self.reads_states)
            and not batch.images
            and batch.token_types is None
        )

    def __call__(
        self, batch: ForwardBatch, caches: Sequence[Caches], *, is_normed: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Logits (W, vocab) before scale and cap, and the output (N, hidden) of the last layer.

        If it `is_normed`, the latter is after the final norm. `caches` are those of all layers.

        Raises BadIndex, for a token without an embedding too, and MemoryError.
        """
        if len(batch.logits_rows) == batch.token_ids.shape[0]:
            call, logits, stream = self._prepare(batch, caches, is_normed=is_normed)
            call()
            return logits, stream
        stream = torch.empty(batch.token_ids.shape[0], self._hidden_size)
        accesses, angles = self._reads(batch, caches)
        self._body(stream, accesses, angles, ids=batch.token_ids)
        logits = self._last(stream[batch.logits_rows])
        if is_normed:
            self._norm(stream)
        return logits, stream

    def _reads(
        self, batch: ForwardBatch, caches: Sequence[Caches]
    ) -> tuple[list[CacheAccess | None], list[Angles]]:
        """What the first program and the layers read, and the angles of all ropes."""
        layers, states = self._layers, None
        if self.reads_states:
            assert batch.states is not None
            states = CacheAccess(given=batch.states.float().contiguous())
        angles = [rope.native_angles(batch) for rope in layers.ropes]
        return [states, *layers.accesses(batch, caches)], angles

    def _prepare(
        self, batch: ForwardBatch, caches: Sequence[Caches], *, is_normed: bool
    ) -> tuple[NativeCall, Tensor, Tensor]:
        """The call, the logits (N, vocab) that it writes, and the stream (N, hidden)."""
        ids, run = batch.token_ids, self._normed_run if is_normed else self._run
        count = ids.shape[0]
        stream = torch.empty(count, self._hidden_size)
        # Until the logits are known, their memory is the arena of the layers.
        floats = max(run.arena_floats(count), count * self._vocab_size)
        logits = torch.empty(-(-floats // self._vocab_size), self._vocab_size)
        accesses, angles = self._reads(batch, caches)
        accesses += [None] * (1 + is_normed)
        call = run.prepare(stream, accesses, angles, ids=ids, arena=logits, result=logits)
        return call, logits[:count], stream

    def steps(
        self,
        batch: ForwardBatch,
        caches: Sequence[Caches],
        most_tokens: int,
        scale: Callable[[Tensor], Tensor] | None,
        *,
        is_normed: bool = False,
    ) -> NativeSteps:
        """Compute a batch, which others of as many tokens of each sequence may follow.

        `scale` is of logits, which follow each token. The model `only_counts`. In all each sequence
        gets at most `most_tokens`, in the same block. A draft head reads its own states next.
        """
        end = int(batch.positions.max()) + most_tokens
        for rope in self._layers.ropes:
            rope.reserve(end)
        if batch.states is not None:  # they change with each step
            batch = replace(batch, states=batch.states.float().clone())
        call, logits, stream = self._prepare(batch, caches, is_normed=is_normed)
        call()
        return NativeSteps(call, batch, logits, stream, scale)


class NativeSteps:
    """Steps of some sequences: the same call in the same memory, with other numbers."""

    def __init__(
        self,
        call: NativeCall,
        batch: ForwardBatch,
        logits: Tensor,
        states: Tensor,
        scale: Callable[[Tensor], Tensor] | None,
    ) -> None:
        """The first one has computed `batch`, whose tensors the others change."""
        self._call, self._logits, self._scale = call, logits, scale
        self._rows: npt.NDArray[np.float32] = logits.numpy()
        self._tokens = batch.token_ids.numpy()
        #: The output (N, hidden) of the last layer, which the next step overwrites.
        self.states = states
        self._read = None if batch.states is None else (batch.states.numpy(), states.numpy())
        attention = batch.attention
        lengths = {id(each.context_lens): each.context_lens for each in attention}
        rows = [batch.positions, *(each.slot_mapping for each in attention)]
        self._lengths = [each.numpy() for each in lengths.values()]
        self._places = [each.numpy() for each in rows]
        self._counts = [rows.stop - rows.start for rows, _ in batch.queries]

    def next(self, *tokens: int) -> None:
        """Compute a token of each sequence after its last one. Raises the same as `NativeModel`."""
        self._tokens[:] = tokens
        if self._read is not None:
            read, states = self._read
            read[:] = states
        for numbers in (*self._lengths, *self._places):
            numbers += 1
        self._call()

    def at(
        self, tokens: Sequence[int], shifts: Sequence[int], states: Tensor | None = None
    ) -> None:
        """Compute other tokens (N), each sequence's so many positions after its last ones.

        A draft head reads `states` (N, hidden) with them. Raises the same as `NativeModel`.
        """
        self._tokens[:] = tokens
        if self._read is not None and states is not None:
            self._read[0][:] = states.numpy()
        moved = np.array(shifts)
        for lengths in self._lengths:
            lengths += moved.astype(lengths.dtype)
        by_row = moved.repeat(self._counts)
        for places in self._places:
            places += by_row
        self._call()

    def logits(self) -> npt.NDArray[np.float32]:
        """Those after the last tokens (N, vocab), which the next step overwrites."""
        return self._rows if self._scale is None else self._scale(self._logits).numpy()


def native_head_of(spec: ModelSpec, weights: ModelWeights) -> NativeHead | None:
    """The final norm and the output head in one call; None if torch computes them."""
    head = native_head(spec) if weights.sum_of_ranks is None else None
    library = native_library()
    if head is None or library is None:
        return None
    graph, logits = head
    if not isinstance(weights.matrix(spec.head_weight.removesuffix(".weight")), PackedMatrix):
        return None
    plan = program_of(graph.operations, graph, logits)
    return NativeHead(NativeProgram(library, plan, program_weights(weights)), spec.vocab_size)


def native_model_of(
    spec: ModelSpec, weights: ModelWeights, layers: NativeLayers | None, last: NativeHead | None
) -> NativeModel | None:
    """The model in one call, if these are all its layers; None if it is computed in parts."""
    embedding, graph, library = (
        weights.matrix("embedding"),
        native_embedding(spec),
        native_library(),
    )
    if library is None or graph is None or last is None or layers is None:
        return None
    if layers.layer_indices != range(len(spec.layers)):
        return None
    if not isinstance(embedding, PackedMatrix) or embedding.is_permuted:
        return None
    plan = program_of(graph.operations, graph)
    first = NativeProgram(library, plan, program_weights(weights))
    last_norm = native_final_norm(spec)
    plan = program_of(last_norm.operations, last_norm)
    norm = NativeProgram(library, plan, program_weights(weights))
    return NativeModel(spec.hidden_size, first, layers, last, norm)


def program_weights(weights: ModelWeights) -> Weights:
    """How programs find these weights."""

    def matrix(slot: str) -> PackedMatrix:
        packed = weights.matrix(slot)
        assert isinstance(packed, PackedMatrix), slot
        return packed

    return Weights(matrix, weights.optional_vector)
