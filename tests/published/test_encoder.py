"""all-MiniLM-L6-v2 gives the embeddings that transformers gives with its own tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mrs.devices.cpu_path import cpu_path
from mrs.request import ModelSource, RunRequest
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader
from support.published_encoder import WHY_ABSENT, published_encoder

TEXTS = [
    "A KV cache keeps keys and values, so that they are not computed again.",
    "Keys and values of earlier tokens are stored.",
    "The weather in Lisbon is fine.",
    "Das Wetter ist sch\u00f6n: \u4f60\u597d, na\u00efve caf\u00e9 \U0001f600",
    "a" * 300,
    "",
]
MOST_TOKENS = 256


@pytest.fixture(scope="module")
def encoder() -> Path:
    folder = published_encoder()
    if folder is None:
        pytest.skip(WHY_ABSENT)
    return folder


@pytest.fixture(scope="module")
def embedder(encoder: Path) -> Iterator[LoadedModel]:
    source = ModelSource(str(encoder), "safetensors")
    model = ModelLoader(RunRequest(source, cpu=True, calibration=False)).load()
    yield model
    model.close()


@pytest.fixture(scope="module")
def reference(encoder: Path) -> Any:
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(encoder)
    model = AutoModel.from_pretrained(encoder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def embed(text: str) -> list[float]:
        batch = tokenizer(text, truncation=True, max_length=MOST_TOKENS, return_tensors="pt")
        mean = model(**batch).last_hidden_state[0].mean(0)
        return (mean / mean.norm()).tolist()

    return embed


def test_embeddings_are_those_of_transformers(embedder: LoadedModel, reference: Any) -> None:
    together = embedder.embed(TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        assert vector.values == pytest.approx(reference(text), abs=1e-4)
        (alone,) = embedder.embed([text])
        assert alone.values == pytest.approx(vector.values, abs=1e-6)


def test_a_long_text_is_cut_as_the_tokenizer_cuts(embedder: LoadedModel, reference: Any) -> None:
    text = "keys and values " * 200
    (cut,) = embedder.embed([text], truncate=True)
    assert cut.tokens == MOST_TOKENS
    assert cut.values == pytest.approx(reference(text), abs=1e-4)


def test_texts_of_one_meaning_are_closest(embedder: LoadedModel) -> None:
    cache, stored, weather = (torch.tensor(each.values) for each in embedder.embed(TEXTS[:3]))
    assert float(cache @ stored) > 2 * float(cache @ weather)


def test_the_plan_counts_every_byte(embedder: LoadedModel, encoder: Path) -> None:
    (terms,) = [each for each in embedder.plan.breakdowns if each.weight_bytes]
    parameters = 22_565_376  # without the pooler, which mean pooling leaves out
    # The native kernels store rows in groups of 16: the table of 30,522 tokens has 6 rows more.
    padding = 0 if cpu_path() == "torch" else 6 * 384
    assert terms.weight_bytes == 4 * (parameters + padding)
    assert terms.kv_bytes == 0
