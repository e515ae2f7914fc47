"""Models with the files of sentence-transformers give the vectors that these files describe."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mrs.errors import ContextFull, NotReadable, Unsupported, UsageError
from mrs.request import Sampling
from mrs.run.loaded_model import LoadedModel
from support.sentence_models import load, token_ids, write_model, write_modules

TEXTS = ["the cache keeps keys", "a token?", "text " * 30, "tokenized texts: values | keys."]
PROMPTS = {"query": "find: ", "document": "text: "}


@dataclass(frozen=True)
class SentenceCase:
    """A model of a family, and the modules after it."""

    family: str
    name: str
    config: dict[str, Any]
    pooling: str
    activations: tuple[str, ...] = ()
    bias: bool = False
    normalize: bool = True

    @property
    def id(self) -> str:
        return f"{self.family}-{self.name}"


_QWEN = {"head_dim": 16, "num_key_value_heads": 2}
_GEMMA = {
    **_QWEN,
    "use_bidirectional_attention": True,
    "query_pre_attn_scalar": 16,
    "sliding_window": 16,
}
_IDENTITY = "torch.nn.modules.linear.Identity"
_TANH = "torch.nn.modules.activation.Tanh"
CASES = (
    SentenceCase("qwen3", "default", {**_QWEN, "tie_word_embeddings": True}, "lasttoken"),
    SentenceCase(
        "qwen3",
        "switched",
        {**_QWEN, "attention_bias": True, "tie_word_embeddings": False},
        "lasttoken",
        normalize=False,
    ),
    SentenceCase("gemma3_text", "default", _GEMMA, "mean_tokens", (_IDENTITY, _IDENTITY)),
    SentenceCase(
        "gemma3_text", "switched", {**_GEMMA, "head_dim": 20}, "cls_token", (_TANH,), bias=True
    ),
    SentenceCase("bert", "default", {}, "mean_tokens"),
    SentenceCase("bert", "switched", {"hidden_act": "gelu_new"}, "max_tokens", normalize=False),
)
POOLED: dict[str, Callable[[Tensor], Tensor]] = {
    "lasttoken": lambda states: states[-1],
    "cls_token": lambda states: states[0],
    "mean_tokens": lambda states: states.mean(0),
    "max_tokens": lambda states: states.amax(0),
}


@dataclass(frozen=True)
class Sentences:
    """A loaded model, and the same by transformers and torch."""

    case: SentenceCase
    folder: Path
    loaded: LoadedModel
    reference: torch.nn.Module
    dense: list[tuple[torch.nn.Linear, str]]

    @torch.inference_mode()
    def expected(self, text: str, most_tokens: int = 96) -> list[float]:
        ids, _ = token_ids(self.folder, text)
        if len(ids) > most_tokens:
            ids = [*ids[: most_tokens - 1], ids[-1]]
        states = self.reference(torch.tensor([ids])).last_hidden_state[0]
        vector = POOLED[self.case.pooling](states)
        for linear, activation in self.dense:
            vector = linear(vector)
            vector = torch.tanh(vector) if activation == _TANH else vector
        if self.case.normalize:
            vector = vector / vector.norm()
        return vector.tolist()


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.id)
def sentences(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sentences]:
    case: SentenceCase = request.param
    folder = tmp_path_factory.mktemp(case.id)
    reference = write_model(folder, case.family, **case.config)
    sizes, dense = [64, 80, 32], []
    for index, activation in enumerate(case.activations):
        linear = torch.nn.Linear(sizes[index], sizes[index + 1], bias=case.bias)
        dense.append((linear, activation))
    pooling = {f"pooling_mode_{kind}": kind == case.pooling for kind in POOLED}
    write_modules(
        folder,
        {"word_embedding_dimension": 64, **pooling},
        dense=dense,
        normalize=case.normalize,
        prompts=PROMPTS,
        default_prompt="document" if case.name == "switched" else None,
        max_tokens=64,
    )
    loaded = load(folder)
    yield Sentences(case, folder, loaded, reference, dense)
    loaded.close()


@pytest.mark.few(3)
def test_vectors_are_those_of_the_modules(sentences: Sentences) -> None:
    before = PROMPTS["document"] if sentences.case.name == "switched" else ""
    found = sentences.loaded.embed(TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        assert vector.values == pytest.approx(sentences.expected(before + text), abs=1e-4)
        (alone,) = sentences.loaded.embed([text])
        assert alone.values == pytest.approx(vector.values, abs=1e-6)
        assert alone.tokens == vector.tokens == len(token_ids(sentences.folder, before + text)[0])


def test_a_prompt_goes_before_the_text(sentences: Sentences) -> None:
    (found,) = sentences.loaded.embed(["a key"], prompt_name="query")
    assert found.values == pytest.approx(sentences.expected("find: a key"), abs=1e-4)
    with pytest.raises(UsageError, match=r"no prompt 'riddle'.*document, query"):
        sentences.loaded.embed(["a key"], prompt_name="riddle")


def test_token_ids_are_taken_as_they_are(sentences: Sentences) -> None:
    (found,) = sentences.loaded.embed([token_ids(sentences.folder, "a key")[0]])
    assert found.values == pytest.approx(sentences.expected("a key"), abs=1e-4)


def test_a_long_text_is_refused_or_cut(sentences: Sentences) -> None:
    text = "keys " * 70
    with pytest.raises(ContextFull, match="model's context holds 64"):
        sentences.loaded.embed([text])
    (cut,) = sentences.loaded.embed([text], truncate=True, prompt_name="query")
    assert cut.tokens == 64
    assert cut.values == pytest.approx(sentences.expected("find: " + text, 64), abs=1e-4)


def test_there_are_no_replies_and_no_kv_cache_is_planned(sentences: Sentences) -> None:
    with pytest.raises(Unsupported, match="makes embeddings of texts, but no replies"):
        sentences.loaded.stream_completion("a key", Sampling())
    plan = sentences.loaded.plan
    assert any(plan.kv_bytes) == (sentences.case.family == "qwen3")
    assert sum(plan.prefix_bytes) == 0
    assert not plan.model.makes_replies


def test_dimensions_need_the_word_of_the_files(sentences: Sentences) -> None:
    with pytest.raises(Unsupported, match="embeddings of 8 values"):
        sentences.loaded.embed(["a key"], dimensions=8)
    size = len(sentences.loaded.embed(["a key"])[0].values)
    assert len(sentences.loaded.embed(["a key"], dimensions=size)[0].values) == size


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    write_model(folder, "bert")
    return folder


def modified(folder: Path, copy: Path, **config: Any) -> Path:
    for file in folder.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    values = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**values, **config}))
    return copy


def test_a_shortened_embedding_has_its_length_again(bert: Path, tmp_path: Path) -> None:
    folder = modified(bert, tmp_path, matryoshka_dimensions=[16, 32, 64])
    model = load(folder)
    (whole,) = model.embed(["a key"])
    (short,) = model.embed(["a key"], dimensions=16)
    first = torch.tensor(whole.values[:16])
    assert short.values == pytest.approx((first / first.norm()).tolist(), abs=1e-6)
    with pytest.raises(Unsupported, match="16, 32, 64"):
        model.embed(["a key"], dimensions=17)
    model.close()


def test_any_dimensions(bert: Path, tmp_path: Path) -> None:
    model = load(modified(bert, tmp_path, is_matryoshka=True))
    (short,) = model.embed(["a key"], dimensions=7)
    assert len(short.values) == 7
    with pytest.raises(Unsupported, match="1 to 64"):
        model.embed(["a key"], dimensions=65)
    model.close()


def test_a_huge_size_is_refused_at_once(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(NotReadable):
        load(modified(bert, tmp_path, is_matryoshka=True, hidden_size=2**61))


@pytest.mark.parametrize(
    ("pooling", "words"),
    [
        ({"pooling_mode_weightedmean_tokens": True}, "the pooling weightedmean_tokens is not"),
        (
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            "the pooling cls_token . mean_tokens is not",
        ),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, "mean_sqrt_len_tokens"),
        ({"pooling_mode_cls_token": True, "include_prompt": False}, "without the prompt"),
    ],
)
def test_other_pooling_is_refused_by_name(
    bert: Path, tmp_path: Path, pooling: dict[str, Any], words: str
) -> None:
    folder = modified(bert, tmp_path)
    write_modules(folder, pooling)
    with pytest.raises(Unsupported, match=words):
        load(folder)


def test_other_modules_are_refused_by_name(bert: Path, tmp_path: Path) -> None:
    folder = modified(bert, tmp_path)
    write_modules(folder, {"pooling_mode_cls_token": True})
    modules = (folder / "modules.json").read_text().replace("Normalize", "LSTM")
    (folder / "modules.json").write_text(modules)
    with pytest.raises(Unsupported, match="the module LSTM"):
        load(folder)


def test_pickled_modules_are_refused(bert: Path, tmp_path: Path) -> None:
    folder = modified(bert, tmp_path)
    linear = torch.nn.Linear(64, 8)
    write_modules(folder, {"pooling_mode_cls_token": True}, dense=[(linear, _TANH)])
    weights = folder / "2_Dense" / "model.safetensors"
    weights.rename(weights.with_name("pytorch_model.bin"))
    with pytest.raises(Unsupported, match=r"could execute code: 2_Dense/pytorch_model\.bin"):
        load(folder)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        '[{"type": "x.Pooling"}]',
        '[{"type": "a", "path": "../b"}]',
        json.dumps([{"type": "a", "path": ""}] * 65),
    ],
)
def test_a_broken_list_of_modules_is_one_error(bert: Path, tmp_path: Path, text: str) -> None:
    folder = modified(bert, tmp_path)
    (folder / "modules.json").write_text(text)
    with pytest.raises(NotReadable, match="modules"):
        load(folder)
