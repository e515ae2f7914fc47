"""Sequences whose caches are saved in a folder serve later processes."""

from __future__ import annotations

import random
import stat
from pathlib import Path

import pytest
import torch
from prefix_caches import CPU, KINDS, WINDOW, contents, feed, found, store
from prefix_folders import KIND_NAMES, LONG, MANY_BYTES, file_of, files, manager, save
from safetensors import safe_open

from mrs.cache.cache_space import CacheBuilder, CacheConfig, CacheSpace
from mrs.cache.cross_attention_kv import CrossAttentionCache, ImageKeys
from mrs.cache.prefix.disk import LEAST_TOKENS, DiskPrefixCache
from mrs.cache.sequence_cache import SequenceCache
from mrs.kernels.paged import PagedKV
from mrs.plan.memory.cache_size import CacheSize
from support.suites import first


@pytest.mark.few(3)
@pytest.mark.values
@pytest.mark.parametrize("kind", KIND_NAMES)
@pytest.mark.parametrize("length", [LEAST_TOKENS, 127, 128, 129, 255, 257, len(LONG)])
def test_a_later_process_goes_on_from_the_end(tmp_path: Path, kind: str, length: int) -> None:
    save(tmp_path, kind, LONG[:length])
    assert found(manager(tmp_path, kind), kind, [*LONG[:length], 9, 9]) == length


@pytest.mark.parametrize(("kind", "hit"), [("dense", 256), ("window", 0), ("hybrid", 0)])
def test_a_prompt_that_differs_later_goes_on_from_the_last_whole_block(
    tmp_path: Path, kind: str, hit: int
) -> None:
    save(tmp_path, kind, LONG)
    assert found(manager(tmp_path, kind), kind, [*LONG[:300], 77]) == hit
    assert manager(tmp_path, kind).shared_tokens([*LONG[:300], 77]) == 0
    assert manager(tmp_path, kind).shared_tokens([*LONG[:300], 77], with_files=True) == 256


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KIND_NAMES)
def test_each_turn_writes_its_own_tokens_only(tmp_path: Path, kind: str) -> None:
    save(tmp_path, kind, LONG[:300])
    before = {path: path.stat().st_mtime_ns for path in files(tmp_path)}
    assert len(before) == 3
    inodes = {path.stat().st_ino for path in before}
    save(tmp_path, kind, LONG[:350])
    fresh = set(files(tmp_path)) - set(before)
    assert fresh == {file_of(tmp_path, 350)}
    assert inodes <= {path.stat().st_ino for path in files(tmp_path)}


def test_asking_the_same_again_leaves_one_token(tmp_path: Path) -> None:
    save(tmp_path, "dense", LONG[:129])
    for prompt in (LONG[:129], LONG[:128]):
        hit = manager(tmp_path).search_for_matching_cache(prompt, leave_last=True)
        assert hit is not None
        assert hit.length == len(prompt) - 1
        assert contents(hit) == contents(feed(KINDS["dense"](), prompt[:-1]))


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["window", "hybrid"])
def test_a_file_of_more_tensors_replaces_one_of_fewer(tmp_path: Path, kind: str) -> None:
    save(tmp_path, kind, LONG)  # its windows have moved on from the second block
    assert found(manager(tmp_path, kind), kind, [*LONG[:256], 77]) == 0
    save(tmp_path, kind, LONG[:256])
    assert found(manager(tmp_path, kind), kind, [*LONG[:256], 77]) == 256
    assert found(manager(tmp_path, kind), kind, [*LONG, 77]) == len(LONG)
    inode = file_of(tmp_path, 256).stat().st_ino
    save(tmp_path, kind, LONG)
    assert file_of(tmp_path, 256).stat().st_ino == inode


def test_memory_is_preferred_to_a_file_of_the_same_length(tmp_path: Path) -> None:
    prefixes = manager(tmp_path)
    cache = feed(KINDS["dense"](), LONG)
    prefixes.add_sequence(LONG, cache)
    hit = prefixes.search_for_matching_cache([*LONG, 5])
    assert hit is not None
    tables = zip(hit.tables, cache.tables, strict=True)
    assert all(one.row() == other.row() for one, other in tables)


def test_epochs_and_images_share_no_files(tmp_path: Path) -> None:
    prefixes, other = manager(tmp_path), [-2 if token == 8 else token for token in LONG]
    store(prefixes, "dense", LONG, epoch=1)
    prefixes.close()
    assert found(manager(tmp_path), "dense", [*LONG, 3], epoch=2) == 0
    assert found(manager(tmp_path), "dense", [*other, 3], epoch=1) == 0
    assert found(manager(tmp_path), "dense", [*LONG, 3]) == 0
    assert found(manager(tmp_path), "dense", [*LONG, 3], epoch=1) == len(LONG)


def test_tokens_of_any_size_are_distinguished(tmp_path: Path) -> None:
    save(tmp_path, "dense", [*LONG[:40], -(2**70), 12, 3])
    assert found(manager(tmp_path), "dense", [*LONG[:40], -(2**70), 12, 3, 1]) == 43
    assert found(manager(tmp_path), "dense", [*LONG[:40], -(2**70), 1, 23, 1]) == 0


def test_the_files_are_safetensors(tmp_path: Path) -> None:
    save(tmp_path, "hybrid", LONG[:140])
    with safe_open(file_of(tmp_path, 140), "pt") as file:
        assert file.metadata()["tokens"] == " ".join(map(str, LONG[128:140]))
        keys = file.get_tensor("0.0")
        assert keys.shape == (2, 12, 3)
        assert keys[0, :, 0].tolist() == [float(token) for token in LONG[128:140]]
        assert torch.equal(
            file.get_tensor("1.state"), feed(KINDS["hybrid"](), LONG[:140]).layers[1].state
        )
        assert file.get_tensor("2.0").shape[1] >= WINDOW - 1
    assert stat.S_IMODE(file_of(tmp_path, 140).stat().st_mode) == 0o600


def latent(layers: int, width: int, dtype: torch.dtype, images: bool = False) -> CacheSpace:
    """Keys alone: values are a part of them."""
    builder = CacheBuilder(CacheConfig(CacheSize(400, 1, 10), dtype))
    for _ in range(layers):
        builder.add_paged(
            PagedKV(1, width, 2, block_tokens=64, dtype=dtype, device=CPU, values_in_keys=True)
        )
    if images:
        builder.add(lambda: CrossAttentionCache(dtype=dtype, device=CPU))
    return builder.build()


def filled(cache: SequenceCache, keys: torch.Tensor) -> SequenceCache:
    """Write keys (1, T, D) plus n into layer n."""
    cache.reserve(keys.shape[1])
    slots = torch.tensor(cache.tables[0].slots(0, keys.shape[1]))
    for number, layer in enumerate(cache.layers):
        if not isinstance(layer, CrossAttentionCache):
            layer.kv.write(slots, (keys.transpose(0, 1) + number,))
    cache.advance(keys.shape[1])
    return cache


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn]
)
def test_every_type_comes_back_as_it_was(tmp_path: Path, dtype: torch.dtype) -> None:
    keys = torch.randn(1, 200, 5, generator=torch.Generator().manual_seed(1))
    cache = filled(latent(2, 5, dtype).new(), keys)
    folder = DiskPrefixCache(str(tmp_path), "m", MANY_BYTES, key=b"key")
    folder.save("key", LONG[:200], cache)
    folder.close()
    again = DiskPrefixCache(str(tmp_path), "m", MANY_BYTES, key=b"key")
    back = again.load(
        "key", [*LONG[:200], 1], most=200, beyond=0, new_cache=latent(2, 5, dtype).new
    )
    assert back is not None
    for layer, before in zip(back.layers, cache.layers, strict=True):
        now, then = (each.export(0, 200).tensors["0"] for each in (layer, before))
        assert now.dtype is then.dtype is dtype
        assert torch.equal(now.float(), then.float())


@pytest.mark.parametrize("length", [60, 130, 140, 300])
def test_images_come_back_with_their_positions(tmp_path: Path, length: int) -> None:
    """From a layer that stores nothing else; some are at the ends of blocks."""

    new_cache = latent(1, 2, torch.bfloat16, images=True).new
    cache, chance = new_cache(), torch.Generator().manual_seed(1)
    images = cache.layers[1]
    for position in (3, 4, 126, 127, 128, 139):
        keys = torch.randn(2, 1 + position % 3, 4, generator=chance).bfloat16()
        if position < length:
            images.add(ImageKeys(position, keys, -keys))
    filled(cache, torch.randn(1, length, 2, generator=chance))
    folder = DiskPrefixCache(str(tmp_path), "m", MANY_BYTES, key=b"key")
    folder.save("key", LONG[:length], cache)
    folder.close()
    back = DiskPrefixCache(str(tmp_path), "m", MANY_BYTES, key=b"key").load(
        "key", [*LONG[:length], 1], most=length, beyond=0, new_cache=new_cache
    )
    assert back is not None
    assert back.length == length
    names = [set(layer.export(0, length).tensors) for layer in (images, back.layers[1])]
    assert names[0] == names[1]
    for position in range(length):
        now, then = back.layers[1].visible_at(position), images.visible_at(position)
        assert (now is None) == (then is None)
        assert now is None or all(map(torch.equal, now, then))


@pytest.mark.parametrize(
    "other", [latent(1, 5, torch.float32), latent(2, 6, torch.float32), latent(2, 5, torch.float16)]
)
def test_a_cache_of_another_shape_is_not_restored(tmp_path: Path, other: CacheSpace) -> None:
    cache = filled(latent(2, 5, torch.float32).new(), torch.zeros(1, 40, 5))
    folder = DiskPrefixCache(str(tmp_path), "m", MANY_BYTES, key=b"key")
    folder.save("key", LONG[:40], cache)
    folder.close()
    assert folder.load("key", LONG[:41], most=40, beyond=0, new_cache=other.new) is None
    assert other.pools[0].used == 0
    assert not files(tmp_path)


@pytest.mark.few("1-window")
@pytest.mark.values
@pytest.mark.parametrize("kind", first(2, reversed(KIND_NAMES)))
@pytest.mark.parametrize("seed", range(2))
def test_random_conversations_over_many_processes(tmp_path: Path, kind: str, seed: int) -> None:
    """A hit from memory or files always equals a fresh cache of its tokens."""
    chance = random.Random(f"{kind} {seed}")
    limit = [MANY_BYTES, 100_000][seed]
    prefixes = manager(tmp_path, kind, limit=limit)
    histories: list[list[int]] = [[]]
    hits = 0
    for _ in range(30):
        if chance.random() < 0.3:
            prefixes.close()
            prefixes = manager(tmp_path, kind, limit=limit)
        past = chance.choice(histories[-8:])
        past = past[: chance.randint(0, len(past))] if chance.random() < 0.3 else past
        tokens = [*past, *(chance.randint(1, 3) for _ in range(chance.randint(1, 90)))]
        hit = prefixes.search_for_matching_cache(tokens, leave_last=chance.random() < 0.5)
        cache = hit or KINDS[kind]()
        feed(cache, tokens[cache.length :])
        hits += hit is not None
        prefixes.add_sequence(tokens, cache)
        cache.release()
        histories.append(tokens)
        found(prefixes, kind, [*chance.choice(histories), 9])
    assert hits > 5
    prefixes.close()
    assert sum(path.stat().st_size for path in files(tmp_path)) <= limit
