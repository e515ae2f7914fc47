"""Models load and run on a GPU that is not there, and do there only what a GPU can.

Core has a plain family, the full suite one for each kind of layer; `-m ""` runs every family.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from gguf_files import write_gguf
from parity_cases import CASES, Case
from running import load
from saved_models import SavedModel, save_model

from mrs.model.decoder import Decoder
from mrs.request import ModelSource, Sampling
from support.engines import Asked, make_engine
from support.fake_gpu import FakeGpu, HostRead, Traffic
from support.suites import first, suite_of

GPU, GPUS = torch.device("cuda", 0), (torch.device("cuda", 0), torch.device("cuda", 1))
APPLE = torch.device("mps", 0)
GREEDY = Sampling(temperature=0, frequency_penalty=0, presence_penalty=0, max_tokens=8)
#: One configuration of each family, in the order of the table of families.
FAMILIES = {case.family: case for case in reversed(CASES)}
KINDS = ("llama", "gemma2", "mixtral", "gpt_oss", "deepseek_v3", "lfm2")
CORE = ("llama",)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SavedModel]:
    return {}


@pytest.fixture(
    params=[
        pytest.param(case, id=family, marks=suite_of(family, CORE, KINDS))
        for family, case in FAMILIES.items()
    ]
)
def saved(
    request: pytest.FixtureRequest,
    folders: dict[str, SavedModel],
    tmp_path_factory: pytest.TempPathFactory,
) -> SavedModel:
    case: Case = request.param
    if case.family not in folders:
        folders[case.family] = save_model(case, tmp_path_factory.mktemp(case.family))
    return folders[case.family]


def decoder_of(
    saved: SavedModel,
    devices: Sequence[torch.device] = (GPU,),
    isq: str | None = None,
    cache: str | None = None,
) -> Decoder:
    source = ModelSource(str(saved.folder), "safetensors")
    return load(source, dtype="bf16", devices=devices, isq=isq, cache=cache).decoder


def traffic_of_steps(gpu: FakeGpu, decoder: Decoder, sequences: int) -> list[Traffic]:
    """What the decode steps of some sequences do, after their prompts in chunks."""
    engine = make_engine(
        decoder,
        planned_tokens=64,
        context_tokens=256,
        chunk_tokens=16,
        max_seqs=sequences,
        planned_seqs=sequences,
        prefix_cache_n=2,
    )
    asked = [Asked.of(engine, range(1, 24 + n), GREEDY) for n in range(sequences)]
    while any(each.sequence.num_new_tokens < 2 for each in asked):
        engine.step()
        for each in asked:
            if each.sequence.error is not None:
                raise each.sequence.error
    steps = []
    for _ in range(2):
        steps.append(gpu.record())
        engine.step()
    gpu.record()
    for each in asked:
        each.finish()
    Asked.of(engine, range(1, 26), GREEDY).finish()  # from the prefix cache
    return steps


@pytest.mark.full
@pytest.mark.parametrize("sequences", first(1, [3, 1]))
def test_decode_copies_nothing_but_logits(saved: SavedModel, sequences: int) -> None:
    with FakeGpu() as gpu:
        decoder = decoder_of(saved)
        first, second = traffic_of_steps(gpu, decoder, sequences)
    vocabulary = decoder.spec.vocab_size
    logits = [shape for shape in second.to_host if shape == (sequences, vocabulary)]
    others = [shape for shape in second.to_host if shape != (sequences, vocabulary)]
    assert len(logits) == 1
    # The host reads which experts are chosen.
    if not any(layer.feed_forward.routing for layer in decoder.spec.layers):
        assert not others
    # Between two steps only the context grows.
    assert len(second.operations) == len(first.operations)
    assert second.to_host == first.to_host
    assert second.from_host == first.from_host


@pytest.mark.full
def test_split_over_two_gpus(saved: SavedModel) -> None:
    """The hidden state moves there and back, and with it block tables and slots."""
    with FakeGpu() as gpu:
        steps = traffic_of_steps(gpu, decoder_of(saved, GPUS), 2)
    hidden = saved.config.hidden_size
    moved = [shape for shape in steps[-1].between_gpus if shape[-1] == hidden]
    assert moved == [(2, hidden), (2, hidden)]


@pytest.mark.full
def test_quantized_in_place(saved: SavedModel) -> None:
    with FakeGpu() as gpu:
        traffic_of_steps(gpu, decoder_of(saved, isq="q8_0"), 1)


@pytest.mark.full
def test_cached_in_8_bits(saved: SavedModel) -> None:
    if saved.case.family == "mllama_text_model":
        return  # plans refuse it
    with FakeGpu() as gpu:
        traffic_of_steps(gpu, decoder_of(saved, cache="F8_E4M3"), 2)


@pytest.mark.full
def test_from_gguf(saved: SavedModel, tmp_path: Path) -> None:
    if saved.case.gguf is None:
        pytest.skip("GGUF has no such configuration")
    write_gguf(saved, tmp_path / "model.gguf")
    source = ModelSource(str(tmp_path / "model.gguf"), "gguf")
    with FakeGpu() as gpu:
        traffic_of_steps(gpu, load(source, dtype="bf16", devices=(GPU,)).decoder, 1)


@pytest.mark.full
def test_on_an_apple_gpu(saved: SavedModel) -> None:
    with FakeGpu() as gpu:
        traffic_of_steps(gpu, decoder_of(saved, (APPLE,)), 1)


@pytest.mark.few(1)
@pytest.mark.parametrize("mistake", ["a host read", "a tensor on the wrong device", "a shape"])
def test_a_mistake_in_one_line_is_found(
    folders: dict[str, SavedModel], tmp_path: Path, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    normed = Decoder._normed

    def wrong(decoder: Decoder, x: torch.Tensor) -> torch.Tensor:
        x = normed(decoder, x)
        if mistake == "a host read":
            return x * float(x.sum())
        if mistake == "a shape":
            return x[x.sum(1) > 0]
        return x + torch.ones(x.shape[1])

    case = FAMILIES["llama"]
    saved = folders.get("llama") or save_model(case, tmp_path)
    monkeypatch.setattr(Decoder, "_normed", wrong)
    with FakeGpu() as gpu, pytest.raises((HostRead, RuntimeError)):
        traffic_of_steps(gpu, decoder_of(saved), 1)
