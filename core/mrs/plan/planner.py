"""Plan one model on one set of devices for different requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache

from mrs.architecture.description import Description
from mrs.devices.bandwidth import with_bandwidth
from mrs.devices.device import Device
from mrs.plan.memory.breakdown import Correction
from mrs.plan.memory.device_sizes import ModelSizes
from mrs.plan.memory.stored_weights import ModelWeightsInfo
from mrs.plan.placement.placement import Placement
from mrs.plan.plan import Plan, make_plan
from mrs.plan.speed.draft_gain import FIRST_CHANCE, draft_cost
from mrs.plan.speed.draft_record import read_draft_record
from mrs.request import ModelSource, RunRequest
from mrs.source.checkpoint import Checkpoint

#: Sizes for so many loads and formats are kept, for plans on other devices.
MOST_SIZES = 256


class Planner:
    """Makes plans of one model on one set of devices, with the model of `draft` if there is one."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        description: Description,
        devices: Sequence[Device],
        *,
        cpu_packs: bool,
        corrections: Mapping[str, Correction] | None = None,
        draft: Planner | None = None,
        without_head: str = "",
    ) -> None:
        """`without_head` says why its own draft head is not used, if it has one."""
        self.checkpoint = checkpoint
        self.description = description
        self.devices = with_bandwidth(devices)
        self.corrections = corrections or {}
        self.draft, self._without_head = draft, without_head
        self.cpu_packs = cpu_packs
        self._files = ModelWeightsInfo(checkpoint, description)
        self._sizes = lru_cache(MOST_SIZES)(ModelSizes)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know of the model's files, one line each."""
        return self._files.warnings

    def plan(self, request: RunRequest, placement: Placement | None = None) -> Plan:
        """The plan for a request, with a given `placement` if there is one.

        A draft model is loaded as it was asked for; a model's own draft head if it fits and, unless
        it was asked for, saves time.
        """
        plan = self._with_drafter(request, placement)
        if request.speculate == "off" or not request.calibration:
            return plan
        return replace(plan, draft_record=read_draft_record(plan.draft_key))

    def _with_drafter(self, request: RunRequest, placement: Placement | None) -> Plan:
        draft = self.draft.plan_as_draft(request) if self.draft else None
        plan = self._planned(request, placement, draft)
        if draft is None or self.draft is None or not self.draft.is_head:
            return replace(plan, without_head=self._without_head)
        reason = _reason_without_head(plan, draft, is_wanted=request.mtp is True)
        if reason is None:
            return plan
        return replace(self._planned(request, placement, None), without_head=reason)

    def _planned(
        self, request: RunRequest, placement: Placement | None, draft: Plan | None
    ) -> Plan:
        return make_plan(
            request,
            self._files,
            self.devices,
            cpu_packs=self.cpu_packs,
            corrections=self.corrections if request.calibration else {},
            placement=placement,
            draft=draft,
            sizes_of=self._sizes,
        )

    def on(self, devices: Sequence[Device]) -> Planner:
        """A planner of this model on other devices, which shares what was made of the files."""
        other = copy(self)
        other.devices, other.corrections = with_bandwidth(devices), {}
        return other

    @property
    def is_head(self) -> bool:
        """Whether the model is the draft head of another one."""
        return self._files.facts.is_head

    def plan_as_draft(self, request: RunRequest) -> Plan:
        """The plan of this model as the draft model of a request: whole on the first device.

        A draft head computes as its target does, with which it shares weights.
        """
        draft = draft_request(request, self.checkpoint.source)
        if self.is_head:
            draft = replace(
                draft,
                isq=request.isq,
                topology=request.topology,
                activations=request.activations,
            )
        return self.plan(draft, Placement([(0, len(self.description.spec.layers))]))


def _reason_without_head(plan: Plan, head: Plan, *, is_wanted: bool) -> str | None:
    """Why the model of `plan` is better off without its draft head; None if it is not."""
    if not plan.fits:
        return "it does not fit"
    cost = draft_cost(plan.speed, head.speed, head.model.heads)
    if not is_wanted and not cost.best_length(FIRST_CHANCE, cost.most_tokens):
        return "its drafts would save no time"
    return None


def draft_request(request: RunRequest, source: ModelSource) -> RunRequest:
    """The request of a draft model, for the same load as that of the large model."""
    return RunRequest(
        source,
        dtype=request.dtype,
        cpu=request.cpu,
        devices=request.devices,
        calibration=request.calibration,
        max_seq_len=request.max_seq_len,
        max_batch_size=request.max_batch_size,
        prefix_cache_n=0,
        paged=replace(request.paged, pool=False),
    )
