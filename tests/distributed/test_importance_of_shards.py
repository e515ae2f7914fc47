"""`--imatrix` in several processes: each quantizes its part by the importance of its columns."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch
from clusters import Workers, cluster_decoder, request_for, single_decoder
from ordered_reference import ordered_reference
from safetensors.torch import load_file
from test_exact import logits_of
from test_shared_exact import LARGE, model_of, shared_request

from mrs.errors import Unsupported
from mrs.run.model_loader import ModelLoader


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return model_of("llama", tmp_path, **LARGE)


@pytest.fixture
def imatrix(model: Path, tmp_path: Path) -> str:
    """Entries in the form of llama.cpp's older files for all matrices of the layers."""
    chance = torch.Generator().manual_seed(3)
    found = load_file(model / "model.safetensors")
    names = [name for name in found if "proj" in name]
    data = struct.pack("<i", len(names))
    for name in names:
        values = 1000 ** torch.rand(found[name].shape[1], generator=chance)
        data += struct.pack("<i", len(name)) + name.encode()
        data += struct.pack("<ii", 1, len(values)) + values.numpy().tobytes()
    path = tmp_path / "importance"
    path.write_bytes(data)
    return str(path)


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [1, 2])
def test_processes_quantize_as_one_does(
    size: int, model: Path, imatrix: str, workers: Workers
) -> None:
    settings = {"isq": "q4k", "imatrix": imatrix}
    single = request_for(model, None, 0, **settings)
    exact = logits_of(single_decoder(single) if size == 1 else ordered_reference(single, size))
    with cluster_decoder(shared_request(model, workers.port, 2, size, **settings)) as (decoder, _):
        assert torch.equal(logits_of(decoder), exact)
    assert not torch.equal(logits_of(single_decoder(request_for(model, None, 0, isq="q4k"))), exact)


def test_a_calibration_names_the_way_out(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("words")
    request = shared_request(model, 1, 2, 2, isq="q4k", calibration_file=str(text))
    with pytest.raises(Unsupported, match=r"cannot measure the importance .* --imatrix"):
        ModelLoader(request)
