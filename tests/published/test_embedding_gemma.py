"""EmbeddingGemma gives the embeddings that transformers and its own pooling give."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conversations import request_for
from safetensors.torch import load_file
from tokenizers import Tokenizer

from mrs.request import ModelSource, RunRequest
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader
from mrs.text.gguf_tokenizer import read_gguf_tokenizer
from support.published_files import EMBEDDING_GEMMA, GEMMA

QUERY = "task: search result | query: "
TEXTS = [
    "A KV cache keeps keys and values, so that they are not computed again.",
    "Das Wetter ist sch\u00f6n: \u4f60\u597d, na\u00efve caf\u00e9 \U0001f600",
    "keys and values " * 150,
]


@pytest.fixture(scope="module")
def folder() -> Path:
    if not EMBEDDING_GEMMA.is_present:
        pytest.skip(EMBEDDING_GEMMA.why_absent)
    return EMBEDDING_GEMMA.path


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Iterator[LoadedModel]:
    source = ModelSource(str(folder), "safetensors")
    model = ModelLoader(RunRequest(source, cpu=True, calibration=False)).load()
    yield model
    model.close()


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    """transformers' model, the mean of its hidden states, and the two projections after it."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    dense = [
        load_file(folder / name / "model.safetensors")["linear.weight"]
        for name in ("2_Dense", "3_Dense")
    ]

    @torch.inference_mode()
    def embed(text: str) -> list[float]:
        vector = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        for weight in dense:
            vector = weight @ vector
        return (vector / vector.norm()).tolist()

    return embed


def test_embeddings_are_those_of_transformers(embedder: LoadedModel, reference: Any) -> None:
    together = embedder.embed(TEXTS, prompt_name="query")
    for text, vector in zip(TEXTS, together, strict=True):
        assert vector.values == pytest.approx(reference(QUERY + text), abs=2e-6)
        (alone,) = embedder.embed([text], prompt_name="query")
        assert alone.values == pytest.approx(vector.values, abs=1e-6)


def test_a_gguf_file_of_the_same_vocabulary_has_the_same_tokens(folder: Path) -> None:
    """Gemma 3 in GGUF against the published tokenizer.json of its sister."""
    if not GEMMA.is_present:
        pytest.skip(GEMMA.why_absent)
    metadata = ModelLoader(request_for(GEMMA.path)).planner.checkpoint.config
    ours, theirs = (
        read_gguf_tokenizer(metadata),
        Tokenizer.from_file(str(folder / "tokenizer.json")),
    )
    spaces = [f"x\n{' ' * count}word{' ' * count}" for count in range(80)]
    for text in [*TEXTS, *spaces, "\n" * 40, "\t" * 40, "<start_of_image> [multimodal]"]:
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, allow_special=True) == ids
