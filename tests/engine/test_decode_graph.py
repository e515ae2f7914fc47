"""Decode steps with fixed memory give what other steps give, and a CUDA graph could record them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
import torch
from torch import Tensor

from mrs.engine.decode_graph import DecodeGraph, DecodeInput, graph_sizes, is_capturable
from mrs.engine.multimodal import sequence_input
from mrs.kernels.attention_backend import TorchAttention
from mrs.model.batch import forward_batch
from mrs.model.decoder import Decoder
from mrs.sizes.blocks import CacheSize
from support.fake_gpu import FakeGpu, Traffic
from support.fake_triton import use_fake_triton
from support.tiny_decoders import GREEDY, decoder_on, tiny_decoder

PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1], [8, 2, 8, 1, 8])


def run(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """In place of a CUDA graph: every step computes everything again."""
    return step


class HostLengths(TorchAttention):
    """torch's attention, which remembers the lengths of a batch, with those of each step."""

    def attend(self, q, cache, batch, **options):  # type: ignore[no-untyped-def]
        return super().attend(q, cache, replace(batch), **options)


class Steps:
    """Some sequences of a tiny model, after their prompts."""

    def __init__(self, decoder: Decoder, size: int) -> None:
        self.decoder = decoder
        self.space = decoder.new_space(CacheSize(64, size + 2, 32, block_tokens=8))
        self.caches = [self.space.new() for _ in PROMPTS]
        padding = [pool.allocate() for pool in self.space.pools]
        decoder.reserve_positions(64)
        self.graph = DecodeGraph(decoder, self.space, padding, size, 64, run)
        self.last = [
            self.prefill(cache, ids) for cache, ids in zip(self.caches, PROMPTS, strict=True)
        ]

    def prefill(self, cache, ids) -> int:  # type: ignore[no-untyped-def]
        each = sequence_input(self.decoder, cache, (), ids, len(ids))
        return int(self.decoder.forward(forward_batch([each]), [cache]).cpu().argmax())

    def plain(self) -> list[int]:
        inputs = [
            sequence_input(self.decoder, cache, (), [token], cache.length + 1)
            for cache, token in zip(self.caches, self.last, strict=True)
        ]
        logits = self.decoder.forward(forward_batch(inputs), self.caches)
        self.last = logits.cpu().argmax(1).tolist()
        return self.last

    def static(self) -> list[int]:
        for cache in self.caches:
            cache.reserve(1)
        self.last = self.graph(
            [
                DecodeInput(cache, token, GREEDY, Random(0))
                for cache, token in zip(self.caches, self.last, strict=True)
            ]
        )
        return self.last


@pytest.mark.parametrize("kind", ["dense", "window"])
@pytest.mark.parametrize("size", [3, 4, 8])
@torch.inference_mode()
def test_the_same_tokens_as_without(kind: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding changes nothing, and other steps can follow."""
    monkeypatch.setattr("mrs.model.attention.attention_backend", lambda kv: HostLengths())
    decoder = tiny_decoder(kind)
    plain, static = Steps(decoder, size), Steps(decoder, size)
    expected = [plain.plain() for _ in range(12)]
    found = [static.static() if step % 4 else static.plain() for step in range(12)]
    assert found == expected


def fake_steps(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Tensor], Tensor] = lambda x: x
) -> list[Traffic]:
    """What three steps do on a GPU that is not there, with kernels that only check their inputs."""
    launches = use_fake_triton(monkeypatch)
    normed = Decoder._normed
    monkeypatch.setattr(Decoder, "_normed", lambda decoder, x: spoil(normed(decoder, x)))
    traffic = []
    with FakeGpu() as gpu, torch.inference_mode():
        decoder = decoder_on("dense", torch.device("cuda", 0))
        steps = Steps(decoder, 4)
        for _ in range(3):
            traffic.append(gpu.record())
            launches.clear()
            steps.static()
            traffic[-1].operations += launches
    return traffic


def test_a_graph_could_record_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same operations at the same addresses, and one copy to the host: the tokens."""
    _, first, second = fake_steps(monkeypatch)
    assert first.to_host == second.to_host == [(4,)]
    assert len(second.from_host) == 2  # the inputs, and the settings of sampling
    assert first.operations == second.operations


@pytest.mark.parametrize(
    "spoil",
    [lambda x: x * x.sum().item(), lambda x: x + torch.ones(x.shape[1]), lambda x: x[x[:, 0] > 0]],
    ids=["a host read", "another device", "a shape that depends on values"],
)
def test_a_mistake_in_one_line_is_found(
    spoil: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Exception, match=r"item|device|mask"):
        fake_steps(monkeypatch, spoil)


def test_what_can_be_captured() -> None:
    can = {kind: is_capturable(tiny_decoder(kind).spec) for kind in ("dense", "window", "hybrid")}
    assert can == {"dense": True, "window": True, "hybrid": False}
    assert not is_capturable(tiny_decoder("longrope").spec)


def test_sizes_of_graphs() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(5) == [1, 2, 4, 8]
    assert graph_sizes(8) == [1, 2, 4, 8]
