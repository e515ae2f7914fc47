"""Sequences that are remembered in a folder serve later processes, or nobody."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from prefix_caches import CPU, KINDS, WINDOW, feed, found, seen, store
from safetensors import safe_open

from mrs.cache.cache_space import CacheBuilder, CacheConfig, CacheSpace
from mrs.cache.cross_attention_kv import CrossAttentionCache, ImageKeys
from mrs.cache.prefix.chain import BLOCK_TOKENS
from mrs.cache.prefix.disk import LEAST_TOKENS, STALE_S, DiskPrefixCache
from mrs.cache.prefix.manager import PrefixCacheManager
from mrs.cache.prefix.signing_key import prefix_key
from mrs.cache.sequence_cache import SequenceCache
from mrs.errors import UsageError
from mrs.kernels.paged import PagedKV
from mrs.sizes.blocks import CacheSize

KIND_NAMES = list(KINDS)
LONG = [1 + (number * 7) % 50 for number in range(3 * BLOCK_TOKENS + 20)]
MANY_BYTES = 1 << 30


def manager(
    folder: Path, kind: str = "dense", model: str = "a model", limit: int = MANY_BYTES
) -> PrefixCacheManager:
    """Remembers nothing in memory yet, like a process that has just begun."""
    return PrefixCacheManager(
        4, new_cache=KINDS[kind], folder=DiskPrefixCache(str(folder), model, limit, key=b"key")
    )


def keep(folder: Path, kind: str, tokens: list[int], **options: object) -> None:
    prefixes = manager(folder, kind, **options)
    store(prefixes, kind, tokens)
    prefixes.close()


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("prefix-*.safetensors"))


def file_of(folder: Path, end: int) -> Path:
    (path,) = folder.glob(f"prefix-*-{end}-*.safetensors")
    return path


@pytest.mark.parametrize("kind", KIND_NAMES)
@pytest.mark.parametrize("length", [LEAST_TOKENS, 127, 128, 129, 255, 257, len(LONG)])
def test_a_later_process_goes_on_from_the_end(tmp_path: Path, kind: str, length: int) -> None:
    keep(tmp_path, kind, LONG[:length])
    assert found(manager(tmp_path, kind), kind, [*LONG[:length], 9, 9]) == length


@pytest.mark.parametrize(("kind", "hit"), [("dense", 256), ("window", 0), ("hybrid", 0)])
def test_what_parts_in_the_middle_goes_on_from_the_last_whole_block(
    tmp_path: Path, kind: str, hit: int
) -> None:
    keep(tmp_path, kind, LONG)
    assert found(manager(tmp_path, kind), kind, [*LONG[:300], 77]) == hit
    assert manager(tmp_path, kind).shared_tokens([*LONG[:300], 77]) == 0
    assert manager(tmp_path, kind).shared_tokens([*LONG[:300], 77], with_files=True) == 256


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_each_turn_writes_its_own_tokens_only(tmp_path: Path, kind: str) -> None:
    keep(tmp_path, kind, LONG[:300])
    before = {path: path.stat().st_mtime_ns for path in files(tmp_path)}
    assert len(before) == 3
    inodes = {path.stat().st_ino for path in before}
    keep(tmp_path, kind, LONG[:350])
    fresh = set(files(tmp_path)) - set(before)
    assert fresh == {file_of(tmp_path, 350)}
    assert inodes <= {path.stat().st_ino for path in files(tmp_path)}


def test_asking_the_same_again_leaves_one_token(tmp_path: Path) -> None:
    keep(tmp_path, "dense", LONG[:129])
    for prompt in (LONG[:129], LONG[:128]):
        hit = manager(tmp_path).search_for_matching_cache(prompt, leave_last=True)
        assert hit is not None
        assert hit.length == len(prompt) - 1
        assert seen(hit) == seen(feed(KINDS["dense"](), prompt[:-1]))


@pytest.mark.parametrize("kind", ["window", "hybrid"])
def test_a_file_that_holds_more_replaces_one_that_holds_less(tmp_path: Path, kind: str) -> None:
    keep(tmp_path, kind, LONG)  # its windows have moved on from the second block
    assert found(manager(tmp_path, kind), kind, [*LONG[:256], 77]) == 0
    keep(tmp_path, kind, LONG[:256])
    assert found(manager(tmp_path, kind), kind, [*LONG[:256], 77]) == 256
    assert found(manager(tmp_path, kind), kind, [*LONG, 77]) == len(LONG)
    inode = file_of(tmp_path, 256).stat().st_ino
    keep(tmp_path, kind, LONG)
    assert file_of(tmp_path, 256).stat().st_ino == inode


def test_what_is_in_memory_is_preferred_where_it_is_as_long(tmp_path: Path) -> None:
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


def test_tokens_of_any_size_are_told_apart(tmp_path: Path) -> None:
    keep(tmp_path, "dense", [*LONG[:40], -(2**70), 12, 3])
    assert found(manager(tmp_path), "dense", [*LONG[:40], -(2**70), 12, 3, 1]) == 43
    assert found(manager(tmp_path), "dense", [*LONG[:40], -(2**70), 1, 23, 1]) == 0


def test_the_files_are_safetensors(tmp_path: Path) -> None:
    keep(tmp_path, "hybrid", LONG[:140])
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
    """With other numbers in each layer, from keys (1, T, D) on."""
    cache.reserve(keys.shape[1])
    slots = torch.tensor(cache.tables[0].slots(0, keys.shape[1]))
    for number, layer in enumerate(cache.layers):
        if not isinstance(layer, CrossAttentionCache):
            layer.kv.write(slots, (keys.transpose(0, 1) + number,))
    cache.advance(keys.shape[1])
    return cache


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
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
        assert torch.equal(layer.export(0, 200).tensors["0"], before.export(0, 200).tensors["0"])


@pytest.mark.parametrize("length", [60, 130, 140, 300])
def test_pictures_come_back_with_their_places(tmp_path: Path, length: int) -> None:
    """Of a layer that remembers nothing else; some stand at the ends of blocks."""

    new_cache = latent(1, 2, torch.bfloat16, images=True).new
    cache, chance = new_cache(), torch.Generator().manual_seed(1)
    pictures = cache.layers[1]
    for place in (3, 4, 126, 127, 128, 139):
        keys = torch.randn(2, 1 + place % 3, 4, generator=chance).bfloat16()
        if place < length:
            pictures.add(ImageKeys(place, keys, -keys))
    filled(cache, torch.randn(1, length, 2, generator=chance))
    folder = DiskPrefixCache(str(tmp_path), "m", MANY_BYTES, key=b"key")
    folder.save("key", LONG[:length], cache)
    folder.close()
    back = DiskPrefixCache(str(tmp_path), "m", MANY_BYTES, key=b"key").load(
        "key", [*LONG[:length], 1], most=length, beyond=0, new_cache=new_cache
    )
    assert back is not None
    assert back.length == length
    names = [set(layer.export(0, length).tensors) for layer in (pictures, back.layers[1])]
    assert names[0] == names[1]
    for place in range(length):
        now, then = back.layers[1].visible_at(place), pictures.visible_at(place)
        assert (now is None) == (then is None)
        assert now is None or all(map(torch.equal, now, then))


@pytest.mark.parametrize(
    "other", [latent(1, 5, torch.float32), latent(2, 6, torch.float32), latent(2, 5, torch.float16)]
)
def test_caches_of_other_shapes_are_never_filled(tmp_path: Path, other: CacheSpace) -> None:
    cache = filled(latent(2, 5, torch.float32).new(), torch.zeros(1, 40, 5))
    folder = DiskPrefixCache(str(tmp_path), "m", MANY_BYTES, key=b"key")
    folder.save("key", LONG[:40], cache)
    folder.close()
    assert folder.load("key", LONG[:41], most=40, beyond=0, new_cache=other.new) is None
    assert other.pools[0].used == 0
    assert not files(tmp_path)


def test_another_model_is_refused(tmp_path: Path) -> None:
    keep(tmp_path, "dense", LONG)
    for model in ("another model", ""):
        assert found(manager(tmp_path, model=model), "dense", [*LONG, 3]) == 0
    assert len(files(tmp_path)) == 4
    # Nor does it help to give its files the names that this model's would have.
    others = tmp_path / "others"
    keep(others, "dense", LONG, model="another model")
    names = {path.name.split("-")[2]: path.name for path in files(tmp_path)}
    for path in files(others):
        path.replace(tmp_path / names[path.name.split("-")[2]])
    assert found(manager(tmp_path), "dense", [*LONG, 3]) == 0
    assert not files(tmp_path)


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def header_alone(data: bytes) -> bytes:
    return data[: 8 + int.from_bytes(data[:8], "little")]


def a_flipped_bit(data: bytes) -> bytes:
    return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]


def other_firsts(data: bytes) -> bytes:
    assert b'"firsts": "[128, 128]"' in data
    return data.replace(b'"firsts": "[128, 128]"', b'"firsts": "[130, 130]"')


def zeros(data: bytes) -> bytes:
    return bytes(len(data))


def huge_header(data: bytes) -> bytes:
    return (2**62).to_bytes(8, "little") + data[8:]


def nothing(data: bytes) -> bytes:
    return b""


def no_facts(data: bytes) -> bytes:
    return b"\x02\0\0\0\0\0\0\0{}"


def swapped_layers(data: bytes) -> bytes:
    return data.replace(b"0.0", b"9.piece.0").replace(b"1.piece.0", b"0.0")


DAMAGES = [truncated, header_alone, a_flipped_bit, other_firsts, zeros, huge_header]
DAMAGES += [nothing, no_facts, swapped_layers]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_removed_and_the_rest_serves(tmp_path: Path, damage) -> None:
    keep(tmp_path, "dense", LONG)
    path = file_of(tmp_path, 256)
    path.write_bytes(damage(path.read_bytes()))
    assert found(manager(tmp_path), "dense", [*LONG, 3]) == 128
    assert not path.exists()
    assert len(files(tmp_path)) == 3
    keep(tmp_path, "dense", LONG)
    assert found(manager(tmp_path), "dense", [*LONG, 3]) == len(LONG)


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    keep(tmp_path, "dense", LONG)
    path = file_of(tmp_path, 128)
    path.unlink()
    path.mkdir()
    assert found(manager(tmp_path), "dense", [*LONG, 3]) == 0
    assert path.is_dir()


def test_the_longest_unused_go_first_and_beginnings_last(tmp_path: Path) -> None:
    first, second, third = ([start, *LONG[1:300]] for start in (1, 2, 3))
    keep(tmp_path, "dense", first)
    size = sum(path.stat().st_size for path in files(tmp_path))
    limit = 2 * size + 100
    keep(tmp_path, "dense", second, limit=limit)
    assert found(manager(tmp_path), "dense", [*first, 9]) == 300  # used, so it stays
    keep(tmp_path, "dense", third, limit=limit)
    assert sum(path.stat().st_size for path in files(tmp_path)) <= limit
    offsets = [found(manager(tmp_path), "dense", [*each, 9]) for each in (first, second, third)]
    assert offsets == [300, 0, 300]
    keep(tmp_path, "dense", [4, *LONG[1:40]], limit=limit)
    offsets = [found(manager(tmp_path), "dense", [*each, 9]) for each in (first, third)]
    assert offsets == [256, 300]  # of the one used longest ago its end alone had to go


def test_a_limit_smaller_than_a_sequence_keeps_its_beginning(tmp_path: Path) -> None:
    keep(tmp_path, "dense", LONG)
    limit = sum(path.stat().st_size for path in files(tmp_path)) - 1
    for path in files(tmp_path):
        path.unlink()
    keep(tmp_path, "dense", LONG, limit=limit)
    assert found(manager(tmp_path), "dense", [*LONG, 3]) == 384
    keep(tmp_path, "dense", LONG, limit=0)
    assert not files(tmp_path)


def test_only_its_own_files_are_ever_removed(tmp_path: Path) -> None:
    mine = [tmp_path / name for name in ("notes.txt", "prefix-cache.safetensors", ".prefix-x")]
    for path in mine:
        path.write_text("mine")
        os.utime(path, (1, 1))
    keep(tmp_path, "dense", LONG, limit=0)
    assert all(path.read_text() == "mine" for path in mine)


def test_short_sequences_are_not_kept(tmp_path: Path) -> None:
    keep(tmp_path, "dense", LONG[: LEAST_TOKENS - 1])
    assert not files(tmp_path)


@pytest.mark.parametrize("name", ["file/folder", "file", "zero\0byte", "~nobody.here/x"])
def test_a_folder_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    path = name if name.startswith("~") else str(tmp_path / name)
    with pytest.raises(UsageError, match="the prefix cache cannot be stored in"):
        DiskPrefixCache(path, "m", MANY_BYTES, key=b"key")


def test_a_full_disk_ends_the_keeping_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    prefixes = manager(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        store(prefixes, "dense", LONG)
        store(prefixes, "dense", [7, *LONG])
        prefixes.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"cannot write to the prefix cache in {tmp_path} any more: No space left on device"
    ]
    assert not list(tmp_path.iterdir())
    assert found(prefixes, "dense", [*LONG, 9]) == len(LONG)


def test_a_folder_that_goes_away_serves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    prefixes = manager(folder)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert found(prefixes, "dense", [*LONG, 9]) == 0
    store(prefixes, "dense", LONG)
    prefixes.close()
    assert found(prefixes, "dense", [*LONG, 9]) == len(LONG)


def program(code: str, *arguments: object) -> list[str]:
    start = "import sys; sys.path[:0] = {!r}; from test_prefix_folder import *; "
    here = [str(Path(__file__).parent), *sys.path]
    return [sys.executable, "-c", start.format(here) + code, *map(str, arguments)]


WRITE_MANY = """
from prefix_caches import evict_all
import pathlib
folder, seed = pathlib.Path(sys.argv[1]), int(sys.argv[2])
chance = random.Random(seed)
prefixes = manager(folder, sys.argv[3], limit=200_000)
for turn in range(20):
    tokens = LONG[: chance.randrange(32, 300)] + [chance.randrange(9) for _ in range(100)]
    offset = found(prefixes, sys.argv[3], tokens)
    evict_all(prefixes)
    store(prefixes, sys.argv[3], tokens)
    evict_all(prefixes)
prefixes.close()
"""


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_processes_share_a_folder(tmp_path: Path, kind: str) -> None:
    """Each checks its hits, while the others write, touch and remove the same files."""
    processes = [
        subprocess.Popen(program(WRITE_MANY, tmp_path, seed, kind), stderr=subprocess.PIPE)
        for seed in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors.decode()) == (0, "")
    assert 0 < sum(path.stat().st_size for path in files(tmp_path)) <= 200_000
    assert len(list(tmp_path.iterdir())) == len(files(tmp_path))
    for path in files(tmp_path):
        with safe_open(path, "pt") as file:
            assert file.metadata()["model"] == "a model"


WRITE_SLOWLY = """
import pathlib
calls = iter(range(99))
def wait(handle):
    if next(calls) == 2:
        print("writing", flush=True)
        time.sleep(60)
os.fsync = wait
keep(pathlib.Path(sys.argv[1]), "dense", LONG)
"""


def test_a_process_that_is_killed_while_it_writes_leaves_nothing_half(tmp_path: Path) -> None:
    process = subprocess.Popen(program(WRITE_SLOWLY, tmp_path), stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    (left,) = set(tmp_path.iterdir()) - set(files(tmp_path))
    assert left.stat().st_size > 0
    assert found(manager(tmp_path), "dense", [*LONG, 3]) == 256
    keep(tmp_path, "dense", LONG)
    assert left.exists()  # for all that is known, it is still being written
    os.utime(left, (time.time() - STALE_S - 1,) * 2)
    keep(tmp_path, "dense", [5, *LONG])
    assert not left.exists()
    assert found(manager(tmp_path), "dense", [*LONG, 3]) == len(LONG)


def test_an_interruption_at_the_end_leaves_the_rest_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefixes = manager(tmp_path)
    fsync, main = os.fsync, threading.get_ident()
    begun: list[int] = []

    def slow(handle: int) -> None:
        begun.append(handle)
        time.sleep(0.3)
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.3)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", slow)
    store(prefixes, "dense", LONG)
    with pytest.raises(KeyboardInterrupt):
        prefixes.close()
    deadline = time.monotonic() + 10
    while not files(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    assert len(begun) == len(files(tmp_path)) == 1


@pytest.mark.parametrize("kind", KIND_NAMES)
@pytest.mark.parametrize("seed", range(2))
def test_random_conversations_over_many_processes(tmp_path: Path, kind: str, seed: int) -> None:
    """A hit is always what its tokens make it, from memory or from files, whoever wrote them."""
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


def test_a_forged_file_changes_nothing(tmp_path: Path) -> None:
    """Numbers changed, and the seal made anew by somebody who does not know the key."""
    keep(tmp_path, "dense", LONG[:100])
    path = file_of(tmp_path, 100)
    content = bytearray(path.read_bytes())
    content[-1] ^= 64
    head = 8 + int.from_bytes(content[:8], "little")
    seal = content.index(b'"seal": "') + 9
    content[seal : seal + 32] = b"0" * 32
    forged = hashlib.blake2b(path.name.encode(), key=b"guess", digest_size=16)
    forged.update(bytes(content))
    content[seal : seal + 32] = forged.hexdigest().encode()
    assert seal < head
    path.write_bytes(content)
    assert found(manager(tmp_path), "dense", [*LONG[:100], 3]) == 0
    assert not path.exists()


def test_files_under_another_key_or_name_are_not_there(tmp_path: Path) -> None:
    keep(tmp_path, "dense", LONG[:100])
    other = PrefixCacheManager(
        4,
        new_cache=KINDS["dense"],
        folder=DiskPrefixCache(str(tmp_path), "a model", MANY_BYTES, key=b"another"),
    )
    assert found(other, "dense", [*LONG[:100], 3]) == 0
    assert file_of(tmp_path, 100).exists()


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
def test_the_key_is_the_users_own(tmp_path: Path) -> None:
    file = tmp_path / "state" / "key"
    key = prefix_key(file)
    assert len(key) == 32
    assert prefix_key(file) == key
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)  # whoever has read it could forge
    assert prefix_key(file) != key


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
def test_a_folder_that_others_may_write_to_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    DiskPrefixCache(str(tmp_path), "m", MANY_BYTES, key=b"key")
    assert not caplog.records
    tmp_path.chmod(0o777)
    DiskPrefixCache(str(tmp_path), "m", MANY_BYTES, key=b"key")
    assert "other users may write" in caplog.text
