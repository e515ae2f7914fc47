"""Models that embed or rank texts, on the server."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from running_server import RunningServer, running

from mrs.request import ModelSource
from support.sentence_models import token_ids, write_model, write_modules

TEXTS = ["a key", "the cache keeps values", "text"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    write_model(folder, "bert")
    prompts = {"query": "find: "}
    write_modules(folder, {"pooling_mode_cls_token": True}, prompts=prompts, max_tokens=32)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "matryoshka_dimensions": [16]}))
    return folder


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Iterator[RunningServer]:
    with running(source=ModelSource(str(folder), "safetensors"), dtype="f32") as made:
        yield made


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("ranker")
    write_model(folder, "bert", "AutoModelForSequenceClassification", num_labels=1)
    with running(source=ModelSource(str(folder), "safetensors"), dtype="f32") as made:
        yield made


def embeddings(server: RunningServer, **fields: object) -> list[list[float]]:
    reply = server.http.post("/v1/embeddings", json=fields)
    assert reply.status_code == 200, reply.text
    return [each["embedding"] for each in reply.json()["data"]]


def test_texts_token_ids_and_base64_say_the_same(embedder: RunningServer, folder: Path) -> None:
    whole = embeddings(embedder, input=TEXTS)
    ids = [token_ids(folder, text)[0] for text in TEXTS]
    assert np.abs(np.array(embeddings(embedder, input=ids)) - whole).max() < 1e-6
    encoded = embeddings(embedder, input=TEXTS, encoding_format="base64")
    decoded = [np.frombuffer(base64.b64decode(str(each)), "<f4") for each in encoded]
    assert np.abs(np.array(decoded) - whole).max() < 1e-6


def test_a_list_longer_than_the_queue(embedder: RunningServer) -> None:
    found = embeddings(embedder, input=[f"key {number}" for number in range(200)])
    assert len(found) == 200
    (one,) = embeddings(embedder, input="key 150")
    assert found[150] == pytest.approx(one, abs=1e-6)


def test_the_pooler_is_that_of_the_files(embedder: RunningServer) -> None:
    (own,) = embeddings(embedder, input="a key")
    assert own == embeddings(embedder, input="a key", pooling="cls")[0]
    assert own != embeddings(embedder, input="a key", pooling="mean")[0]
    prompted = embeddings(embedder, input="a key", prompt_name="query")[0]
    assert prompted == embeddings(embedder, input="find: a key")[0]


def test_dimensions_that_the_files_name(embedder: RunningServer) -> None:
    (short,) = embeddings(embedder, input="a key", dimensions=16)
    first = np.array(embeddings(embedder, input="a key")[0][:16])
    assert short == pytest.approx((first / np.linalg.norm(first)).tolist())


def test_a_long_text_is_cut_if_asked(embedder: RunningServer) -> None:
    (cut,) = embeddings(embedder, input="keys " * 99, truncate_sequence=True)
    assert len(cut) == 64


@pytest.mark.parametrize(
    ("path", "fields", "param", "words"),
    [
        ("/v1/embeddings", {"input": "keys " * 99}, "input", "holds 32"),
        ("/v1/embeddings", {"input": "a", "dimensions": 17}, "dimensions", "16, 64"),
        ("/v1/embeddings", {"input": "a", "prompt_name": "b"}, "prompt_name", "query"),
        ("/v1/completions", {"prompt": "a"}, None, "no replies"),
        ("/v1/chat/completions", {"messages": "a"}, None, "no replies"),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, "documents", "does not rank"),
        ("/v1/classify", {"input": "a"}, "model", "does not classify"),
    ],
)
def test_what_is_wrong_is_named(
    embedder: RunningServer, path: str, fields: dict[str, object], param: str | None, words: str
) -> None:
    reply = embedder.http.post(path, json=fields)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert words in error["message"]
    assert param is None or error["param"] == param


def test_documents_are_ranked(ranker: RunningServer) -> None:
    body = {"query": "the key?", "documents": [*TEXTS, {"text": "tokens"}]}
    reply = ranker.http.post("/v1/rerank", json={**body, "return_documents": True}).json()
    scores = [each["relevance_score"] for each in reply["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)
    assert sorted(each["index"] for each in reply["results"]) == [0, 1, 2, 3]
    texts = [*TEXTS, "tokens"]
    assert all(texts[each["index"]] == each["document"]["text"] for each in reply["results"])
    assert reply["usage"]["total_tokens"] > 4
    best = ranker.http.post("/v1/rerank", json={**body, "top_n": 1}).json()["results"]
    assert [each["index"] for each in best] == [reply["results"][0]["index"]]
    assert "document" not in best[0]


def test_pairs_are_scored_in_their_order(ranker: RunningServer) -> None:
    query = "the key?"
    ranked = ranker.http.post("/v2/rerank", json={"query": query, "documents": TEXTS}).json()
    wanted = {each["index"]: each["relevance_score"] for each in ranked["results"]}
    for first in (query, [query], [query] * len(TEXTS)):
        body = {"text_1": first, "text_2": TEXTS, "model": "any"}
        reply = ranker.http.post("/score", json=body)
        found = reply.json()
        assert found["model"] == reply.headers["x-model"]
        assert [each["index"] for each in found["data"]] == [0, 1, 2]
        assert [each["score"] for each in found["data"]] == pytest.approx(
            [wanted[index] for index in range(3)], abs=1e-6
        )
    one = ranker.http.post("/v1/score", json={"text_1": query, "text_2": TEXTS[0]}).json()
    assert one["data"][0]["score"] == pytest.approx(wanted[0], abs=1e-6)
    assert one["usage"]["prompt_tokens"] > 2


def test_a_chat_model_ranks_by_yes_and_no(tmp_path: Path) -> None:
    sizes = {"head_dim": 16, "num_key_value_heads": 4, "max_position_embeddings": 512}
    write_model(tmp_path, "qwen3", "AutoModelForCausalLM", **sizes)
    template = "{% for message in messages %}{{ message.content }} [SEP]{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(template)
    body = {"query": "the key?", "documents": TEXTS}
    with running(source=ModelSource(str(tmp_path), "safetensors"), dtype="f32") as server:
        plain, told = (
            server.http.post("/v1/rerank", json={**body, **more}).json()
            for more in ({}, {"instruction": "value"})
        )
    scores = [[each["relevance_score"] for each in reply["results"]] for reply in (plain, told)]
    assert all(0 < score < 1 for found in scores for score in found)
    assert scores[0] == sorted(scores[0], reverse=True)
    assert scores[0] != scores[1]


def test_a_ranker_makes_no_embeddings(ranker: RunningServer) -> None:
    reply = ranker.http.post("/v1/embeddings", json={"input": "a"})
    assert reply.status_code == 400
    assert "/v1/rerank" in reply.json()["error"]["message"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("classifier")
    more = {"id2label": {0: "no", 1: "perhaps", 2: "yes"}, "type_vocab_size": 2}
    write_model(folder, "deberta-v2", "AutoModelForSequenceClassification", **more)
    with running(source=ModelSource(str(folder), "safetensors"), dtype="f32") as made:
        yield made


def test_texts_are_classified_in_their_order(classifier: RunningServer) -> None:
    reply = classifier.http.post("/classify", json={"input": TEXTS}).json()
    assert [each["index"] for each in reply["data"]] == [0, 1, 2]
    for each in reply["data"]:
        assert each["num_classes"] == len(each["probs"]) == 3
        assert sum(each["probs"]) == pytest.approx(1)
        assert each["label"] == ("no", "perhaps", "yes")[np.argmax(each["probs"])]
    assert reply["object"] == "list"
    assert reply["usage"]["prompt_tokens"] == reply["usage"]["total_tokens"] > 6
    (one,) = classifier.http.post("/v1/classify", json={"input": TEXTS[1]}).json()["data"]
    assert one["probs"] == pytest.approx(reply["data"][1]["probs"], abs=1e-6)
    pair = {"input": TEXTS[1], "text_pair": "the key?"}
    (other,) = classifier.http.post("/v1/classify", json=pair).json()["data"]
    assert other["probs"] != pytest.approx(one["probs"], abs=1e-6)


@pytest.mark.parametrize(
    ("path", "fields", "param", "words"),
    [
        ("/v1/classify", {"input": "keys " * 99}, "input", "holds 96"),
        ("/v1/classify", {"input": [5, 6], "text_pair": "a"}, "input", "part of a pair"),
        ("/v1/classify", {"input": [5, 600]}, "input", "token 600"),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, "model", "use mrs classify"),
        ("/v1/embeddings", {"input": "a"}, "input", "/v1/classify"),
    ],
)
def test_what_a_classifier_does_not_do(
    classifier: RunningServer, path: str, fields: dict[str, object], param: str, words: str
) -> None:
    reply = classifier.http.post(path, json=fields)
    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]
    assert reply.json()["error"]["param"] == param


def test_a_long_text_is_classified_without_its_end(classifier: RunningServer) -> None:
    body = {"input": "keys " * 99, "truncate_sequence": True}
    reply = classifier.http.post("/v1/classify", json=body).json()
    assert reply["usage"]["prompt_tokens"] == 96
