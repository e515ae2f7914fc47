"""A roofline model of the speed of a placement: tokens a second, low and high.

The same formula holds for prefill and decode. A forward pass of T tokens takes on each device

    max(bytes / bandwidth, operations / rate)    for the weights that every token uses
  + max(bytes / bandwidth, operations / rate)    for the experts
  + steps * overhead

seconds, and each device adds a hop.

bytes       weights that the pass reads (of the experts, those that at least one token is routed
            to) and the KV cache of earlier tokens
operations  two for each weight and each cached value that a token is multiplied with
steps       one for each tensor: the interpreter, calls of kernels, waiting for threads. In a pass
            of several tokens, gathering the tokens of an expert and each token add to it.

Decoding is a pass of one token; a prompt is passes of whole chunks.
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


class Range(NamedTuple):
    low: float
    high: float

    @property
    def middle(self) -> float:
        return float((self.low * self.high) ** 0.5)


@dataclass(frozen=True)
class DeviceSpeed:
    """Rates of a device with the weights of one model; each is a range from slow to fast.

    `token_steps` is the part of a step that a tensor needs for each token of a pass, and
    `bandwidth_bytes_per_s` the device's bandwidth as it is known.
    """

    read_bytes_per_s: Range
    operations_per_s: Range
    step_seconds: Range
    token_steps: float = 0.0
    bandwidth_bytes_per_s: float = 0.0


@dataclass(frozen=True)
class SpeedEstimate:
    """Tokens a second of one sequence; `work` and `devices` have one entry for each device.

    The low end of a range assumes slow rates, and a full cache of `context_tokens` for decoding.
    The high end assumes fast rates, and an empty cache. A prompt begins with an empty cache. A
    token is routed to the share `chosen_share` of all experts. `expert_hops` are copies to experts
    that are not on the device of their layer, and back. `weights_kind` is the key of
    measured rates.
    """

    work: tuple[Work, ...]
    devices: tuple[DeviceSpeed, ...]
    chunk_tokens: int
    context_tokens: int = 1
    chosen_share: float = 1.0
    hop_seconds: float = HOP_SECONDS
    expert_hops: int = 0
    weights_kind: str = ""

    @property
    def decode(self) -> Range:
        return Range(*(1 / self._pass_seconds(1, end, 1 - end) for end in (0, 1)))

    @property
    def prompt(self) -> Range:
        """Tokens a second of a prompt of one chunk."""
        return self.prompt_of(self.chunk_tokens)

    def prompt_of(self, tokens: int) -> Range:
        """Tokens a second of a prompt of `tokens` (at least 1), up to the reply's first token."""
        return Range(*(tokens / self._prompt_seconds(tokens, end) for end in (0, 1)))

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

    def operations(self, index: int, tokens: int, past_share: float) -> float:
        """Operations of a pass of `tokens` that attend to a share of a full cache on average."""
        work = self.work[index]
        numbers = work.weights + work.expert_weights + work.past_multiplications * past_share
        return 2 * (numbers * tokens + work.head_weights)

    def steps(self, index: int, tokens: int) -> float:
        """Steps of a pass of `tokens`."""
        work = self.work[index]
        expert_steps = self._share(tokens) * work.expert_tensors
        if tokens > 1:
            expert_steps *= GATHERED_STEPS
        passed = work.tensors + self.chosen_share * work.expert_tensors
        steps = work.tensors + expert_steps
        steps += self.devices[index].token_steps * passed * (tokens - 1)
        return steps + CHOICE_STEPS if work.head_weights else steps

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

    def _prompt_seconds(self, tokens: int, end: int) -> float:
        seconds = 0.0
        for first in range(0, tokens, self.chunk_tokens):
            chunk = min(self.chunk_tokens, tokens - first)
            seconds += self._pass_seconds(chunk, end, self.past_share(first, chunk))
        return seconds

    def _pass_seconds(self, tokens: int, end: int, past_share: float) -> float:
        used = self._used
        seconds = sum(self._device_seconds(index, tokens, end, past_share) for index in used)
        hops = self.expert_hops + (len(used) if len(used) > 1 else 0)
        return seconds + hops * self.hop_seconds

    def _device_seconds(self, index: int, tokens: int, end: int, past_share: float) -> float:
        work, device = self.work[index], self.devices[index]
        read, rate = device.read_bytes_per_s[end], device.operations_per_s[end]
        expert_bytes = self._share(tokens) * work.expert_bytes
        expert_operations = 2 * work.expert_weights * tokens
        every_bytes = work.weight_bytes + past_share * work.cache_bytes
        every_operations = self.operations(index, tokens, past_share) - expert_operations
        return (
            max(every_bytes / read, every_operations / rate)
            + max(expert_bytes / read, expert_operations / rate)
            + self.steps(index, tokens) * device.step_seconds[end]
        )
