"""`estimate_gpu_layers` against a transcription of the estimator whose rules it follows."""

from __future__ import annotations

from dataclasses import asdict
from random import Random
from typing import Any

import ollama_estimator
import pytest

from mrs.plan.placement.round_robin import GpuDemand, GpuMemory, estimate_gpu_layers


def problem(chance: Random) -> dict[str, Any]:
    """Small numbers, so that sizes are often equal or one apart."""
    layers = chance.randint(1, 12)
    same = chance.random() < 0.5
    size = chance.randint(1, 40)
    library = chance.choice(["cuda"] * 8 + ["metal", "cpu"])
    gpus = chance.choice([1, 2, 2, 3, 3, 4, 5, 8])
    room = chance.choice([100, 300, 600])
    return {
        "layer_bytes": [size if same else chance.randint(1, 40) for _ in range(layers)],
        "output_bytes": chance.choice([0, 1, chance.randint(0, 40), chance.randint(0, 120)]),
        "kv_bytes": chance.randint(0, 100),
        "graph_partial": chance.randint(0, 30),
        "graph_full": chance.choice([0, chance.randint(0, 30)]),
        "projector_bytes": chance.choice([0, chance.randint(0, 60)]),
        "overhead": chance.choice([0, chance.randint(0, 20)]),
        "gpus": [
            (library, chance.randint(0, room), chance.choice([0, chance.randint(0, 20)]))
            for _ in range(gpus)
        ],
        "requested": chance.choice([-1, -1, -1, chance.randint(0, layers + 2)]),
    }


def estimated(case: dict[str, Any], projector_share: int) -> dict[str, Any]:
    return asdict(
        estimate_gpu_layers(
            GpuDemand(
                layer_bytes=case["layer_bytes"],
                output_bytes=case["output_bytes"],
                kv_bytes_total=case["kv_bytes"],
                graph_partial_bytes=case["graph_partial"],
                graph_full_bytes=case["graph_full"],
                projector_bytes=projector_share,
                projector_graph_bytes=case["projector_bytes"] - projector_share,
                overhead_bytes=case["overhead"],
            ),
            gpus=[GpuMemory(*gpu) for gpu in case["gpus"]],
            requested_layers=case["requested"],
        )
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(5))
def test_random_cases(seed: int) -> None:
    chance = Random(seed)
    outcomes = set()
    for _ in range(1_000):
        case = problem(chance)
        expected = ollama_estimator.estimate(**case)
        assert estimated(case, case["projector_bytes"] // 3) == expected, case
        outcomes.add(expected["layers"] - len(case["layer_bytes"]))
    assert {0, 1} < outcomes


def test_the_output_tensor_never_tries_the_third_gpu() -> None:
    """With 4 layers on three GPUs it tries 4 % 3, 4 % 2 and 4 % 1: the second, then the first
    twice. Both are full, and the third has room."""
    case = {
        "layer_bytes": [10] * 4,
        "output_bytes": 15,
        "kv_bytes": 0,
        "graph_partial": 0,
        "graph_full": 0,
        "projector_bytes": 0,
        "overhead": 0,
        "gpus": [("cuda", 31, 0), ("cuda", 25, 0), ("cuda", 46, 0)],
        "requested": -1,
    }
    assert ollama_estimator.estimate(**case)["tensor_split"] == "2,1,1"
    assert estimated(case, 0)["tensor_split"] == "2,1,1"
