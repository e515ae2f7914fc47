"""Published GGUF files against transformers, which reads the same files by its own way.

transformers dequantizes the weights and makes its own tokenizer of the metadata. The files are
fetched by `fetch.py`; without them these tests are skipped.
"""

from __future__ import annotations

import json
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from conversations import request_for
from safetensors.torch import save_file
from tokenizers import normalizers
from torch import Tensor

from mrs.model.batch import SequenceInput, forward_batch
from mrs.request import ModelSource, RunRequest
from mrs.run.loaded_model import LoadedModel
from mrs.run.measure import measure
from mrs.run.model_loader import ModelLoader
from support.planned_decoder import planned_decoder
from support.published_files import GEMMA, QWEN_CODER, PublishedModel, dequantized_model

REPLY_TOKENS = 8
#: Mean divergence in nats that the activations of quantized products may add.
MOST_DIVERGENCE = {GEMMA.file: 0.005, QWEN_CODER.file: 0.002}
SAMPLES = [
    "Hello  world,   it's 2024-06-01: 12345 items!\n\n\tdef f(x):\n        return x ** 2\n",
    "Größe café e\u0301 \u2026 日本語 한국어 привет \U0001f600",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd",
    "   leading, trailing   ",
    "\r\n\r\n \u00a0\u3000 \x7f",
]


@dataclass(frozen=True)
class Case:
    """A published file, and what transformers makes of it."""

    published: PublishedModel
    model: Any
    tokenizer: Any
    ids: list[int]


@pytest.fixture(scope="module", params=[GEMMA, QWEN_CODER], ids=lambda each: each.file)
def case(request: pytest.FixtureRequest) -> Case:
    published: PublishedModel = request.param
    if not published.is_present:
        pytest.skip(published.why_absent)
    from transformers import AutoTokenizer

    folder, file = published.path.parent, published.file
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    if published is QWEN_CODER:  # as its own tokenizer.json has it; GGUF files do not say so
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    code = Path(sysconfig.get_path("stdlib"), "textwrap.py").read_text()[2000:4000]
    return Case(
        published, dequantized_model(published), tokenizer, tokenizer(code)["input_ids"][:240]
    )


@pytest.fixture(scope="module")
def loaded(case: Case) -> Iterator[LoadedModel]:
    model = ModelLoader(request_for(case.published.path, speculate="off")).load()
    yield model
    model.close()


@torch.inference_mode()
def log_probabilities(source: ModelSource, ids: list[int]) -> Tensor:
    """Of every position (T, V): a prompt, then tokens one by one."""
    loader = ModelLoader(RunRequest(source, cpu=True, calibration=False))
    found, cpu = loader.planner, [torch.device("cpu")]
    decoder = planned_decoder(found.checkpoint, found.description, loader.plan, cpu)[1]
    cache, logits = decoder.new_cache(len(ids), len(ids)), []
    first = len(ids) - REPLY_TOKENS
    for piece in (ids[:first], *([token] for token in ids[first:])):
        fed = SequenceInput(cache, piece, logits_rows=range(len(piece)))
        logits.append(decoder.forward(forward_batch([fed]), [cache]))
    return torch.cat(logits).double().log_softmax(-1)


@torch.inference_mode()
def exact(case: Case, ids: list[int]) -> Tensor:
    return case.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)


def divergences(ours: Tensor, exact: Tensor) -> Tensor:
    return (exact.exp() * (exact - ours)).sum(-1)


def test_same_tokens(case: Case, loaded: LoadedModel) -> None:
    folder = Path(sysconfig.get_path("stdlib"))
    code = "".join((folder / name).read_text() for name in ("textwrap.py", "heapq.py"))
    pieces = [code[start : start + 700] for start in range(0, len(code), 700)]
    # Longer runs of spaces are no token, and there transformers' conversion of the file differs
    # from the model's own tokenizer (see test_embedding_gemma.py).
    pieces = [re.sub(" {32,}", " " * 31, piece) for piece in pieces]
    for text in [*SAMPLES, *pieces]:
        assert loaded.tokenizer.encode_prompt(text) == case.tokenizer(text)["input_ids"]


def test_the_file_itself_is_close_to_its_exact_weights(case: Case) -> None:
    path = case.published.path
    ours = log_probabilities(ModelSource(str(path.parent), "gguf", (path.name,)), case.ids)
    truth = exact(case, case.ids)
    assert divergences(ours, truth).mean() < MOST_DIVERGENCE[case.published.file]
    same = ours.argmax(-1) == truth.argmax(-1)
    assert same.float().mean() > 0.95


def test_its_weights_in_float32_are_exact(case: Case, tmp_path: Path) -> None:
    config = case.model.config.to_dict()
    del config["quantization_config"]  # the weights are dequantized
    config["architectures"] = [type(case.model).__name__]
    (tmp_path / "config.json").write_text(json.dumps(config))
    state = {name: weight.clone() for name, weight in case.model.state_dict().items()}
    if case.model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    save_file(state, tmp_path / "model.safetensors")
    ids = case.ids[:48]
    ours = log_probabilities(ModelSource(str(tmp_path), "safetensors"), ids)
    assert divergences(ours, exact(case, ids)).abs().mean() < 1e-8


def test_planned_bytes_are_those_that_are_allocated(case: Case) -> None:
    rows = {row.term: row for row in measure(ModelLoader(request_for(case.published.path))).rows}
    for term in ("weights", "KV cache"):
        assert rows[term].measured_bytes == rows[term].predicted_bytes
    activations = rows["activations"]
    assert activations.measured_bytes is not None
    assert activations.measured_bytes <= activations.predicted_bytes


def test_a_chat_is_rendered_as_transformers_renders_it(case: Case, loaded: LoadedModel) -> None:
    if case.published is GEMMA:
        assert not loaded.has_chat_template  # a model that was not taught to chat
        return
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How is the weather in Rome?"},
    ]
    for tools in ([], [tool]):
        theirs = case.tokenizer.apply_chat_template(
            messages, tools=tools or None, add_generation_prompt=True, return_dict=False
        )
        assert loaded._text.prompt_ids(messages, tools=tools) == theirs
