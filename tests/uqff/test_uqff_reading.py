"""Layers of every kind have the values that their tensors stand for, and the planned bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from layer_kinds import KINDS
from running import Conversation, Loaded, check_planned_bytes, difference, load
from safetensors.torch import load_file
from uqff_models import source, write_uqff

from mrs.config.config import Config
from mrs.kernels.cpu.library import is_available
from mrs.load.tensor_reader import TensorReader
from mrs.quantization.gguf import decode
from mrs.quantization.uqff import read_uqff
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint
from mrs.source.folder import LocalFolder
from mrs.source.uqff_files import uqff_files
from mrs.source.weights import Weights
from mrs.weights.binding import Piece

PROMPT = [5, 17, 60, 3, 88, 41, 9]
#: Some rows of layers that mistral.rs 0.9.5 wrote; names begin with its name of the kind.
PEER = Path(__file__).with_name("peer_layers.safetensors")
COLUMNS = 256
#: The largest errors of a kind: half a step between its values, and a whole one for 8-bit floats,
#: which mistral.rs rounds towards zero.
PEER_KINDS = {
    "q4_0": 0.013, "q4k": 0.01, "q6k": 0.004, "q8_0": 5e-4, "q8_1": 5e-4, "q8k": 5e-4,
    "hqq4": 0.008, "fp8": 0.01, "afq2": 0.034, "afq3": 0.015, "afq4": 0.007,
    "afq6": 0.002, "afq8": 5e-4, "mxfp4": 0.034, "f8q8": 0.007,
}  # fmt: skip


def values(loaded: Loaded) -> dict[str, torch.Tensor]:
    """Every matrix in float32."""
    found = {}
    for parameter in loaded.description.parameters:
        if parameter.role not in ("vector", "dense"):
            matrix = loaded.weights.matrix(parameter.name.removesuffix(".weight"))
            found[parameter.name] = matrix.rows(torch.arange(matrix.shape[0]), torch.float32)
    return found


@pytest.mark.few(5)
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_bytes(kind: str, uqff_models) -> None:
    made = uqff_models(kind)
    loaded = load(source(made.packed), packs=False)
    expected = values(load(ModelSource(str(made.dense), "safetensors")))
    for name, ours in values(loaded).items():
        torch.testing.assert_close(ours, expected[name], rtol=2e-6, atol=5e-7)
    check_planned_bytes(loaded)
    assert kind in loaded.plan.weights_format or kind == "BF16"


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["Q4_0", "AFQ 4-bit", "HQQ 4-bit", "F8Q8"])
def test_logits(kind: str, uqff_models) -> None:
    """Packed products round activations to 8 bits."""
    made = uqff_models(kind)
    expected = Conversation(load(ModelSource(str(made.dense), "safetensors")).decoder).feed(PROMPT)
    exact = load(source(made.packed), packs=False)
    assert difference(Conversation(exact.decoder).feed(PROMPT), expected) < 1e-4
    if is_available():
        packed = load(source(made.packed), packs=True)
        check_planned_bytes(packed)
        assert difference(Conversation(packed.decoder).feed(PROMPT), expected) < 0.1


def test_shards(uqff_models, tmp_path: Path) -> None:
    """Any shard, the name without a number and the report's set name all shards."""
    made = uqff_models("Q4_0").packed
    layers = {
        name: each
        for name, each in load_file(made / "m-0.uqff").items()
        if not name.startswith("uqff.")
    }
    residual = load_file(made / "residual.safetensors")
    config = json.loads((made / "config.json").read_text())
    write_uqff(tmp_path / "x", config, layers, residual, shards=3)
    folder = LocalFolder(tmp_path / "x")
    expected = ("m-0.uqff", "m-1.uqff", "m-2.uqff", "residual.safetensors")
    for name in ("m-0.uqff", "m-2.uqff", "m.uqff"):
        assert uqff_files(folder, (name,)) == expected
    whole = open_checkpoint(source(made))
    split = open_checkpoint(source(tmp_path / "x"))
    assert {name: info.shape for name, info in split.tensors.items()} == {
        name: info.shape for name, info in whole.tensors.items()
    }
    (tmp_path / "x" / "m-0.uqff").rename(tmp_path / "x" / "q4k-0.uqff")
    for index in (1, 2):
        (tmp_path / "x" / f"m-{index}.uqff").rename(tmp_path / "x" / f"own{index}.uqff")
    shards = ["q4k-0.uqff", "own1.uqff", "own2.uqff"]
    report = {"outputs": [{"quant": "q4k", "shards": shards}]}
    (tmp_path / "x" / "uqff_report.json").write_text(json.dumps(report))
    for name in ("q4k", "4", "own1.uqff"):
        assert uqff_files(folder, (name,))[:-1] == tuple(shards)


def test_stacked_experts(tmp_path: Path) -> None:
    """Mixtral's experts have other names in files of their own."""
    from support.model_files import SMALL, tensor_shapes

    config = {
        **SMALL, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
        "vocab_size": 64, "num_hidden_layers": 1,
    }  # fmt: skip
    residual = {name: torch.randn(shape) for name, shape in tensor_shapes(config).items()}
    write_uqff(tmp_path / "dense", config, {}, residual)
    (tmp_path / "dense" / "residual.safetensors").rename(tmp_path / "dense" / "model.safetensors")
    layers: dict[str, torch.Tensor] = {}
    experts = "model.layers.0.block_sparse_moe.experts."
    for name, own in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        each = [residual.pop(f"{experts}{index}.{own}.weight") for index in range(4)]
        layers[f"{experts}{name}_proj.weight"] = torch.stack(each)
        layers[f"{experts}{name}_proj.weight.format"] = torch.tensor(1, dtype=torch.uint8)
    write_uqff(tmp_path / "stacked", config, layers, residual)
    ours = values(load(source(tmp_path / "stacked")))
    expected = values(load(ModelSource(str(tmp_path / "dense"), "safetensors")))
    assert all(torch.equal(ours[name], expected[name]) for name in expected)


def wave(rows: int) -> torch.Tensor:
    """The weights that the layers in `PEER` were made from."""
    return 0.1 * torch.sin(torch.arange(rows * COLUMNS, dtype=torch.float64) ** 1.5).view(rows, -1)


@pytest.mark.parametrize(("kind", "limit"), PEER_KINDS.items())
def test_layers_that_mistral_rs_wrote(kind: str, limit: float, tmp_path: Path) -> None:
    """Each kind decodes to the weights that it was made from, as far as its bits go."""
    stored = load_file(PEER)
    weight = "k_proj.weight"
    layers = {
        weight + name.removeprefix(kind): each
        for name, each in stored.items()
        if name.partition(".")[0] == kind
    }
    write_uqff(tmp_path / "x", {"model_type": "llama"}, layers, {"norm.weight": torch.ones(1)})
    checkpoint = open_checkpoint(source(tmp_path / "x"))
    packed = read_uqff(Config({}, "test")).bind(weight, checkpoint.tensors)
    with Weights(checkpoint) as files:
        chunks = TensorReader(files).chunks(Piece(weight, packed=packed), COLUMNS)
        values = torch.cat([decode(rows, format).clone() for rows, format in chunks])
    error = (values - wave(len(values))).abs().max()
    assert 0 < error < limit
