"""Layers in other ranks, for the coordinator: connections, caches, steps and hidden states.

The coordinator decides which sequence has which blocks and states. What it decides becomes commands
in the log of the rank that has the layer, which go out with the next step.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mrs.architecture.model_spec import ModelSpec
from mrs.cache.cache_space import CacheBuilder
from mrs.cache.layer_cache import CacheRules, LayerSlice, MemoryTally, TensorShape
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.cache.sequence_cache import SequenceCache
from mrs.distributed.coordinator import Coordinator, Member
from mrs.distributed.process_group import ProcessGroup, lead_group, measure_sum
from mrs.distributed.protocol.channel import GREETING_BYTES, Channel, Damaged
from mrs.distributed.protocol.failures import (
    CONNECT_LIMIT_S,
    LOAD_LIMIT_S,
    STEP_LIMIT_S,
    PeerFailed,
)
from mrs.distributed.protocol.link import Link
from mrs.distributed.protocol.messages import (
    AdoptState,
    AttachRests,
    CacheCommand,
    Connect,
    Connected,
    CopyBlock,
    Drop,
    Hidden,
    LayerCacheInfo,
    LinkSpeed,
    NewState,
    OfNeighbour,
    OpenSpace,
    Ping,
    Pong,
    Ready,
    ResetState,
    Resize,
    SequenceStep,
    ShareState,
    Step,
    StepImage,
)
from mrs.distributed.rendezvous import Rendezvous
from mrs.errors import MrsError, Unsupported
from mrs.kernels.kv_codes import KVType
from mrs.kernels.paged import PagedKV
from mrs.model.batch import ForwardBatch
from mrs.model.caches_lost import CachesLost
from mrs.model.decoder import Decoder
from mrs.model.model_weights import ModelWeights

_CPU = torch.device("cpu")
#: Number of small messages, and bytes of a long one, that measure the speed of a link.
_PINGS, _LONG_BYTES = 4, 1 << 20
#: A layer has two caches if it attends and has a state as well.
_MOST_CACHES = 4
_ids = itertools.count(1)
#: The commands of one rank that are not sent yet. Any thread may add some.
Log = deque[CacheCommand]


def measure_link(channel: Channel) -> LinkSpeed:
    """Send messages to a neighbour that echoes. Raises OSError, EOFError and Damaged."""
    there_and_back_s = min(_timed(channel) for _ in range(_PINGS))
    long_s = _timed(channel, memoryview(bytes(_LONG_BYTES)))
    return LinkSpeed(there_and_back_s / 2, _LONG_BYTES / max(long_s - there_and_back_s, 1e-6))


def echo_link(channel: Channel) -> None:
    """Answer a neighbour that measures. Raises OSError, EOFError and Damaged."""
    channel.most_data_bytes = _LONG_BYTES
    while True:
        ping = channel.take(Ping)
        channel.send(Pong())
        if ping.is_last:
            return


def _timed(channel: Channel, data: memoryview | None = None) -> float:
    """Seconds until the answer; a message with data is the last one."""
    start_s = time.perf_counter()
    channel.send(Ping(data is not None), data)
    channel.take(Pong)
    return time.perf_counter() - start_s


def send_hidden(channel: Channel, number: int, x: Tensor) -> None:
    """Send x (N, hidden) of step `number`. Raises OSError."""
    x = x.to("cpu", torch.float32).contiguous()
    data = x.view(torch.uint8).numpy().data.cast("B") if x.numel() else None
    channel.send(Hidden(number, x.shape[0]), data)


def receive_hidden(channel: Channel, number: int, shape: tuple[int, int]) -> Tensor:
    """The hidden states of step `number`, of this shape. Raises OSError, EOFError and Damaged."""
    channel.most_data_bytes = 4 * shape[0] * shape[1]
    message, data = channel.receive()
    if not isinstance(message, Hidden) or (message.number, message.rows) != (number, shape[0]):
        raise channel.damaged(f"{message} instead of {shape[0]} rows of step {number}")
    if len(data) != 4 * shape[0] * shape[1]:
        raise channel.damaged(f"{len(data)} bytes instead of {shape[0]} rows of {shape[1]} values")
    return torch.frombuffer(data, dtype=torch.float32).view(shape)


class RemoteBlocks:
    """The blocks of the cache `index` of another process; a `PagedKV` for the pool of blocks."""

    device = _CPU
    tensors: tuple[Tensor, ...] = ()

    def __init__(self, log: Log, index: int, block_bytes: int, slot_bytes: int) -> None:
        self._log = log
        self._index = index
        self.block_bytes = block_bytes
        self.slot_bytes = slot_bytes
        self.count = self.slots = 0

    def resize(self, blocks: int, slots: int = 0) -> None:
        self.count, self.slots = blocks, slots
        self._log.append(Resize(self._index, blocks, slots))

    def attach(self, block: int, slot: int) -> None:
        self._log.append(AttachRests(self._index, block, slot))

    def copy_block(self, source: int, target: int) -> None:
        self._log.append(CopyBlock(self._index, source, target))

    def read(self, blocks: Tensor, start: int, end: int) -> tuple[Tensor, ...]:
        raise _not_here()

    def write(self, slots: Tensor, tokens: Sequence[Tensor]) -> None:
        raise _not_here()


class RemoteSnapshot:
    """A copy of a recurrent state in another process, which is dropped with this object."""

    def __init__(self, log: Log, first: int, size_bytes: int) -> None:
        self.first = first
        self.id = next(_ids)
        self._size_bytes = size_bytes
        weakref.finalize(self, log.append, Drop(self.id))

    def split(self, at: int) -> tuple[RemoteSnapshot | None, RemoteSnapshot | None]:
        return (self, None) if self.first < at else (None, self)

    def release(self) -> None:
        """The copy goes with the last reference to this object."""

    def count(self, tally: MemoryTally) -> None:
        tally.own_bytes[_CPU] += self._size_bytes


class RemoteState:
    """The recurrent state of one sequence in the cache `index` of another process."""

    is_state = True
    keeps_all = False
    device = _CPU

    def __init__(self, log: Log, index: int, size_bytes: int) -> None:
        self.id = next(_ids)
        self.length = 0
        self.nbytes = size_bytes
        self.log = log
        self._mark: RemoteSnapshot | None = None
        log.append(NewState(index, self.id))
        weakref.finalize(self, log.append, Drop(self.id))

    @property
    def rules(self) -> CacheRules:
        return RecurrentStateCache

    def advance(self, tokens: int) -> None:
        self.length += tokens

    def mark(self) -> None:
        self._mark = self.share(self.length - 1, self.length)

    def can_rewind_to(self, length: int) -> bool:
        marked = () if self._mark is None else (self._mark.first + 1,)
        return length in (0, self.length, *marked)

    def rewind(self, length: int) -> None:
        mark, self._mark = self._mark, None
        if length == self.length:
            return
        if length == 0:
            self.log.append(ResetState(self.id))
            self.length = 0
        elif mark is not None:
            self.adopt(length, [mark])

    def share(self, start: int, end: int) -> RemoteSnapshot | None:
        if not start < end == self.length:
            return None
        snapshot = RemoteSnapshot(self.log, end - 1, self.nbytes)
        self.log.append(ShareState(self.id, snapshot.id))
        return snapshot

    def adopt(self, length: int, pieces: Sequence[Any]) -> None:
        self.log.append(AdoptState(self.id, length, pieces[-1].id))
        self.length = length

    serves = staticmethod(RecurrentStateCache.serves)

    def export(self, start: int, end: int) -> LayerSlice | None:
        raise _not_here()

    def restore(self, length: int, slices: Sequence[LayerSlice | None]) -> None:
        raise _not_here()

    def fits(self, first: int, end: int, shapes: Mapping[str, TensorShape]) -> bool:
        return False


def _not_here() -> Unsupported:
    return Unsupported("the prefix cache of several processes cannot be stored in a folder")


@dataclass
class RemoteRank:
    """The layers of one rank, in order; with `is_shard`, ranks before it have the same layers."""

    link: Link
    layers: range
    caches: Sequence[LayerCacheInfo]
    log: Log = field(default_factory=deque)
    groups: Sequence[int] = ()
    blocks: list[RemoteBlocks] = field(default_factory=list)
    is_shard: bool = False
    #: The index of its first cache among those of a sequence here.
    first_cache: int = 0

    def open(self, first_cache: int, add: Callable[[int, LayerCacheInfo], int]) -> None:
        """Have new caches; `add` declares one by its index, and returns its group of tables."""
        self.log.clear()
        self.blocks.clear()
        self.first_cache = first_cache
        self.groups = [add(index, info) for index, info in enumerate(self.caches)]
        self.log.append(OpenSpace(list(self.groups)))

    def new_blocks(self, index: int, info: LayerCacheInfo) -> PagedKV:
        self.blocks.append(RemoteBlocks(self.log, index, info.size_bytes, info.slot_bytes))
        return self.blocks[-1]  # type: ignore[return-value]

    def take_over(self, link: Link) -> None:
        """Another process takes the place of this one: its caches are as large, and empty."""
        self.link = link
        self.log.clear()
        self.log.append(OpenSpace(list(self.groups)))
        for blocks in self.blocks:
            blocks.resize(blocks.count, blocks.slots)


class Neighbours(NamedTuple):
    """The ranks after the coordinator's stage, the connections to the next and from the last one.

    `links` are the speeds of the connections between stages: the first one leads from the
    coordinator to the second stage, the last one back to the coordinator.
    """

    ranks: Sequence[RemoteRank]
    right: Channel
    left: Channel
    links: Sequence[LinkSpeed]


class Connections(NamedTuple):
    """All that a coordinator is connected to: other ranks of its group, and ranks of other stages.

    `sums_s` are the seconds of a sum in each stage, 0 for a stage of one rank.
    """

    group: ProcessGroup | None
    shards: Sequence[RemoteRank]
    stages: Neighbours | None
    sums_s: Sequence[float]


class RemoteLayers:
    """Sends hidden states to the next rank, and waits for those of the last one.

    A step whose output nobody wants is not waited for, so that the chunks of a prompt follow each
    other through the ranks.
    """

    def __init__(self, neighbours: Neighbours) -> None:
        self._ranks, self._right, self._left, self.links = neighbours
        self._number = 0

    def take_over(self, fresh: Neighbours) -> None:
        """Go on with other processes, which have the layers of those before and empty caches."""
        for rank, successor in zip(self._ranks, fresh.ranks, strict=True):
            rank.take_over(successor.link)
        _, self._right, self._left, self.links = fresh

    def add_caches(self, builder: CacheBuilder) -> None:
        for rank in self._ranks:
            add = add_shard if rank.is_shard else _add
            rank.open(builder.count, partial(add, builder, rank))

    def __call__(
        self,
        x: Tensor,
        batch: ForwardBatch,
        caches: Sequence[SequenceCache],
        rows: Sequence[int],
    ) -> Tensor:
        """Raises OSError, EOFError and MrsError."""
        self._number += 1
        for rank in self._ranks:
            rank.link.doing = f"in step {self._number}"
            rank.link.send(step_of(rank, self._number, batch, caches, rows))
        send_hidden(self._right, self._number, x)
        if not len(rows):
            return x[:0]
        return receive_hidden(self._left, self._number, (len(rows), x.shape[1]))


def _add(builder: CacheBuilder, rank: RemoteRank, index: int, info: LayerCacheInfo) -> int:
    """Declare a cache of a rank; returns its group of block tables, or -1."""
    if info.kind == "blocks":
        return builder.add_paged(rank.new_blocks(index, info), info.window)
    if info.kind == "shared":
        builder.add_shared(rank.first_cache + info.owner)
    else:
        builder.add(lambda: RemoteState(rank.log, index, info.size_bytes))
    return -1


def add_shard(builder: CacheBuilder, rank: RemoteRank, index: int, info: LayerCacheInfo) -> int:
    """Declare the share of a cache that a rank before this one has, too; returns its group, or -1.

    Blocks are those of the other rank's block tables, and a state is one more of the sequence.
    """
    if info.kind == "blocks":
        return builder.add_blocks(rank.new_blocks(index, info), info.window)
    if info.kind == "state":
        builder.add(lambda: RemoteState(rank.log, index, info.size_bytes))
    return -1


def step_of(
    rank: RemoteRank,
    number: int,
    batch: ForwardBatch,
    caches: Sequence[SequenceCache],
    rows: Sequence[int],
    *,
    is_first: bool = False,
) -> Step:
    """The step of a rank, with all commands that wait in its log.

    A rank whose layers are the first ones gets what the batch consists of.
    """
    ends = batch.attention[0].attention_ends if batch.attention else None
    commands = [rank.log.popleft() for _ in range(len(rank.log))]
    return Step(
        number,
        commands,
        [
            SequenceStep(
                context - (span.stop - span.start),
                span.stop - span.start,
                length,
                [np.array(table.row(), np.int32).tobytes() for table in cache.tables],
                [state.id for state in _states(cache, rank)],
            )
            for cache, (span, context), length in zip(
                caches, batch.queries, batch.rope_lengths, strict=True
            )
        ],
        _int64_bytes(batch.positions),
        None if ends is None else _int64_bytes(ends),
        list(rows),
        _int64_bytes(batch.token_ids) if is_first else b"",
        b"" if is_first else _layer_inputs(rank, batch),
        [
            StepImage(_int64_bytes(image.rows), image.features.shape[1])
            for image in batch.images
            if is_first
        ],
        len(batch.scored_rows),
    )


def _states(cache: SequenceCache, rank: RemoteRank) -> list[RemoteState]:
    """The states of a sequence on a rank, in the order of its caches."""
    states = (layer for layer in cache.layers if isinstance(layer, RemoteState))
    return [state for state in states if state.log is rank.log]


def _layer_inputs(rank: RemoteRank, batch: ForwardBatch) -> bytes:
    """The inputs of its layers (N, layers, size) as float32."""
    if batch.layer_inputs is None:
        return b""
    inputs = batch.layer_inputs[:, rank.layers.start : rank.layers.stop]
    return inputs.to("cpu", torch.float32).contiguous().numpy().tobytes()


def _int64_bytes(values: Tensor) -> bytes:
    return values.to("cpu", torch.int64).contiguous().numpy().tobytes()


def connect(
    coordinator: Coordinator, group_size: int, width: int, device: torch.device
) -> Connections:
    """Wait for all workers, and connect stages of `group_size` ranks. Raises MrsError.

    `width` are the values of a token's hidden states. `device` is that of this process.
    """
    ranks = _loaded_ranks(coordinator, group_size)
    shards, others = ranks[: group_size - 1], ranks[group_size - 1 :]
    _tell_addresses(coordinator, group_size)
    sides = coordinator.attached(len(shards) + (2 if others else 0))
    if sides.keys() != {*range(1, group_size), *(("left", "right") if others else ())}:
        raise PeerFailed("a connection from before a failure has come instead of a neighbour's")
    try:  # one link and one group after another, so that each is measured alone
        group, sum_s = _group(sides, group_size, width, device)
        first = _measured(sides) if others else None
    except (OSError, EOFError) as error:
        raise coordinator.reason(error) from error
    members = coordinator.members
    answers = [_answer(member, group_size, len(members)) for member in members]
    sums_s = [sum_s, *(answer.sum_s for answer in answers[group_size - 1 :: group_size])]
    if first is None:
        return Connections(group, shards, None, sums_s)
    links = [first, *(answer.right for answer in answers if answer.right)]
    return Connections(
        group, shards, Neighbours(others, sides["right"], sides["left"], links), sums_s
    )


def _loaded_ranks(coordinator: Coordinator, group_size: int) -> list[RemoteRank]:
    """All workers, once they have loaded their weights."""
    ranks = []
    for member in coordinator.members:
        ready = member.link.take(Ready, LOAD_LIMIT_S)
        _require_caches(member, ready.caches)
        member.caches, member.weight_bytes = ready.caches, ready.weight_bytes
        member.link.doing = "before the first step"
        is_shard = member.rank % group_size > 0
        ranks.append(RemoteRank(member.link, member.layers, member.caches, is_shard=is_shard))
    return ranks


def _tell_addresses(coordinator: Coordinator, group_size: int) -> None:
    addresses = [None, *((member.host, member.join.port) for member in coordinator.members)]
    for member in coordinator.members:
        first = member.rank - member.rank % group_size
        right = addresses[first + group_size] if first + group_size < len(addresses) else None
        member.link.send(Connect(addresses[first : member.rank], right))


def _group(
    sides: Mapping[str | int, Channel], group_size: int, width: int, device: torch.device
) -> tuple[ProcessGroup | None, float]:
    """The group of the coordinator and the seconds of its sums, if it has one."""
    if group_size == 1:
        return None, 0.0
    group = lead_group({rank: sides[rank] for rank in range(1, group_size)}, device)
    return group, measure_sum(group, width)


def _measured(sides: Mapping[str | int, Channel]) -> LinkSpeed:
    """The speed of the link to the right, after which all other stages measure theirs."""
    for side in ("left", "right"):
        sides[side].expect(OfNeighbour, GREETING_BYTES)
    first = measure_link(sides["right"])
    echo_link(sides["left"])
    for side in ("left", "right"):
        sides[side].set_limit(STEP_LIMIT_S)
    return first


def _require_caches(member: Member, caches: Sequence[LayerCacheInfo]) -> None:
    """Raises Damaged for caches that no layers have."""
    if not len(member.layers) <= len(caches) <= _MOST_CACHES * len(member.layers):
        count = len(member.layers)
        raise _wrong(member, "Ready", "caches", f"{len(caches)} of {count} layers")
    for index, cache in enumerate(caches):
        owner = caches[cache.owner] if cache.owner < index else None
        if cache.kind == "shared" and (owner is None or owner.kind != "blocks"):
            raise _wrong(member, "Ready", "caches", f"cache {index} is that of {cache.owner}")
        if cache.kind == "blocks" and not cache.size_bytes:
            raise _wrong(member, "Ready", "caches", f"cache {index} has blocks of 0 bytes")


def _answer(member: Member, group_size: int, workers: int) -> Connected:
    """The answer of a worker once all are connected. Raises MrsError."""
    answer = member.link.take(Connected, CONNECT_LIMIT_S)
    has_right = member.rank % group_size == 0 and workers >= group_size
    if has_right != (answer.right is not None):
        raise _wrong(member, "Connected", "right", f"{answer.right}")
    return answer


def _wrong(member: Member, message: str, field: str, where: str) -> Damaged:
    return Damaged(f"{member.name}: a {message}'s {field!r} contradicts its layers", where=where)


class PipelineDecoder(Decoder):
    """The layers of this process, and those of all workers."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        layer_devices: Sequence[torch.device],
        dtypes: tuple[torch.dtype, KVType],
        workers: RemoteLayers,
        rendezvous: Rendezvous[Connections],
    ) -> None:
        """`dtypes` are those of the weights, and of keys and values."""
        super().__init__(spec, weights, layer_devices, *dtypes, workers)
        self._rendezvous = rendezvous
        self._workers = workers

    def forward(
        self,
        batch: ForwardBatch,
        caches: Sequence[SequenceCache],
        check: Callable[[], None] = lambda: None,
        observe: Callable[[Tensor], None] | None = None,
        score: Callable[[slice, Tensor], None] | None = None,
        keep: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """As in `Decoder`. Raises CachesLost, too."""
        fresh = self._rendezvous.renewed()
        if fresh is not None:
            assert fresh.stages is not None
            self._workers.take_over(fresh.stages)
            raise CachesLost
        try:
            return super().forward(batch, caches, check, observe, score, keep)
        except (OSError, EOFError, MrsError) as error:
            raise self._rendezvous.reason(error) from error
