"""Tiny models for tests with a hub, and the errors of opening one."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save

from mrs.errors import MrsError
from mrs.request import ModelSource
from mrs.source import open_checkpoint
from support.hub_server import Blob

ID = "someone/tiny"
TOKEN = "hf_secret"


def tensors(count: int = 4) -> dict[str, torch.Tensor]:
    return {f"layers.{i}.w": torch.full((4, 64), float(i)) for i in range(count)}


def tiny_files() -> dict[str, bytes | Blob]:
    return {
        "config.json": b'{"model_type": "llama"}',
        "generation_config.json": b'{"eos_token_id": 2}',
        "tokenizer.json": b'{"tok": 1}',
        "model.safetensors": save(tensors()),
        "pytorch_model.bin": b"\x80pickle",
        "README.md": b"# tiny",
    }


def source(container: str = "safetensors", **kwargs: object) -> ModelSource:
    return ModelSource(ID, container, **kwargs)  # type: ignore[arg-type]


def fails(kind: type[MrsError], asked: ModelSource, *words: str) -> None:
    with pytest.raises(kind) as caught:
        open_checkpoint(asked)
    message = str(caught.value)
    assert "\n" not in message
    assert TOKEN not in message
    for word in words:
        assert word in message
