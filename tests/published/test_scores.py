"""Prompts of the published model are scored as transformers does, and always with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mrs.engine.prompt_scores import ScoredToken
from mrs.model.decoder import Decoder
from mrs.request import ModelSource, RunRequest, Sampling
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader
from support.engines import Asked, make_engine
from support.published_model import ExactModel, write_safetensors

TEXT = (
    "A cache keeps what was computed before, so that it need not be computed again. The keys and "
    "values of a prompt are such: 東京 and Zürich are cities, 3 + 4 = 7, and naïve is a word."
)
#: In nats on average; the file's blocks of 4 bits are multiplied with activations of 8 bits.
MOST_APART = {"float32": 1e-4, "file": 0.1}


@pytest.fixture(scope="module")
def ids(loaded: LoadedModel) -> list[int]:
    return loaded.tokenizer.encode(TEXT, allow_special=False)


def scores(decoder: Decoder, prompts: list[list[int]], chunk: int) -> list[list[ScoredToken]]:
    sampling = Sampling(temperature=0, max_tokens=0, prompt_logprobs=3)
    engine = make_engine(decoder, context_tokens=512, planned_tokens=512, chunk_tokens=chunk)
    asked = [Asked.of(engine, each, sampling) for each in prompts]
    for each in asked:
        each.finish()
    found = [each.sequence.prompt_scores for each in asked]
    return [each.tokens for each in found if each is not None]


def decoder_of(source: ModelSource) -> Decoder:
    loader = ModelLoader(RunRequest(source, cpu=True, calibration=False, max_seq_len=512))
    return loader.load_decoder(lambda progress: None)[0]


@pytest.mark.parametrize("weights", ["float32", "file"])
def test_scores_are_those_of_transformers_however_they_are_computed(
    weights: str,
    published: Path,
    exact: ExactModel,
    reference: Any,
    ids: list[int],
    tmp_path: Path,
) -> None:
    source = ModelSource(str(published.parent), "gguf", (published.name,))
    if weights == "float32":
        write_safetensors(exact, tmp_path, torch.float32)
        source = ModelSource(str(tmp_path), "safetensors")
    decoder = decoder_of(source)
    [found] = scores(decoder, [ids], 512)
    for chunk in (7, 64):
        both = scores(decoder, [ids[20:], ids], chunk)
        assert both[1] == found
        assert both[0] == scores(decoder, [ids[20:]], 512)[0]
    with torch.inference_mode():
        logits = reference(torch.tensor([ids])).logits[0, :-1].double()
    wanted = logits.log_softmax(1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    apart = (torch.tensor([each.logprob for each in found]).double() - wanted).abs()
    assert apart.mean() < MOST_APART[weights]
