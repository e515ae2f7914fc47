"""A published model, converted to safetensors and written as a GGUF file, is what it was."""

from __future__ import annotations

from pathlib import Path

import torch

from mrs.request import ModelSource, RunRequest
from mrs.run.write_gguf import quantize_gguf
from mrs.source.find import open_checkpoint
from support.published_model import ExactModel, write_safetensors

#: What nobody can know from safetensors files, and a name of the same rules.
OTHER = ("general.", "tokenizer.ggml.pre", "tokenizer.ggml.add_space_prefix")


def test_metadata_and_tensors(exact: ExactModel, published: Path, tmp_path: Path) -> None:
    write_safetensors(exact, tmp_path / "model", torch.bfloat16)
    source = ModelSource(str(tmp_path / "model"), "safetensors")
    (path,) = quantize_gguf(RunRequest(source), tmp_path / "x.gguf")
    old, new = (open_checkpoint(ModelSource(str(each), "gguf")) for each in (published, path))
    expected = {key: value for key, value in old.config.items() if not key.startswith(OTHER)}
    for key, value in expected.items():
        found = new.config.get(key)
        assert (found if isinstance(found, (int, float, str)) else list(found)) == (
            value if isinstance(value, (int, float, str)) else list(value)
        ), key
    shapes = {name: tensor.shape for name, tensor in old.tensors.items()}
    assert {name: tensor.shape for name, tensor in new.tensors.items()} == shapes
