"""`plan_model`: where a model's layers and bytes would go, without loading or downloading it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mrs.api.checks import check_arguments
from mrs.api.which import AnyWhich, check_which, layer_map, model_request
from mrs.devices.device import Device
from mrs.plan.memory.breakdown import MemoryBreakdown
from mrs.plan.plan import Plan
from mrs.run.planned_model import PlannedModel


@dataclass(frozen=True)
class DevicePlan:
    """What one device would hold, in bytes.

    `total_bytes` is the peak as (at least, most likely, at most): weights, KV cache, activations,
    and on the CPU the program itself. `missing_bytes` is 0 if the device has enough.
    """

    label: str
    name: str
    layers: int
    weight_bytes: int
    kv_bytes: int
    total_bytes: tuple[int, int, int]
    available_bytes: int
    missing_bytes: int


@dataclass(frozen=True)
class ModelPlan:
    """A plan as a value.

    layer_devices         the label of each layer's device, in order
    reply_tok_per_sec     predicted rate of a reply, as (lowest, highest) tokens per second
    prompt_tok_per_sec    the same for a prompt of one chunk, 512 tokens or the context
    kv_bytes_per_token    the KV cache's bytes for a token, the average over the planned length
    warnings              what the plan says about the model and its placement, one line each
    """

    model: str
    family: str
    weights_format: str
    fits: bool
    missing_bytes: int
    devices: tuple[DevicePlan, ...]
    layer_devices: tuple[str, ...]
    context_tokens: int
    kv_bytes_per_token: int
    reply_tok_per_sec: tuple[float, float]
    prompt_tok_per_sec: tuple[float, float]
    warnings: tuple[str, ...]
    summary: str

    def __repr__(self) -> str:
        verdict = "fits" if self.fits else f"does not fit, {self.missing_bytes} bytes missing"
        return f"<ModelPlan of {self.summary}: {verdict}>"


def plan_model(
    which: AnyWhich,
    *,
    devices: Sequence[str] = (),
    in_situ_quant: str | int | None = None,
    device_map: Sequence[str] | str | None = None,
    max_seq_len: int | None = None,
    max_batch_size: int = 1,
    cpu: bool = False,
    token_source: str = "cache",
) -> ModelPlan:
    """Where every layer and byte of a model would go; only headers of its files are read.

    `devices` are as `--device` of the command line has them, such as `["cuda:0=24GiB"]`, and need
    not be there; without them the plan is for this machine. The other arguments are those of
    `Runner`. A model that does not fit has a plan as well. Raises MrsError.
    """
    given = {name: value for name, value in locals().items() if name != "which"}
    check_arguments(plan_model, given)
    check_which(which)
    request = replace(
        model_request(which, in_situ_quant, token_source),
        layer_map=layer_map(device_map),
        cpu=cpu,
        devices=tuple(devices),
        max_seq_len=max_seq_len,
        max_batch_size=max_batch_size,
    )
    return _as_value(PlannedModel(request).plan)


def _as_value(plan: Plan) -> ModelPlan:
    devices = tuple(
        _device(plan.devices[index], plan.breakdowns[index]) for index in plan.visible_devices
    )
    reply, prompt = plan.speed.decode, plan.speed.prompt
    return ModelPlan(
        model=plan.model.model_id,
        family=plan.model.family,
        weights_format=plan.weights_format,
        fits=plan.fits,
        missing_bytes=plan.missing_bytes,
        devices=devices,
        layer_devices=tuple(plan.devices[index].label for index in plan.layer_devices),
        context_tokens=plan.longest_tokens,
        kv_bytes_per_token=plan.kv_bytes_per_token,
        reply_tok_per_sec=(reply.low, reply.high),
        prompt_tok_per_sec=(prompt.low, prompt.high),
        warnings=plan.warnings,
        summary=plan.summary,
    )


def _device(device: Device, memory: MemoryBreakdown) -> DevicePlan:
    total = memory.total
    return DevicePlan(
        label=device.label,
        name=device.name,
        layers=memory.layers,
        weight_bytes=memory.weight_bytes,
        kv_bytes=memory.kv_bytes,
        total_bytes=(total.low, total.expected, total.high),
        available_bytes=memory.available_bytes,
        missing_bytes=memory.missing_bytes,
    )
