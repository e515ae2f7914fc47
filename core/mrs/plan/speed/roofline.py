"""A roofline model of the speed of a placement: the expected tokens a second, and their error.

The same formula holds for prefill and decode. A forward pass of T tokens takes on each device

    max(bytes / read rate, operations / rate)    for the weights of every token
  + max(bytes / read rate, operations / rate)    for the experts
  + max(bytes / read rate, operations / rate)    for attention to the cache
  + state bytes / read rate                      for the states of each sequence
  + steps * overhead

seconds, and each device adds a hop. A core that reads weights hardly multiplies meanwhile: there,
only the operations of the first two tokens that use a weight hide behind reading it.

bytes       weights that the pass reads (of the experts, those that at least one token is routed
            to) and the KV cache of earlier tokens, of layers with a window no more than that
operations  two for each weight and each cached value that a token is multiplied with
steps       one for each tensor: the interpreter, calls of kernels, waiting for threads. In a pass
            of several tokens, gathering the tokens of an expert and each token add to it.

Decoding is a pass of one token; a prompt is passes of whole chunks. Each device knows how far its
rates may be from what is expected; the error of a pass is the mean of its devices', weighted by
their time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from mrs.plan.cost import Work
from mrs.plan.placement.token_time import HOP_SECONDS

#: Weights of fewer bytes may stay in the processor's caches from token to token.
MOST_CACHED_BYTES = 256 * 1024**2
#: Choosing a token from its logits takes as long as this many steps: 80 to 250 us were measured.
CHOICE_STEPS = 15
#: Steps of each matrix of an expert if its tokens are gathered before and scattered after it.
GATHERED_STEPS = 2
#: The tokens whose products a core makes while it reads a weight: on one of an EPYC (Zen 5), steps
#: of 1, 2, 4, 8 and 16 replies took 3.5, 4.0, 4.7, 7.5 and 13.2 ms, and prompts 0.6 ms a token.
HIDDEN_USES = 2
#: Rows that kernels multiply together. On two threads of an EPYC (Zen 5), steps of 2, 4, 5, 8, 9
#: and 16 rows took 1.1, 1.7, 2.8, 3.0, 3.9 and 5.1 times as long as one of Q4_K, and 1.1, 1.35,
#: 2.05, 2.2, 3.2 and 4.5 times of Q5_0 with a head in Q8_0.
ROWS_TOGETHER = 4
#: What a step of several replies takes besides: gathering them, and for each of them its turn. On
#: one core of an EPYC (Zen 5), 0.74 ms were measured for 2 replies and 1.76 for 16, the choice of
#: tokens included.
BATCH_SECONDS, REPLY_SECONDS = 0.5e-3, 50e-6


class Rate(NamedTuple):
    """Tokens a second: what is expected, and between which bounds the true rate should be."""

    low: float
    expected: float
    high: float

    @classmethod
    def of(cls, expected: float, error: float) -> Rate:
        """`error` is a share: with 0.2, the true rate is within a factor of 1.2."""
        return cls(expected / (1 + error), expected, expected * (1 + error))


@dataclass(frozen=True)
class DeviceSpeed:
    """Rates of a device with the weights of one model.

    A device that `overlaps` multiplies while it reads other weights. With `groups_experts`, one
    step multiplies a token with a matrix of all chosen experts.
    `read_bytes_per_s` is for weights, `cache_bytes_per_s` for keys and values. `token_steps` is the
    part of a step that a tensor needs for each token of a pass, and `bandwidth_bytes_per_s` the
    device's bandwidth as it is known. A token that is decoded attends at
    `attention_operations_per_s`, or as fast as all else if that is 0. The errors are shares, of the
    time of a token that is decoded and of a prompt.
    """

    read_bytes_per_s: float
    cache_bytes_per_s: float
    operations_per_s: float
    step_seconds: float
    overlaps: bool = True
    groups_experts: bool = False
    token_steps: float = 0.0
    bandwidth_bytes_per_s: float = 0.0
    attention_operations_per_s: float = 0.0
    decode_error: float = 0.0
    prompt_error: float = 0.0


@dataclass(frozen=True)
class SpeedEstimate:
    """Tokens a second of one sequence; `work` and `devices` have one entry for each device.

    A prompt begins with an empty cache. A full cache has `context_tokens`. `windows` has the work
    of caches that are full after fewer tokens, by this number, with an entry for each device. A
    token is routed to the share `chosen_share` of all experts. `expert_hops` are copies to experts
    that are not on the device of their layer, and back. With `has_states`, some layers
    are recurrent. `weights_kind` is the key of measured rates. Each pass reads layers from disk in
    `disk_seconds` while it computes others, and all experts that are there in `disk_expert_seconds`
    if it chooses all; a token is routed to the share `disk_chosen_share` of them. While these are
    read, prompts compute others, decoding hardly any. Before, a pass reads rows of tables in
    `disk_row_seconds` for each token. `disk_error` is the error of what reading takes.
    """

    work: tuple[Work, ...]
    devices: tuple[DeviceSpeed, ...]
    chunk_tokens: int
    context_tokens: int = 1
    windows: Mapping[int, tuple[Work, ...]] = field(default_factory=dict)
    chosen_share: float = 1.0
    hop_seconds: float = HOP_SECONDS
    expert_hops: int = 0
    has_states: bool = False
    weights_kind: str = ""
    disk_seconds: float = 0.0
    disk_expert_seconds: float = 0.0
    disk_row_seconds: float = 0.0
    disk_chosen_share: float = 1.0
    disk_error: float = 0.0

    @property
    def decode(self) -> Rate:
        """Tokens a second of a reply whose cache is nearly empty."""
        return self.decode_at(0)

    @property
    def decode_when_full(self) -> Rate:
        """Tokens a second of a reply at the end of the context."""
        return self.decode_at(self.context_tokens)

    def decode_at(self, cached_tokens: int) -> Rate:
        """Tokens a second of a reply after so many cached tokens."""
        seconds = self._pass_seconds(1, cached_tokens)
        return Rate.of(1 / seconds, self._error(1, cached_tokens, seconds))

    def decode_of(self, sequences: int, cached_tokens: int) -> Rate:
        """Tokens a second of so many replies together, each after so many cached tokens.

        They share the reads of weights, and each reads its own cache. Drafts are not counted.
        """
        seconds = self._pass_seconds(sequences, cached_tokens, sequences)
        return Rate.of(sequences / seconds, self._error(sequences, cached_tokens, seconds))

    def rows_seconds(self, rows: int) -> float:
        """The time of a step of so many rows, each with logits: those of drafts.

        Kernels take up `ROWS_TOGETHER` at a time, which is about half of what they take.
        """
        groups = ceil(rows / ROWS_TOGETHER)
        computed = rows if rows <= HIDDEN_USES else (rows + groups * ROWS_TOGETHER) / 2
        return self._pass_seconds(computed, 0, computed, is_batch=False)

    @property
    def prompt(self) -> Rate:
        """Tokens a second of a prompt of one chunk."""
        return self.prompt_of(self.chunk_tokens)

    def prompt_of(self, tokens: int) -> Rate:
        """Tokens a second of a prompt of `tokens` (at least 1), up to the reply's first token."""
        seconds = self._prompt_seconds(tokens)
        return Rate.of(tokens / seconds, self._error(tokens, 0.0, seconds))

    @property
    def only_device(self) -> int | None:
        """The device, if only one device computes."""
        return self._used[0] if len(self._used) == 1 else None

    @property
    def _used(self) -> list[int]:
        """The devices that compute."""
        works = enumerate(self.work)
        return [index for index, work in works if work.tensors or work.expert_tensors]

    def read_bytes(self, index: int, tokens: float = 1) -> float:
        """Bytes of weights that a pass of `tokens` reads on a device."""
        work = self.work[index]
        return work.weight_bytes + self._share(tokens) * work.expert_bytes

    def operations(self, index: int, tokens: float, past: float, sequences: float = 1) -> float:
        """Operations of a pass of `tokens` that attend to `past` cached ones on average."""
        work = self.work[index]
        numbers = work.weights + work.expert_weights + self._past(index, past).past_multiplications
        return 2 * (numbers * tokens + work.head_weights * sequences)

    def steps(self, index: int, tokens: float, sequences: float = 1) -> float:
        """Steps of a pass of `tokens`, of which one of each sequence is followed by a choice."""
        work = self.work[index]
        expert_steps = self._share(tokens) * work.expert_tensors
        if tokens == 1 and self.devices[index].groups_experts:
            expert_steps = work.expert_products
        elif tokens > 1:
            expert_steps *= GATHERED_STEPS
        passed = work.tensors + self.chosen_share * work.expert_tensors
        steps = work.tensors + expert_steps
        steps += self.devices[index].token_steps * passed * (tokens - 1)
        return steps + CHOICE_STEPS * sequences if work.head_weights else steps

    def multiplied_seconds(self, index: int, tokens: float, sequences: float = 1) -> float:
        """The time of a pass of `tokens` for their products with weights, and to read these."""
        work, device, share = self.work[index], self.devices[index], self._share(tokens)
        experts = 2 * work.expert_weights * tokens
        others = self.operations(index, tokens, 0.0, sequences) - experts
        # How many tokens each weight that is read is multiplied with.
        uses = tokens * self.chosen_share / share
        return _read_seconds(device, work.weight_bytes, others, tokens) + _read_seconds(
            device, share * work.expert_bytes, experts, uses
        )

    def past(self, first: int, tokens: int) -> float:
        """How many earlier tokens each of `tokens` attends to on average, after `first` ones."""
        return first + tokens / 2

    def _past(self, index: int, tokens: float) -> Work:
        """What a token reads of a cache of so many tokens, and is multiplied with."""
        amounts = [
            (works[index], min(tokens / full, 1.0))
            for full, works in ((self.context_tokens, self.work), *self.windows.items())
        ]
        return Work(
            cache_bytes=round(sum(work.cache_bytes * share for work, share in amounts)),
            past_multiplications=round(
                sum(work.past_multiplications * share for work, share in amounts)
            ),
        )

    def shown_bandwidth(self, index: int, decode_tokens_per_s: float) -> float:
        """Bytes a second that a device reads at a rate of decoding, if it only reads.

        It is 0 for weights that may stay in the processor's caches.
        """
        read_bytes = self.read_bytes(index)
        return read_bytes * decode_tokens_per_s if read_bytes >= MOST_CACHED_BYTES else 0.0

    def _share(self, tokens: float) -> float:
        """The share of all experts that at least one of the tokens is routed to."""
        return 1.0 - float((1 - self.chosen_share) ** tokens)

    def _prompt_seconds(self, tokens: int) -> float:
        seconds = 0.0
        for first in range(0, tokens, self.chunk_tokens):
            chunk = min(self.chunk_tokens, tokens - first)
            seconds += self._pass_seconds(chunk, self.past(first, chunk))
        return seconds

    def _pass_seconds(
        self, tokens: float, past: float, sequences: float = 1, *, is_batch: bool = True
    ) -> float:
        used = self._used
        seconds = sum(self._device_seconds(index, tokens, past, sequences) for index in used)
        if sequences > 1 and is_batch:
            seconds += BATCH_SECONDS + sequences * REPLY_SECONDS
        hops = self.expert_hops + (len(used) if len(used) > 1 else 0)
        seconds += hops * self.hop_seconds
        experts = self._disk_expert_seconds(tokens)
        if tokens == sequences:  # few of the same layer compute while others are read
            seconds = max(seconds, self.disk_seconds) + experts
        else:
            seconds = max(seconds, self.disk_seconds + experts)
        return seconds + tokens * self.disk_row_seconds

    def _disk_expert_seconds(self, tokens: float) -> float:
        share = 1.0 - float((1 - self.disk_chosen_share) ** tokens)
        return share * self.disk_expert_seconds

    def _device_seconds(
        self, index: int, tokens: float, past: float, sequences: float = 1
    ) -> float:
        work, device, cached = self.work[index], self.devices[index], self._past(index, past)
        attention_rate = device.attention_operations_per_s if tokens == sequences else 0.0
        operations = 2 * cached.past_multiplications * tokens
        return (
            self.multiplied_seconds(index, tokens, sequences)
            + max(
                sequences * cached.cache_bytes / device.cache_bytes_per_s,
                operations / (attention_rate or device.operations_per_s),
            )
            + sequences * work.state_bytes / device.read_bytes_per_s
            + self.steps(index, tokens, sequences) * device.step_seconds
        )

    def _error(self, tokens: int, past: float, seconds: float) -> float:
        """The error of a pass, or of a prompt of as many tokens, that takes so many seconds."""
        used = self._used
        reading = self.disk_seconds + self._disk_expert_seconds(tokens)
        if 2 * (reading + tokens * self.disk_row_seconds) >= seconds > 0:
            return self.disk_error
        if len(used) == 1:
            return self._device_error(used[0], tokens)
        chunk = min(tokens, self.chunk_tokens)
        times = [self._device_seconds(index, chunk, past) for index in used]
        errors = (self._device_error(index, tokens) for index in used)
        return sum(e * s for e, s in zip(errors, times, strict=True)) / (sum(times) or seconds)

    def _device_error(self, index: int, tokens: int) -> float:
        device = self.devices[index]
        return device.decode_error if tokens == 1 else device.prompt_error


def _read_seconds(device: DeviceSpeed, size_bytes: float, operations: float, uses: float) -> float:
    """The time to read weights and for operations with them, `uses` tokens with each weight."""
    reading, multiplying = (
        size_bytes / device.read_bytes_per_s,
        operations / device.operations_per_s,
    )
    if device.overlaps:
        return max(reading, multiplying)
    hidden = multiplying * min(1.0, HIDDEN_USES / uses)
    return max(reading, hidden) + multiplying - hidden
