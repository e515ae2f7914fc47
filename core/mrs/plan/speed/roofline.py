"""A roofline model of the speed of a placement: the expected tokens a second, and their error.

The same formula holds for prefill and decode. A forward pass of T tokens takes on each device

    max(bytes / read rate, operations / rate)    for the weights of every token
  + max(bytes / read rate, operations / rate)    for the experts
  + max(bytes / read rate, operations / rate)    for attention to the cache
  + steps * overhead

seconds, and each device adds a hop.

bytes       weights that the pass reads (of the experts, those that at least one token is routed
            to) and the KV cache of earlier tokens
operations  two for each weight and each cached value that a token is multiplied with
steps       one for each tensor: the interpreter, calls of kernels, waiting for threads. In a pass
            of several tokens, gathering the tokens of an expert and each token add to it.

Decoding is a pass of one token; a prompt is passes of whole chunks. Each device knows how far its
rates may be from what is expected; the error of a pass is the mean of its devices', weighted by
their time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mrs.plan.cost import Work
from mrs.plan.placement.token_time import HOP_SECONDS

#: Weights of fewer bytes may stay in the processor's caches from token to token.
MOST_CACHED_BYTES = 256 * 1024**2
#: Choosing a token from its logits takes as long as this many steps: 80 to 250 us were measured.
CHOICE_STEPS = 15
#: Steps of each matrix of an expert if its tokens are gathered before and scattered after it.
GATHERED_STEPS = 2


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

    With `groups_experts`, one step multiplies a token with a matrix of all chosen experts.
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
    groups_experts: bool = False
    token_steps: float = 0.0
    bandwidth_bytes_per_s: float = 0.0
    attention_operations_per_s: float = 0.0
    decode_error: float = 0.0
    prompt_error: float = 0.0


@dataclass(frozen=True)
class SpeedEstimate:
    """Tokens a second of one sequence; `work` and `devices` have one entry for each device.

    A prompt begins with an empty cache. A full cache has `context_tokens`. A
    token is routed to the share `chosen_share` of all experts. `expert_hops` are copies to experts
    that are not on the device of their layer, and back. With `has_states`, some layers
    are recurrent. `weights_kind` is the key of measured rates. Each pass reads layers from disk in
    `disk_seconds`, and all experts in `disk_expert_seconds` if it chooses all, while it computes
    others. Before, it reads rows of tables in `disk_row_seconds` for each token. `disk_error` is
    the error of what reading takes.
    """

    work: tuple[Work, ...]
    devices: tuple[DeviceSpeed, ...]
    chunk_tokens: int
    context_tokens: int = 1
    chosen_share: float = 1.0
    hop_seconds: float = HOP_SECONDS
    expert_hops: int = 0
    has_states: bool = False
    weights_kind: str = ""
    disk_seconds: float = 0.0
    disk_expert_seconds: float = 0.0
    disk_row_seconds: float = 0.0
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
        share = min(cached_tokens / self.context_tokens, 1.0)
        seconds = self._pass_seconds(1, share)
        return Rate.of(1 / seconds, self._error(1, share, seconds))

    def decode_of(self, sequences: int, cached_tokens: int) -> Rate:
        """Tokens a second of so many replies together, each after so many cached tokens.

        They share the reads of weights, and each reads its own cache. Drafts are not counted.
        """
        share = min(cached_tokens / self.context_tokens, 1.0)
        seconds = self._pass_seconds(sequences, share, sequences)
        return Rate.of(sequences / seconds, self._error(sequences, share, seconds))

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

    def read_bytes(self, index: int, tokens: int = 1) -> float:
        """Bytes of weights that a pass of `tokens` reads on a device."""
        work = self.work[index]
        return work.weight_bytes + self._share(tokens) * work.expert_bytes

    def operations(self, index: int, tokens: int, past_share: float, sequences: int = 1) -> float:
        """Operations of a pass of `tokens` that attend to a share of a full cache on average."""
        work = self.work[index]
        numbers = work.weights + work.expert_weights + work.past_multiplications * past_share
        return 2 * (numbers * tokens + work.head_weights * sequences)

    def steps(self, index: int, tokens: int, sequences: int = 1) -> float:
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

    def past_share(self, first: int, tokens: int) -> float:
        """The average share of a full cache that tokens attend to, after `first` cached ones."""
        return min((first + tokens / 2) / self.context_tokens, 1.0)

    def shown_bandwidth(self, index: int, decode_tokens_per_s: float) -> float:
        """Bytes a second that a device reads at a rate of decoding, if it only reads.

        It is 0 for weights that may stay in the processor's caches.
        """
        read_bytes = self.read_bytes(index)
        return read_bytes * decode_tokens_per_s if read_bytes >= MOST_CACHED_BYTES else 0.0

    def _share(self, tokens: int) -> float:
        """The share of all experts that at least one of the tokens is routed to."""
        return 1 - (1 - self.chosen_share) ** tokens

    def _prompt_seconds(self, tokens: int) -> float:
        seconds = 0.0
        for first in range(0, tokens, self.chunk_tokens):
            chunk = min(self.chunk_tokens, tokens - first)
            seconds += self._pass_seconds(chunk, self.past_share(first, chunk))
        return seconds

    def _pass_seconds(self, tokens: int, past_share: float, sequences: int = 1) -> float:
        used = self._used
        seconds = sum(self._device_seconds(index, tokens, past_share, sequences) for index in used)
        hops = self.expert_hops + (len(used) if len(used) > 1 else 0)
        computing = max(seconds + hops * self.hop_seconds, self._disk_seconds(tokens))
        return computing + tokens * self.disk_row_seconds

    def _disk_seconds(self, tokens: int) -> float:
        return self.disk_seconds + self._share(tokens) * self.disk_expert_seconds

    def _device_seconds(
        self, index: int, tokens: int, past_share: float, sequences: int = 1
    ) -> float:
        work, device = self.work[index], self.devices[index]
        read, rate = device.read_bytes_per_s, device.operations_per_s
        expert_bytes = self._share(tokens) * work.expert_bytes
        expert_operations = 2 * work.expert_weights * tokens
        past_operations = 2 * work.past_multiplications * past_share * tokens
        weight_operations = self.operations(index, tokens, 0.0, sequences) - expert_operations
        attention_rate = device.attention_operations_per_s if tokens == sequences else 0.0
        cached_bytes = sequences * past_share * work.cache_bytes
        return (
            max(work.weight_bytes / read, weight_operations / rate)
            + max(expert_bytes / read, expert_operations / rate)
            + max(
                cached_bytes / device.cache_bytes_per_s, past_operations / (attention_rate or rate)
            )
            + self.steps(index, tokens, sequences) * device.step_seconds
        )

    def _error(self, tokens: int, past_share: float, seconds: float) -> float:
        """The error of a pass, or of a prompt of as many tokens, that takes so many seconds."""
        used = self._used
        if self._disk_seconds(tokens) + tokens * self.disk_row_seconds >= seconds > 0:
            return self.disk_error
        if len(used) == 1:
            return self._device_error(used[0], tokens)
        chunk = min(tokens, self.chunk_tokens)
        times = [self._device_seconds(index, chunk, past_share) for index in used]
        errors = (self._device_error(index, tokens) for index in used)
        return sum(e * s for e, s in zip(errors, times, strict=True)) / (sum(times) or seconds)

    def _device_error(self, index: int, tokens: int) -> float:
        device = self.devices[index]
        return device.decode_error if tokens == 1 else device.prompt_error
