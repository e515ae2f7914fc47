"""A folder is a set: all files of one run, or it is refused; never files of two runs together."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkpoints import tiny_model, write
from safetensors.torch import load_file, save_file

from mrs.errors import MrsError, NotReadable
from mrs.load import uqff_writer
from mrs.request import ModelSource, RunRequest
from mrs.run.write_uqff import quantize
from mrs.source import Weights, open_checkpoint

KILLED = Path(__file__).with_name("killed_writes.py")
REPORT = "uqff_report.json"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models of one config, and a third with the weights of the first and another text."""
    folder = tmp_path_factory.mktemp("models")
    config, weights = tiny_model("qwen2", folder)
    for name, factor in (("first", 1.0), ("second", 2.0), ("text", 1.0)):
        write(folder / name, config, {key: each * factor for key, each in weights.items()})
        (folder / name / "tokenizer.json").write_text(json.dumps({"of": name}))
    return {name: folder / name for name in ("first", "second", "text")}


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uqff_writer, "SHARD_BYTES", 150_000)


def made(model: Path, folder: Path, isq: str = "q8_0") -> tuple[Path, ...]:
    source = ModelSource(str(model), "safetensors")
    return quantize(RunRequest(source, isq=isq, write_uqff=str(folder)))


def content(folder: Path, name: str = "q8_0") -> str:
    """The hash of all that a run reads: tensors and texts. Raises as opening does."""
    checkpoint = open_checkpoint(ModelSource(str(folder), "safetensors", uqff=(name,)))
    digest = hashlib.sha256()
    with Weights(checkpoint) as weights:
        for key, info in sorted(checkpoint.tensors.items()):
            data = bytearray(info.size_bytes)
            weights.read_into(memoryview(data), info)
            digest.update(key.encode() + data)
    for text in ("config.json", "tokenizer.json"):
        digest.update((folder / text).read_bytes())
    return digest.hexdigest()


def without_manifest(folder: Path) -> None:
    """What earlier versions wrote."""
    for path in (*folder.glob("*.uqff"), folder / "residual.safetensors"):
        save_file(load_file(path), path)
    report = json.loads((folder / REPORT).read_text())
    for output in report["outputs"]:
        del output["files"]
    (folder / REPORT).write_text(json.dumps(report))


def without_report(folder: Path) -> None:
    """What other programs write."""
    without_manifest(folder)
    (folder / REPORT).unlink()


@pytest.mark.full
@pytest.mark.parametrize(
    ("older", "newer", "change"),
    [
        pytest.param("first", "second", None, id="other weights", marks=pytest.mark.full),
        pytest.param("first", "text", None, id="other texts", marks=pytest.mark.full),
        pytest.param(
            "first", "second", without_manifest, id="of an earlier version", marks=pytest.mark.full
        ),
        pytest.param("first", "second", without_report, id="of another program"),
    ],
)
def test_a_killed_run_leaves_the_old_set_the_new_one_or_none(
    older: str, newer: str, change: Any, models: dict[str, Path], tmp_path: Path
) -> None:
    assert len(made(models[older], tmp_path / "older")) > 2
    made(models[newer], tmp_path / "newer")
    if change is not None:
        change(tmp_path / "older")
    command = [sys.executable, str(KILLED), str(models[newer])]
    subprocess.run([*command, str(tmp_path / "older"), str(tmp_path / "copies")], check=True)
    is_old, is_new = content(tmp_path / "older"), content(tmp_path / "newer")
    found = []
    points = len(list((tmp_path / "copies").iterdir()))
    for point in range(points):
        try:
            now = content(tmp_path / "copies" / str(point))
        except NotReadable as error:
            is_named = REPORT in str(error) and "write them again" in str(error)
            now = "refused" if is_named else str(error)
        assert now in (is_old, is_new, "refused"), f"files of two runs after change {point}"
        found.append({is_old: 0, "refused": 1, is_new: 2}[now])
    assert points > 20
    assert found == sorted(found)
    assert {*found} == {0, 1, 2}
    # The next run repairs the folder, and removes what the killed one left.
    broken = tmp_path / "copies" / str(found.index(1))
    made(models[newer], broken)
    assert content(broken) == is_new
    names = {path.name for path in broken.iterdir()}
    assert names == {path.name for path in (tmp_path / "newer").iterdir()}


@pytest.mark.parametrize("name", ["q8_0-0.uqff", "q8_0-1.uqff", "residual.safetensors"])
def test_a_file_of_another_run_is_named(name: str, models: dict[str, Path], tmp_path: Path) -> None:
    made(models["first"], tmp_path / "first")
    made(models["second"], tmp_path / "second")
    shutil.copy(tmp_path / "second" / name, tmp_path / "first" / name)
    with pytest.raises(NotReadable, match=f"{name} is not the file") as caught:
        content(tmp_path / "first")
    assert "\n" not in str(caught.value)
    (tmp_path / "first" / REPORT).unlink()
    with pytest.raises(NotReadable, match="are not listed together"):
        content(tmp_path / "first")


def test_folders_of_other_programs_are_read(models: dict[str, Path], tmp_path: Path) -> None:
    made(models["first"], tmp_path / "out")
    expected = content(tmp_path / "out")
    without_manifest(tmp_path / "out")
    assert content(tmp_path / "out") == expected
    (tmp_path / "out" / REPORT).unlink()
    assert content(tmp_path / "out") == expected


def test_two_sets_in_one_folder_stay_whole(models: dict[str, Path], tmp_path: Path) -> None:
    made(models["first"], tmp_path / "out")
    expected = content(tmp_path / "out")
    made(models["first"], tmp_path / "out", "q4_0")
    assert content(tmp_path / "out") == expected
    content(tmp_path / "out", "q4_0")
    # The residual file is now that of other weights, so that the first set is no longer whole.
    made(models["second"], tmp_path / "out", "q4_0")
    content(tmp_path / "out", "q4_0")
    with pytest.raises(NotReadable, match=r"residual\.safetensors is not the file"):
        content(tmp_path / "out")


def test_fewer_shards_leave_none_of_the_old_ones(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(made(models["first"], tmp_path)) > 2
    monkeypatch.setattr(uqff_writer, "SHARD_BYTES", 10**9)
    made(models["second"], tmp_path)
    assert [path.name for path in tmp_path.glob("*.uqff")] == ["q8_0-0.uqff"]


def test_a_full_disk_leaves_the_old_set(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(models["first"], tmp_path / "out")
    expected = content(tmp_path / "out")
    before = sorted(path.name for path in (tmp_path / "out").iterdir())
    calls = 0

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MrsError, match="No space left on device") as caught:
        made(models["second"], tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert content(tmp_path / "out") == expected
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == before
