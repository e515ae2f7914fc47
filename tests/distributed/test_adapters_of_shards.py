"""LoRA adapters that are added to the weights: each process adds its part of them to its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from clusters import Workers, cluster_decoder, engine_of, request_for, single_decoder
from ordered_reference import ordered_reference, plans_of, require_whole
from safetensors.torch import load_file
from test_exact import logits_of, talk
from test_shared_exact import KINDS, LARGE, SIZES, model_of, shared_request, write_quantized

from mrs.errors import Unsupported
from mrs.request import AdapterRequest
from mrs.run.model_loader import ModelLoader
from support.lora_files import Adapter

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "lm_head")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return model_of("llama", tmp_path)


def adapter_of(model: Path, **settings: Any) -> tuple[AdapterRequest, ...]:
    weights = {
        name: each.float()
        for name, each in load_file(model / "model.safetensors").items()
        if each.ndim == 2
    }
    targets = settings.pop("targets", TARGETS)
    made = Adapter(weights, targets, settings=settings)
    return (AdapterRequest(str(made.write(model.parent / "adapter"))),)


def test_shares_have_the_adapter_of_the_whole_model(model: Path) -> None:
    """Rows of its second matrix, and columns of its first one."""
    adapters = adapter_of(model)
    require_whole(request_for(model, None, 0, adapters=adapters), 3, 0.02)
    plain = logits_of(single_decoder(request_for(model, None, 0)))
    changed = logits_of(single_decoder(request_for(model, None, 0, adapters=adapters)))
    assert (plain - changed).abs().max() > 0.1 * plain.abs().max()


def test_shares_of_a_gguf_file_have_it_as_well(tmp_path: Path) -> None:
    """There the rows of a head are in another order, so that whole heads of the adapter are cut."""
    sizes = {**SIZES, **KINDS["llama"], **LARGE}
    file = write_quantized(tmp_path / "model.gguf", sizes)
    adapters = adapter_of(model_of("llama", tmp_path, **LARGE), targets=TARGETS[:-1])
    require_whole(request_for(file, None, 0, adapters=adapters), 2, 0.02)


def test_norms_of_whole_rows_cannot_be_shared(model: Path) -> None:
    rows = adapter_of(model, use_dora=True, targets=("q_proj", "up_proj"))
    require_whole(request_for(model, None, 0, adapters=rows), 2, 0.02)
    columns = adapter_of(model, use_dora=True)
    with pytest.raises(Unsupported, match=r"adapters of DoRA cannot be shared .* --workers"):
        plans_of(request_for(model, None, 0, adapters=columns), 2)


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [1, 2])
def test_processes_with_an_adapter_make_the_exact_tokens(
    size: int, model: Path, workers: Workers
) -> None:
    adapters = adapter_of(model)
    single = request_for(model, None, 0, adapters=adapters)
    exact = single_decoder(single) if size == 1 else ordered_reference(single, size)
    expected = talk(engine_of(exact)), logits_of(exact)
    request = shared_request(model, workers.port, 2, size, adapters=adapters)
    with cluster_decoder(request) as (decoder, _):
        assert talk(engine_of(decoder)) == expected[0]
        assert torch.equal(logits_of(decoder), expected[1])


def test_adapters_that_requests_choose_are_refused(model: Path) -> None:
    (adapter,) = adapter_of(model)
    chosen = AdapterRequest(adapter.model_id, name="one", is_merged=False)
    request = shared_request(model, 1, 2, 1, adapters=(chosen,))
    with pytest.raises(Unsupported, match=r"choose adapters .* several processes: .* mrs lora"):
        _ = ModelLoader(request).planner
