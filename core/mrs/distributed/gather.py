"""The one choice between processes that split layers and processes that share them."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.distributed.cluster import Cluster
from mrs.distributed.shared_cluster import SharedCluster
from mrs.distributed.tensor_shares import RankPlan
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.request import RunRequest


def gather(
    request: RunRequest, planner: Planner, plan: Plan, rank_plans: Sequence[RankPlan]
) -> Cluster | SharedCluster:
    """All processes that a request asks for; `rank_plans` if they share layers. Raises MrsError."""
    if rank_plans:
        return SharedCluster.gather(request, rank_plans, planner, plan)
    return Cluster.gather(request, planner, plan)
