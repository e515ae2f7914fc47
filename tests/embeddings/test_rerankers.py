"""Models for sequence classification give the logits of transformers for pairs of texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from mrs.errors import Unsupported
from mrs.run.loaded_model import LoadedModel
from support.sentence_models import load, token_ids, write_model

QUERY = "the key?"
DOCUMENTS = ["a cache keeps keys and values", "text", "tokens, tokens " * 5]
DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
}
EURO = {"attention_bias": True, "mlp_bias": True}
CASES = (
    ("bert", {"num_labels": 1}),
    ("bert", {"num_labels": 3, "hidden_act": "gelu_new"}),
    ("xlm-roberta", {"num_labels": 1, "type_vocab_size": 2}),
    ("xlm-roberta", {"num_labels": 2, "type_vocab_size": 2, "pad_token_id": 1}),
    ("modernbert", {"num_labels": 1}),
    (
        "modernbert",
        {"num_labels": 2, "classifier_pooling": "mean", "classifier_bias": True, "norm_bias": True},
    ),
    ("distilbert", {"num_labels": 3, "hidden_dim": 96}),
    ("electra", {"num_labels": 1, "embedding_size": 32}),
    ("mpnet", {"num_labels": 2}),
    ("deberta-v2", {"num_labels": 3, "type_vocab_size": 2, **DEBERTA}),
    ("deberta-v2", {"num_labels": 1, **DEBERTA, "share_att_key": False}),
    ("jina_embeddings_v3", {"num_labels": 1, "type_vocab_size": 2}),
    ("gte", {"num_labels": 1, "type_vocab_size": 2}),
    ("eurobert", {"num_labels": 2, "mask_token_id": 2}),
    ("eurobert", {"num_labels": 1, "mask_token_id": 2, "classifier_pooling": "bos"}),
    ("eurobert", {"num_labels": 3, "mask_token_id": 2, "classifier_pooling": "mean", **EURO}),
    ("qwen3", {"num_labels": 1, "head_dim": 16, "num_key_value_heads": 4}),
    ("llama", {"num_labels": 2, "num_key_value_heads": 2, "tie_word_embeddings": True}),
)
#: Families without types of texts.
UNTYPED = ("modernbert", "distilbert", "mpnet", "eurobert", "qwen3", "llama")


class Ranker(NamedTuple):
    folder: Path
    loaded: LoadedModel
    reference: Any
    family: str


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{len(case[1])}")
def ranker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ranker]:
    family, config = request.param
    folder = tmp_path_factory.mktemp(family)
    reference = write_model(folder, family, "AutoModelForSequenceClassification", **config)
    loaded = load(folder)
    yield Ranker(folder, loaded, reference, family)
    loaded.close()


@pytest.mark.few(10)
def test_scores_are_those_of_transformers(ranker: Ranker) -> None:
    prompts = [ranker.loaded.prompts.ranking.prompt(QUERY, document) for document in DOCUMENTS]
    found = ranker.loaded.embedder.vectors(prompts)
    for document, vector in zip(DOCUMENTS, found, strict=True):
        ids, types = token_ids(ranker.folder, QUERY, document)
        assert set(types) == {0, 1}
        more = {} if ranker.family in UNTYPED else {"token_type_ids": torch.tensor([types])}
        with torch.inference_mode():
            logits = ranker.reference(torch.tensor([ids]), **more).logits[0]
        assert vector.values == pytest.approx(logits.tolist(), abs=1e-4)


@pytest.mark.few(6)
def test_probabilities_are_those_of_transformers(ranker: Ranker) -> None:
    texts, config = DOCUMENTS, ranker.reference.config
    for text, found in zip(texts, ranker.loaded.classify(texts), strict=True):
        with torch.inference_mode():
            ids = token_ids(ranker.folder, text)[0]
            logits = ranker.reference(torch.tensor([ids])).logits[0]
        shares = logits.softmax(-1) if len(logits) > 1 else logits.sigmoid()
        assert list(found.probabilities) == list(config.id2label.values())
        assert list(found.probabilities.values()) == pytest.approx(shares.tolist(), abs=1e-5)
        assert found.label == config.id2label[int(logits.argmax())]
        assert found.tokens == len(ids)


@pytest.mark.few(6)
def test_a_pair_is_classified_as_a_document_is_ranked(ranker: Ranker) -> None:
    prompts = ranker.loaded.prompts
    pair = prompts.classification(QUERY, DOCUMENTS[0])
    assert pair == prompts.ranking.prompt(QUERY, DOCUMENTS[0])
    long = prompts.classification(QUERY, "tokens " * 99, truncate=True)
    assert len(long.ids) == ranker.loaded.context_tokens


@pytest.mark.few(6)
def test_a_long_document_is_cut_and_the_query_is_not(ranker: Ranker) -> None:
    prompt = ranker.loaded.prompts.ranking.prompt(QUERY, "tokens " * 99, truncate=True)
    limit = ranker.loaded.context_tokens
    assert len(prompt.ids) == len(prompt.token_types) == limit
    whole, _ = token_ids(ranker.folder, QUERY, "tokens " * 99)
    assert list(prompt.ids[: limit - 1]) == whole[: limit - 1]
    (vector,) = ranker.loaded.embedder.vectors([prompt])
    assert vector.tokens == limit


@pytest.mark.few(6)
def test_a_reranker_makes_no_embeddings(ranker: Ranker) -> None:
    with pytest.raises(Unsupported, match=r"use mrs (rerank|classify)"):
        ranker.loaded.embed(["a key"])
