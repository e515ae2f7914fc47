"""Weights reach a GPU through two pinned buffers, whose copies end at any later time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from mrs.load import chunk_memory, load, tensor_reader
from mrs.load.chunk_memory import OneBuffer, PinnedBuffers
from mrs.load.tensor_reader import TensorReader
from mrs.quantization.gguf import decode
from mrs.request import ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader
from mrs.source.find import open_checkpoint
from mrs.source.weights import Weights
from mrs.weights.binding import Piece
from support.fake_gpu import FakeGpu
from support.model_files import SMALL, write_model
from support.suites import first

GPU = torch.device("cuda", 0)
MODEL = {**SMALL, "model_type": "llama", "vocab_size": 4096}
EMBEDDING = "model.embed_tokens.weight"


@dataclass
class LateStream:
    """A stream that does nothing before the host waits for it."""

    waiting: list[Callable[[], object]] = field(default_factory=list)
    done: int = 0
    most_waiting: int = 0

    def copy(self, target: Tensor, source: Tensor) -> None:
        self.waiting.append(lambda: target.copy_(source))
        self.most_waiting = max(self.most_waiting, len(self.waiting) - self.done)

    def record_event(self) -> LateEvent:
        return LateEvent(self, len(self.waiting))

    def synchronize(self) -> None:
        LateEvent(self, len(self.waiting)).synchronize()


@dataclass
class LateEvent:
    stream: LateStream
    number: int

    def synchronize(self) -> None:
        while self.stream.done < self.number:
            self.stream.waiting[self.stream.done]()
            self.stream.done += 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", MODEL, "BF16")


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> LateStream:
    stream = LateStream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(chunk_memory, "_empty_host_cache", lambda: None)
    return stream


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pinned buffers that are allocated; chunks are small."""
    sizes: list[int] = []

    def allocate(size_bytes: int) -> Tensor:
        sizes.append(size_bytes)
        return torch.empty(size_bytes, dtype=torch.uint8)

    monkeypatch.setattr(chunk_memory, "_pinned", allocate)
    monkeypatch.setattr(tensor_reader, "load_chunk_weights", lambda threads: 1 << 14)
    return sizes


def test_late_copies_are_right(folder: Path, stream: LateStream, sizes: list[int]) -> None:
    """Every chunk is still there when it is copied, and one is copied while the next is read."""
    memory = PinnedBuffers([GPU])
    target = torch.zeros(4096, 32, dtype=torch.bfloat16)
    with Weights(open_checkpoint(ModelSource(str(folder), "safetensors"))) as files:
        row = chunks = 0
        for rows, stored in TensorReader(files, memory).chunks(Piece(EMBEDDING), 32):
            stream.copy(target[row : row + len(rows)], decode(rows, stored, target.dtype))
            row, chunks = row + len(rows), chunks + 1
        memory.close()
    assert chunks == 8
    assert stream.most_waiting == 2
    assert sizes == [1 << 15, 1 << 15]
    assert torch.equal(target, load_file(folder / "model.safetensors")[EMBEDDING])


@pytest.mark.full
@pytest.mark.parametrize("isq", first(1, ["q8_0", None]))
@pytest.mark.usefixtures("stream")
def test_the_host_waits_for_no_copy_of_weights(
    folder: Path, sizes: list[int], isq: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few buffers serve a whole model, and no copy makes the host wait."""
    monkeypatch.setattr(load, "chunk_memory", PinnedBuffers)
    request = RunRequest(ModelSource(str(folder), "safetensors"), cpu=True, dtype="bf16", isq=isq)
    loader = ModelLoader(request)
    parameters = loader.planner.description.parameters
    storage = {  # as a GPU stores them
        name: replace(each, form="blocks" if each.format.is_quantized else "plain")
        for name, each in loader.plan.storage.items()
    }
    with FakeGpu() as gpu:
        devices = {parameter.name: GPU for parameter in parameters}
        load.load_weights(loader.planner.checkpoint, parameters, storage, devices, lambda *_: None)
    copies = [x for x in gpu.traffic.operations if "copy" in x.split()[0] and "on cpu" in x]
    assert len(copies) >= len(parameters)
    assert [line for line in copies if not line.endswith("True")] == []
    assert len(sizes) <= 4
    assert max(sizes) <= 1 << 16


def test_memory_is_pinned_for_nvidia_gpus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    cpu, apple = torch.device("cpu"), torch.device("mps", 0)
    assert isinstance(chunk_memory.chunk_memory([cpu, GPU]), PinnedBuffers)
    assert isinstance(chunk_memory.chunk_memory([cpu, apple]), OneBuffer)
