"""How fast devices read, multiply and begin kernels: measured in earlier runs or expected."""

from __future__ import annotations

from dataclasses import replace

from mrs.devices.bandwidth import CPU_BYTES_PER_S, bandwidth_of, card_of
from mrs.devices.cpu_path import cpu_path
from mrs.devices.device import BandwidthSource, Device, DeviceKind
from mrs.devices.processor import PLAIN_FORMATS, operations_per_cycle, operations_per_s
from mrs.devices.published_cards import Maker
from mrs.devices.published_processors import Processor, published_processor
from mrs.kernels.workspace.products import rounds_activations
from mrs.plan.speed.activation_cost import EXPECTED, activation_cost
from mrs.plan.speed.learnt import Learnt
from mrs.plan.speed.roofline import DeviceSpeed
from mrs.request import ActivationBits

#: The share of a CPU's bandwidth, which is that of a plain read, that decoding reaches with weights
#: on huge pages, and the seconds of each step beside it: fitted to runs on two threads of a virtual
#: EPYC (Zen 5), which `tests/plan/test_speed.py` has.
CPU_READ_SHARE, CPU_STEP_SECONDS = 0.85, 2e-6
#: The share of a CPU's bandwidth that attention reads keys and values at: 0.45 to 0.5 were measured
#: with 3,500 and 3,800 tokens.
CPU_CACHE_SHARE = 0.5
#: The share of a CPU's products of numbers that are made float32 that a decoded token attends at:
#: 0.46 was measured with 8,192 tokens on one thread of an EPYC, for one reply and for 16 together,
#: and 0.33 with heads of half as many values.
CPU_ATTENTION_SHARE = 0.4
#: Overhead of a tensor for each token of a forward pass on a CPU (norms, rope, sums), in steps.
TOKEN_STEPS = 0.06
#: The share of the operations that the processor's instructions and clock allow: 0.76 and 0.81 were
#: measured with BF16 and Q4_K.
CPU_OPERATIONS_SHARE = 0.8

#: The share of its maker's bandwidth that a plain read of a CPU is assumed to reach. Rates of CPUs
#: in `tests/plan/published_speeds.csv` check it; it was not fitted to them.
CPU_PUBLISHED_SHARE = 0.85
#: What a CPU without a name is assumed to be: a desktop's.
ASSUMED_PROCESSOR = Processor("", CPU_BYTES_PER_S, cores=8, clock_hz=4e9, path="avx2")

#: The share of its maker's bandwidth that an accelerator reads, and the seconds of each step: the
#: launches of kernels from a captured graph. One H200 took 1.56 ms for a token of 8 layers of an 8B
#: model's width in BF16, 0.98 times what these say; other cards were not measured.
READ_SHARE: dict[DeviceKind, float] = {"cuda": 0.9, "metal": 0.8}
STEP_SECONDS: dict[DeviceKind, float] = {"cuda": 6e-6, "metal": 20e-6}
#: Instructions of a lane for each weight in kernels that decode one token, counted in the code that
#: the compiler makes for NVIDIA's cards, and the share of a card's instructions that they reach: an
#: H200 read quantized weights at 1.0 to 1.9 TB/s. Plain weights do not come near this limit.
INSTRUCTIONS_PER_WEIGHT = {"Q4_K": 6.5, "Q5_K": 8.0, "Q6_K": 10.0, "Q8_0": 9.0}
OTHER_INSTRUCTIONS_PER_WEIGHT, PLAIN_INSTRUCTIONS_PER_WEIGHT = 8.0, 1.0
INSTRUCTIONS_SHARE = 0.5
#: The share of an accelerator's matrix products that prompts reach, weights' decoding included.
OPERATIONS_SHARE: dict[DeviceKind, float] = {"cuda": 0.35, "metal": 0.35}

#: How far the time of a decoded token and of a prompt may be from what is expected, as shares.
LEARNT_ERRORS = (0.2, 0.25)
CPU_ERRORS: dict[BandwidthSource | None, tuple[float, float]] = {
    "measured": (0.3, 1.0),
    "given": (0.35, 1.0),
    "published": (0.35, 1.0),
    "assumed": (0.8, 1.0),
    None: (0.8, 1.0),
}
#: The same for reading a disk, by whether it was measured: virtual ones vary from minute to minute.
DISK_ERRORS = {True: 0.5, False: 2.0}
ACCELERATOR_ERRORS: dict[BandwidthSource | None, tuple[float, float]] = {
    "measured": (0.35, 1.0),
    "published": (0.35, 1.0),
    "given": (0.35, 1.0),
    "assumed": (0.8, 1.5),
    None: (0.8, 1.5),
}
#: The least error on cards of a maker. No card of AMD's, Apple's or Intel's has run: how far other
#: engines were from the model of time there is in `tests/plan/published_speeds.csv`.
MAKER_ERRORS: dict[Maker, tuple[float, float]] = {
    "NVIDIA": (0.0, 0.0),
    "AMD": (0.55, 1.0),
    "Apple": (0.85, 1.0),
    "Intel": (1.6, 1.6),
}


def device_speed(
    device: Device,
    weights_format: str,
    weights_kind: str,
    bytes_per_weight: float,
    activations: ActivationBits = 8,
) -> DeviceSpeed:
    """The rates of a device with weights of a format; `weights_kind` is the measurements' key.

    `bytes_per_weight` is the mean of the weights that a token reads. On a CPU, products have so
    many bits of `activations`.
    """
    if device.torch_device == "cpu":
        path = _path_of(device)
        speed = _cpu_speed(device, weights_format, weights_kind, path)
        if activations == 8 or not rounds_activations(path, weights_format):
            return speed
        cost = EXPECTED if device.is_hypothetical else activation_cost(weights_format)
        slowed = replace(
            speed,
            read_bytes_per_s=cost.reply * speed.read_bytes_per_s,
            operations_per_s=cost.prompt * speed.operations_per_s,
        )
        return _as_learnt(slowed, device, with_activations(weights_kind, activations))
    bandwidth = bandwidth_of(device)
    instructions = OTHER_INSTRUCTIONS_PER_WEIGHT
    if weights_format in PLAIN_FORMATS:
        instructions = PLAIN_INSTRUCTIONS_PER_WEIGHT
    instructions = INSTRUCTIONS_PER_WEIGHT.get(weights_format, instructions)
    card = card_of(device)
    weights_per_s = INSTRUCTIONS_SHARE * card.instructions_per_s / instructions
    decode_error, prompt_error = map(
        max, ACCELERATOR_ERRORS[device.bandwidth_source], MAKER_ERRORS[card.maker]
    )
    return DeviceSpeed(
        min(READ_SHARE[device.kind] * bandwidth, weights_per_s * bytes_per_weight),
        READ_SHARE[device.kind] * bandwidth,
        OPERATIONS_SHARE[device.kind] * card.operations_per_s,
        STEP_SECONDS[device.kind],
        groups_experts=device.kind == "cuda",
        bandwidth_bytes_per_s=bandwidth,
        decode_error=decode_error,
        prompt_error=prompt_error,
    )


def with_activations(weights_kind: str, activations: ActivationBits) -> str:
    """The key of the rates of these weights with so many bits of activations."""
    return weights_kind if activations == 8 else f"{weights_kind} {activations}-bit activations"


def _path_of(device: Device) -> str:
    """The path of a CPU's kernels."""
    if not device.is_hypothetical:
        return cpu_path()
    return (published_processor(device.name) or ASSUMED_PROCESSOR).path


def _cpu_speed(device: Device, weights_format: str, weights_kind: str, path: str) -> DeviceSpeed:
    bandwidth = bandwidth_of(device)
    decode_error, prompt_error = CPU_ERRORS[device.bandwidth_source]
    if device.is_hypothetical:
        if device.bandwidth_source == "published":
            bandwidth *= CPU_PUBLISHED_SHARE
        read = CPU_READ_SHARE * bandwidth
        processor = published_processor(device.name) or ASSUMED_PROCESSOR
        cycles = processor.cores * processor.clock_hz
        cycle = operations_per_cycle(weights_format, path)
        operations = CPU_OPERATIONS_SHARE * cycles * cycle
        attention = CPU_ATTENTION_SHARE * cycles * operations_per_cycle("F16", path)
    else:
        read = CPU_READ_SHARE * bandwidth
        operations = CPU_OPERATIONS_SHARE * operations_per_s(weights_format)
        attention = CPU_ATTENTION_SHARE * operations_per_s("F16")
    speed = DeviceSpeed(
        read,
        CPU_CACHE_SHARE * bandwidth,
        operations,
        CPU_STEP_SECONDS,
        overlaps=False,
        token_steps=TOKEN_STEPS,
        bandwidth_bytes_per_s=bandwidth,
        attention_operations_per_s=attention,
        decode_error=decode_error,
        prompt_error=prompt_error,
    )
    return _as_learnt(speed, device, weights_kind)


def _as_learnt(speed: DeviceSpeed, device: Device, weights_kind: str) -> DeviceSpeed:
    """The rates with those that earlier runs on this machine measured in their place."""
    if device.is_hypothetical:
        return speed
    learnt, (decode_error, prompt_error) = Learnt.read(), LEARNT_ERRORS
    if weights_kind in learnt.read_bytes_per_s and device.bandwidth_source != "given":
        read = learnt.read_bytes_per_s[weights_kind]
        speed = replace(speed, read_bytes_per_s=read, decode_error=decode_error)
    if weights_kind in learnt.step_seconds:
        step_s = learnt.step_seconds[weights_kind]
        speed = replace(speed, step_seconds=step_s, decode_error=decode_error)
    if weights_kind in learnt.operations_per_s:
        operations = learnt.operations_per_s[weights_kind]
        speed = replace(speed, operations_per_s=operations, prompt_error=prompt_error)
    return speed
