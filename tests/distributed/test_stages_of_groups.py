"""Stages of several processes that share their layers: the tokens of the ordered sum, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from clusters import Workers, cluster_decoder, engine_of, request_for
from ordered_reference import ordered_reference
from test_exact import logits_of, talk
from test_shared_exact import model_of, shared_request

from mrs.distributed.measure import measure_run
from mrs.errors import UsageError
from mrs.run.model_loader import ModelLoader
from support.model_files import DEMO


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With windows, in two of five layers."""
    types = ["sliding_attention", "full_attention", "sliding_attention", *["full_attention"] * 2]
    changes = {"num_hidden_layers": 5, "layer_types": types}
    return model_of("gemma3", tmp_path_factory.mktemp("model"), **changes)


def test_tokens_and_logits_are_those_of_the_ordered_sum(model: Path, workers: Workers) -> None:
    """Two stages of two ranks each."""
    reference = ordered_reference(request_for(model, None, 0), 2)
    expected, logits = talk(engine_of(reference)), logits_of(reference)
    with cluster_decoder(shared_request(model, workers.port, 4, 2)) as (decoder, cluster):
        assert [each.layers for each in cluster.coordinator.members] == [
            cluster.own_layers,
            *[range(len(cluster.own_layers), 5)] * 2,
        ]
        assert talk(engine_of(decoder)) == expected
        assert torch.equal(logits_of(decoder), logits)


@pytest.mark.full
def test_quantized_blocks_and_layers_as_the_user_says(workers: Workers) -> None:
    file = DEMO / "demo.gguf"
    expected = talk(engine_of(ordered_reference(request_for(file, None, 0), 2)))
    request = shared_request(file, workers.port, 4, 2, layer_map="0:2;1:3")
    with cluster_decoder(request) as (decoder, cluster):
        assert cluster.own_layers == range(2)
        assert talk(engine_of(decoder)) == expected


@pytest.mark.full
def test_each_process_is_compared_with_its_plan(model: Path, workers: Workers) -> None:
    """The parts of all processes are the whole model, and norms again in each rank of a stage."""
    request = shared_request(model, workers.port, 4, 2)
    loader = ModelLoader(request)
    with cluster_decoder(request) as (decoder, cluster):
        run = measure_run(cluster, decoder, loader.plan, request)
        links_s = sum(each.seconds(cluster.state_bytes) for each in run.links)
        first, second = map(len, cluster.layout.stages)
    assert all(each.weight_bytes == each.planned.weight_bytes for each in run.ranks)
    shares = sum(each.weight_bytes for each in loader.rank_plans)
    assert sum(each.weight_bytes for each in run.ranks) == shares
    assert (len(run.links), len(run.sums_s)) == (2, 2)
    assert all(each > 0 for each in run.sums_s)
    counts = 2 * first + 2, 2 * second + 1
    sums_s = sum(n * each for n, each in zip(counts, run.sums_s, strict=True))
    assert run.between_s == pytest.approx(links_s + sums_s)


def test_processes_that_are_no_whole_stages_are_refused(model: Path, workers: Workers) -> None:
    request = shared_request(model, workers.port, 3, 2)
    meeting = cluster_decoder(request)
    with pytest.raises(UsageError, match=r"3 processes.* are not groups of 2"):
        meeting.__enter__()
