"""Embeddings from Python, with the names of mistralrs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mrs import CompletionRequest, EmbeddingArchitecture, EmbeddingRequest, Runner, Which
from mrs.errors import Unsupported, UsageError
from support.sentence_models import token_ids, write_model, write_modules


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    write_model(folder, "bert")
    write_modules(folder, {"pooling_mode_mean_tokens": True}, prompts={"query": "find: "})
    return folder


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Iterator[Runner]:
    which = Which.Embedding(str(folder), EmbeddingArchitecture.Bert, dtype="f32")
    with Runner(which=which, cpu=True) as runner:
        yield runner


def test_texts_and_token_ids(embedder: Runner, folder: Path) -> None:
    (one,) = embedder.send_embedding_request(EmbeddingRequest("a key"))
    both = embedder.send_embedding_request(EmbeddingRequest(["text", "a key"]))
    ids, _ = token_ids(folder, "a key")
    assert both[1] == pytest.approx(one, abs=1e-6)
    assert embedder.send_embedding_request(EmbeddingRequest(ids)) == [one]
    assert embedder.send_embedding_request(EmbeddingRequest([ids])) == [one]
    assert embedder.send_embedding_request(EmbeddingRequest(list(np.array(ids)))) == [one]
    (found,) = embedder.send_embedding_request(EmbeddingRequest("a key", prompt_name="query"))
    assert found == embedder.send_embedding_request(EmbeddingRequest("find: a key"))[0]


def test_a_long_text(embedder: Runner) -> None:
    with pytest.raises(UsageError, match="holds 96"):
        embedder.send_embedding_request(EmbeddingRequest("keys " * 99))
    assert embedder.send_embedding_request(EmbeddingRequest("keys " * 99, truncate_sequence=True))


@pytest.mark.parametrize("value", [[], 5, None, ["a", 1], [[1], "a"], [-1], [[1.5]]])
def test_other_inputs_are_refused(value: object) -> None:
    with pytest.raises(UsageError, match="give a string, a list of strings, of token ids"):
        EmbeddingRequest(value)  # type: ignore[arg-type]


def test_a_token_that_the_model_lacks(embedder: Runner) -> None:
    with pytest.raises(Exception, match="token 99999"):
        embedder.send_embedding_request(EmbeddingRequest([99_999]))


def test_documents_are_ranked(tmp_path: Path) -> None:
    write_model(tmp_path, "bert", "AutoModelForSequenceClassification", num_labels=1)
    with Runner(which=Which.Embedding(str(tmp_path), dtype="f32"), cpu=True) as runner:
        ranked = runner.rerank("the key?", ["a key", "the cache keeps values"])
        assert sorted(each.document for each in ranked) == [0, 1]
        assert ranked[0].score > ranked[1].score
        with pytest.raises(UsageError, match="documents"):
            runner.rerank("the key?", "a key")


def test_texts_are_classified(tmp_path: Path) -> None:
    kind, labels = "AutoModelForSequenceClassification", {0: "bad", 1: "good"}
    write_model(tmp_path, "electra", kind, id2label=labels)
    with Runner(which=Which.Embedding(str(tmp_path), dtype="f32"), cpu=True) as runner:
        found = runner.classify(["a key", "the cache keeps values"])
        assert [list(each.probabilities) for each in found] == [["bad", "good"]] * 2
        assert all(sum(each.probabilities.values()) == pytest.approx(1) for each in found)
        assert all(
            each.label == max(each.probabilities, key=each.probabilities.get) for each in found
        )
        (pair,) = runner.classify(["a key"], text_pair="the cache")
        assert pair.tokens > found[0].tokens
        with pytest.raises(UsageError, match="texts"):
            runner.classify("the key?")


def test_there_are_no_replies(embedder: Runner) -> None:
    with pytest.raises(Unsupported, match="makes embeddings of texts, but no replies"):
        embedder.send_completion_request(CompletionRequest("a key"))


def test_a_model_for_replies_embeds_too() -> None:
    with Runner(which=Which.Plain("demo"), cpu=True) as runner:
        (found,) = runner.send_embedding_request(EmbeddingRequest("What is a KV cache?"))
        assert sum(value * value for value in found) == pytest.approx(1)
        with pytest.raises(UsageError, match="no prompt 'query'"):
            runner.send_embedding_request(EmbeddingRequest("a", prompt_name="query"))
        with pytest.raises(Unsupported, match="cannot be shortened"):
            runner.send_embedding_request(EmbeddingRequest("a", dimensions=5))
