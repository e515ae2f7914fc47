"""The published weights in other files: exact to each format, with every `--isq`."""

from __future__ import annotations

import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mrs.formats import FORMATS
from mrs.model.batch import SequenceInput, forward_batch
from mrs.quantization.gguf import decode, encode
from mrs.quantization.isq import ISQ_NAMES, parse_isq
from mrs.request import ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader
from mrs.text.gguf_tokenizer import read_gguf_tokenizer
from support.planned_decoder import planned_decoder
from support.published_model import (
    ExactModel,
    FormatOf,
    as_isq,
    in_dtype,
    transformers_model,
    widened,
    write_safetensors,
)

LAYERS, REPLY_TOKENS = 3, 6


@pytest.fixture(scope="module")
def few_layers(exact: ExactModel) -> ExactModel:
    """The first layers, with rows of whole blocks of 256."""
    weights = {
        name: weight
        for name, weight in widened(exact).weights.items()
        if not name.startswith("blk.") or int(name.split(".")[1]) < LAYERS
    }
    metadata = {**widened(exact).metadata, "llama.block_count": LAYERS}
    return ExactModel(metadata, weights)


@pytest.fixture(scope="module")
def ids(exact: ExactModel) -> list[int]:
    text = Path(sysconfig.get_path("stdlib"), "textwrap.py").read_text()[2000:2600]
    return read_gguf_tokenizer(exact.metadata).encode(text, allow_special=False)[:120]


def quantized(model: ExactModel, format_of: FormatOf) -> ExactModel:
    """The weights after encoding and decoding."""
    weights = {}
    for name, weight in model.weights.items():
        chosen = FORMATS[format_of(name, tuple(weight.shape))]
        weights[name] = decode(encode(weight, chosen), chosen)
    return replace(model, weights=weights)


@torch.inference_mode()
def divergences(folder: Path, ids: list[int], truth: ExactModel, isq: str | None) -> Tensor:
    """Of every position from the exact model's distribution: a prompt, then tokens one by one."""
    exact = transformers_model(truth)(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    source = ModelSource(str(folder), "safetensors")
    loader = ModelLoader(RunRequest(source, isq=isq, cpu=True, calibration=False))
    found, cpu = loader.planner, [torch.device("cpu")]
    decoder = planned_decoder(found.checkpoint, found.description, loader.plan, cpu)[1]
    cache, logits = decoder.new_cache(len(ids), len(ids)), []
    first = len(ids) - REPLY_TOKENS
    for piece in (ids[:first], *([token] for token in ids[first:])):
        fed = SequenceInput(cache, piece, logits_rows=range(len(piece)))
        logits.append(decoder.forward(forward_batch([fed]), [cache]))
    ours = torch.cat(logits).double().log_softmax(-1)
    return (exact.exp() * (exact - ours)).sum(-1)


@pytest.mark.full
@pytest.mark.parametrize("isq", [name for name in ISQ_NAMES if not name.isdigit()])
def test_every_isq(
    few_layers: ExactModel, ids: list[int], isq: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "few-layers"
    if not folder.exists():
        write_safetensors(few_layers, folder, torch.float32)
    truth = quantized(few_layers, as_isq(isq))
    found = divergences(folder, ids, truth, isq)
    assert parse_isq(isq).name in {as_isq(isq)(n, tuple(w.shape)) for n, w in truth.weights.items()}
    assert found.mean() < 0.02
    assert found.max() < 0.2


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-8), (torch.bfloat16, 2e-3)])
@pytest.mark.full
def test_all_layers_as_safetensors(
    exact: ExactModel, ids: list[int], dtype: torch.dtype, most: float, tmp_path: Path
) -> None:
    write_safetensors(exact, tmp_path, dtype)
    found = divergences(tmp_path, ids[:40], in_dtype(exact, dtype), None)
    assert found.abs().mean() < most
