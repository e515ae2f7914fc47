"""Layers that read the keys and values of other layers, and per-layer embeddings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from gemma3n_cases import GEMMA3N
from gemma4_cases import SHARED
from reference import Reference
from running import Conversation, load
from safetensors.torch import load_file, save_file

from mrs.architecture.describe import describe
from mrs.architecture.family_registry import family_by_name
from mrs.config.config import Config
from mrs.distributed.shard import joined_layers
from mrs.errors import NotReadable
from mrs.layers.attention.spec import SharedAttention
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint


@pytest.fixture(params=[*SHARED, GEMMA3N[0]], ids=lambda case: case.id)
def shared(request: pytest.FixtureRequest, references) -> Reference:
    return references(request.param)


@pytest.mark.few("gemma4_text-shared-odd")
def test_restored_caches_go_on(shared: Reference) -> None:
    decoder = load(ModelSource(str(shared.folder), "safetensors")).decoder
    conversation = Conversation(decoder)
    conversation.feed(shared.prompt)
    saved = [layer.export(0, len(shared.prompt)) for layer in conversation.cache.layers]
    assert [piece is None for piece in saved] == [
        isinstance(layer.mixer, SharedAttention) for layer in decoder.spec.layers
    ]
    again = Conversation(decoder)
    again.cache.restore(len(shared.prompt), [[piece] for piece in saved])
    again._ids = list(shared.prompt)
    assert torch.equal(again.feed(shared.second_turn), conversation.feed(shared.second_turn))


def test_published_files_have_weights_that_nobody_reads(shared: Reference, tmp_path: Path) -> None:
    tensors = load_file(shared.folder / "model.safetensors")
    for part in ("k_proj", "v_proj", "k_norm"):
        name = f"model.layers.{shared.config.num_hidden_layers - 1}.self_attn.{part}.weight"
        assert name not in tensors
        tensors[name] = torch.ones(4, 4)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((shared.folder / "config.json").read_text())
    sources = (ModelSource(str(folder), "safetensors") for folder in (shared.folder, tmp_path))
    plain, more = (describe(open_checkpoint(source)) for source in sources)
    assert plain == more


def test_layers_stay_in_one_process(shared: Reference) -> None:
    """From the first whose keys and values are shared to the last that reads them."""
    spec = load(ModelSource(str(shared.folder), "safetensors")).decoder.spec
    joined = joined_layers(spec)
    for index, layer in enumerate(spec.layers):
        if isinstance(layer.mixer, SharedAttention):
            assert joined >= set(range(layer.mixer.layer + 1, index + 1))


@pytest.mark.parametrize("count", [6, 99])
def test_a_shared_layer_needs_one_of_its_kind(shared: Reference, count: int) -> None:
    values = json.loads((shared.folder / "config.json").read_text())
    config = Config({**values, "num_kv_shared_layers": count}, "test")
    with pytest.raises(NotReadable, match="num_kv_shared_layers"):
        family_by_name(shared.case.family).read(config)
