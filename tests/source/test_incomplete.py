"""Files that a download has not finished are named as such."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_checkpoint import plain, sharded, source, write_gguf

from mrs.errors import MrsError, NotReadable
from mrs.request import Container
from mrs.source import open_checkpoint

AGAIN = "the download is not complete: run it again"


def error_of(model: Path, container: Container = "safetensors") -> str:
    with pytest.raises(NotReadable) as error:
        open_checkpoint(source(model, container))
    return str(error.value)


@pytest.mark.parametrize("size_bytes", [0, 5, 100, -10])
def test_a_cut_safetensors_file(tmp_path: Path, size_bytes: int) -> None:
    folder = plain(tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size_bytes])
    assert AGAIN in error_of(folder)


@pytest.mark.parametrize("size_bytes", [0, 3, 10, 100, -40])
def test_a_cut_gguf_file(tmp_path: Path, size_bytes: int) -> None:
    file = write_gguf(tmp_path / "m.gguf")
    file.write_bytes(file.read_bytes()[:size_bytes])
    assert AGAIN in error_of(file, "gguf")


@pytest.mark.parametrize(
    ("start", "named"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "a Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"<html><body>404", "a web page"),
        (bytes(100), "begins with zeros"),
    ],
)
def test_what_stands_for_a_file_is_named(tmp_path: Path, start: bytes, named: str) -> None:
    folder = plain(tmp_path)
    (folder / "model.safetensors").write_bytes(start)
    assert named in error_of(folder)
    (tmp_path / "m.gguf").write_bytes(start)
    assert named in error_of(tmp_path / "m.gguf", "gguf")


@pytest.mark.parametrize("index", [True, False])
def test_a_missing_shard(tmp_path: Path, index: bool) -> None:
    folder = sharded(tmp_path, index=index)
    (folder / "model-00002-of-00003.safetensors").unlink()
    found = error_of(folder)
    assert "model-00002-of-00003.safetensors" in found
    assert AGAIN in found


def test_a_link_to_a_file_that_is_not_there(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    shard = folder / "model-00002-of-00003.safetensors"
    shard.unlink()
    shard.symlink_to(folder / "blobs" / "missing")
    assert AGAIN in error_of(folder)


@pytest.mark.parametrize(
    "part",
    [
        "model-00002-of-00003.safetensors.incomplete",
        "model-00002-of-00003.safetensors.part",
        "model-00002-of-00003.safetensors.crdownload",
        ".cache/huggingface/download/abc.incomplete",
    ],
)
def test_parts_of_files_are_named(tmp_path: Path, part: str) -> None:
    folder = sharded(tmp_path)
    (folder / "model-00002-of-00003.safetensors").unlink()
    (folder / part).parent.mkdir(parents=True, exist_ok=True)
    (folder / part).write_bytes(b"x")
    assert f"{AGAIN} (there is {Path(part).name})" in error_of(folder)


def test_the_cache_of_the_hub_with_a_part(tmp_path: Path) -> None:
    folder, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    (folder / "config.json").write_text("{}")
    (blobs / "0123.incomplete").write_bytes(b"x")
    assert "(there is 0123.incomplete)" in error_of(folder)
    (blobs / "0123.incomplete").unlink()
    assert AGAIN not in error_of(folder)


def test_only_a_part_of_the_only_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.part").write_bytes(b"x")
    found = error_of(tmp_path)
    assert "no safetensors file is complete" in found
    assert "model.safetensors.part" in found


@pytest.mark.parametrize("name", ["a b.gguf", "two  spaces.gguf", "q4 k m-v2.gguf"])
def test_a_file_name_with_spaces(tmp_path: Path, name: str) -> None:
    write_gguf(tmp_path / name)
    write_gguf(tmp_path / "other.gguf")
    assert open_checkpoint(source(tmp_path, "gguf", name)).files[0].name == name


def test_several_names_are_divided_after_the_suffix(tmp_path: Path) -> None:
    from mrs.source.address import split_names

    assert split_names("a b.gguf") == ("a b.gguf",)
    assert split_names("a b.gguf  c d.gguf;e.gguf") == ("a b.gguf", "c d.gguf", "e.gguf")
    assert split_names("x-0.uqff x-1.uqff") == ("x-0.uqff", "x-1.uqff")
    assert split_names(" ; ") == ()
    with pytest.raises(MrsError, match=r"no file a c\.gguf"):
        open_checkpoint(source(plain(tmp_path), "gguf", "a c.gguf"))


def test_a_folder_with_both_says_which_files_it_takes(tmp_path: Path) -> None:
    folder = plain(tmp_path)
    assert open_checkpoint(source(folder)).notes == ()
    write_gguf(folder / "m q4.gguf")
    (note,) = open_checkpoint(source(folder)).notes
    assert note == "the safetensors files are taken; to take m q4.gguf instead, name it with -f"
    write_gguf(folder / "n.gguf")
    (note,) = open_checkpoint(source(folder)).notes
    assert "one of 2 GGUF files" in note
    assert open_checkpoint(source(folder, "gguf", "n.gguf")).notes == ()
