"""Under torchrun or Slurm the same command needs no flags."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from clusters import free_port

from mrs.distributed import launch
from mrs.distributed.launch import card_variable, launched
from mrs.distributed.protocol.failures import PeerFailed
from mrs.errors import UsageError

ROOT = Path(__file__).parents[2]
ASK = [
    "plain",
    "-m",
    "demo",
    "-P",
    "What is a KV cache?",
    "--temperature",
    "0",
    "--max-tokens",
    "5",
]
TORCH = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501"}
SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1"}


def environment(**changes: str) -> dict[str, str]:
    folders = f"{ROOT / 'core'}:{ROOT / 'cli'}"
    return {**os.environ, "PYTHONPATH": folders, "OMP_NUM_THREADS": "1", **changes}


@pytest.mark.full
def test_torchrun_starts_the_head_and_its_worker() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(free_port()), "-m", "mrs_cli", *ASK]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The **KV cache")
    assert "rank 1 (" in done.stderr


@pytest.mark.full
def test_slurms_variables_do_the_same() -> None:
    """Without an agent, rank 0 is the meeting point itself."""
    port = str(free_port())
    shared = {"SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "mrs_cli", *ASK],
            env=environment(SLURM_PROCID=str(rank), **shared),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (1, 0)
    ]
    try:
        (nothing, _), (reply, errors) = (each.communicate(timeout=300) for each in ranks)
    finally:
        for each in ranks:
            each.kill()
    assert [each.returncode for each in ranks] == [0, 0], errors
    assert reply.startswith("The **KV cache")
    assert nothing == ""


@pytest.mark.parametrize("variables", [TORCH, SLURM])
def test_variables_say_the_rank(variables: dict[str, str]) -> None:
    found = launched(variables)
    assert found is not None
    assert (found.rank, found.world, found.host) == (1, 2, "127.0.0.1")


def test_one_process_is_no_cluster() -> None:
    assert launched({}) is None
    assert launched({**TORCH, "RANK": "0", "WORLD_SIZE": "1"}) is None


def test_a_port_that_another_program_has_is_one_line_on_both_sides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "_ANSWER_S", 0.1)
    monkeypatch.setattr(launch, "_MEET_LIMIT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = {"MASTER_PORT": str(server.getsockname()[1])}
        head, other = launched({**TORCH, **port, "RANK": "0"}), launched({**TORCH, **port})
        assert head is not None
        assert other is not None
        with pytest.raises(UsageError, match=r"another program .* choose another MASTER_PORT"):
            head.publish(1)
        with pytest.raises(PeerFailed, match=r"rank 0 does not answer .* choose another MASTER_"):
            other.find_coordinator()


@pytest.mark.parametrize("change", [{"RANK": "x"}, {"RANK": "2"}, {"MASTER_PORT": "0"}])
def test_variables_that_make_no_sense_are_one_line(change: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        launched({**TORCH, **change})


@pytest.mark.parametrize(
    ("rank", "cards", "visible", "expected"),
    [
        (1, 0, "", {}),
        (1, 1, "", {}),
        (1, 2, "", {"CUDA_VISIBLE_DEVICES": "1"}),
        (3, 2, "", {"CUDA_VISIBLE_DEVICES": "1"}),
        (1, 2, "GPU-a, 5", {"CUDA_VISIBLE_DEVICES": "5"}),
    ],
)
def test_each_process_of_a_machine_has_a_card_of_its_own(
    rank: int, cards: int, visible: str, expected: dict[str, str]
) -> None:
    variables = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    assert card_variable(rank, cards, variables) == expected
