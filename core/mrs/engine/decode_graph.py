"""Decode steps as CUDA graphs: the host starts one graph in place of hundreds of kernels.

A graph is captured for each number of rows (1, 2, 4, 8, …; with recurrent states for each number of
sequences) and each width of block tables when it is first needed. It chooses the tokens, so that a
step copies nothing but its inputs and the tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mrs.architecture.model_spec import ModelSpec
from mrs.cache.cache_space import CacheSpace
from mrs.engine.sampling.on_device import DeviceSampler, has_penalties, is_supported, row_values
from mrs.engine.sequence import ScheduledBatch
from mrs.engine.sequence import Sequence as EngineSequence
from mrs.engine.state_rows import StateRows
from mrs.engine.static_inputs import StaticInputs, StaticShape
from mrs.engine.worker import batch_inputs
from mrs.layers.known_fields import SETTLED, Known, uses_only
from mrs.model.batch import ForwardBatch, forward_batch
from mrs.model.decoder import Decoder
from mrs.request import Sampling

_logger = logging.getLogger(__name__)

#: Tokens that the narrowest block tables are made for.
_LEAST_TOKENS = 1024

#: Turns a step into a function that repeats it: it reads and writes the same memory.
Capture = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]


#: A decode step reads these on the host: where tokens are cut or chosen, and what images they see.
_ON_THE_HOST = (
    *("EncoderAttention", "CrossAttention", "IndexedAttention", "BorrowedChoiceAttention"),
    "Indexer",
)
#: What a decode step computes without reading anything on the host.
_KNOWN: Known = {
    **{kind: names for kind, names in SETTLED.items() if kind not in _ON_THE_HOST},
    "Attention": SETTLED["Attention"].replace(" chunk ", " "),
}


def is_capturable(spec: ModelSpec) -> bool:
    """Whether a decode step of this model has fixed shapes and memory.

    The host cuts sequences into chunks, finds the images that tokens attend to and the lengths
    from which an indexer chooses keys; and some rope scalings depend on the length of a sequence.
    Without keys in blocks there are no block tables. Whether the host chooses experts, a `Decoder`
    knows.
    """
    if not any(layer.mixer.cache_shape.token_rows for layer in spec.layers):
        return False
    ropes = [layer.mixer.rope for layer in spec.layers]
    scalings = [rope.scaling for rope in ropes if rope is not None and rope.scaling is not None]
    if any(scaling.depends_on_length for scaling in scalings):
        return False
    others = ("layers", "vision", "pooler", "ranking")
    return uses_only(spec, _KNOWN, apart=others) and all(
        uses_only(layer, _KNOWN, path="captured") for layer in set(spec.layers)
    )


class GraphKey(NamedTuple):
    """What a graph is captured for; with `is_greedy` it needs no sampling."""

    shape: StaticShape
    is_greedy: bool


class DecodeGraph:
    """A captured step and its inputs."""

    def __init__(
        self, key: GraphKey, decoder: Decoder, rows: StateRows, sampler: DeviceSampler
    ) -> None:
        self.inputs = StaticInputs(key.shape, decoder.primary_device)
        self.replay: Callable[[], Tensor] | None = None
        self._is_greedy = key.is_greedy
        self._decoder = decoder
        self._sampler = sampler
        self._caches = rows.caches(key.shape.rows)

    @property
    def num_rows(self) -> int:
        return len(self._caches)

    def step(self) -> Tensor:
        """The tokens (rows,) after one forward pass, -1 after logits that are not finite.

        The host waits for nothing.
        """
        logits = self._decoder.forward(self.inputs.batch(), self._caches)
        if self._is_greedy:
            tokens = logits.argmax(1, keepdim=True)  # NaN counts as the largest
            return torch.where(logits.gather(1, tokens).isfinite(), tokens, -1)[:, 0]
        return self._sampler(logits, self.inputs.values)


class DecodeGraphs:
    """Computes decode steps of up to `most_rows` sequences of a model that `is_capturable`.

    All of the model is on one device. If memory that graphs read has moved, because a cache or a
    table has grown, they are captured again.
    """

    def __init__(
        self, decoder: Decoder, space: CacheSpace, most_rows: int, capture: Capture
    ) -> None:
        self._decoder = decoder
        self._space = space
        self._rows = StateRows(space)
        self._capture = capture
        self._most_rows = _power_of_two(most_rows)
        self._graphs: dict[GraphKey, DecodeGraph] = {}
        self._sizes: tuple[int, ...] = ()
        self._is_on = True
        vocab_size = decoder.spec.vocab_size
        self._sampler = DeviceSampler(self._most_rows, vocab_size, decoder.primary_device)
        #: Arrival and length of the sequence whose tokens the sampler has counted in each row.
        self._counted: list[tuple[int, int] | None] = [None] * self._most_rows

    @property
    def num_captured(self) -> int:
        """Graphs that can be replayed now."""
        return sum(graph.replay is not None for graph in self._graphs.values())

    def decode(self, batch: ScheduledBatch) -> list[int] | None:
        """The next token of each sequence; None if this batch is none for graphs.

        The caches take up the tokens before. A token is -1 if the logits are not finite.
        """
        sequences = [each for each, _ in batch]
        if not self._is_on or len(batch) > self._most_rows or not all(map(_is_taken, sequences)):
            return None
        inputs = batch_inputs(self._decoder, batch)
        joined = forward_batch(inputs)
        graph = self._graph_for(joined, sequences)
        samplers = [each.sampler for each in sequences]
        graph.inputs.write(joined, [row_values(each.sampling, each.rng) for each in samplers])
        self._rows.place([each.cache for each in inputs])
        tokens = self._replay(graph, sequences) if graph.replay else self._run(graph, sequences)
        for each in inputs:
            each.cache.advance(1)
        return tokens

    def _graph_for(self, batch: ForwardBatch, sequences: Sequence[EngineSequence]) -> DecodeGraph:
        block_tokens = self._space.pools[0].block_tokens
        widest = max(group.block_tables.shape[1] for group in batch.attention)
        blocks = _power_of_two(max(widest, _LEAST_TOKENS // block_tokens))
        positions = max(int(batch.positions.max()) + 1, blocks * block_tokens)
        sizes = self._decoder.reserve_positions(positions)
        sizes += tuple(pool.count for pool in self._space.pools)
        if sizes != self._sizes:
            self._graphs.clear()
            self._sizes = sizes
        rows = len(sequences) if self._rows.has_states else _power_of_two(len(sequences))
        shape = StaticShape(rows, len(batch.attention), blocks)
        is_greedy = all(_is_greedy(each.sampler.sampling) for each in sequences)
        key = GraphKey(shape, is_greedy)
        if key not in self._graphs:
            self._graphs[key] = DecodeGraph(key, self._decoder, self._rows, self._sampler)
        return self._graphs[key]

    def _replay(self, graph: DecodeGraph, sequences: Sequence[EngineSequence]) -> list[int]:
        assert graph.replay is not None
        self._count_tokens(sequences)
        tokens: list[int] = graph.replay().cpu().tolist()
        return tokens[: len(sequences)]

    def _run(self, graph: DecodeGraph, sequences: Sequence[EngineSequence]) -> list[int]:
        """Run a step kernel by kernel, then capture it, and use it if it gives the same tokens."""
        self._count_tokens(sequences)
        states = self._rows.save(graph.num_rows)
        tokens: list[int] = graph.step().cpu().tolist()[: len(sequences)]
        try:
            graph.replay = self._capture(graph.step)
            self._rows.restore(states)
            self._counted = [None] * self._most_rows
            is_right = self._replay(graph, sequences) == tokens
            reason = "" if is_right else "the tokens differ"
        except Exception as error:  # noqa: BLE001 - a driver can raise anything
            reason = str(error).partition("\n")[0]
        if reason:
            self._rows.restore(states)
            graph.step()  # for the states after it
            self._is_on = False
            self._graphs.clear()
            _logger.warning("decode steps cannot be captured as CUDA graphs: %s", reason)
        return tokens

    def _count_tokens(self, sequences: Sequence[EngineSequence]) -> None:
        """Let the sampler know the tokens of each row whose sequence has penalties."""
        for row, sequence in enumerate(sequences):
            ids, prompt = sequence.token_ids, sequence.num_prompt_tokens
            if not has_penalties(sequence.sampler.sampling):
                self._counted[row] = None
                continue
            if self._counted[row] != (sequence.arrival, len(ids)):
                self._sampler.begin(row, ids[:prompt], ids[prompt:])
            self._counted[row] = (sequence.arrival, len(ids) + 1)  # with the token of this step
        self._counted[len(sequences) :] = [None] * (self._most_rows - len(sequences))


def _is_taken(sequence: EngineSequence) -> bool:
    """Whether a graph can choose the next token of a sequence."""
    sampler = sequence.sampler
    is_plain = sequence.is_decoding and not sequence.draft and sequence.adapter is None
    return (
        is_plain
        and sequence.makes_reply
        and not sampler.has_constraint
        and is_supported(sampler.sampling)
    )


def _is_greedy(sampling: Sampling) -> bool:
    """Whether the likeliest token is chosen, without penalties."""
    return sampling.temperature == 0 and not has_penalties(sampling)


def _power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()
