"""A worker without a copy of the model reads its own bytes from the hub, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_exact import LAYERS, config_of

from mrs.distributed.shard import load_parameters, one_device_plan, shard_parameters, weights_sample
from mrs.model.linear import Linear
from mrs.request import ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader
from support.hub_server import HubServer
from support.model_files import write_model


def test_ranges_of_bytes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = write_model(tmp_path / "model", {**config_of("dense"), "hidden_size": 64}, std=0.2)
    files = {path.name: path.read_bytes() for path in local.iterdir()}
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    with HubServer() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        hub.add("some/model", files)
        remote, own = (_part(model_id, hub) for model_id in ("some/model", str(local)))
        assert remote[1] == own[1]
        assert 0 < remote[2] < 2 * len(files["model.safetensors"]) / LAYERS
        for name, matrix in own[0].items():
            assert torch.equal(remote[0][name], matrix)


def _part(model_id: str, hub: HubServer) -> tuple[dict[str, torch.Tensor], str, int]:
    """The last layer's products with ones and its vectors, a sample, and the bytes sent."""
    request = RunRequest(ModelSource(model_id, "safetensors"), cpu=True, dtype="f32")
    planner = ModelLoader(request).planner
    before = hub.body_bytes
    plan = one_device_plan(planner, request)
    parameters = shard_parameters(
        planner.description, range(LAYERS - 1, LAYERS), is_coordinator=False
    )
    sample = weights_sample(planner.checkpoint, parameters)
    weights = load_parameters(planner, plan, parameters, {})
    products = {
        name: Linear(matrix, None)(torch.eye(matrix.shape[1]))
        for name, matrix in weights._matrices.items()
    }
    return products | dict(weights._vectors), sample, hub.body_bytes - before
