"""Embeddings, compared with the hidden states of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from running_server import RunningServer, running

from mrs.request import ModelSource
from support.model_files import write_demo_like_model

TEXTS = ["A KV cache keeps keys and values.", "Two plus two", "word " * 300]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_like_model(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="module")
def random_server(folder: Path) -> Iterator[RunningServer]:
    with running(source=ModelSource(str(folder), "safetensors"), dtype="f32") as made:
        yield made


def reference(folder: Path, ids: list[int], pooling: str) -> np.ndarray:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        states = model(torch.tensor([ids])).last_hidden_state[0].double()
    vector = states.mean(0) if pooling == "mean" else states[-1]
    return (vector / vector.norm()).numpy()


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings_are_those_of_transformers(
    random_server: RunningServer, folder: Path, pooling: str
) -> None:
    client = random_server.openai()
    for _ in range(2):  # a prefix cache must not change anything
        found = client.embeddings.create(
            model="default", input=TEXTS, extra_body={"pooling": pooling}
        )
        prompts = [
            random_server.http.post("/tokenize", json={"prompt": text}).json()["tokens"]
            for text in TEXTS
        ]
        for ids, each in zip(prompts, found.data, strict=True):
            wanted = reference(folder, ids, pooling)
            assert np.abs(np.array(each.embedding) - wanted).max() < 1e-4
    assert found.usage.prompt_tokens == sum(map(len, prompts))


def test_both_encodings_say_the_same(server: RunningServer) -> None:
    client = server.openai()
    numbers = client.embeddings.create(model="demo", input="a", encoding_format="float")
    encoded = client.embeddings.create(model="demo", input=["a"], encoding_format="base64")
    packed = encoded.data[0].embedding
    if isinstance(packed, str):
        import base64

        packed = np.frombuffer(base64.b64decode(packed), "<f4").tolist()
    assert packed == pytest.approx(numbers.data[0].embedding, abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": "a " * 5000}, "input"),
        ({"input": "a", "dimensions": 3}, "dimensions"),
        ({"input": "a", "pooling": "median"}, "pooling"),
        ({}, "input"),
    ],
)
def test_what_is_wrong_is_named(
    server: RunningServer, fields: dict[str, object], param: str
) -> None:
    reply = server.http.post("/v1/embeddings", json=fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_embeddings_and_replies_at_once(server: RunningServer) -> None:
    """They share steps, and neither changes the other."""
    import threading

    alone = server.chat(max_tokens=20).json()["choices"][0]["message"]["content"]
    vector = server.openai().embeddings.create(model="demo", input=TEXTS[2]).data[0].embedding
    found: list[str] = []

    def ask() -> None:
        found.append(server.chat(max_tokens=20).json()["choices"][0]["message"]["content"])

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    again = server.openai().embeddings.create(model="demo", input=TEXTS[2]).data[0].embedding
    for thread in threads:
        thread.join()
    assert found == [alone] * 3
    assert again == pytest.approx(vector, abs=1e-3)
