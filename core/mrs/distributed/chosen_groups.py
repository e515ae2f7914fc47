"""How many of the joined processes share layers, where the user does not say."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence

from mrs.devices.machine import Machine
from mrs.devices.memory_nodes import memory_nodes
from mrs.distributed.device_reports import reported_device
from mrs.distributed.head import Member
from mrs.distributed.peer_variables import shares_allowed
from mrs.plan.machines import plan_machines
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.request import RunRequest

_logger = logging.getLogger(__name__)


def chosen_group_size(
    request: RunRequest, planner: Planner, plan: Plan, members: Sequence[Member]
) -> int:
    """The size of groups of the fastest plan, if all processes can be in such groups; else 1.

    Links are not known before the weights are loaded, so that the usual ones are assumed. A
    pipeline is exact, so it stays where layers are not shared faster.
    """
    own = plan.devices[0]
    if own.torch_device != "cpu" or not shares_allowed(os.environ):
        return 1
    counts = Counter(["", *(each.machine for each in members)])
    machines = [Machine("", [own], memory_nodes=max(1, len(memory_nodes())))]
    for each in members:
        if each.machine not in (machine.name for machine in machines):
            report = each.join.device
            device = reported_device(report, report.free_bytes)
            machines.append(Machine(each.machine, [device], memory_nodes=report.memory_nodes))
    if all(each.memory_nodes == 1 for each in machines):
        return 1
    made = plan_machines(planner, request, machines)
    size = made.group_size
    if size == 1 or any(count % size for count in counts.values()):
        return 1
    alone, shared = made.choices[0], next(c for c in made.choices if c.group_size == size)
    _logger.warning(
        "%d processes share the layers of a stage, for as many memory nodes: %.3g instead of %s ms "
        "a token by the plan; --tensor-parallel-size 1 prevents it",
        size,
        1000 * shared.token_seconds,
        f"{1000 * alone.token_seconds:.3g}" if not alone.refusal else "more",
    )
    return size
