"""How fast a placement will be: tokens a second, low and high.

One model for both phases. A forward pass reads every weight that takes part once, at the bandwidth
of its device, or is bound by arithmetic where that takes longer; how many operations a device does
for each byte that it could read meanwhile depends on its kind. Each tensor that takes part costs
the time to begin its step besides, which is all that counts for very small models. Decoding is a
pass of one token, a prompt is passes of whole chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from mrs.plan.fastest import HOP_SECONDS
from mrs.plan.work import Work

#: What a device computes with; matrix units are a CPU's (AMX).
Processor = Literal["cpu", "cpu with matrix units", "metal", "cuda"]

#: The part of the bandwidth that decoding reaches, in public measurements of several engines and in
#: ours. A CPU's bandwidth is that of a plain read, which kernels laid out for the memory, on huge
#: pages, exceed; an accelerator's is its maker's, which nothing does.
READ_EFFICIENCY: dict[Processor, tuple[float, float]] = {
    "cpu": (0.5, 1.2),
    "cpu with matrix units": (0.5, 1.2),
    "metal": (0.5, 1.0),
    "cuda": (0.5, 1.0),
}

#: What a processor's caches may hold of what every token reads.
MOST_CACHED_BYTES = 256 * 1024**2

#: Operations of a matrix product for each byte of bandwidth, from kernels that decode weights on
#: the fly to the processor's rate: consumer and server CPUs, Apple and NVIDIA GPUs.
OPERATIONS_PER_BYTE: dict[Processor, tuple[float, float]] = {
    "cpu": (5.0, 40.0),
    "cpu with matrix units": (5.0, 80.0),
    "metal": (15.0, 40.0),
    "cuda": (40.0, 250.0),
}

#: Seconds to begin the steps of one tensor of weights: interpreter, calls of kernels, waiting for
#: threads or a GPU's queue. Measured on a server CPU with models so small that nothing else counts:
#: 9 to 12 us for plain decoders, 13 to 24 for mixtures, latent attention and states, 23 to 27 on
#: torch's kernels alone; desktop CPUs are up to twice as fast. Accelerators were not measured: the
#: host's time on torch's kernels, and a launch of some us for each of several kernels a tensor.
STEP_SECONDS: dict[Processor, tuple[float, float]] = {
    "cpu": (30e-6, 5e-6),
    "cpu with matrix units": (30e-6, 5e-6),
    "metal": (100e-6, 15e-6),
    "cuda": (80e-6, 10e-6),
}
#: To choose a token from its logits is worth so many steps: 80 to 250 us were measured.
CHOICE_STEPS = 15


class Range(NamedTuple):
    low: float
    high: float


@dataclass(frozen=True)
class DeviceSpeed:
    """What the estimate needs to know of a device; `kind` is that of where its tensors live."""

    kind: Processor
    bandwidth_bytes_per_s: float


@dataclass(frozen=True)
class SpeedEstimate:
    """Tokens a second of one sequence, with an entry of `work` a device.

    Low: half of the bandwidth, slow steps and a full cache. High: all that can be read, fast steps
    and an empty cache. A token goes to the part `chosen_share` of all experts.
    """

    work: tuple[Work, ...]
    devices: tuple[DeviceSpeed, ...]
    chunk_tokens: int
    chosen_share: float = 1.0
    hop_seconds: float = HOP_SECONDS

    @property
    def decode(self) -> Range:
        return Range(*(1 / self._pass_seconds(1, end) for end in (0, 1)))

    @property
    def prompt(self) -> Range:
        """Of a prompt of one chunk."""
        return self.prompt_of(self.chunk_tokens)

    def prompt_of(self, tokens: int) -> Range:
        """Of a prompt of so many tokens, at least one, to the first token of the reply."""
        chunks, rest = divmod(tokens, self.chunk_tokens)
        rates = []
        for end in (0, 1):
            seconds = chunks * self._pass_seconds(self.chunk_tokens, end) if chunks else 0.0
            rates.append(tokens / (seconds + (self._pass_seconds(rest, end) if rest else 0.0)))
        return Range(*rates)

    def shown_bandwidth(self, index: int, decode_tokens_per_s: float) -> float:
        """Bytes a second that a device must read for such a rate, were it alone and all its time
        spent reading; 0 for what it may hold in caches."""
        work = self.work[index]
        read_bytes = work.weight_bytes + self.chosen_share * work.expert_bytes
        if read_bytes < MOST_CACHED_BYTES:
            return 0.0
        return read_bytes * decode_tokens_per_s / READ_EFFICIENCY[self.devices[index].kind][1]

    def _pass_seconds(self, tokens: int, end: int) -> float:
        used = [pair for pair in zip(self.work, self.devices, strict=True) if pair[0].tensors]
        seconds = sum(self._device_seconds(*pair, tokens, end) for pair in used)
        return seconds + (len(used) * self.hop_seconds if len(used) > 1 else 0.0)

    def _device_seconds(self, work: Work, device: DeviceSpeed, tokens: int, end: int) -> float:
        # The part of all experts that at least one of the tokens goes to.
        share = 1 - (1 - self.chosen_share) ** tokens
        read_bytes = work.weight_bytes + share * work.expert_bytes
        multiplied = work.weights * tokens + work.head_weights
        if end == 0:
            read_bytes += work.cache_bytes
            multiplied += work.past_numbers * tokens
        bandwidth = device.bandwidth_bytes_per_s
        reading = read_bytes / (bandwidth * READ_EFFICIENCY[device.kind][end])
        multiplying = 2 * multiplied / (bandwidth * OPERATIONS_PER_BYTE[device.kind][end])
        steps = work.tensors + share * work.expert_tensors
        if work.head_weights:
            steps += CHOICE_STEPS
        return max(reading, multiplying) + steps * STEP_SECONDS[device.kind][end]
