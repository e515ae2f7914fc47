"""Stores the speed of a run, so that later plans know it."""

from __future__ import annotations

from contextlib import suppress

from mrs.devices.bandwidth import (
    bandwidth_of,
    has_room_to_measure,
    is_host_known,
    learn_host_bandwidth,
    remember_bandwidth,
)
from mrs.devices.processor import is_busy
from mrs.plan.plan import Plan
from mrs.plan.speed.draft_record import remember_drafts
from mrs.plan.speed.learnt import Pace, learn


def learn_speed(plan: Plan, pace: Pace) -> None:
    """Store the measured speed for later plans, unless it is a disk's; Ctrl-C skips it."""
    if plan.on_disk:
        return
    remember_drafts(plan.draft_key, pace.drafts)
    index = plan.speed.only_device
    if pace.step_s is None or index is None or plan.devices[index].bandwidth_source == "given":
        return
    device = plan.devices[index]
    with suppress(KeyboardInterrupt):
        if device.torch_device == "cpu" and not is_busy():
            if not is_host_known() and has_room_to_measure():
                learn_host_bandwidth()
            learn(plan.speed, pace)
        measured = plan.speed.shown_bandwidth(index, 1 / pace.step_s)
        if measured > bandwidth_of(device):
            remember_bandwidth(device, measured)
