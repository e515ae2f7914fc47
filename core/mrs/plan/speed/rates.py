"""How fast devices read, multiply and begin kernels: measured in earlier runs or expected."""

from __future__ import annotations

from mrs.devices.bandwidth import bandwidth_of
from mrs.devices.device import Device, DeviceKind
from mrs.devices.processor import operations_per_s
from mrs.plan.speed.learnt import Learnt
from mrs.plan.speed.roofline import DeviceSpeed, Range

#: The share of the bandwidth that decoding reaches. The bandwidth of an accelerator is its maker's
#: figure, and the share is that of several engines in public measurements. The bandwidth of a CPU
#: is that of a plain read, which kernels come close to with weights on huge pages.
ACCELERATOR_READ = Range(0.5, 1.0)
PLAIN_READ = Range(0.7, 1.05)
#: The share of a bandwidth that is assumed from the number of threads.
ASSUMED_READ = Range(0.6, 1.5)
#: Factors around the operations a second that the processor's instructions and clock allow.
EXPECTED_OPERATIONS = Range(0.5, 2.0)

#: Factors around the fastest rate measured on this machine with weights of the same kind.
LEARNT_READ = Range(0.87, 1.07)
LEARNT_OPERATIONS = Range(0.75, 1.25)
LEARNT_STEP = Range(1.2, 0.85)

#: Operations of a matrix product for each byte of bandwidth, from kernels that decode weights on
#: the fly to the processor's rate.
OPERATIONS_PER_BYTE: dict[DeviceKind, Range] = {
    "metal": Range(15.0, 40.0),
    "cuda": Range(40.0, 250.0),
}

#: Seconds of overhead for each tensor of a forward pass. On a server CPU, with models so small
#: that nothing else counts, 9 to 12 us were measured for plain decoders and 13 to 24 us for
#: mixtures, latent attention and recurrent states; desktop CPUs are up to twice as fast.
#: Accelerators were not measured: these figures are the host's time in torch and the launches of
#: several kernels a tensor.
STEP_SECONDS: dict[DeviceKind, Range] = {
    "cpu": Range(14e-6, 6e-6),
    "metal": Range(100e-6, 15e-6),
    "cuda": Range(80e-6, 10e-6),
}
#: Overhead of a tensor for each token of a forward pass on a CPU (norms, rope, sums), in steps.
TOKEN_STEPS = 0.06


def device_speed(device: Device, weights_format: str, weights_kind: str) -> DeviceSpeed:
    """The rates of a device with weights of a format; `weights_kind` is the key of measured ones."""
    bandwidth = bandwidth_of(device)
    if device.torch_device != "cpu":
        return DeviceSpeed(
            _around(bandwidth, ACCELERATOR_READ),
            _around(bandwidth, OPERATIONS_PER_BYTE[device.kind]),
            STEP_SECONDS[device.kind],
            bandwidth_bytes_per_s=bandwidth,
        )
    learnt = Learnt.read()
    read = _around(bandwidth, ASSUMED_READ if _is_assumed(device) else PLAIN_READ)
    if weights_kind in learnt.read_bytes_per_s and device.bandwidth_source != "given":
        read = _around(learnt.read_bytes_per_s[weights_kind], LEARNT_READ)
    operations = _around(operations_per_s(weights_format), EXPECTED_OPERATIONS)
    if weights_kind in learnt.operations_per_s:
        operations = _around(learnt.operations_per_s[weights_kind], LEARNT_OPERATIONS)
    step = STEP_SECONDS["cpu"]
    if weights_kind in learnt.step_seconds:
        step = _around(learnt.step_seconds[weights_kind], LEARNT_STEP)
    return DeviceSpeed(read, operations, step, TOKEN_STEPS, bandwidth)


def _around(value: float, factors: Range) -> Range:
    return Range(value * factors.low, value * factors.high)


def _is_assumed(device: Device) -> bool:
    return device.bandwidth_source in (None, "assumed")
