"""The modules of sentence-transformers are read and downloaded with the model."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hub_models import ID, source, tiny_files
from safetensors.torch import save

from mrs.source import Weights, fetch, open_checkpoint
from support.hub_server import Blob, HubServer

_DENSE = torch.arange(12, dtype=torch.float32).view(3, 4)
_MODULES = [
    {"type": "sentence_transformers.models.Transformer", "path": ""},
    {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    {"type": "sentence_transformers.models.Dense", "path": "2_Dense"},
    {"type": "sentence_transformers.models.Normalize", "path": "3_Normalize"},
]
FILES = {
    "modules.json": json.dumps(_MODULES).encode(),
    "config_sentence_transformers.json": b'{"prompts": {"query": "q: "}}',
    "sentence_bert_config.json": b'{"max_seq_length": 9}',
    "1_Pooling/config.json": b'{"pooling_mode_cls_token": true}',
    "2_Dense/config.json": b'{"out_features": 3}',
    "2_Dense/model.safetensors": save({"linear.weight": _DENSE}),
    "2_Dense/pytorch_model.bin": b"\x80pickle",
    "onnx/model.onnx": b"other",
}


def test_modules_are_read_before_and_after_the_download(hub: HubServer) -> None:
    hub.add(ID, {**tiny_files(), **FILES})
    for checkpoint in (open_checkpoint(source()), fetch(source()), open_checkpoint(source())):
        sentence = checkpoint.sentence
        assert [each.kind for each in sentence.modules] == [
            "Transformer", "Pooling", "Dense", "Normalize",
        ]  # fmt: skip
        assert sentence.modules[1].config == {"pooling_mode_cls_token": True}
        assert sentence.settings == {"prompts": {"query": "q: "}}
        assert sentence.transformer == {"max_seq_length": 9}
        assert checkpoint.tensors["2_Dense/linear.weight"].shape == (3, 4)
    assert checkpoint.is_local
    with Weights(checkpoint) as weights:
        found = np.empty((3, 4), np.float32)
        weights.read_into(found.data.cast("B"), checkpoint.tensors["2_Dense/linear.weight"])
    np.testing.assert_array_equal(found, _DENSE.numpy())
    assert not [each for each in hub.log if "pickle" in each.path or "onnx" in each.path]


@pytest.mark.parametrize(
    ("stated", "tokenizers", "expected"),
    [
        ('{"max_seq_length": 9}', "512", {"max_seq_length": 9}),
        ("{}", "512", {"max_seq_length": 512}),
        ('{"max_seq_length": null}', "512", {"max_seq_length": 512}),
        ("{}", "1000000000000000019884624838656", {}),
        ("{}", "null", {}),
    ],
)
def test_a_length_that_only_the_tokenizer_has(
    hub: HubServer, stated: str, tokenizers: str, expected: dict[str, int]
) -> None:
    """As sentence-transformers takes it."""
    changed: dict[str, bytes | Blob] = {
        **tiny_files(),
        **FILES,
        "sentence_bert_config.json": stated.encode(),
        "tokenizer_config.json": f'{{"model_max_length": {tokenizers}}}'.encode(),
    }
    hub.add(ID, changed)
    assert open_checkpoint(source()).sentence.transformer == expected


def test_a_model_without_modules(hub: HubServer) -> None:
    hub.add(ID, tiny_files())
    checkpoint = open_checkpoint(source())
    assert checkpoint.sentence.modules == ()
    assert [file.name for file in checkpoint.files] == ["model.safetensors"]
