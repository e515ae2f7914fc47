"""A decode step that a CUDA graph can replay: the same memory and shapes at every step.

Everything that changes from step to step is in one buffer on the device, which one copy fills.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mla_spec import LatentAttention
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.model_spec import ModelSpec
from mrs.cache.cache_space import CacheSpace
from mrs.cache.sequence_cache import SequenceCache
from mrs.engine.sampling.on_device import DeviceSampler
from mrs.kernels.paged import AttentionBatch, Queries
from mrs.model.batch import ForwardBatch
from mrs.model.decoder import Decoder
from mrs.request import Sampling


class DecodeInput(NamedTuple):
    """One sequence's next token; its cache has reserved a slot for it."""

    cache: SequenceCache
    token_id: int
    sampling: Sampling
    rng: Random


class Capture(Protocol):
    """Turns a step into a function that repeats it, reading and writing the same memory."""

    def __call__(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]: ...


def captured_by_cuda(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Record a step as a CUDA graph, after warming up on another stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay


def is_capturable(spec: ModelSpec) -> bool:
    """Whether a decode step of this model has fixed shapes and memory.

    The host chooses experts, recurrent states belong to sequences, and some rope scalings depend
    on the length of a sequence.
    """
    return spec.vision is None and all(
        isinstance(layer.mixer, Attention | LatentAttention)
        and isinstance(layer.feed_forward, Mlp)
        and (
            layer.mixer.rope is None
            or layer.mixer.rope.scaling is None
            or not layer.mixer.rope.scaling.depends_on_length
        )
        for layer in spec.layers
    )


class StaticInputs:
    """The inputs of a step of `size` sequences with block tables of up to `blocks` blocks.

    Rows without a sequence are padding: they write to `padding_blocks`, one block of each pool,
    which no sequence has.
    """

    def __init__(
        self, size: int, blocks: int, padding_blocks: Sequence[int], device: torch.device
    ) -> None:
        groups = len(padding_blocks)
        self.size, self._padding = size, padding_blocks
        wide, narrow = (2 + groups) * size, (1 + groups * blocks) * size
        self._host = np.zeros(8 * wide + 4 * narrow, np.uint8)
        self._device = torch.zeros(len(self._host), dtype=torch.uint8, device=device)
        ids, lengths = self._host[: 8 * wide].view(np.int64), self._host[8 * wide :].view(np.int32)
        self._ids = ids.reshape(2 + groups, size)  # token ids, positions, slots of each pool
        self._lengths = lengths[:size]
        self._tables = lengths[size:].reshape(groups, size, blocks)
        fields = self._device[: 8 * wide].view(torch.int64).view(2 + groups, size)
        ints = self._device[8 * wide :].view(torch.int32)
        self._token_ids, self._positions = fields[0], fields[1]
        tables = ints[size:].view(groups, size, blocks)
        starts = torch.arange(size + 1, dtype=torch.int32)
        self._groups = tuple(
            AttentionBatch(starts, ints[:size], tables[group], fields[2 + group])
            for group in range(groups)
        )

    def write(self, inputs: Sequence[DecodeInput], block_tokens: int) -> None:
        """Write the inputs of the first rows, and padding for the others; one copy."""
        self._ids[:2], self._lengths[:] = 0, 1
        for group, block in enumerate(self._padding):
            self._ids[2 + group], self._tables[group] = block * block_tokens, block
        for row, each in enumerate(inputs):
            length = each.cache.length
            self._ids[:2, row] = each.token_id, length
            self._lengths[row] = length + 1
            for group, table in enumerate(each.cache.tables):
                self._ids[2 + group, row] = table.slots(length, length + 1)[0]
                self._tables[group, row, : len(table.row())] = table.row()
        self._device.copy_(torch.from_numpy(self._host))

    def batch(self) -> ForwardBatch:
        """The inputs as a batch of views of the buffer."""
        return ForwardBatch(
            self._token_ids,
            self._positions.view(-1),  # another tensor, of which no angles are remembered
            [Queries(slice(row, row + 1), 1) for row in range(self.size)],
            [1] * self.size,
            self._groups,
            range(self.size),
        )


class DecodeGraph:
    """Decode steps of up to `size` sequences, each of up to `tokens` tokens.

    `capture` makes the repeatable step when it is first needed. The decoder's layers are on one
    device, it `is_capturable`, and it has reserved the positions of all sequences: tables that a
    graph reads must not move.
    """

    def __init__(
        self,
        decoder: Decoder,
        space: CacheSpace,
        padding_blocks: Sequence[int],
        size: int,
        tokens: int,
        capture: Capture,
    ) -> None:
        device = decoder.primary_device
        self._decoder = decoder
        self._block_tokens = space.pools[0].block_tokens
        blocks = -(-tokens // self._block_tokens)
        self.inputs = StaticInputs(size, blocks, padding_blocks, device)
        self.sampler = DeviceSampler(size, decoder.spec.vocab_size, device)
        # Layers find their memory by a cache, whichever sequence it belongs to.
        self._caches = [space.new() for _ in range(size)]
        self._capture = capture
        self._replay: Callable[[], Tensor] | None = None

    def __call__(self, inputs: Sequence[DecodeInput]) -> list[int]:
        """The next token of each sequence: one copy to the device, one replay, one copy back."""
        self.inputs.write(inputs, self._block_tokens)
        self.sampler.set([each.sampling for each in inputs], [each.rng for each in inputs])
        if self._replay is None:
            self._replay = self._capture(self.step)
        tokens: list[int] = self._replay().cpu().tolist()[: len(inputs)]
        for each in inputs:
            each.cache.advance(1)
        return tokens

    def step(self) -> Tensor:
        """The tokens (size,) chosen after one forward pass; the host waits for nothing."""
        logits = self._decoder.forward(self.inputs.batch(), self._caches)
        return self.sampler(logits)


def graph_sizes(most: int) -> list[int]:
    """The batch sizes of graphs for up to `most` sequences: 1, 2, 4, 8, 16, 32, …"""
    return [1 << power for power in range((most - 1).bit_length() + 1)]
