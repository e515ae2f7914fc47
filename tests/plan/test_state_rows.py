"""The states that captured decode steps keep at fixed addresses are in the plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mrs.engine.state_rows import StateRows
from mrs.plan.memory.cache_size import CacheSize
from mrs.plan.memory.kv_bytes import state_bytes
from mrs.plan.planner import Planner
from mrs.request import RunRequest
from support.model_files import write_headers
from support.tiny_decoders import tiny_decoder

SEQUENCES = 3
MODEL: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 1024,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
}


def test_rows_have_the_states_of_as_many_sequences() -> None:
    decoder = tiny_decoder("delta")
    space = decoder.new_space(CacheSize(64, SEQUENCES, 32, 32))
    rows = StateRows(space)
    rows.place([space.new() for _ in range(SEQUENCES)])
    kept = sum(x.nbytes for x in rows.save(SEQUENCES))
    assert kept == SEQUENCES * state_bytes(decoder.spec.layers) > 0


@pytest.mark.parametrize("devices", [("cuda:0=8GiB",), ("cuda:0=8GiB", "cuda:1=8GiB")], ids=str)
def test_only_where_steps_are_captured(
    tmp_path: Path,
    planner_of: Callable[..., tuple[Planner, RunRequest]],
    devices: tuple[str, ...],
) -> None:
    """Of a model on one CUDA device, not on several."""
    runtimes = []
    for name, kinds in (("with", MODEL["layer_types"]), ("without", ["full_attention"] * 4)):
        folder = write_headers(tmp_path / name, {**MODEL, "layer_types": kinds})
        layer_map = {"layer_map": "0:2;1:2"} if len(devices) > 1 else {}
        planner, request = planner_of(
            folder, *devices, "cpu=16GiB", max_batch_size=SEQUENCES, **layer_map
        )
        plan = planner.plan(request)
        runtimes.append(plan.breakdowns[0].runtime)
        spec = planner.description.spec
        if name == "with":
            wanted = SEQUENCES * state_bytes(spec.layers) if len(devices) == 1 else 0
    assert [a - b for a, b in zip(*runtimes, strict=True)] == [0, wanted, wanted]
