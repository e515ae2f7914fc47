"""Configs of Cohere 2 MoE that count the dense layers in place of listing all."""

from __future__ import annotations

import pytest
import transformers
from routed_cases import ROUTED

from mrs.config.config import Config
from mrs.families.cohere2_moe import read


@pytest.mark.parametrize(("dense", "first", "later"), [(0, 1, 2), (1, 1, 2), (3, 3, 4), (9, 2, 3)])
def test_counted_layers_are_those_of_transformers(dense: int, first: int, later: int) -> None:
    case = next(case for case in ROUTED if case.id == "cohere2_moe-default")
    values = {
        **case.config,
        "tie_word_embeddings": True,
        "num_hidden_layers": 9,
        "first_k_dense_replace": dense,
        "prefix_dense_sliding_window_pattern": first,
        "sliding_window_pattern": later,
    }
    listed = transformers.AutoConfig.for_model("cohere2_moe", **values).to_dict()
    assert "first_k_dense_replace" not in listed
    assert read(Config(values, "a")) == read(Config(listed, "a"))
