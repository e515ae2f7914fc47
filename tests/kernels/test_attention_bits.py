"""Native attention gives a token the same bits however it is fed."""

from __future__ import annotations

import pytest
import torch
from test_steps import batch_of, normal
from torch import Tensor

from mrs.kernels.attention_backend import attention_backend
from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.kv_codes import KVFormats, KVType
from mrs.kernels.paged import PagedKV
from mrs.kernels.softmax_attention import attend_to_all

pytestmark = pytest.mark.usefixtures("library")

TOKENS = 200
Q8, Q8_Q4, Q4 = KVFormats("Q8_0", "Q8_0"), KVFormats("Q8_0", "Q4_0"), KVFormats("Q4_0", "Q4_0")
OPTIONS = {
    "plain": {},
    "window": {"window": 50},
    "all": {"window": 90, "softcap": 5.0, "sinks": normal(8, seed=3)},
}


class Prompts:
    """Three sequences of TOKENS tokens in mixed-up blocks of a cache."""

    def __init__(
        self, dtype: KVType, dim: int, heads: int, kv_heads: int, value_dim: int | None = None
    ) -> None:
        self.block = block = 64 if isinstance(dtype, KVFormats) else 32
        count, cpu, values = -(-TOKENS // block), torch.device("cpu"), value_dim or dim
        self.kv = PagedKV(
            kv_heads, dim, values, block_tokens=block, dtype=dtype, device=cpu,
            values_in_keys=value_dim is not None,
        )  # fmt: skip
        self.kv.resize(3 * count, 3 * count)
        # What no token has written must not enter a sum.
        for x in (*self.kv.tensors, *self.kv.rests):
            x.view(torch.uint8).fill_(255)
        blocks = torch.randperm(3 * count, generator=torch.Generator().manual_seed(1))
        for slot, block_number in enumerate(blocks.tolist() if self.kv.codes else ()):
            self.kv.attach(block_number, slot)
        tokens = torch.arange(TOKENS)
        self.slots = [own[tokens // block] * block + tokens % block for own in blocks.view(3, -1)]
        self.q = normal(3, TOKENS, heads, dim) * 2
        k, v = (normal(3 * TOKENS, kv_heads, dim, seed=seed) for seed in (1, 2))
        batch = batch_of([(slots, TOKENS) for slots in self.slots], block)
        self.backend = attention_backend(self.kv)
        self.backend.write(self.kv, batch, k, None if value_dim else v)

    def attend(
        self, chunks: list[tuple[int, int, int]], ends: Tensor | None = None, **options
    ) -> list[Tensor]:
        """The outputs of chunks (sequence, start, end), in one batch."""
        places = [(self.slots[n][:end], end - start) for n, start, end in chunks]
        q = torch.cat([self.q[n, start:end] for n, start, end in chunks])
        batch = batch_of(places, self.block, ends)
        result = self.backend.attend(q, self.kv, batch, AttentionOptions(0.2, **options))
        return list(result.split([end - start for _, start, end in chunks]))

    def in_chunks(self, size: int, **options) -> Tensor:
        starts = range(0, TOKENS, size)
        chunks = [(1, start, min(start + size, TOKENS)) for start in starts]
        return torch.cat([self.attend([chunk], **options)[0] for chunk in chunks])


def assert_same_however_fed(prompts: Prompts, options: dict[str, object]) -> None:
    (whole,) = prompts.attend([(1, 0, TOKENS)], **options)
    assert whole.isfinite().all()
    for size in (1, 7, 64):
        assert torch.equal(prompts.in_chunks(size, **options), whole), size
    some = [(0, 0, 70), (1, 0, 150), (2, 199, 200), (1, 199, 200), (0, 60, 65)]
    _, prompt, _, last, _ = prompts.attend(some, **options)
    assert torch.equal(prompt, whole[:150])
    assert torch.equal(last, whole[199:])
    torch.set_num_threads(4)
    (threaded,) = prompts.attend([(1, 0, TOKENS)], **options)
    assert torch.equal(threaded, whole)
    assert torch.equal(prompts.in_chunks(1, **options), whole)


@pytest.mark.values
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, Q8, Q8_Q4, Q4])
def test_options(options: str, dtype: KVType) -> None:
    assert_same_however_fed(Prompts(dtype, 64, 8, 2), OPTIONS[options])


@pytest.mark.few(3)
@pytest.mark.values
@pytest.mark.parametrize("group", [1, 2, 4, 7, 8, 13])
@pytest.mark.parametrize("dim", [16, 64, 80, 128, 256])
def test_head_sizes_and_groups(dim: int, group: int) -> None:
    dtype = torch.float16 if group % 2 else torch.bfloat16
    assert_same_however_fed(Prompts(dtype, dim, group, 1), {})


@pytest.mark.few(3)
@pytest.mark.values
@pytest.mark.parametrize("group", [1, 2, 7, 13])
@pytest.mark.parametrize("dim", [32, 96, 256])
def test_quantized_head_sizes_and_groups(dim: int, group: int) -> None:
    assert_same_however_fed(Prompts(Q4 if group % 2 else Q8, dim, group, 1), {})


@pytest.mark.few(3)
def test_values_in_keys() -> None:
    """As in latent attention: all heads share one head of keys."""
    assert_same_however_fed(Prompts(torch.bfloat16, 144, 16, 1, value_dim=128), {})


def test_queries_that_attend_to_all_keys() -> None:
    """As tokens attend to images."""
    q, k, v = normal(70, 6, 32), normal(2, 41, 32, seed=1), normal(2, 41, 32, seed=2)
    whole = attend_to_all(q, k, v, AttentionOptions(0.3))
    scores = torch.einsum("thgd,hsd->thgs", q.view(70, 2, 3, 32), k) * 0.3
    expected = torch.einsum("thgs,hsd->thgd", scores.softmax(-1), v)
    torch.testing.assert_close(whole, expected.flatten(1))
    for tokens in (1, 7, 64):
        parts = [attend_to_all(part, k, v, AttentionOptions(0.3)) for part in q.split(tokens)]
        assert torch.equal(torch.cat(parts), whole)


def test_tokens_that_attend_to_later_ones() -> None:
    prompts = Prompts(torch.bfloat16, 64, 4, 2)
    ends = torch.arange(TOKENS)
    ends[-3:] = TOKENS - 1
    (whole,) = prompts.attend([(0, 0, TOKENS)], ends)
    (last,) = prompts.attend([(0, TOKENS - 3, TOKENS)], ends[-3:])
    assert torch.equal(last, whole[-3:])
