"""GGUF files count the layers that predict tokens after the next one among their blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gguf_files import write_gguf
from parity_cases import CASES

from mrs.architecture.describe import describe
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "case_id", ["exaone_moe-default", "glm4_moe-default", "mimo_v2_flash-default"]
)
@pytest.mark.parametrize("further", [1, 3])
def test_such_layers_are_left_out(references, case_id: str, further: int, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.id == case_id)
    path = tmp_path / "model.gguf"
    write_gguf(references(case), path)
    checkpoint = open_checkpoint(ModelSource(str(path), "gguf"))
    blocks, tensors = case.config["num_hidden_layers"], dict(checkpoint.tensors)
    for index in range(further):
        for name in ("attn_norm", "attn_q", "ffn_norm", "nextn.eh_proj"):
            tensors[f"blk.{blocks + index}.{name}.weight"] = tensors["output_norm.weight"]
    longer = {
        key: [*values, *values[-1:] * further]
        for key, values in checkpoint.config.items()
        if isinstance(values, list) and len(values) == blocks
    }
    named = {
        **checkpoint.config,
        **longer,
        f"{case.gguf}.block_count": blocks + further,
        f"{case.gguf}.nextn_predict_layers": further,
    }
    found = describe(replace(checkpoint, config=named, tensors=tensors))
    assert replace(found, warnings=()) == describe(checkpoint)
    groups = ", ".join(f"blk.{blocks + index}.*" for index in range(further))
    assert found.warnings == (f"{4 * further} tensors are not used: {groups}",)
