"""Requests to the server choose an adapter, and are computed in one batch."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from running_server import RunningServer, running
from safetensors.torch import load_file

from mrs.request import AdapterRequest
from support.lora_files import Adapter
from support.model_files import DEMO


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    weights = load_file(DEMO / "model.safetensors")
    weights = {name: each.float() for name, each in weights.items()}
    requests = []
    for seed, name in enumerate(("first", "second")):
        adapter = Adapter(weights, ("q_proj", "v_proj", "up_proj"), alpha=30.0, seed=seed)
        folder: Path = adapter.write(tmp_path_factory.mktemp(name))
        requests.append(AdapterRequest(str(folder), name, is_merged=False))
    with running(adapters=tuple(requests), dtype="f32") as made:
        yield made


def reply(server: RunningServer, name: str | None) -> str:
    answer = server.chat(adapter=name, max_tokens=12, temperature=0)
    assert answer.status_code == 200
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def test_each_request_has_its_own_adapter(adapted: RunningServer) -> None:
    names = (None, "first", "second")
    alone = {name: reply(adapted, name) for name in names}
    assert len(set(alone.values())) == 3
    with ThreadPoolExecutor(4) as pool:
        wanted = [*names, *names]
        together = list(pool.map(lambda name: reply(adapted, name), wanted))
    assert together == [alone[name] for name in wanted]


def test_an_adapter_that_is_not_loaded(adapted: RunningServer, server: RunningServer) -> None:
    answer = adapted.chat(adapter="third")
    assert answer.status_code == 400
    assert "no adapter 'third'" in answer.json()["error"]["message"]
    assert server.chat(adapter="first").status_code == 400
