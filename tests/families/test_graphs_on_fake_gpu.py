"""Decode steps of every family as CUDA graphs, on a GPU that is not there.

A captured step reads nothing on the host, copies nothing, and does the same at every later step,
with the same memory. Core has a plain family, the full suite one for each kind of layer, and
`-m ""` all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from saved_models import SavedModel, save_model
from test_families_on_fake_gpu import FAMILIES, GPU, GPUS, GREEDY, decoder_of

from mrs.engine import engine_builder
from mrs.engine.engine import Engine
from mrs.engine.static_inputs import StaticInputs
from mrs.model.decoder import Decoder
from mrs.quantization import targets
from mrs.request import Sampling
from support.captured_steps import FakeCapture
from support.engines import Asked, make_engine
from support.fake_cuda import use_fake_cuda
from support.fake_gpu import FakeGpu, HostRead, Traffic
from support.fake_triton import KERNELS, use_fake_triton
from support.suites import first, suite_of

#: The host cuts sequences into chunks or finds what is attended to; or experts are not gated; or
#: there are no keys in blocks.
NOT_CAPTURED = (
    "deepseek_v32", "falcon_mamba", "glm_moe_dsa", "llama4_text", "mamba", "mamba2",
    "mllama_text_model", "nemotron_h",
)  # fmt: skip
KINDS = ("llama", "gemma2", "ministral3", "mixtral", "lfm2", "qwen3_5_text", "gpt_oss")
CORE = ("llama",)
SAMPLED = Sampling()
ROWS = 3


@pytest.fixture(
    params=[pytest.param(family, marks=suite_of(family, CORE, KINDS)) for family in FAMILIES]
)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> SavedModel:
    return save_model(FAMILIES[request.param], tmp_path)


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules ask for kernels when they are built."""
    use_fake_triton(monkeypatch)


@pytest.fixture
def llama(tmp_path: Path) -> SavedModel:
    return save_model(FAMILIES["llama"], tmp_path)


def begin(
    monkeypatch: pytest.MonkeyPatch,
    gpu: FakeGpu,
    decoder: Decoder,
    launches: list[str] | None = None,
) -> tuple[Engine, FakeCapture]:
    """An engine as a run builds it, with a capture that only records."""
    if launches is None:
        launches = use_fake_triton(monkeypatch)
    capture = FakeCapture(gpu, launches)
    monkeypatch.setattr(engine_builder, "CudaCapture", lambda device: capture)
    sizes = {"planned_tokens": 64, "context_tokens": 256, "chunk_tokens": 16}
    return make_engine(decoder, **sizes, max_seqs=ROWS, planned_seqs=ROWS), capture


def decode(engine: Engine, gpu: FakeGpu, sampling: Sampling) -> list[Traffic]:
    """What the first decode step of some sequences does, and three more, outside of graphs."""
    sampling = replace(sampling, max_tokens=20)
    asked = [Asked.of(engine, range(1, 24 + n), sampling) for n in range(ROWS)]
    for each in asked:
        each.advance()
    steps = []
    for _ in range(4):
        steps.append(gpu.record())
        engine.step()
    for each in asked:
        if each.sequence.error is not None:
            raise each.sequence.error
    return steps


@pytest.mark.few("llama-greedy")
@pytest.mark.values
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_captured_step(
    saved: SavedModel, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a replay one copy brings the inputs, and after it one brings the tokens."""
    with FakeGpu() as gpu:
        engine, capture = begin(monkeypatch, gpu, decoder_of(saved))
        assert (engine._graphs is None) == (saved.case.family in NOT_CAPTURED)
        if engine._graphs is None:
            return
        rows = ROWS if engine._graphs._rows.has_states else 4
        steps = decode(engine, gpu, sampling)
    assert capture.replays >= 4
    for captured in capture.captured:
        assert captured.operations
        assert captured.to_host == captured.from_host == captured.between_gpus == []
    assert len(capture.captured) == 1
    for step in steps[1:]:
        assert step.to_host == [(rows,)]
        assert len(step.from_host) == 1
        assert step.allocated == []


@pytest.mark.parametrize("isq", first(1, [None, "q8_0"]))
def test_a_layer_is_five_launches(
    llama: SavedModel, isq: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "_has_triton_kernels", lambda device, layouts: True)
    with FakeGpu() as gpu:
        decoder = decoder_of(llama, isq=isq)
        engine, capture = begin(monkeypatch, gpu, decoder)
        decode(engine, gpu, GREEDY)
    (captured,) = capture.captured
    kernels = {name for names in KERNELS.values() for name in names}
    launched = Counter(line.partition(" ")[0] for line in captured.operations)
    layers = len(decoder.spec.layers)
    few = {"project_heads": 1, "attend_tiles": 1, "joined_products": 2, "gated_products": 1}
    expected = {name: count * layers for name, count in few.items()}
    if isq is not None:  # the embedding, and the head
        expected |= {"decode_rows": 1, "matmul_few_tokens": 1}
    assert {name: count for name, count in launched.items() if name in kernels} == expected


@pytest.mark.parametrize("isq", first(1, ["q8_0", None]))
def test_a_layer_is_six_launches_of_cuda_kernels(
    llama: SavedModel, isq: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any kind of matrices; quantized ones lie in the order of these kernels."""
    launches = use_fake_triton(monkeypatch)
    use_fake_cuda(monkeypatch, launches)
    with FakeGpu() as gpu:
        decoder = decoder_of(llama, isq=isq)
        engine, capture = begin(monkeypatch, gpu, decoder, launches)
        decode(engine, gpu, GREEDY)
    (captured,) = capture.captured
    kernels = {"decode", "products", "rotate", *(x for names in KERNELS.values() for x in names)}
    launched = Counter(line.partition(" ")[0] for line in captured.operations)
    layers = len(decoder.spec.layers)
    expected = {"products": 4 * layers, "rotate": layers, "attend_tiles": layers}
    if isq is not None:  # the embedding, and the head
        expected |= {"decode": 1, "products": 4 * layers + 1}
    assert {name: count for name, count in launched.items() if name in kernels} == expected


@pytest.mark.full
def test_rows_change_between_steps(llama: SavedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts come between, and penalties are counted for other sequences."""
    with FakeGpu() as gpu:
        engine, capture = begin(monkeypatch, gpu, decoder_of(llama))
        asked = [Asked.of(engine, range(1, 24), replace(SAMPLED, max_tokens=n)) for n in (4, 9)]
        for each in asked:
            each.finish()
        Asked.of(engine, range(1, 26), replace(SAMPLED, max_tokens=5)).finish()
    assert len(capture.captured) == 2  # of two rows, and of one


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: x * float(x.sum()),
        lambda x: x[x.sum(1) > 0],
        lambda x: x + torch.ones(x.shape[1]).to(x.device),
    ],
    ids=["a host read", "a shape that depends on values", "a copy from the host"],
)
def test_a_mistake_in_one_line_is_found(
    llama: SavedModel,
    spoil: Callable[[torch.Tensor], torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    normed = Decoder._normed
    monkeypatch.setattr(Decoder, "_normed", lambda decoder, x: spoil(normed(decoder, x)))
    with FakeGpu() as gpu:
        engine, capture = begin(monkeypatch, gpu, decoder_of(llama))
        try:
            decode(engine, gpu, GREEDY)
        except (HostRead, RuntimeError, AssertionError):
            return
    assert [captured.from_host for captured in capture.captured] != [[]]


@pytest.mark.full
def test_an_input_that_moves_is_found(llama: SavedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    write = StaticInputs.write

    def moved(inputs: StaticInputs, *args: object) -> None:
        inputs.__init__(inputs._shape, GPU)  # type: ignore[misc]
        write(inputs, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(StaticInputs, "write", moved)
    with FakeGpu() as gpu:
        engine, _ = begin(monkeypatch, gpu, decoder_of(llama))
        with pytest.raises(AssertionError, match="a replay would not do"):
            decode(engine, gpu, GREEDY)


@pytest.mark.few(2)
@pytest.mark.parametrize("why", ["switched off", "two GPUs", "without Triton", "on Apple's GPU"])
def test_engines_without_graphs(
    llama: SavedModel, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = GPUS if why == "two GPUs" else (GPU,)
    if why == "switched off":
        monkeypatch.setenv("MRS_CUDA_GRAPHS", "off")
    if why == "on Apple's GPU":
        devices = (torch.device("mps", 0),)
    with FakeGpu() as gpu:
        decoder = decoder_of(llama, devices)
        engine, _ = begin(monkeypatch, gpu, decoder)
        if why == "without Triton":
            monkeypatch.setattr(engine_builder, "has_triton_attention", lambda device: False)
            engine = make_engine(decoder, planned_tokens=64, context_tokens=256)
    assert engine._graphs is None
