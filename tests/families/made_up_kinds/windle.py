"""Windle: a family that nobody has published, with a kind of layer of its own, in one file.

The recipe for a kind of layer is in `mrs.layers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import read_attention
from mrs.layers.forward_pass import ForwardShape, StorageOf, product_bytes
from mrs.layers.layer import Layer
from mrs.layers.mixer import CacheShape, Code, Mixer, ShardAxis
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm
from mrs.layers.rope.module import RopeTable
from mrs.layers.slots import Slot
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights
from mrs.model.modules import StateCaches

_HERE = "mrs.families.windle"


@dataclass(frozen=True)
class GatedRecurrence(Mixer):
    """keep, take, value, gate = split(in(x)), each of `channels` values, and token by token

        state = keep * state + (1 - keep) * take * (value - value of the token before)

    where keep = sigmoid(keep + keep_bias) and take = sigmoid(take); out(state * tanh(gate)).
    """

    code = Code(
        f"{_HERE}:GatedRecurrenceModule",
        f"{_HERE}:gated_recurrence_bytes",
        fields="channels rope",
        paths="planned shared captured",
    )

    channels: int
    rope: None = None

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        parts = (self.channels,) * 4
        yield Slot("mixer.in", (4 * self.channels, hidden_size), row_sections=parts)
        yield Slot("mixer.keep_bias", (self.channels,), "vector", suffix="")
        yield Slot("mixer.out", (hidden_size, self.channels))

    @property
    def shard_axes(self) -> tuple[ShardAxis, ...]:
        return (ShardAxis("channel", self.channels),)

    def with_shard(self, ranges: Sequence[range]) -> GatedRecurrence:
        (part,) = ranges
        return replace(self, channels=len(part))

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape(states=((self.channels,), (self.channels,)))


def gated_recurrence_bytes(
    mixer: GatedRecurrence, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Peak of these phases. C is the size of one tensor (T, channels), and F that in float32.

    project in   in_proj
    recur        4 C of in_proj, keep and the states; of one sequence values with a row before
                 them, their differences, 1 - keep, what is taken, and a product
    project out  4 C, keep and the states; their gates and themselves gated, twice; out_proj
    """
    channels, tokens = mixer.channels, shape.tokens
    wide = 4 * (tokens + 1) * channels
    into = product_bytes(shape, hidden_size, 4 * channels, storage_of("mixer.in"))
    out = product_bytes(shape, channels, hidden_size, storage_of("mixer.out"))
    throughout = shape.size(4 * channels)
    return max(into, throughout + 7 * wide, throughout + 3 * wide + out)


class GatedRecurrenceModule(StateCaches):
    """Projects, updates the state of each sequence token by token, and gates what it has been."""

    def __init__(
        self, config: GatedRecurrence, weights: ModelWeights, rope: RopeTable | None
    ) -> None:
        super().__init__(config)
        self._in, self._out = weights.linear("mixer.in"), weights.linear("mixer.out")
        self._keep_bias = weights.vector("mixer.keep_bias")

    def __call__(
        self, x: Tensor, batch: ForwardBatch, cache: Sequence[RecurrentStateCache]
    ) -> Tensor:
        """x (N, hidden) to (N, hidden); updates the states of the sequences."""
        keep, take, values, gate = self._in(x).chunk(4, dim=-1)
        keep = (keep.float() + self._keep_bias).sigmoid_()
        states = torch.empty_like(keep)
        for (rows, _), each in zip(batch.queries, cache, strict=True):
            last, state = each.tensors
            series = torch.cat((last[None], values[rows].float()))  # (T + 1, C)
            last.copy_(series[-1])
            added = (1 - keep[rows]) * take[rows].float().sigmoid_() * series.diff(dim=0)
            for row, token in zip(states[rows], range(len(added)), strict=True):
                state.mul_(keep[rows][token]).add_(added[token])
                row.copy_(state)
        return self._out((states * gate.float().tanh_()).to(x.dtype))


def read(config: Config) -> ModelSpec:
    """Two layers of three are recurrent."""
    norm, mlp = read_norm(config), read_mlp(config)
    recurrent, attention = GatedRecurrence(config.integer("channels")), read_attention(config)
    mixers = [attention if n % 3 == 2 else recurrent for n in range(layer_count(config))]
    return decoder(config, "windle", [Layer(mixer, mlp, norm) for mixer in mixers], norm)


_NAMES = {"mixer.in": "recurrence.in", "mixer.keep_bias": "recurrence.keep_bias"}
FAMILY = Family(
    "windle",
    read,
    gguf_arch="windle",
    safetensors={**_NAMES, "mixer.out": "recurrence.out"},
    gguf={"mixer.in": "rec_in", "mixer.keep_bias": "rec_keep_bias", "mixer.out": "rec_out"},
    gguf_keys={"channels": "recurrence.channels"},
)
