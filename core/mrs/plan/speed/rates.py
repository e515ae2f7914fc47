"""How fast devices read, multiply and step: measured in earlier runs, or told by their kind."""

from __future__ import annotations

from mrs.devices.bandwidth import bandwidth_of
from mrs.devices.device import Device, DeviceKind
from mrs.devices.processor import operations_per_s
from mrs.plan.speed.learnt import Learnt
from mrs.plan.speed.roofline import DeviceSpeed, Range

#: The part of the bandwidth that decoding reaches. An accelerator's is its maker's, in public
#: measurements of several engines; a CPU's that of a plain read, which kernels laid out for the
#: memory, on huge pages, come near to.
ACCELERATOR_READ = Range(0.5, 1.0)
PLAIN_READ = Range(0.7, 1.05)
#: Of a bandwidth that is only assumed, from the number of threads.
ASSUMED_READ = Range(0.6, 1.5)
#: Around the operations a second that the processor's instructions and clock let expect.
EXPECTED_OPERATIONS = Range(0.5, 2.0)

#: Around the fastest that was measured here, with weights of the same kind.
LEARNT_READ = Range(0.87, 1.07)
LEARNT_OPERATIONS = Range(0.75, 1.25)
LEARNT_STEP = Range(1.2, 0.85)

#: Operations of a matrix product for each byte of bandwidth, from kernels that decode weights on
#: the fly to the processor's rate.
OPERATIONS_PER_BYTE: dict[DeviceKind, Range] = {
    "metal": Range(15.0, 40.0),
    "cuda": Range(40.0, 250.0),
}

#: Seconds to begin the steps of one tensor. Measured on a server CPU with models so small that
#: nothing else counts: 9 to 12 us for plain decoders, 13 to 24 for mixtures, latent attention and
#: states; desktop CPUs are up to twice as fast. Accelerators were not measured: the host's time on
#: torch's kernels, and a launch of some us for each of several kernels a tensor.
STEP_SECONDS: dict[DeviceKind, Range] = {
    "cpu": Range(14e-6, 6e-6),
    "metal": Range(100e-6, 15e-6),
    "cuda": Range(80e-6, 10e-6),
}
#: What a tensor costs a CPU for each token of a pass, in steps: norms, rotations, sums.
TOKEN_STEPS = 0.06


def device_speed(device: Device, weights_format: str, weights_kind: str) -> DeviceSpeed:
    """The rates of a device with weights of a format; `weights_kind` is what they are learnt as."""
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
