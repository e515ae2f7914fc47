"""Heads and lasting workers live through a peer that changes one of its messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_mutated_steps import _config

from support.model_files import write_model

_TESTS = Path(__file__).parents[1]
_PROGRAM = str(_TESTS / "distributed/mutated_sessions.py")


def kinds_in(folder: Path) -> dict[str, list[Any]]:
    """Folder of the model, ranks, size of a group, and whether it sees images."""
    dense, states, experts = (
        str(write_model(folder / name, _config(name), std=0.2))
        for name in ("dense", "delta", "mixture")
    )
    return {
        "pipeline": [dense, 2],
        "group of states": [states, 2, 2],
        "pipeline of states": [states, 3],
        "pipeline of experts": [experts, 2],
        "group": [dense, 2, 2],
        "stages of groups": [dense, 4, 2],
        "group with images": [str(folder / "images"), 2, 2, True],
    }


def take_mutated(kinds: dict[str, list[Any]], seed: int, count: int) -> list[dict[str, Any]]:
    folders = ("", "distributed", "families", "vision")
    paths = os.pathsep.join(str(_TESTS / name) for name in folders)
    variables = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(
        [sys.executable, _PROGRAM, json.dumps(kinds), str(seed), str(count)],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        check=True,
        timeout=3000,
    )
    return json.loads(ended.stdout.splitlines()[-1])


def require_lived(reports: list[dict[str, Any]], count: int) -> None:
    for each in reports:
        assert each["ends"] == [], each  # by a signal, of a head or of a worker; or a hang
        assert each["others"] == [], each  # what is no error of one line
        assert each["refused"] > 0.3 * count, each
        assert max(each["worker MiB"][1], each["head MiB"][1]) < 1024, each


@pytest.mark.full
def test_a_changed_message_ends_no_process(tmp_path: Path) -> None:
    kinds = kinds_in(tmp_path)
    chosen = {name: kinds[name] for name in ("pipeline", "group of states")}
    require_lived(take_mutated(chosen, 0, 12), 12)


@pytest.mark.slow
def test_none_of_many_changed_messages_ends_a_process(tmp_path: Path) -> None:
    require_lived(take_mutated(kinds_in(tmp_path), 10_000, 130), 130)
