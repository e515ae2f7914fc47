"""The program in processes that share layers, as a person starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from clusters import free_port, wait_until
from test_launch import ASK, environment

from mrs.errors import UsageError
from mrs.request import ClusterRequest
from mrs_cli.parsing.flags.cluster_flags import ClusterFlags
from mrs_cli.parsing.model_requests import cluster_request

MRS = [sys.executable, "-m", "mrs_cli"]
TWO = ["--cpu", "--tensor-parallel-size", "2"]
OFF, SIZE = {"MISTRALRS_NO_NCCL": "1"}, {"MISTRALRS_MN_LOCAL_WORLD_SIZE": "3"}


@pytest.mark.parametrize(
    ("flags", "variables", "expected"),
    [
        ({"tensor_parallel_size": 2}, {}, ClusterRequest(1, group_size=2)),
        ({"tensor_parallel_size": 3, "workers": 2}, {}, ClusterRequest(2, group_size=3)),
        ({"tensor_parallel_size": 3, "wait_for": 2}, {}, ClusterRequest(0, 2, group_size=3)),
        ({"tensor_parallel_size": 2, "workers": 3}, {}, ClusterRequest(3, group_size=2)),
        ({"wait_for": 5}, SIZE, ClusterRequest(0, 5, group_size=3)),
        ({"tensor_parallel_size": 2}, OFF, ClusterRequest(1)),
        ({"tensor_parallel_size": 1}, {}, None),
        ({"workers": 2}, {}, ClusterRequest(2, group_size=0)),
        ({"workers": 2}, OFF, ClusterRequest(2)),
        ({"workers": 2, "tensor_parallel_size": 1}, {}, ClusterRequest(2)),
        ({}, SIZE, ClusterRequest(2, group_size=3)),
        ({}, {**SIZE, **OFF}, ClusterRequest(2)),
        ({"tensor_parallel_size": 2}, SIZE, ClusterRequest(1, group_size=2)),
        ({}, {}, None),
    ],
)
def test_flags_and_variables_ask_for_processes(
    flags: dict[str, int], variables: dict[str, str], expected: ClusterRequest | None
) -> None:
    assert cluster_request(ClusterFlags(**flags), variables) == expected


@pytest.mark.parametrize(
    ("flags", "variables", "words"),
    [
        ({"tensor_parallel_size": 3, "workers": 1}, {}, "2 processes.* are not groups of 3"),
        ({"rejoin_limit": 5.0}, {}, "--rejoin-limit needs workers"),
        ({"listen": "127.0.0.1:0", "tensor_parallel_size": 1}, {}, "--listen needs workers"),
        ({}, {"MISTRALRS_MN_LOCAL_WORLD_SIZE": "two"}, "MISTRALRS_MN_LOCAL_WORLD_SIZE='two'"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    flags: dict[str, int], variables: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        cluster_request(ClusterFlags(**flags), variables)


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MRS, *words],
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_a_reply_of_two_processes() -> None:
    done = run(*TWO, *ASK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The **KV cache")
    assert "here a shard of 5 layers (" in done.stderr


@pytest.mark.slow
def test_whole_layers_where_shares_are_switched_off() -> None:
    done = run(*TWO, *ASK, **OFF)
    assert done.stdout.startswith("The **KV cache")
    assert "layers (" in done.stderr


@pytest.mark.slow
def test_torchruns_processes_share_layers() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(free_port()), "-m", "mrs_cli", *TWO, *ASK]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The **KV cache")
    assert "here a shard of 5 layers (" in done.stderr


@pytest.mark.slow
def test_a_killed_head_leaves_no_process_behind() -> None:
    """Also while the workers still load."""
    head = subprocess.Popen(
        [*MRS, *TWO, "-i", "plain", "-m", "demo"],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    children = Path(f"/proc/{head.pid}/task/{head.pid}/children")
    try:
        wait_until(lambda: len(_workers(children)) == 1)
        workers = _workers(children)
        os.kill(head.pid, signal.SIGKILL)
        head.wait()
        wait_until(lambda: not any(_is_running(pid) for pid in workers), 60)
    finally:
        head.kill()


def _workers(children: Path) -> list[int]:
    pids = [int(text) for text in children.read_text().split()] if children.exists() else []
    return [pid for pid in pids if b"worker" in _command(pid)]


def _command(pid: int) -> bytes:
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_bytes() if path.exists() else b""


def _is_running(pid: int) -> bool:
    return bool(_command(pid))
