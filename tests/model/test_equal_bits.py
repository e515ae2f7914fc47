"""Logits of a sequence have the same bits however its tokens are fed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from mrs.cache.cache_space import CacheSpace
from mrs.kernels.cpu.library import is_available
from mrs.model.batch import SequenceInput, forward_batch
from mrs.model.decoder import Decoder
from mrs.plan.memory.cache_size import CacheSize
from support.suites import first
from support.threads import single_thread
from support.tiny_decoders import MIXED_CONFIGS, VOCABULARY, mixed_decoder

pytestmark = pytest.mark.skipif(not is_available(), reason="no native kernels")

TOKENS, BLOCK_TOKENS = 150, 32
IDS = torch.randint(VOCABULARY, (TOKENS,), generator=torch.manual_seed(0)).tolist()


class Fed:
    """A sequence of a decoder, to which tokens are fed."""

    def __init__(self, decoder: Decoder, space: CacheSpace | None = None) -> None:
        size = CacheSize(TOKENS, 4, TOKENS, BLOCK_TOKENS)
        self.space = space or decoder.new_space(size)
        self.cache = self.space.new()
        self.decoder = decoder

    def input(self, ids: Sequence[int]) -> SequenceInput:
        return SequenceInput(self.cache, ids, logits_rows=range(len(ids)))

    def feed(self, ids: Sequence[int], chunk_tokens: int = TOKENS) -> Tensor:
        """Logits (T, V) after each of the tokens."""
        chunks = [ids[start : start + chunk_tokens] for start in range(0, len(ids), chunk_tokens)]
        return torch.cat(
            [self.decoder.forward(forward_batch([self.input(c)]), [self.cache]) for c in chunks]
        )


@pytest.fixture(
    scope="module",
    params=[
        ("dense", "BF16", False),
        ("dense", "BF16", True),
        ("close experts", "Q8_0", True),
        *((kind, "Q8_0", False) for kind in MIXED_CONFIGS),
    ],
    ids=str,
)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    kind, format_name, residuals = request.param
    return mixed_decoder(kind, format_name, residuals=residuals)


@pytest.fixture(scope="module")
def whole(decoder: Decoder) -> Iterator[Tensor]:
    """Logits of the sequence alone, in one chunk, by one thread."""
    with torch.inference_mode(), single_thread():
        yield Fed(decoder).feed(IDS)


@pytest.mark.few(9)
@pytest.mark.values
@pytest.mark.parametrize("chunk_tokens", [1, 7, 64])
def test_in_chunks(decoder: Decoder, whole: Tensor, chunk_tokens: int) -> None:
    assert torch.equal(Fed(decoder).feed(IDS, chunk_tokens), whole)


def test_by_several_threads(decoder: Decoder, whole: Tensor) -> None:
    torch.set_num_threads(3)
    assert torch.equal(Fed(decoder).feed(IDS), whole)


def test_among_others(decoder: Decoder, whole: Tensor) -> None:
    """It goes on after 70 tokens, while one begins, one ends and one has a single token."""
    fed = Fed(decoder)
    fed.feed(IDS[:70])
    others = [Fed(decoder, fed.space) for _ in range(3)]
    others[0].feed(IDS[:33])
    inputs = [others[0].input(IDS[33:34]), fed.input(IDS[70:]), others[1].input(IDS[:90])]
    inputs.append(others[2].input(IDS[:1]))
    together = decoder.forward(forward_batch(inputs), [each.cache for each in inputs])
    one, ours, begun, first = together.split([len(each.token_ids) for each in inputs])
    assert torch.equal(ours, whole[70:])
    assert torch.equal(one, whole[33:34])
    assert torch.equal(begun, whole[:90])
    assert torch.equal(first, whole[:1])


def test_after_a_prefix_hit(decoder: Decoder, whole: Tensor) -> None:
    first, again = Fed(decoder), Fed(decoder)
    length = 2 * BLOCK_TOKENS
    first.feed(IDS[:length])
    again.cache.restore(length, [[layer.export(0, length)] for layer in first.cache.layers])
    assert torch.equal(again.feed(IDS[length:]), whole[length:])


@pytest.mark.few("dense", "close experts", "latent")
@pytest.mark.parametrize("kind", first(6, MIXED_CONFIGS))
def test_float32_weights(kind: str) -> None:
    """Torch multiplies them, which rounds one token otherwise than many."""
    decoder = mixed_decoder(kind, "F32")
    whole = Fed(decoder).feed(IDS)
    for chunk_tokens in (1, 7):
        chunked = Fed(decoder).feed(IDS, chunk_tokens)
        assert (chunked - whole).abs().max() / whole.abs().max() < 1e-4
