"""A worker refuses steps that contradict its part of the model, before it computes anything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from clusters import Workers, cluster_decoder, request_for, wait_until
from test_exact import logits_of

from mrs.distributed import pipeline
from mrs.distributed.protocol.failures import PeerFailed
from mrs.distributed.protocol.messages import Step
from support.model_files import SMALL, write_model
from support.tiny_decoders import MIXED_CONFIGS

_TESTS = Path(__file__).parents[1]
sys.path.append(str(_TESTS / "families"))
from parity_cases import CASES
from saved_models import save_model

_PROGRAM = str(_TESTS / "distributed/mutated_steps.py")
_BY_ID = {each.id: each for each in CASES}
_CASES = {
    "two caches a layer": "falcon_h1-default",
    "indexer": "glm_moe_dsa-lent",
    "streams": "gemma3n_text-default",
    "alibi": "falcon-rw",
    "share of positions": "opt-350m",
    "share of latent": "deepseek_v2-default",
}
#: In sizes that the native library computes.
_CONFIGS = {
    "dense": "dense",
    "ends": "dense",
    "windows": "capped",
    "mixture": "mixture",
    "latent": "latent",
    "delta": "delta",
    "channel decays": "channel decays",
    "state space": "state space",
    "convolution": "convolution",
    "shared keys": "shared keys",
    "shared keys and ends": "shared keys",
    "share of dense": "dense",
    "share of ends": "dense",
    "share of delta": "delta",
    "share of images": "dense",
}


def _config(kind: str) -> dict[str, Any]:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_hidden_layers": 3}
    return {**SMALL, **sizes, "vocab_size": 160, **MIXED_CONFIGS[kind]}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The folder of a model for each kind of layer."""
    folder = tmp_path_factory.mktemp("kinds")
    found = {
        name: str(write_model(folder / name, _config(kind), std=0.2))
        for name, kind in _CONFIGS.items()
    }
    for name, case in _CASES.items():
        found[name] = str(save_model(_BY_ID[case], folder / name).folder)
    axes = _BY_ID["qwen3_5_text-odd"]
    types = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
    axes = replace(axes, changes={**axes.changes, **types})
    found["axes"] = str(save_model(axes, folder / "axes").folder)
    return found


def take_mutated(kinds: dict[str, str], seed: int, count: int) -> list[dict[str, Any]]:
    paths = os.pathsep.join(map(str, (_TESTS, _TESTS / "distributed")))
    ended = subprocess.run(
        [sys.executable, _PROGRAM, json.dumps(kinds), str(seed), str(count)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=1200,
    )
    return json.loads(ended.stdout.splitlines()[-1])


def require_refused(reports: list[dict[str, Any]], count: int) -> None:
    assert [end for each in reports for end in each["ends"]] == []
    assert [text for each in reports for text in each["others"]] == []
    for each in reports:
        assert each["Damaged"] > 0.3 * count, each


@pytest.mark.full
def test_no_changed_step_ends_a_worker_by_a_signal(kinds: dict[str, str]) -> None:
    require_refused(take_mutated(kinds, 0, 30), 30)


@pytest.mark.slow
def test_none_of_many_changed_steps_ends_a_worker_by_a_signal(kinds: dict[str, str]) -> None:
    require_refused(take_mutated(kinds, 10_000, 230), 230)


def test_a_worker_says_what_is_wrong_and_takes_the_next_head(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line on both sides."""
    folder = write_model(tmp_path / "model", _config("dense"), std=0.2)
    text = r"a step's 'attention_ends' contradicts this worker's part of the model \(.*\)"
    request = request_for(folder, workers.port, 1)
    with monkeypatch.context() as patch, cluster_decoder(request) as (decoder, _):
        far = np.full(64, 1 << 40, np.int64)
        step_of = pipeline.step_of

        def wrong(*given: Any, **named: Any) -> Step:
            step = step_of(*given, **named)
            ends = far[: len(step.positions) // 8].tobytes()
            return msgspec.structs.replace(step, attention_ends=ends)

        patch.setattr(pipeline, "step_of", wrong)
        with pytest.raises(PeerFailed, match=rf"^rank 1 \(.*\), in step 1: {text}$"):
            logits_of(decoder)
    line = re.compile(rf"^error: .*{text}$", re.MULTILINE)
    logs = range(len(workers.logs))
    wait_until(lambda: any(line.search(workers.said(number)) for number in logs), 20)
    with cluster_decoder(request) as (decoder, _):
        assert len(logits_of(decoder))
    assert all(each.is_alive() for each in workers.processes)
