"""The draft head in the text of a vision model's files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from vision_cases import CASES

from mrs.request import ModelSource, RunRequest, VisionRequest
from mrs.run.planned_model import PlannedModel


@pytest.mark.parametrize("with_images", [True, False])
def test_the_layer_after_the_last_is_read(with_images: bool, tmp_path: Path) -> None:
    """GLM-OCR has it under `model.language_model`."""
    case = next(case for case in CASES if case.family == "glm_ocr")
    config = transformers.AutoConfig.for_model(case.family, **case.config)
    model = transformers.AutoModelForMultimodalLM.from_config(config)
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    text = written["text_config"]
    count, hidden = text["num_hidden_layers"] - 1, text["hidden_size"]
    text |= {"num_hidden_layers": count, "num_nextn_predict_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(written))
    layer = f"model.language_model.layers.{count}."
    norms = ("enorm", "hnorm", "shared_head.norm")
    own = {f"{layer}{name}.weight": torch.ones(hidden) for name in norms}
    own[f"{layer}eh_proj.weight"] = torch.randn(hidden, 2 * hidden)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, **own}, tmp_path / "model.safetensors")
    request = RunRequest(
        ModelSource(str(tmp_path), "safetensors"),
        cpu=True,
        max_seq_len=64,
        mtp=True,
        vision=VisionRequest() if with_images else None,
    )
    plan = PlannedModel(request).plan
    assert plan.draft is not None
    assert set(own) <= {piece.tensor for each in plan.draft.parameters for piece in each.pieces}
    assert not any(f"layers.{count}" in line for line in plan.warnings)
