"""Processes that are started with the variables of mistral.rs find each other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clusters import free_port
from test_launch import ASK, environment

from mrs.distributed.peer_variables import PeerRole, peer_role
from mrs.errors import MrsError
from mrs.request import ClusterRequest

HEAD = {
    "MISTRALRS_MN_GLOBAL_WORLD_SIZE": "3",
    "MISTRALRS_MN_LOCAL_WORLD_SIZE": "1",
    "MISTRALRS_MN_HEAD_NUM_WORKERS": "2",
    "MISTRALRS_MN_HEAD_PORT": "1234",
}
WORKER = {
    "MISTRALRS_MN_GLOBAL_WORLD_SIZE": "3",
    "MISTRALRS_MN_WORKER_SERVER_ADDR": "10.0.0.1:1234",
    "MISTRALRS_MN_WORKER_ID": "1",
}
RING: dict[str, Any] = {
    "master_ip": "10.0.0.1",
    "master_port": 1234,
    "port": 12345,
    "right_ip": "10.0.0.2",
    "right_port": 12345,
    "rank": 0,
    "world_size": 2,
}


def ring(folder: Path, **changes: Any) -> dict[str, str]:
    path = folder / "ring.json"
    config = {key: value for key, value in {**RING, **changes}.items() if value is not None}
    path.write_text(json.dumps(config))
    return {"RING_CONFIG": str(path)}


def test_a_head_and_a_worker_of_several_machines() -> None:
    assert peer_role({}) is None
    expected = ClusterRequest(wait_for=2, listen="0.0.0.0:1234")
    assert peer_role(HEAD) == PeerRole(expected)
    assert peer_role(WORKER) == PeerRole(None, "10.0.0.1:1234", 2)


def test_ranks_of_a_ring(tmp_path: Path) -> None:
    head = ClusterRequest(wait_for=1, listen="10.0.0.1:1234")
    assert peer_role(ring(tmp_path)) == PeerRole(head)
    everywhere = ClusterRequest(wait_for=1, listen="0.0.0.0:1234")
    assert peer_role(ring(tmp_path, master_ip=None)) == PeerRole(everywhere)
    assert peer_role(ring(tmp_path, rank=1)) == PeerRole(None, "10.0.0.1:1234", 1)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({**HEAD, "MISTRALRS_MN_HEAD_PORT": ""}, "HEAD_PORT is not set"),
        ({**HEAD, "MISTRALRS_MN_HEAD_NUM_WORKERS": "x"}, "NUM_WORKERS='x' is not a number"),
        ({**HEAD, "MISTRALRS_MN_HEAD_NUM_WORKERS": "3"}, "SIZE=3 and .*WORKERS=3 contradict"),
        ({**HEAD, "MISTRALRS_MN_LOCAL_WORLD_SIZE": "2"}, "several processes on each of several"),
        ({**WORKER, "MISTRALRS_MN_WORKER_ID": "-1"}, "WORKER_ID='-1' is not a number from 0"),
    ],
)
def test_variables_that_make_no_sense_are_one_line(variables: dict[str, str], words: str) -> None:
    with pytest.raises(MrsError, match=words):
        peer_role(variables)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"master_port": None}, "has no master_port"),
        ({"rank": "1"}, "has the rank '1'"),
        ({"rank": True}, "has the rank True"),
        ({"rank": 2}, "rank 2 of 2"),
        ({"rank": 1, "master_ip": None}, "rank 1 of 2 with the master_ip None"),
        ({"world_size": 1}, "has the world_size 1"),
    ],
)
def test_a_ring_that_makes_no_sense_is_one_line(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(MrsError, match=words):
        peer_role(ring(tmp_path, **changes))


@pytest.mark.parametrize("text", [None, "{", "[1]", "\xff"])
def test_a_ring_that_cannot_be_read_is_one_line(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "ring.json"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    with pytest.raises(MrsError, match=r"RING_CONFIG .*ring\.json"):
        peer_role({"RING_CONFIG": str(path)})


@pytest.mark.slow
def test_a_ring_of_two_processes_answers(tmp_path: Path) -> None:
    port, processes = free_port(), []
    for rank in (1, 0):
        folder = tmp_path / str(rank)
        folder.mkdir()
        variables = ring(folder, master_ip="127.0.0.1", master_port=port, rank=rank)
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "mrs_cli", *ASK],
                env=environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        (nothing, _), (reply, errors) = (each.communicate(timeout=300) for each in processes)
    finally:
        for each in processes:
            each.kill()
    assert [each.returncode for each in processes] == [0, 0], errors
    assert reply.startswith("The **KV cache")
    assert nothing == ""
