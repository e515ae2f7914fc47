"""The GGUF form of every family gives the numbers of transformers too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from every_path import GgufChecks
from gguf_files import write_gguf
from parity_cases import CASES, REPRESENTATIVES
from reference import Reference
from running import Loaded, difference, load

from mrs.request import ModelSource
from support.suites import kinds

LLAMA_CPP_TOLERANCE = 1e-3
#: Its GELU has the precision of float16, which counts for more where scores are not scaled.
GEMMA_TOLERANCE = 1e-2
UNLIKE_LLAMA_CPP = {
    "gemma3n_text-default": "it takes 20 layers to have keys of their own",
    "gemma4_text-shared": "it takes the last two layers with own keys to be one of each kind",
    "exaone4-default": "it takes only models of 64 layers to have windows",
    "exaone4-odd": "it takes only models of 64 layers to have windows",
    "qwen3_next-odd": "it takes keys and values of a delta net to be of one size",
    "phimoe-default": "it weighs the chosen experts by plain softmax",
    "phimoe-odd": "it weighs the chosen experts by plain softmax",
    "gpt_oss-default": "it moves yarn's borders to whole pairs",
    "deepseek_v2-odd": "it goes by the number of layers whether queries have a latent vector",
    "phi3-odd": "it picks long or short factors by the room, not by the tokens",
}
GGUF_CASES = [case for case in CASES if case.gguf is not None]


@pytest.fixture(scope="session", params=kinds(GGUF_CASES, REPRESENTATIVES))
def gguf_truth(request: pytest.FixtureRequest, references) -> Reference:
    return references(request.param)


@pytest.fixture(scope="session")
def gguf_file(gguf_truth: Reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(gguf_truth.case.id) / "model.gguf"
    write_gguf(gguf_truth, path)
    return path


@pytest.fixture(scope="session")
def gguf_model(gguf_file: Path) -> Loaded:
    return load(ModelSource(str(gguf_file), "gguf"))


class TestGgufFiles(GgufChecks):
    """The checks of `every_path.py`, of every configuration that GGUF files can hold."""


@pytest.mark.slow
@pytest.mark.table("llama.cpp")
def test_llama_cpp_agrees(gguf_file: Path, gguf_truth: Reference) -> None:
    """The file is right in the eyes of llama.cpp itself, which computes in float32 here."""
    llama_cpp = pytest.importorskip("llama_cpp")
    if gguf_truth.case.id in UNLIKE_LLAMA_CPP:
        pytest.skip(UNLIKE_LLAMA_CPP[gguf_truth.case.id])
    engine = llama_cpp.Llama(
        str(gguf_file),
        n_ctx=64,
        logits_all=True,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        flash_attn=False,
        n_threads=1,
        n_gpu_layers=0,
        verbose=False,
    )
    engine.eval(gguf_truth.prompt)
    theirs = torch.from_numpy(engine.scores[: len(gguf_truth.prompt)].copy())
    engine.close()
    is_gemma = gguf_truth.case.family == "gemma4_text"
    tolerance = GEMMA_TOLERANCE if is_gemma else LLAMA_CPP_TOLERANCE
    assert difference(theirs, gguf_truth.prompt_logits) < tolerance
