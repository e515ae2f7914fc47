"""Weights of every scheme have the values that their tensors stand for, and the planned bytes."""

from __future__ import annotations

import pytest
import torch
from running import Conversation, Loaded, check_planned_bytes, difference, load
from scheme_cases import SCHEMES

from mrs.kernels.cpu.library import is_available
from mrs.load import part_reader, tensor_reader
from mrs.plan.report.conversions import conversions
from mrs.request import ModelSource
from support.suites import first

PROMPT = [5, 17, 60, 3, 88, 41, 9]
#: Schemes whose values are rounded once on the way to float32.
ROUNDED = ("bnb", "hqq", "mlx", "nvfp4")


def source(folder: object) -> ModelSource:
    return ModelSource(str(folder), "safetensors")


def values(loaded: Loaded) -> dict[str, torch.Tensor]:
    """Every matrix in float32."""
    found = {}
    for parameter in loaded.description.parameters:
        if parameter.role not in ("vector", "dense"):
            matrix = loaded.weights.matrix(parameter.name.removesuffix(".weight"))
            found[parameter.name] = matrix.rows(torch.arange(matrix.shape[0]), torch.float32)
    return found


@pytest.mark.few(20)
@pytest.mark.values
@pytest.mark.parametrize("packs", [True, False], ids=["packed", "blocks"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.id)
def test_values_and_bytes(scheme, packs: bool, checkpoints) -> None:
    made = checkpoints(scheme.id)
    loaded, dense = load(source(made.packed), packs=packs), load(source(made.dense))
    exact = not any(name in scheme.id for name in ROUNDED)
    theirs = values(dense)
    for name, ours in values(loaded).items():
        if exact:
            assert torch.equal(ours, theirs[name]), name
        else:
            torch.testing.assert_close(ours, theirs[name], rtol=2e-6, atol=5e-7)
    stored = loaded.plan.storage
    for parameter in loaded.description.parameters:
        if parameter.role not in ("vector", "dense"):
            matrix = loaded.weights.matrix(parameter.name.removesuffix(".weight"))
            assert matrix.nbytes == stored[parameter.name].size_bytes, parameter.name
    assert scheme.label in loaded.plan.weights_format
    found = {each.stored for each in conversions(loaded.plan)}
    assert found == ({scheme.label} - {"MXFP4"})


@pytest.mark.few(1)
@pytest.mark.values
@pytest.mark.parametrize("strip_bytes", [0, 1000, 3000])
@pytest.mark.parametrize("id", ["gptq-asym", "gptq-3", "awq"])
def test_transposed_weights_are_read_in_strips(
    id: str, strip_bytes: int, checkpoints, monkeypatch
) -> None:
    monkeypatch.setattr(tensor_reader, "SCALED_CHUNK_WEIGHTS", 1)  # chunks of 16 rows
    monkeypatch.setattr(part_reader, "STRIP_BYTES", strip_bytes)
    made = checkpoints(id)
    theirs = values(load(source(made.dense), packs=False))
    for name, ours in values(load(source(made.packed), packs=False)).items():
        assert torch.equal(ours, theirs[name]), name


@pytest.mark.few(3)
@pytest.mark.values
@pytest.mark.parametrize("family", ["llama", "phi3"])
@pytest.mark.parametrize(
    "id",
    first(6, ["gptq-act-order", "awq", "fp8-tile", "compressed-int8", "bnb-nested", "hqq-4",
              "gptq-asym", "compressed-4-zeros", "compressed-mxfp4", "compressed-nvfp4",
              "bnb-int8", "mlx-4-64-float16"]),
)  # fmt: skip
def test_logits(id: str, family: str, checkpoints) -> None:
    import transformers

    made = checkpoints(id, family)
    model = transformers.AutoModelForCausalLM.from_pretrained(made.dense, dtype=torch.float32)
    with torch.no_grad():
        expected = model(torch.tensor([PROMPT])).logits[0]
    exact = load(source(made.packed), packs=False)
    assert difference(Conversation(exact.decoder).feed(PROMPT), expected) < 1e-3
    if is_available():  # products of packed integers round the activations to 8 bits
        packed = load(source(made.packed), packs=True)
        limit = 1e-3 if id.startswith("fp8") else 0.1
        assert difference(Conversation(packed.decoder).feed(PROMPT), expected) < limit


@pytest.mark.few(2)
@pytest.mark.values
@pytest.mark.parametrize("id", ["gptq-sym", "gptq-act-order", "awq", "fp8-row", "hqq-2"])
@pytest.mark.parametrize("packs", [False, True], ids=["blocks", "packed"])
def test_memory_of_a_run(id: str, packs: bool, checkpoints) -> None:
    id = "fbgemm" if id == "fp8-row" else id
    check_planned_bytes(load(source(checkpoints(id).packed), packs=packs))


@pytest.mark.few(2)
@pytest.mark.parametrize("id", ["gptq-act-order", "awq", "fbgemm", "compressed-nvfp4"])
def test_quantized_again(id: str, checkpoints) -> None:
    """`--isq` works on the values; it leaves what has as few bits."""
    made = checkpoints(id)
    ours = values(load(source(made.packed), isq="q4_0"))
    theirs = values(load(source(made.dense), isq="q4_0"))
    for name, expected in theirs.items():
        error = (ours[name] - expected).norm() / expected.norm()
        assert error < 0.2, name
    formats = {
        each.format.name for each in load(source(made.packed), isq="q2k").plan.storage.values()
    }
    assert not {"F32", "INT4_128", "FP8_128"} & formats - {"F32"}


def test_memory_is_that_of_the_bits(checkpoints) -> None:
    """Bits of a weight in memory, by scheme."""
    expected = {
        "gptq-sym": 4.5, "awq": 4.5, "gptq-3": 3.5, "gptq-2": 3.0, "compressed-4": 4.5,
        "fp8-tile": 8.25, "compressed-mxfp4": 4.25, "mlx-4-64-bfloat16": 5.0, "hqq-4": 5.0,
        "compressed-int8": 8.5, "bnb-nf4": 4.5, "bnb-nested": 4.5,
    }  # fmt: skip
    for id, bits in expected.items():
        made = checkpoints(id)
        storage = load(source(made.packed), packs=False).plan.storage["layers.0.ffn.up.weight"]
        assert 8 * storage.size_bytes / (384 * 256) == bits, id
