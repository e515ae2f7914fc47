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
from clusters import Workers, cluster_decoder, free_port, request_for
from mutated_steps import prepared
from test_exact import logits_of

from mrs.distributed import pipeline
from mrs.distributed.cluster import Cluster, Shard, assignments
from mrs.distributed.protocol.channel import Damaged
from mrs.distributed.protocol.failures import PeerFailed
from mrs.distributed.protocol.messages import Step
from mrs.distributed.shard import one_device_plan, rank_plans, shard_parameters
from mrs.distributed.stage import load_assigned
from mrs.errors import Unsupported
from mrs.layers.attention.spec import EncoderAttention
from mrs.request import VisionRequest
from mrs.run.model_loader import ModelLoader
from support.model_files import SMALL, write_model
from support.module_kinds import module_kinds
from support.sentence_models import write_model as write_encoder
from support.tiny_decoders import MIXED_CONFIGS
from support.waiting import until

_TESTS = Path(__file__).parents[1]
sys.path += [str(_TESTS / name) for name in ("families", "vision")]
from mllama_cases import MLLAMA
from parity_cases import CASES
from saved_models import save_model
from vision_reference import make_vision_reference

_PROGRAM = str(_TESTS / "distributed/mutated_steps.py")
_BY_ID = {each.id: each for each in CASES}
_CASES = {
    "two caches a layer": "falcon_h1-default",
    "indexer": "glm_moe_dsa-lent",
    "native indexer": "glm_moe_dsa-lent-even",
    "streams": "gemma3n_text-default",
    "alibi": "falcon-rw",
    "share of positions": "opt-350m",
    "share of latent": "deepseek_v2-default",
    "older state space": "mamba-default",
    "experts beside an MLP": "gemma4_text-experts",
    "share of older state space": "mamba-default",
    "share of experts beside an MLP": "gemma4_text-experts",
    "share of two caches a layer": "falcon_h1-default",
    "share of indexer": "glm_moe_dsa-lent",
    "share of native indexer": "glm_moe_dsa-lent-even",
    "share of streams": "gemma3n_text-default",
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
    "share of mixture": "mixture",
    "share of channel decays": "channel decays",
    "share of state space": "state space",
    "share of convolution": "convolution",
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


def modules_of(folder: str) -> set[str]:
    """The classes of the mixers and feed-forward modules of a model."""
    spec = ModelLoader(request_for(Path(folder), None, 0)).planner.description.spec
    modules = (part for layer in spec.layers for part in (layer.mixer, layer.feed_forward))
    return {type(each).__name__ for each in modules}


@pytest.mark.full
def test_every_kind_of_module_is_among_them_whole_and_shared(kinds: dict[str, str]) -> None:
    """But those that attend to images, and those of models that make no replies."""
    nowhere = {"CrossAttention", "NoMixer", "NoFeedForward"}
    replying = (kind for kind in module_kinds() if not issubclass(kind, EncoderAttention))
    every = {kind.__name__ for kind in replying} - nowhere
    for is_share in (False, True):
        chosen = [kinds[name] for name in kinds if name.startswith("share of") == is_share]
        missing = every - set[str]().union(*map(modules_of, chosen))
        assert not missing


@pytest.mark.parametrize("group_size", [1, 2])
def test_a_worker_refuses_layers_that_attend_to_images(tmp_path: Path, group_size: int) -> None:
    """The head does not ask for them, unless it is another program."""
    folder = make_vision_reference(MLLAMA[0], tmp_path).folder
    limits = VisionRequest(max_num_images=1, max_image_length=128)
    loader = ModelLoader(request_for(folder, None, 0, vision=limits))
    planner, plan = loader.planner, one_device_plan(loader.planner, loader.request)
    layers = range(group_size % 2, len(planner.description.spec.layers))
    parameters = shard_parameters(planner.description, layers, is_coordinator=group_size > 1)
    shards = [Shard(layers, parameters)]
    (asked,) = assignments(loader.request, planner, plan, shards, group_size=group_size)
    with pytest.raises(Unsupported, match=r"^[^\n]* cannot be in several processes[^\n]*$"):
        load_assigned(asked, None, lambda request: ModelLoader(request).planner)


@pytest.mark.parametrize("group_size", [1, 2])
def test_a_worker_refuses_layers_of_a_model_that_makes_no_replies(
    tmp_path: Path, group_size: int
) -> None:
    """Nor does the coordinator ask for them."""
    write_encoder(tmp_path, "modernbert")
    loader = ModelLoader(request_for(tmp_path, None, 0))
    planner, plan = loader.planner, one_device_plan(loader.planner, loader.request)
    layers = range(group_size % 2, len(planner.description.spec.layers))
    parameters = shard_parameters(planner.description, layers, is_coordinator=group_size > 1)
    shards = [Shard(layers, parameters)]
    (asked,) = assignments(loader.request, planner, plan, shards, group_size=group_size)
    with pytest.raises(Unsupported, match=r"^[^\n]* of texts, but no replies[^\n]*$"):
        load_assigned(asked, None, lambda request: ModelLoader(request).planner)


def test_a_group_of_processes_is_not_made_for_a_model_that_makes_no_replies(tmp_path: Path) -> None:
    """Before the coordinator waits for anybody."""
    write_encoder(tmp_path, "modernbert")
    port = free_port()
    loader = ModelLoader(request_for(tmp_path, port, 1))
    cluster = replace(loader.request.cluster, group_size=2, wait_limit_s=1)
    request = replace(loader.request, cluster=cluster)
    plans = rank_plans(loader.planner, one_device_plan(loader.planner, request), request, 2)
    with pytest.raises(Unsupported, match=r"^[^\n]* of texts, but no replies[^\n]*$"):
        Cluster.gather(request, loader.planner, loader.plan, plans)


@pytest.mark.few(2)
@pytest.mark.parametrize("width", [-64, 0, 7, 63, 65, 5 * 64])
def test_images_have_features_for_whole_layers_of_the_model(tmp_path: Path, width: int) -> None:
    folder = write_model(tmp_path, _config("dense"), std=0.2)
    worker, sent = prepared("share of images", folder)
    images = [msgspec.structs.replace(each, width=width) for each in sent[0].step.images]
    changed = msgspec.structs.replace(sent[0].step, images=images)
    worker.fresh()
    with pytest.raises(Damaged, match="'width' contradicts"):
        worker.take(sent[0]._replace(step=changed))


@pytest.mark.full
def test_no_changed_step_of_some_kinds_ends_a_worker(tmp_path: Path) -> None:
    names = ("dense", "share of delta")
    some = {
        name: str(write_model(tmp_path / name, _config(_CONFIGS[name]), std=0.2)) for name in names
    }
    require_refused(take_mutated(some, 50_000, 20), 20)


@pytest.mark.full
def test_no_changed_step_ends_a_worker_by_a_signal(kinds: dict[str, str]) -> None:
    require_refused(take_mutated(kinds, 0, 30), 30)


@pytest.mark.slow
def test_none_of_many_changed_steps_ends_a_worker_by_a_signal(kinds: dict[str, str]) -> None:
    require_refused(take_mutated(kinds, 10_000, 160), 160)


@pytest.mark.full
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
    until(lambda: any(line.search(workers.said(number)) for number in logs), 20)
    with cluster_decoder(request) as (decoder, _):
        assert len(logits_of(decoder))
    assert all(each.is_alive() for each in workers.processes)
