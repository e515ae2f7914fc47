"""Attention to the tokens that an indexer chooses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from indexer_cases import INDEXERS
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from mrs.architecture.describe import describe
from mrs.architecture.family_registry import family_by_name
from mrs.config.config import Config
from mrs.distributed.shard import joined_layers
from mrs.errors import MrsError, NotReadable
from mrs.kernels import selected_attention
from mrs.kernels.selected_attention import attend_to_keys, choose_keys
from mrs.layers.latent_attention.spec import BorrowedChoiceAttention, IndexedAttention
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint


def test_the_best_keys_that_are_not_later_are_chosen() -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0, 9.0, 9.0], [3.0, 1.0, 2.0, 0.0, 4.0]])
    assert choose_keys(scores, top_k=3).tolist() == [[0, 2, 3], [0, 2, 4]]


def test_a_first_token_has_fewer_keys() -> None:
    positions = choose_keys(torch.ones(4, 4), top_k=3)
    assert [row[: n + 1].tolist() for n, row in enumerate(positions[:3])] == [
        [0],
        [0, 1],
        [0, 1, 2],
    ]
    assert (positions < 4).all()


@pytest.mark.parametrize("at_once", [1, 3, 1 << 24])
def test_attention_to_all_keys_is_dense_attention(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selected_attention, "queries_at_once", lambda keys, dim: at_once)
    torch.manual_seed(0)
    q, keys = torch.randn(7, 2, 12), torch.randn(9, 12)
    choice = choose_keys(torch.randn(7, 9), top_k=9)
    out = attend_to_keys(q, keys, 8, choice, scale=0.3)
    is_seen = torch.arange(9) <= torch.arange(2, 9)[:, None]
    scores = torch.einsum("thd,sd->ths", q, keys) * 0.3
    weights = scores.masked_fill(~is_seen[:, None], float("-inf")).softmax(-1)
    torch.testing.assert_close(out.view(7, 2, 8), weights @ keys[:, :8])


def _values(references, index: int) -> dict:
    return json.loads((references(INDEXERS[index]).folder / "config.json").read_text())


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"indexer_types": ["full", "shared", "full"]}, "FSF"),
        ({"index_topk_pattern": "FFS"}, "FFS"),
        ({"index_topk_pattern": ["full", "shared", "shared"]}, "FSS"),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, "FFFSSSFSSS"),  # as GLM 5.2
        ({"index_topk_freq": 2}, "FFSFSF"),
        ({}, "FFFF"),
    ],
)
def test_which_layers_borrow_a_choice(changes, kinds: str, references) -> None:
    values = {**_values(references, 2), "indexer_types": None, "num_hidden_layers": len(kinds)}
    del values["mlp_layer_types"]
    spec = family_by_name("glm_moe_dsa").read(Config({**values, **changes}, "test"))
    found = [type(layer.mixer) for layer in spec.layers]
    assert found == [BorrowedChoiceAttention if each == "S" else IndexedAttention for each in kinds]
    lends = [getattr(layer.mixer, "lends_choice", False) for layer in spec.layers]
    assert lends == [kinds[n : n + 2] == "FS" for n in range(len(kinds))]
    theirs = AutoConfig.for_model("glm_moe_dsa", num_hidden_layers=len(kinds), **changes)
    assert theirs.indexer_types == [{"F": "full", "S": "shared"}[each] for each in kinds]


@pytest.mark.parametrize(
    ("kinds", "named"), [(["shared", "full"], "first layer"), (["full", "other"], "'other'")]
)
def test_impossible_indexers_are_refused(kinds: list[str], named: str, references) -> None:
    config = Config({**_values(references, 2), "indexer_types": kinds}, "test")
    with pytest.raises(MrsError, match=named):
        family_by_name("glm_moe_dsa").read(config)


def test_a_layer_stays_with_the_one_whose_choice_it_borrows(references) -> None:
    config = Config(_values(references, 4), "test")
    spec = family_by_name("glm_moe_dsa").read(config)
    assert joined_layers(spec) == {1, 3, 4}


def test_an_indexer_that_is_not_used_is_left_out(references, tmp_path: Path) -> None:
    folder = references(INDEXERS[4]).folder
    tensors = load_file(folder / "model.safetensors")
    own = "model.layers.2.self_attn.indexer."
    more = {
        name.replace(".2.", f".{layer}.", 1): tensor.clone()
        for name, tensor in tensors.items()
        if name.startswith(own)
        for layer in (1, 3, 4)
    }
    assert len(more) == 15
    save_file({**tensors, **more}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    plain, wide = (
        describe(open_checkpoint(ModelSource(str(each), "safetensors")))
        for each in (folder, tmp_path)
    )
    assert plain == wide


def test_keys_of_an_indexer_have_room_for_rope(references) -> None:
    config = Config({**_values(references, 0), "index_head_dim": 4}, "test")
    with pytest.raises(NotReadable, match="index_head_dim"):
        family_by_name("deepseek_v32").read(config)
