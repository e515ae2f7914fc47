"""Files of a prefix cache that are damaged, forged or of another model are not used."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from prefix_caches import KINDS, found
from prefix_folders import LONG, MANY_BYTES, file_of, files, manager, save

from mrs.cache.prefix.disk import DiskPrefixCache
from mrs.cache.prefix.manager import PrefixCacheManager
from mrs.cache.prefix.signing_key import prefix_key


def test_another_model_is_refused(tmp_path: Path) -> None:
    save(tmp_path, "dense", LONG)
    for model in ("another model", ""):
        assert found(manager(tmp_path, model=model), "dense", [*LONG, 3]) == 0
    assert len(files(tmp_path)) == 4
    # Nor does it help to give its files the names that this model's would have.
    others = tmp_path / "others"
    save(others, "dense", LONG, model="another model")
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


@pytest.mark.few(3)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_removed_and_the_others_are_used(tmp_path: Path, damage) -> None:
    save(tmp_path, "dense", LONG)
    path = file_of(tmp_path, 256)
    path.write_bytes(damage(path.read_bytes()))
    assert found(manager(tmp_path), "dense", [*LONG, 3]) == 128
    assert not path.exists()
    assert len(files(tmp_path)) == 3
    save(tmp_path, "dense", LONG)
    assert found(manager(tmp_path), "dense", [*LONG, 3]) == len(LONG)


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    save(tmp_path, "dense", LONG)
    path = file_of(tmp_path, 128)
    path.unlink()
    path.mkdir()
    assert found(manager(tmp_path), "dense", [*LONG, 3]) == 0
    assert path.is_dir()


def test_a_forged_file_changes_nothing(tmp_path: Path) -> None:
    """Its values are changed and its signature is made with another key."""
    save(tmp_path, "dense", LONG[:100])
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


def test_files_of_another_key_are_not_found(tmp_path: Path) -> None:
    save(tmp_path, "dense", LONG[:100])
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
def test_a_folder_that_others_may_write_to_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    DiskPrefixCache(str(tmp_path), "m", MANY_BYTES, key=b"key")
    assert not caplog.records
    tmp_path.chmod(0o777)
    DiskPrefixCache(str(tmp_path), "m", MANY_BYTES, key=b"key")
    assert "other users may write" in caplog.text
