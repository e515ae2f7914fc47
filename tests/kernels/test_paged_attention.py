"""Attention of many sequences over blocks, in one call, is that of each alone."""

from __future__ import annotations

import pytest
import torch
from test_steps import assert_near, attention_in_double, batch_of, normal
from torch import Tensor

from mrs.errors import BadIndex
from mrs.kernels.attention_backend import NativeAttention, TorchAttention, attention_backend
from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.cpu import elementwise
from mrs.kernels.kv_codes import CodeFormat, KVFormats
from mrs.kernels.paged import PagedKV
from mrs.kernels.workspace.attention import code_rows_bytes, workspace_bytes

pytestmark = pytest.mark.usefixtures("any_path")
CPU = torch.device("cpu")


def make_cache(
    sequences: list[tuple[Tensor, Tensor, int]], block: int, dtype: torch.dtype
) -> tuple[PagedKV, list[tuple[Tensor, int]]]:
    """Keys (KV, S, D), values, and how many of them are new: written to mixed-up blocks."""
    (k, v, _), *_ = sequences
    kv = PagedKV(len(k), k.shape[2], v.shape[2], block_tokens=block, dtype=dtype, device=k.device)
    counts = [-(-k.shape[1] // block) for k, _, _ in sequences]
    kv.resize(sum(counts))
    free = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(1)).tolist()
    places = []
    for (k, v, new), count in zip(sequences, counts, strict=True):
        blocks, tokens = torch.tensor([free.pop() for _ in range(count)]), torch.arange(k.shape[1])
        slots = blocks[tokens // block] * block + tokens % block
        kv.write(slots, (k.transpose(0, 1), v.transpose(0, 1)))
        places.append((slots, new))
    return kv, places


@pytest.mark.few(7)
@pytest.mark.parametrize("block", [8, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (12, 1), (40, 2)])
@pytest.mark.parametrize("window", [None, 9])
def test_a_mixed_batch(
    window: int | None, heads: int, kv_heads: int, dtype: torch.dtype, block: int
) -> None:
    """Some decode, some read a chunk; contexts are of very different lengths."""
    lengths = [(1, 1), (130, 1), (70, 33), (7, 7), (64, 1), (90, 3)]
    sequences = [
        (
            normal(kv_heads, length, 48, seed=n).to(dtype),
            normal(kv_heads, length, 32, seed=n + 50).to(dtype),
            new,
        )
        for n, (length, new) in enumerate(lengths)
    ]
    kv, places = make_cache(sequences, block, dtype)
    q = normal(sum(new for _, new in lengths), heads, 48, seed=9)
    backend, batch = attention_backend(kv), batch_of(places, block)
    options = AttentionOptions(0.2, window)
    result = backend.attend(q, kv, batch, options)
    exact = dtype is torch.float32 or isinstance(backend, NativeAttention)
    for (k, v, new), (rows, context) in zip(sequences, batch.queries, strict=True):
        for i in range(new):
            seen = context - new + i + 1
            one = q[rows][i : i + 1]
            expected = attention_in_double(one, k[:, :seen], v[:, :seen], 0.2, window, None, None)
            assert_near(result[rows][i : i + 1], expected, 1e-5 if exact else 0.1)
    for (rows, _), place in zip(batch.queries, places, strict=True):
        alone = backend.attend(q[rows], kv, batch_of([place], block), options)
        assert torch.equal(alone, result[rows])


def test_values_that_are_a_part_of_the_keys() -> None:
    """As latent attention has them: many heads, one head of keys."""
    kv = PagedKV(
        1, 80, 64, block_tokens=16, dtype=torch.float32, device=torch.device("cpu"),
        values_in_keys=True,
    )  # fmt: skip
    kv.resize(4)
    keys, q = normal(40, 1, 80), normal(21, 16, 80, seed=1)
    slots = torch.arange(40).flip(0)
    slots = torch.tensor([3, 0, 2])[torch.arange(40) // 16] * 16 + torch.arange(40) % 16
    backend, batch = attention_backend(kv), batch_of([(slots, 40)], 16)
    backend.write(kv, batch, keys, None)
    (written,) = kv.read(torch.tensor([3, 0, 2]), 0, 40)
    assert torch.equal(written, keys.transpose(0, 1))
    result = backend.attend(q, kv, batch_of([(slots, 21)], 16), AttentionOptions(0.1))
    for i in range(21):
        seen = keys[: 20 + i].transpose(0, 1)
        expected = attention_in_double(q[i : i + 1], seen, seen[..., :64], 0.1, None, None, None)
        assert_near(result[i : i + 1], expected)


@pytest.mark.few(4)
@pytest.mark.parametrize("values", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("keys", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("first_is_whole", [True, False])
@pytest.mark.parametrize("dims", [(64, 32), (96, 256)])
def test_quantized_keys_and_values(
    keys: CodeFormat, values: CodeFormat, first_is_whole: bool, dims: tuple[int, int]
) -> None:
    """Both backends write the same codes, and attend to what these and their rests mean."""
    tokens, block, cpu = 150, 64, torch.device("cpu")
    count = -(-tokens // block)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    slots = order[torch.arange(tokens) // block] * block + torch.arange(tokens) % block
    batch = batch_of([(slots, tokens)], block)
    k, v, q = normal(tokens, 2, dims[0]), normal(tokens, 2, dims[1]), normal(tokens, 6, dims[0])
    results, rows = [], []
    kv = PagedKV(
        2, *dims, block_tokens=block, dtype=KVFormats(keys, values), device=cpu,
        first_is_whole=first_is_whole,
    )  # fmt: skip
    for backend in (attention_backend(kv), TorchAttention()):
        kv.resize(0)
        kv.resize(count, count + 1)
        for n in range(count):
            kv.attach(n, count - n)
        for x in (*kv.tensors, *kv.rests):
            x.fill_(255)  # scales that are no numbers
        backend.write(kv, batch, k, v)
        rows.append((*kv.read(order, 0, tokens), *kv.read_rests(order, 0, tokens)))
        results.append(backend.attend(q, kv, batch, AttentionOptions(0.2, 100, softcap=9.0)))
    assert all(map(torch.equal, rows[0][:2], rows[1][:2]))
    for codes, (one, other) in zip(
        kv.codes, zip(rows[0][2:], rows[1][2:], strict=True), strict=True
    ):
        expected = codes.rests.decode(other).double()
        # A scale may be rounded otherwise; one step of a code is four times as much.
        assert_near(codes.rests.decode(one), expected, 2e-3 * float(expected.abs().max()))
    assert_near(results[0], results[1].double(), 1e-3)
    own = [x[:block].transpose(0, 1) for x in (k, v)]
    whole = attention_in_double(q[block - 1 : block], *own, 0.2, None, 9.0, None)
    assert_near(results[0][block - 1 : block], whole, 1e-3)
    assert kv.block_bytes * 8 == sum(
        2 * block * dim * {"Q8_0": 8.5, "Q4_0": 4.5}[name]
        for dim, name in zip(dims, (keys, values), strict=True)
    )
    errors = [0.015 if name == "Q8_0" else 0.2 for name in (keys, values)]
    for found, exact, most in zip(kv.read_floats(order, 0, tokens), (k, v), errors, strict=True):
        exact = exact.transpose(0, 1)
        assert (found - exact).norm() < most / 1.5 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_both_backends_write_the_same(dtype: torch.dtype) -> None:
    k, v = normal(30, 2, 16), normal(30, 2, 32, seed=1)
    k[0, 0, :4] = torch.tensor([7e4, -1e30, 3e-7, -65519.9])  # f16 ends at 65504
    caches = []
    for _ in range(2):
        cpu = torch.device("cpu")
        caches.append(PagedKV(2, 16, 32, block_tokens=8, dtype=dtype, device=cpu))
        caches[-1].resize(4)
    batch = batch_of([(torch.arange(30), 30)], 8)
    for kv, backend in zip(caches, (attention_backend(caches[0]), TorchAttention()), strict=True):
        backend.write(kv, batch, k, v)
    blocks = torch.arange(4)
    for one, other in zip(*(kv.read(blocks, 0, 30) for kv in caches), strict=True):
        assert torch.equal(one, other)
        assert one.isfinite().all()


def test_sizes_that_are_no_whole_vectors_are_left_to_torch() -> None:
    odd = PagedKV(1, 8, 8, block_tokens=8, dtype=torch.float32, device=torch.device("cpu"))
    assert isinstance(attention_backend(odd), TorchAttention)
    assert not elementwise.can_attend(odd.keys, odd.values)


def test_quantized_attention_takes_the_memory_that_is_planned() -> None:
    cpu, batch = torch.device("cpu"), batch_of([(torch.arange(40), 40)], 64)
    kv = PagedKV(2, 96, 64, block_tokens=64, dtype=KVFormats("Q8_0", "Q4_0"), device=cpu)
    kv.resize(1, 1)
    kv.attach(0, 0)
    backend = attention_backend(kv)
    if not isinstance(backend, NativeAttention):
        return
    backend.write(kv, batch, normal(40, 2, 96), normal(40, 2, 64))
    backend.library.functions.mrs_scratch_peak()
    backend.attend(normal(40, 2, 96), kv, batch, AttentionOptions(0.2))
    taken = backend.library.functions.mrs_scratch_peak()
    threads = max(1, taken // code_rows_bytes(96, 64))
    assert taken == threads * code_rows_bytes(96, 64)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (12, 1), (40, 2)])
@pytest.mark.parametrize("new", [1, 3, 40])
def test_attention_takes_the_memory_that_is_planned(heads: int, kv_heads: int, new: int) -> None:
    """To the byte on the path with the widest vectors."""
    sequence = normal(kv_heads, 300, 48), normal(kv_heads, 300, 32), new
    kv, places = make_cache([sequence], 64, torch.float32)
    backend = attention_backend(kv)
    if not isinstance(backend, NativeAttention):
        return
    library = backend.library
    library.functions.mrs_scratch_peak()
    backend.attend(normal(new, heads, 48), kv, batch_of(places, 64), AttentionOptions(0.2))
    taken = library.functions.mrs_scratch_peak()
    group = heads // kv_heads
    assert taken == workspace_bytes(library.path, group, 48, 32, tokens=new)


@pytest.mark.parametrize("slot", [-1, 1, 1 << 30, -2])
def test_new_tokens_need_a_slot_for_their_rests(slot: int) -> None:
    kv = PagedKV(1, 32, 32, block_tokens=64, dtype=KVFormats("Q8_0", "Q8_0"), device=CPU)
    kv.resize(2, 1)
    kv.attach(0, 0)
    kv.attach(1, slot)
    backend, options = attention_backend(kv), AttentionOptions(0.2)
    batch, x = batch_of([(torch.arange(70), 10)], 64), normal(10, 1, 32)
    with pytest.raises((BadIndex, ValueError, IndexError)):
        backend.write(kv, batch, x, x)
    if isinstance(backend, NativeAttention):
        with pytest.raises(BadIndex, match="slot of rests"):
            backend.attend(normal(10, 1, 32), kv, batch, options)
