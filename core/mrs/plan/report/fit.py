"""Which quantization of a model fits a machine, how long a context, how fast (`mrs fit`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mrs.devices.device import Device
from mrs.devices.parse import what_if_devices
from mrs.devices.published_cards import UNTRIED, published_card
from mrs.errors import UsageError
from mrs.plan.largest import largest_with_spare
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.plan.report.losses import Loss, loss_of
from mrs.plan.report.remedies import Remedy, remedies, with_host
from mrs.plan.report.search import (
    LENGTH_STEP,
    best_format,
    loses_little,
    planned_formats,
    with_isq,
)
from mrs.request import RunRequest
from mrs.units import human_bytes

#: A first token is told of for a prompt of so many tokens.
PROMPT_TOKENS = 2000
FLAG = "--on"
#: What makes a machine of several devices in a text.
BESIDE = "+"


@dataclass(frozen=True)
class FormatFit:
    """A format of `--isq` on a machine.

    `longest` is the plan of the longest context that puts no more layers on the CPU; None if
    nothing fits, or it was not asked for.
    """

    isq: str
    plan: Plan
    longest: Plan | None = None

    @property
    def longest_tokens(self) -> int | None:
        return None if self.longest is None else self.longest.workload.context_tokens

    @cached_property
    def loss(self) -> Loss | None:
        """How far it raises perplexity, None if that is not known."""
        return loss_of(self.isq, self.plan)

    @property
    def first_token_s(self) -> float:
        """Seconds until the reply to a prompt of `PROMPT_TOKENS` begins."""
        return first_token_s(self.plan)

    @property
    def is_whole(self) -> bool:
        """Whether it fits without layers on the CPU of a machine with accelerators."""
        return self.plan.fits and not self.plan.spilled_layers

    @property
    def is_good(self) -> bool:
        return loses_little(self.isq, self.plan)


def first_token_s(plan: Plan) -> float:
    """Seconds until the reply to a prompt of `PROMPT_TOKENS` begins."""
    return PROMPT_TOKENS / plan.speed.prompt_of(PROMPT_TOKENS).expected


@dataclass(frozen=True)
class MachineFit:
    """What fits a machine: its formats from fine to small, and the index of the one to take.

    `needs` says what a format that loses little lacks, if none such fits whole; the `remedies` are
    machines that have it.
    """

    name: str
    formats: tuple[FormatFit, ...]
    best: int | None
    needs: str = ""
    remedies: tuple[Remedy, ...] = ()


def untried(fits: Sequence[MachineFit]) -> list[str]:
    """What a buyer should know of the machines' cards, each line once."""
    devices = [device for fit in fits for device in fit.formats[0].plan.devices]
    cards = [published_card(device.name) for device in devices if device.kind != "cpu"]
    makers = [card.maker for card in cards if card is not None]
    return list(dict.fromkeys(UNTRIED[maker] for maker in makers if maker in UNTRIED))


def fit_here(planner: Planner, request: RunRequest) -> MachineFit:
    """What fits the devices of a planner; each format that fits has its longest context."""
    return _fit("this machine", planner, request, every_format=True)


def fit_machine(
    text: str, planner: Planner, request: RunRequest, *, every_format: bool
) -> MachineFit:
    """What fits a machine such as `2x RTX 3090 + cpu=64GiB`. UsageError quotes the wrong part.

    If it names no CPU, all layers have to fit into the accelerators. Without `every_format`, those
    finer than the one to take are planned, and only that one has its longest context.
    """
    try:
        devices = what_if_devices([part.strip() for part in text.split(BESIDE)])
    except UsageError as error:
        raise UsageError(error.what, where=FLAG, hint=error.hint) from None
    request = replace(request, cpu_spill=_has_cpu(devices))
    return _fit(text, planner.on(with_host(devices)), request, every_format=every_format)


def room_for_weights(text: str, planner: Planner, request: RunRequest) -> int:
    """Bytes of weights that fit a machine beside all else that a run of the request needs.

    Raises UsageError for another text, and DoesNotFit if not even 2 bits a weight fit.
    """
    try:
        devices = what_if_devices([part.strip() for part in text.split(BESIDE)])
    except UsageError as error:
        raise UsageError(error.what, where="--fit", hint=error.hint) from None
    request = replace(with_isq(request, "q2k"), cpu_spill=_has_cpu(devices))
    plan = planner.on(with_host(devices)).plan(request)
    plan.require_fit()
    used = (
        device.available_bytes - terms.needed_bytes
        for device, terms in zip(plan.devices, plan.breakdowns, strict=True)
        if terms.is_used and (device.kind != "cpu" or _has_cpu(devices))
    )
    return plan.total_weight_bytes + sum(max(0, spare) for spare in used)


def _fit(name: str, planner: Planner, request: RunRequest, *, every_format: bool) -> MachineFit:
    formats: list[FormatFit] = []
    for isq, plan in planned_formats(planner, request):
        formats.append(FormatFit(isq, plan))
        if formats[-1].is_whole and formats[-1].is_good and not every_format:
            break
    chosen = best_format([(each.isq, each.plan) for each in formats])
    best = next((i for i, each in enumerate(formats) if chosen and each.isq == chosen[0]), None)
    for index, each in enumerate(formats):
        if each.plan.fits and (every_format or index == best):
            formats[index] = replace(each, longest=_longest(planner, request, each))
    if any(each.is_whole and each.is_good for each in formats):
        return MachineFit(name, tuple(formats), best)
    wanted = with_isq(request, _wanted(formats).isq)
    whole = planner.plan(replace(wanted, cpu_spill=False))
    needs = f"{_wanted(formats).isq} needs {human_bytes(whole.missing_bytes)} more"
    return MachineFit(name, tuple(formats), best, needs, tuple(remedies(planner, wanted)))


def _wanted(formats: Sequence[FormatFit]) -> FormatFit:
    """The smallest format that loses little."""
    return [each for each in formats if each.is_good][-1]


def _longest(planner: Planner, request: RunRequest, fit: FormatFit) -> Plan:
    """The plan of the longest context that puts no more layers on the CPU than the planned one."""
    request = with_isq(request, fit.isq)
    kinds = [device.kind for device in fit.plan.devices]
    limiting = [i for i, kind in enumerate(kinds) if kind != "cpu" or kinds[0] == "cpu"]
    plans = {fit.plan.workload.context_tokens: fit.plan}

    def spare_bytes(tokens: int) -> float:
        if tokens not in plans:
            plans[tokens] = planner.plan(replace(request, max_seq_len=tokens))
        plan = plans[tokens]
        moved = plan.spilled_layers - fit.plan.spilled_layers
        if not plan.fits or moved > 0:
            return -plan.missing_bytes - max(0, moved) * max(plan.layer_bytes)
        # A pool of blocks takes what is there; only what the planned sequences need is of use here.
        needed_bytes = plan.kv_bytes_per_token * plan.workload.context_tokens * plan.workload.batch
        pool_bytes = max(0, sum(plan.kv_bytes) - needed_bytes)
        limits = (plan.breakdowns[index] for index in limiting)
        return pool_bytes + sum(each.available_bytes - each.needed_bytes for each in limits)

    limit = planner.description.spec.context_tokens
    planned = fit.plan.workload.context_tokens
    return plans[largest_with_spare(spare_bytes, planned, limit, LENGTH_STEP)]


def _has_cpu(devices: Sequence[Device]) -> bool:
    return any(device.kind == "cpu" for device in devices)
