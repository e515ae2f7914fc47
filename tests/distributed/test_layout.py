"""Which layers each process has, and for how many sequences there is memory on all machines."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clusters import Workers, request_for

from mrs.distributed.placement import StageLayout
from mrs.distributed.protocol.messages import DeviceReport
from mrs.distributed.shard import one_device_plan
from mrs.errors import DoesNotFit
from mrs.plan.planner import Planner
from mrs.request import ClusterRequest, PagedRequest, RunRequest, Sampling
from mrs.run.model_loader import ModelLoader
from mrs.server.models.room import SEQUENCES_SHARE, for_many_sequences
from mrs.units import GIB, MIB
from support.model_files import DEMO, LLAMA_70B, write_headers

#: Of a model that needs 18 GB.
LAYERS = 8


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    folder = tmp_path_factory.mktemp("model")
    write_headers(folder, {**LLAMA_70B, "num_hidden_layers": LAYERS})
    return ModelLoader(asked(folder)).planner


def asked(folder: Path | str, **changes: Any) -> RunRequest:
    request = request_for(Path(folder), None, 0)
    cluster = ClusterRequest(workers=1, sequences_share=SEQUENCES_SHARE)
    return replace(request, **{"cluster": cluster, "max_seq_len": 2048, **changes})


def worker(machine: str, free_gib: float, **report: Any) -> Any:
    given = {"label": "cpu", "name": "CPU", "free_bytes": int(free_gib * GIB), "bytes_per_s": 1e10}
    device = DeviceReport(**{**given, **report})
    return SimpleNamespace(name="rank", machine=machine, join=SimpleNamespace(device=device))


def layout_of(
    planner: Planner, own_gib: float, *members: Any, size: int = 1, **changes: Any
) -> StageLayout:
    """With so much memory here, and these workers."""
    request = asked(planner.checkpoint.source.model_id, **changes)
    free_bytes = int(own_gib * GIB)
    own = replace(
        planner.devices[-1],
        available_bytes=free_bytes,
        total_bytes=free_bytes,
        bandwidth_bytes_per_s=1e10,
    )
    here = Planner(planner.checkpoint, planner.description, [own], cpu_packs=True)
    return StageLayout.make(request, here, one_device_plan(here, request), members, size)


def needed_gib(layout: StageLayout) -> float:
    return sum(each.needed_bytes for each in layout.shards) / GIB


@pytest.mark.parametrize("size", [1, 2])
def test_the_cache_is_for_as_many_sequences_as_half_of_the_free_memory_holds(
    planner: Planner, size: int
) -> None:
    one = layout_of(planner, 64, worker("", 64), size=size, max_seqs=1)
    assert one.plan.workload.cache.sequences == 1
    free_gib = 2.0
    own_gib = needed_gib(one) + free_gib
    many = layout_of(planner, own_gib, worker("", own_gib), size=size, max_seqs=512)
    count = many.plan.workload.cache.sequences
    assert count == many.request.max_batch_size > 8
    assert 0.8 * free_gib / 2 <= needed_gib(many) - needed_gib(one) <= free_gib / 2
    assert sum(many.plan.kv_bytes) == count * sum(one.plan.kv_bytes)


def test_what_the_user_plans_for_stays(planner: Planner) -> None:
    def sequences(own_gib: float = 64, **changes: Any) -> int:
        made = layout_of(planner, own_gib, worker("", own_gib), **changes)
        return made.request.max_batch_size

    assert sequences() == asked("").max_seqs
    assert sequences(max_batch_size=2) == 2
    assert sequences(paged=PagedRequest(context_tokens=4096)) == 1
    assert sequences(cluster=ClusterRequest(workers=1)) == 1


def test_each_machine_has_memory_for_its_part(planner: Planner) -> None:
    """A small one limits all, as its layers cannot go elsewhere."""
    layers = {"layer_map": "0:4;1:4", "max_seqs": 512}
    both = layout_of(planner, 64, worker("10.0.0.2", 64), **layers)
    small = layout_of(planner, 64, worker("10.0.0.2", 11), **layers)
    assert 1 < small.request.max_batch_size < both.request.max_batch_size
    with pytest.raises(DoesNotFit, match=r"1 process needs .* on 10\.0\.0\.2, and 4\.00 GiB"):
        layout_of(planner, 64, worker("10.0.0.2", 4), **layers)


def test_processes_of_one_memory_must_fit_together(planner: Planner) -> None:
    fits = needed_gib(layout_of(planner, 64, worker("", 64), max_seqs=1))
    assert layout_of(planner, fits + 0.1, worker("", fits + 0.1))
    with pytest.raises(DoesNotFit, match=r"2 processes need .* here, and "):
        layout_of(planner, fits - 0.1, worker("", fits - 0.1), layer_map="0:4;1:4")
    with pytest.raises(DoesNotFit, match=r"2 processes need .* here, and "):
        layout_of(planner, fits - 0.5, worker("", fits - 0.5), size=2)


def test_each_card_has_a_memory_of_its_own(planner: Planner) -> None:
    first, second = (
        worker("10.0.0.2", 9, label="cuda:0", uuid=uuid) for uuid in ("GPU-1", "GPU-2")
    )
    assert layout_of(planner, 7.5, first, second).stages
    with pytest.raises(DoesNotFit):
        layout_of(planner, 7.5, first, first)


def test_weights_that_workers_have_kept_count_as_free(planner: Planner) -> None:
    """Each reports what is free without the weights of the other."""
    kept = worker("10.0.0.2", 8, held_bytes=8 * GIB)
    assert layout_of(planner, 7.5, kept, kept).stages
    with pytest.raises(DoesNotFit):
        layout_of(planner, 7.5, *[worker("10.0.0.2", 8, held_bytes=256 * MIB)] * 2)


def test_only_the_head_of_a_server_plans_for_many() -> None:
    def fail(request: RunRequest) -> Any:
        raise AssertionError

    plain = replace(asked("model"), cluster=ClusterRequest(workers=1), max_models=2)
    found = for_many_sequences(plain, fail).cluster
    assert found == ClusterRequest(workers=1, sequences_share=SEQUENCES_SHARE / 2)
    assert for_many_sequences(replace(plain, max_batch_size=3), fail).cluster == plain.cluster


@pytest.mark.full
def test_replies_of_a_server_with_workers_run_at_once(workers: Workers) -> None:
    """Each has as many tokens as are planned for one: none is computed again."""
    request = request_for(DEMO, workers.port, 1)
    assert request.cluster is not None
    cluster = replace(request.cluster, sequences_share=SEQUENCES_SHARE)
    model = ModelLoader(replace(request, cluster=cluster, max_seqs=4)).load()
    try:
        assert model.plan.workload.cache.sequences == 4
        sampling = Sampling(max_tokens=180, ignore_eos=True)
        replies = [model.stream_completion(f"{n}: Hi", sampling) for n in range(4)]
        with ThreadPoolExecutor(4) as threads:
            ends = [events[-1] for events in threads.map(list, replies)]
        assert {end.usage.completion_tokens for end in ends} == {180}
        assert model.engine.stats.preempted == 0
    finally:
        model.close()
