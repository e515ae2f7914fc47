"""`mrs cache list`: what the hub's cache holds of models that can be run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from mrs.source.locate import DEMO_FOLDER
from mrs_cli.app import main

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLDER = "f" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo in two forms, as downloads; beside it what cannot be run."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))

    def lay(name: str, commit: str, *files: Path, ref: str | None = "main") -> Path:
        snapshot = tmp_path / name / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for file in files:
            shutil.copy(file, snapshot)
        (tmp_path / name / "refs").mkdir(exist_ok=True)
        if ref:
            (tmp_path / name / "refs" / ref).write_text(commit)
        return snapshot

    demo = [path for path in (DEMO_FOLDER / "model").iterdir() if path.suffix != ".gguf"]
    gguf = DEMO_FOLDER / "model" / "demo.gguf"
    lay("models--org--demo", COMMIT, *demo)
    lay("models--org--demo", OLDER, *demo, ref=None)
    lay("models--org--demo-GGUF", COMMIT, gguf)
    unknown = lay("models--org--unknown", COMMIT, *demo)
    (unknown / "config.json").write_text('{"model_type": "bert"}')
    lay("models--org--incomplete", COMMIT, *(p for p in demo if p.suffix != ".safetensors"))
    lay("models--org--broken", COMMIT)
    (tmp_path / "models--org--broken" / "snapshots" / COMMIT / "x.gguf").write_bytes(b"GGUF")
    lay("datasets--org--data", COMMIT, *demo)
    (tmp_path / "models--org--demo" / "snapshots" / "a file").touch()
    return tmp_path


def listed(capsys, *words: str) -> str:
    assert main(["cache", "list", *words]) == 0
    return capsys.readouterr().out


def test_models_that_can_be_run_are_listed(cache, capsys):
    lines = listed(capsys).splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["org/demo", "main"],
        ["org/demo", "f" * 12],
        ["org/demo-GGUF", "main"],
    ]
    assert lines[1].split()[-1] == "plain"
    assert lines[3].split()[-2:] == ["gguf", "demo.gguf"]
    assert lines[-1].startswith("3 models, ")
    assert lines[-1].endswith(f" in {cache}")


def test_the_same_as_json(cache, capsys):
    value = json.loads(listed(capsys, "--json"))
    snapshot = cache / "models--org--demo-GGUF" / "snapshots" / COMMIT
    assert value["models"][2] == {
        "model_id": "org/demo-GGUF",
        "revision": "main",
        "selector": "gguf",
        "files": ["demo.gguf"],
        "size_bytes": (snapshot / "demo.gguf").stat().st_size,
        "path": str(snapshot),
    }
    assert value["size_bytes"] == sum(model["size_bytes"] for model in value["models"])
    assert (value["path"], value["prefix_cache"]) == (str(cache), None)


def test_a_folder_of_past_sequences_is_counted(cache, tmp_path_factory, capsys):
    folder = tmp_path_factory.mktemp("prefixes")
    (folder / "prefix-0-1-2.safetensors").write_bytes(bytes(2048))
    assert "prefix cache: 1 file, 2.00 KiB" in listed(capsys, "--prefix-cache-dir", str(folder))
    kept = json.loads(listed(capsys, "--json", "--prefix-cache-dir", str(folder)))["prefix_cache"]
    assert kept == {"path": str(folder), "files": 1, "size_bytes": 2048}


def test_a_cache_that_is_not_there(tmp_path, capsys):
    missing = tmp_path / "none"
    assert listed(capsys, "--hf-cache-path", str(missing)) == f"no models in {missing}\n"


def test_a_model_is_deleted(cache: Path, run_mrs) -> None:
    ran = run_mrs("cache", "delete", "-m", "org/demo")
    assert (ran.code, (cache / "models--org--demo").exists()) == (2, True)
    assert "add --yes" in ran.err
    ran = run_mrs("cache", "delete", "-m", "org/demo", "--yes")
    assert (ran.code, (cache / "models--org--demo").exists()) == (0, False)
    assert re.fullmatch(r"deleted org/demo: \S+ [KM]?i?B of downloads\n", ran.out)
    assert (cache / "models--org--demo-GGUF").exists()


def test_a_demo_model_is_said_to_stay(cache: Path, run_mrs) -> None:
    ran = run_mrs("rm", "demo")
    assert ran.code == 3
    assert "it is a part of mrs and cannot be deleted" in ran.err


@pytest.mark.parametrize("name", ["org/none", "..", "../org", "/", "datasets--org--data"])
def test_nothing_else_is_deleted(cache: Path, run_mrs, name: str) -> None:
    before = sorted(cache.rglob("*"))
    ran = run_mrs("cache", "delete", "-m", name, "--yes")
    assert ran.code == 3
    assert "is not in the hub cache" in ran.err
    assert "cannot be deleted" not in ran.err
    assert sorted(cache.rglob("*")) == before


def test_layers_on_disk_are_counted_and_deleted(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_mrs
) -> None:
    from mrs.devices.disk import layers_folder, layers_name

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    for name in ("org/demo", "org/other"):
        folder = layers_folder() / layers_name(name) / "0123"
        folder.mkdir(parents=True)
        (folder / "layer-0000.mrs").write_bytes(bytes(1024))
    listed = run_mrs("cache", "list").out
    assert f"layers on disk: 2.00 KiB in {layers_folder()}\n  1.00 KiB of org/demo\n" in listed
    kept = json.loads(run_mrs("cache", "list", "--json").out)["disk_layers"]
    models = {"org/demo": 1024, "org/other": 1024}
    assert kept == {"path": str(layers_folder()), "size_bytes": 2048, "models": models}
    ran = run_mrs("cache", "delete", "-m", "org/demo", "--yes")
    assert ran.out.endswith(" of downloads, 1.00 KiB of layers on disk\n")
    assert not (cache / "models--org--demo").exists()
    assert [each.name for each in layers_folder().iterdir()] == [layers_name("org/other")]
    assert run_mrs("cache", "delete", "-m", "org/other", "--yes").code == 0
    assert list(layers_folder().iterdir()) == []
    own = tmp_path / "model"
    (layers_folder() / layers_name(str(own))).mkdir()
    own.mkdir()
    ran = run_mrs("cache", "delete", "-m", str(own), "--yes")
    assert ran.out == f"deleted {own}: 0 B of layers on disk; its own files stay\n"
    assert own.is_dir()
