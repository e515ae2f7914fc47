"""Sequences find in their blocks exactly the tokens that they wrote, whoever shares them."""

from __future__ import annotations

import random

import pytest
import torch

from mrs.cache.block_pool import BlockPool
from mrs.cache.block_table import BlockTable, SharedBlocks
from mrs.cache.layer_cache import LayerCache
from mrs.cache.paged_kv import PagedKVCache
from mrs.kernels.kv_codes import KVFormats
from mrs.kernels.paged import PagedKV
from mrs.plan.memory.cache_size import window_blocks

CPU = torch.device("cpu")
BLOCK, WINDOW, CHUNK = 4, 6, 3


def make_pool(window: int | None = None, blocks: int = 2) -> BlockPool:
    kv = PagedKV(2, 3, 1, block_tokens=BLOCK, dtype=torch.float32, device=CPU)
    return BlockPool([kv], blocks=blocks, block_tokens=BLOCK, window=window)


class Sequence:
    """A table, and the tokens that should be found in it."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool, self.table = pool, BlockTable(pool)
        self.tokens: list[int] = []

    def write(self, *tokens: int) -> None:
        (kv,), start = self.pool.layers, len(self.tokens)
        self.table.reserve(start, len(tokens))
        numbers = torch.tensor(tokens, dtype=torch.float32)[:, None, None]
        slots = torch.tensor(self.table.slots(start, start + len(tokens)))
        kv.write(slots, (numbers.expand(-1, 2, 3), -numbers.expand(-1, 2, 1)))
        self.tokens += tokens

    def rewind(self, length: int) -> None:
        self.table.rewind(length)
        del self.tokens[length:]

    def fork(self, length: int) -> Sequence:
        """Another one that goes on from the first `length` tokens."""
        other = Sequence(self.pool)
        shared = self.table.share(0, length)
        other.table.adopt(length, [shared])
        if shared is not None:
            shared.release()
        other.tokens = self.tokens[:length]
        return other

    def check(self) -> None:
        end = len(self.tokens)
        if self.table.first_token >= end:
            return
        found = PagedKVCache(self.pool.layers[0], self.table, 0).export(0, end)
        k, v = found.tensors["0"], found.tensors["1"]
        assert torch.equal(k[..., :1], -v)
        assert k[1, :, 2].tolist() == self.tokens[found.first :]


def test_a_layer_keeps_its_contract() -> None:
    pool = make_pool()
    assert isinstance(PagedKVCache(pool.layers[0], BlockTable(pool), 0), LayerCache)


def test_blocks_are_given_out_lowest_first_and_come_back() -> None:
    pool = make_pool(blocks=3)
    one, two = Sequence(pool), Sequence(pool)
    one.write(*range(5))
    two.write(*range(5))
    assert pool.used == 4
    assert pool.count >= 4
    assert one.table.row() == [0, 1]
    one.table.release()
    assert pool.used == 2
    three = Sequence(pool)
    three.write(1)
    assert three.table.row() == [0]
    assert pool.block_bytes() == {CPU: BLOCK * 2 * (3 + 1) * 4}


@pytest.mark.few(9)
@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("seed", range(12))
def test_sequences_that_fork_and_rewind_do_not_disturb_each_other(
    window: int | None, seed: int
) -> None:
    chance, pool = random.Random(seed), make_pool(window)
    running = [Sequence(pool)]
    refused = 0
    for _ in range(150):
        one = chance.choice(running)
        length = chance.randint(0, len(one.tokens))
        action = chance.random()
        if action < 0.55:
            one.write(*(chance.randrange(1000) for _ in range(chance.randint(1, CHUNK))))
        elif not one.table.can_rewind_to(length):
            refused += 1
        elif action < 0.7:
            one.rewind(length)
        elif action < 0.85 or len(running) == 1:
            running.append(one.fork(length))
        else:
            running.remove(one)
            one.table.release()
        for each in running:
            each.check()
            if window is not None:
                assert each.table.num_blocks <= window_blocks(1000, WINDOW, CHUNK, BLOCK)
    assert (refused > 0) == (window is not None)
    for each in running:
        each.table.release()
    assert pool.used == 0


@pytest.mark.parametrize("length", [3, 4, 5, 8, 11])
def test_only_the_second_to_go_on_copies_the_last_block(length: int) -> None:
    pool = make_pool()
    one = Sequence(pool)
    one.write(*range(length))
    other = one.fork(length)
    before = pool.used
    one.write(50)
    assert pool.used == before + (length % BLOCK == 0)
    before = pool.used
    other.write(60)
    assert pool.used == before + 1
    one.check()
    other.check()


@pytest.mark.parametrize("at", range(1, 11))
def test_shared_blocks_split_anywhere(at: int) -> None:
    pool = make_pool()
    one = Sequence(pool)
    one.write(*range(11))
    shared = one.table.share(0, 11)
    left, right = shared.split(at)
    assert (left.first, right.first) == (0, at)
    other = Sequence(pool)
    other.table.adopt(11, [left, right])
    other.tokens = list(one.tokens)
    one.table.release()
    for part in (left, right):
        part.release()
    other.check()
    other.table.release()
    assert pool.used == 0


def test_of_blocks_that_are_not_whole_nothing_is_shared() -> None:
    """A window that was read from a file may begin within a block."""
    pool = make_pool(WINDOW)
    table = BlockTable(pool)
    table.open(14)
    assert table.first_token == 14 - (WINDOW - 1)
    shared = table.share(0, 14)
    assert isinstance(shared, SharedBlocks)
    assert shared.first == 12
    assert table.can_rewind_to(14)
    assert not table.can_rewind_to(13)


def test_a_window_keeps_as_many_blocks_as_are_planned() -> None:
    for window in range(1, 20):
        for chunk in range(1, 10):
            most = 0
            table = BlockTable(BlockPool(block_tokens=BLOCK, window=window))
            for step in range(40):
                table.reserve(step * chunk, chunk)
                most = max(most, table.num_blocks)
            assert most <= window_blocks(40 * chunk, window, chunk, BLOCK)


def test_a_cache_that_cannot_grow_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step reads it by the address of its C struct."""
    kv = PagedKV(1, 16, 16, block_tokens=8, dtype=torch.float32, device=torch.device("cpu"))
    kv.resize(2)
    before = kv.address, kv.native, kv.keys.data_ptr()

    def fail(sizes: object) -> None:
        raise MemoryError

    monkeypatch.setattr("mrs.kernels.paged.HugePageArena", fail)
    with pytest.raises(MemoryError):
        kv.resize(4)
    assert (kv.address, kv.native, kv.keys.data_ptr()) == before
    assert kv.address is not None


def test_quantized_tokens_are_restored_as_they_were() -> None:
    """With the rests of the first block, and of the block that the next token is in."""
    codes, cpu = KVFormats("Q8_0", "Q4_0"), torch.device("cpu")
    numbers = torch.Generator().manual_seed(0)
    k, v = (torch.randn(150, 2, dim, generator=numbers) for dim in (32, 64))
    caches = []
    for blocks in (5, 3):
        kv = PagedKV(2, 32, 64, block_tokens=64, dtype=codes, device=cpu)
        pool = BlockPool([kv], blocks=blocks, slots=blocks)
        table = BlockTable(pool)
        pool.allocate() if blocks == 5 else None
        caches.append(PagedKVCache(kv, table, 0))
        if blocks == 5:
            table.reserve(0, 150)
            kv.write(torch.tensor(table.slots(0, 150)), (k, v))
            table.reserve(150, 0)
        else:
            table.open(150)
            caches[1].restore(150, [caches[0].export(0, 70), caches[0].export(70, 150)])
    for own_block in (None, 2):
        found, expected = (
            cache.kv.read_floats(torch.tensor(cache._table.row()), 0, 150, own_block)
            for cache in caches
        )
        assert all(map(torch.equal, found, expected))
