"""A reply does not depend on its company: cache, threads, chunks and drafts change no token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mrs.model.decoder import Decoder
from mrs.request import ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader
from mrs.text.gguf_tokenizer import read_gguf_tokenizer
from support.invariance import PLAIN_WAY, Reply, Way, branching_prompts, difference, replies
from support.planned_decoder import planned_decoder
from support.published_model import ExactModel, q4_k_m, widened, write_gguf, write_safetensors

CONVERSATIONS, LAYERS = 2, 4
FORMATS = ["F32", "Q4_1", "Q4_K_M"]
#: How far a log-probability may be off: not at all.
MOST = {"F32": 0.0, "Q4_1": 0.0, "Q4_K_M": 0.0}

#: `tests/bench/invariance.py` goes through all of them, with more requests and more formats.
SOME_WAYS = [
    Way(cached=True, threads=1, chunk_tokens=7, drafts=True),
    Way(cached=True, threads=4, chunk_tokens=64),
    Way(cached=False, threads=4, chunk_tokens=512, drafts=True),
]


def _few_layers(model: ExactModel) -> ExactModel:
    weights = {
        name: weight
        for name, weight in model.weights.items()
        if not name.startswith("blk.") or int(name.split(".")[1]) < LAYERS
    }
    return ExactModel({**model.metadata, "llama.block_count": LAYERS}, weights)


def _source(exact: ExactModel, published: Path, name: str, folder: Path) -> ModelSource:
    if name == "Q4_1":
        return ModelSource(str(published.parent), "gguf", (published.name,))
    if name == "F32":
        write_safetensors(_few_layers(exact), folder, torch.float32)
        return ModelSource(str(folder), "safetensors")
    write_gguf(_few_layers(widened(exact)), folder / "model.gguf", q4_k_m(LAYERS))
    return ModelSource(str(folder), "gguf", ("model.gguf",))


@pytest.fixture(scope="module", params=FORMATS)
def asked(
    request: pytest.FixtureRequest,
    exact: ExactModel,
    published: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, Decoder, list[list[int]], list[Reply]]:
    """A decoder, prompts, and the replies of each prompt alone."""
    source = _source(exact, published, request.param, tmp_path_factory.mktemp("invariance"))
    loader = ModelLoader(RunRequest(source, cpu=True, calibration=False))
    found, cpu = loader.planner, [torch.device("cpu")]
    decoder = planned_decoder(found.checkpoint, found.description, loader.plan, cpu)[1]
    prompts = branching_prompts(read_gguf_tokenizer(exact.metadata), CONVERSATIONS)
    return request.param, decoder, prompts, replies(decoder, prompts, PLAIN_WAY)


@pytest.mark.parametrize("way", SOME_WAYS, ids=str)
@pytest.mark.full
def test_replies_are_those_of_requests_alone(
    asked: tuple[str, Decoder, list[list[int]], list[Reply]], way: Way
) -> None:
    name, decoder, prompts, alone = asked
    found = difference(replies(decoder, prompts, way, alone), alone)
    assert found.requests == 0
    assert found.logprob <= MOST[name]
