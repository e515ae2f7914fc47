"""What published files of LFM 3 say otherwise than transformers' class."""

from __future__ import annotations

import json
from pathlib import Path

from lfm3_cases import LFM3
from test_parity import describe_with

from mrs.architecture.describe import describe
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint


def test_a_rope_of_half_of_the_pairs_may_be_called_default(references, tmp_path: Path) -> None:
    """transformers 5.24 then turns whole heads, with which these models were not trained."""
    folder = references(LFM3[0]).folder
    config = json.loads((folder / "config.json").read_text())
    full = config["rope_parameters"]["full_attention"]
    assert full == {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5}
    full["rope_type"] = "default"
    described = describe(open_checkpoint(ModelSource(str(folder), "safetensors")))
    assert describe_with(folder, config, tmp_path) == described
