"""With several memory nodes, each process that shares layers stays on one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mrs.devices.memory_nodes import memory_nodes, own_processors


@pytest.fixture
def two_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of whose 8 processors this process may use 7."""
    lists = {"node0": "0-1,4-5\n", "node1": "2-3,6-7\n", "node2": "\n"}
    for name, text in lists.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(7)), raising=False)
    return tmp_path


def test_processors_of_each_node_that_may_be_used(two_sockets: Path) -> None:
    assert memory_nodes(two_sockets) == [{0, 1, 4, 5}, {2, 3, 6}]


def test_ranks_fill_one_node_after_another(two_sockets: Path) -> None:
    nodes = memory_nodes(two_sockets)
    assert [own_processors(rank, 2, nodes) for rank in range(2)] == [(nodes[0], 1), (nodes[1], 1)]
    assert [own_processors(rank, 4, nodes) for rank in (1, 2)] == [(nodes[0], 2), (nodes[1], 2)]


def test_without_equal_parts_nothing_is_bound(two_sockets: Path) -> None:
    assert own_processors(0, 3, memory_nodes(two_sockets)) is None
    assert own_processors(0, 2, [{0, 1}]) is None
    assert memory_nodes(two_sockets / "nothing") == []


def test_a_list_that_cannot_be_read_binds_nothing(two_sockets: Path) -> None:
    (two_sockets / "node1" / "cpulist").write_text("2-x")
    assert memory_nodes(two_sockets) == []
