"""What processes of a cluster say to each other: plain values, which are sent as MessagePack.

The types have the limits of the values, and a message outside of them is not read. What depends on
the model or on what was said before is checked by who uses it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

#: Raised whenever a message changes its meaning.
PROTOCOL = 6
_Name = Annotated[str, Meta(max_length=256)]
_Text = Annotated[str, Meta(max_length=4096)]
_Count = Annotated[int, Meta(ge=0, lt=1 << 31)]
_Positive = Annotated[int, Meta(ge=1, lt=1 << 31)]
_Bytes = Annotated[int, Meta(ge=0, le=1 << 60)]
_Rank = Annotated[int, Meta(ge=0, lt=1 << 16)]
_Port = Annotated[int, Meta(ge=0, lt=1 << 16)]
_Seconds = Annotated[float, Meta(ge=0, le=1e6)]
_Rate = Annotated[float, Meta(gt=0, le=1e18)]
#: A list takes some 100 bytes for each of its entries, which may come as one byte.
_MOST_ENTRIES = Meta(max_length=1 << 20)
_FEW_ENTRIES = Meta(max_length=1 << 16)


class Message(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """The base of all messages; the name of the class is the tag."""


class Hello(Message, frozen=True):
    """The first message of who dials."""

    protocol: int
    program: str
    nonce: bytes


class Challenge(Message, frozen=True):
    """The reply of who listens, which proves nothing yet."""

    protocol: int
    program: str
    nonce: bytes


class Proof(Message, frozen=True):
    """The proof of the secret: of who dials, and then of who listens."""

    proof: bytes


class Refused(Message, frozen=True):
    """The connection ends, for this reason."""

    reason: str


class DeviceReport(Message, frozen=True):
    """A device of a rank, with the free memory that a rank may use.

    The rank itself has `held_bytes` of that memory. A CPU has `memory_nodes` nodes, each with a
    memory controller; a card has a `uuid`.
    """

    label: Annotated[str, Meta(pattern=r"^(cpu|cuda|metal)(:\d{1,4})?\Z")]
    name: _Name
    free_bytes: _Bytes
    bytes_per_s: _Rate
    memory_nodes: Annotated[int, Meta(ge=1, le=1024)] = 1
    uuid: _Name = ""
    held_bytes: _Bytes = 0


class Join(Message, frozen=True):
    """A worker asks for a place; `rank` is 0 if the coordinator chooses it.

    `port` takes a left neighbour. `loaded` is the `plan_hash` of the assignment whose weights it
    has, if any.
    """

    name: _Name
    cpu_path: _Name
    device: DeviceReport
    port: _Port
    rank: _Rank = 0
    pid: _Count = 0
    loaded: _Name = ""


class Attach(Message, frozen=True):
    """A further connection of a rank: for hidden states from or to its neighbour, or in a group."""

    rank: _Rank
    side: Literal["left", "right", "group"]


class Assignment(Message, frozen=True):
    """The layers `first` to `end` of a model for a rank.

    `group_size` consecutive ranks have the same layers, and a shard of each. The groups are the
    stages of a pipeline.

    `request` is the coordinator's request as JSON. `fingerprint` is the hash of the model's
    tensors, `sample` that of bytes of the layers' weights, `plan_hash` that of everything decided
    here.
    """

    rank: Annotated[int, Meta(ge=1, lt=1 << 16)]
    world: Annotated[int, Meta(ge=2, le=1 << 16)]
    request: Annotated[bytes, Meta(max_length=1 << 20)]
    first: _Rank
    end: _Rank
    dense: _Name
    cache_format: _Name
    tokens: _Positive
    sequences: _Positive
    chunk_tokens: _Positive
    block_tokens: _Positive
    pool_blocks: _Count | None
    fingerprint: _Name
    sample: _Name
    group_size: Annotated[int, Meta(ge=1, le=1 << 16)]
    plan_hash: _Name

    @property
    def place(self) -> int:
        """The index of this rank in its group."""
        return self.rank % self.group_size

    @property
    def is_first(self) -> bool:
        """Whether the layers of this rank are the first ones."""
        return self.rank < self.group_size

    @property
    def is_last(self) -> bool:
        """Whether the layers of this rank are the last ones."""
        return self.rank + self.group_size >= self.world

    @property
    def has_neighbours(self) -> bool:
        """Whether hidden states come to this rank, and go on from it to another stage."""
        return self.place == 0 and self.world > self.group_size


class LayerCacheInfo(Message, frozen=True):
    """A cache of a layer: in blocks of `size_bytes`, or a recurrent state of as many.

    A `shared` one are the keys and values of the cache `owner` of the same rank. Quantized blocks
    have rests of `slot_bytes`.
    """

    kind: Literal["blocks", "state", "shared"]
    size_bytes: Annotated[int, Meta(ge=0, le=1 << 40)]
    window: _Positive | None = None
    owner: _Count = 0
    slot_bytes: Annotated[int, Meta(ge=0, le=1 << 40)] = 0


class Ready(Message, frozen=True):
    """All weights of a rank are loaded."""

    weight_bytes: _Bytes
    caches: Annotated[list[LayerCacheInfo], _FEW_ENTRIES]


class Connect(Message, frozen=True):
    """Dial the ranks before this one in its `group`, and the `right` neighbour, if it has one.

    No address is that of the coordinator.
    """

    group: Annotated[list[tuple[_Name, _Port] | None], _FEW_ENTRIES]
    right: tuple[_Name, _Port] | None


class GroupMemory(Message, frozen=True):
    """The path of a file that all ranks of a group map into their memory.

    With `is_store` they meet there instead, and add up by torch's process groups.
    """

    path: str
    is_store: bool = False


class Ping(Message, frozen=True):
    """Asks a neighbour for a `Pong`; data may follow, which counts as part of the message."""

    is_last: bool


class Pong(Message, frozen=True):
    """The answer to a `Ping`."""


class LinkSpeed(Message, frozen=True):
    """The time of a small message one way, and the rate of long ones."""

    latency_s: _Seconds
    bytes_per_s: _Rate

    def seconds(self, size_bytes: int) -> float:
        """How long a message takes one way."""
        return self.latency_s + size_bytes / self.bytes_per_s


class Connected(Message, frozen=True):
    """All neighbours and ranks of the group are connected.

    `right` is the link to the right neighbour, `sum_s` the time of a sum of the group.
    """

    right: LinkSpeed | None = None
    sum_s: _Seconds = 0.0


class Beat(Message, frozen=True):
    """A sign of life every second, what the process does, and the memory that it has."""

    doing: _Text
    resident_bytes: _Bytes = 0


class Failed(Message, frozen=True):
    """The sender cannot go on."""

    text: _Text
    exit_code: int


class Rejoin(Message, frozen=True):
    """A worker is lost: the others end their session, and join again `within_s`."""

    text: _Text
    within_s: _Seconds


class Goodbye(Message, frozen=True):
    """The sender leaves in order."""


class OpenSpace(Message, frozen=True):
    """New caches for all sequences; `groups` has each cache's group of block tables, -1 for none.

    The caches before are dropped. Further commands name caches by their index in `groups`.
    """

    groups: Annotated[list[int], _FEW_ENTRIES]


class Resize(Message, frozen=True):
    """A cache gets another number of blocks, and of slots for the rests of quantized ones."""

    cache: int
    blocks: int
    slots: int


class CopyBlock(Message, frozen=True):
    cache: int
    source: int
    target: int


class AttachRests(Message, frozen=True):
    """The rests of a block are in this slot; -1 for none."""

    cache: int
    block: int
    slot: int


class NewState(Message, frozen=True):
    """A recurrent state of zeros for a sequence."""

    cache: int
    id: int


class ShareState(Message, frozen=True):
    """The present contents of a state get an id of their own."""

    id: int
    copy: int


class AdoptState(Message, frozen=True):
    """An empty state becomes the copy of a state after `length` tokens."""

    id: int
    length: int
    copy: int


class ResetState(Message, frozen=True):
    """A state becomes zeros."""

    id: int


class Drop(Message, frozen=True):
    """A state, or a copy of one, is not needed any more."""

    id: int


CacheCommand = (
    OpenSpace
    | Resize
    | CopyBlock
    | AttachRests
    | NewState
    | ShareState
    | AdoptState
    | ResetState
    | Drop
)


class SequenceStep(Message, frozen=True):
    """The next `count` tokens of a sequence of which `start` are in its cache.

    `tables` are its block tables (int32), one for each group, and `states` the ids of its states.
    """

    start: int
    count: int
    rope_length: int
    tables: Annotated[list[bytes], _FEW_ENTRIES]
    states: Annotated[list[int], _FEW_ENTRIES]


class StepImage(Message, frozen=True):
    """An image whose features (N, `width`) float32 rank 0 broadcasts before the step.

    `rows` (N) int64 are those of the batch that they belong to.
    """

    rows: bytes
    width: int


class Step(Message, frozen=True):
    """A forward pass, after commands to the caches.

    `positions` is (N) or (3, N) int64, `attention_ends` (N) int64. Of the last layer's output only
    the rows `wanted` go back; the first `scored` of them score prompts, and their logits are
    computed some at a time. Ranks in the coordinator's group get the `tokens` (N) int64 and the
    `images` among them, and others the `layer_inputs` (N, layers, size) float32 of their layers, if
    the model has them.
    """

    number: int
    commands: Annotated[list[CacheCommand], _MOST_ENTRIES]
    sequences: Annotated[list[SequenceStep], _FEW_ENTRIES]
    positions: bytes
    attention_ends: bytes | None
    wanted: Annotated[list[int], _MOST_ENTRIES]
    tokens: bytes = b""
    layer_inputs: bytes = b""
    images: Annotated[list[StepImage], _FEW_ENTRIES] = []
    scored: int = 0


class Hidden(Message, frozen=True):
    """Hidden states of a step: `rows` rows of float32, which follow as bytes."""

    number: int
    rows: int


#: What a coordinator says to a worker that has joined, and what that says to the coordinator.
FromCoordinator = Assignment | Connect | Step | Beat | Failed | Rejoin | Goodbye
FromWorker = Ready | Connected | Beat | Failed
#: What neighbours say to each other, and the ranks of a group before they add up.
OfNeighbour = Ping | Pong | Hidden
OfGroup = GroupMemory | Connected
Any = (
    Hello
    | Challenge
    | Proof
    | Refused
    | Join
    | Attach
    | Assignment
    | Ready
    | Connect
    | GroupMemory
    | Connected
    | Ping
    | Pong
    | Beat
    | Failed
    | Rejoin
    | Goodbye
    | Step
    | Hidden
)
