"""Processors by memory node (NUMA), which share a memory controller. Linux; elsewhere one node."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

NODES = Path("/sys/devices/system/node")


def memory_nodes(root: Path = NODES) -> list[set[int]]:
    """The processors of each memory node that this thread may use; nodes without any are left out.

    An empty list if the system does not say.
    """
    if not hasattr(os, "sched_getaffinity"):
        return []
    allowed, allowed_nodes = os.sched_getaffinity(0), []
    for path in sorted(root.glob("node[0-9]*/cpulist")):
        try:
            node_processors = allowed & _parsed(path.read_text())
        except (OSError, ValueError):
            return []
        if node_processors:
            allowed_nodes.append(node_processors)
    return allowed_nodes


def own_processors(rank: int, ranks: int, nodes: Sequence[set[int]]) -> tuple[set[int], int] | None:
    """The processors of a rank's node, and how many ranks share them.

    None if there is only one node, or if the nodes cannot have as many ranks each.
    """
    if len(nodes) < 2 or ranks % len(nodes):
        return None
    sharing = ranks // len(nodes)
    return nodes[rank // sharing], sharing


def _parsed(text: str) -> set[int]:
    """`0-3,8` as {0, 1, 2, 3, 8}. Raises ValueError."""
    processors: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        processors.update(range(int(first), int(last or first) + 1))
    return processors
