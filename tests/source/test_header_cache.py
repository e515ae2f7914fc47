"""What was read of a model on the hub is not asked for again, and never trusted blindly."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hub_models import ID
from platformdirs import user_cache_path

from mrs.errors import NotReadable
from mrs.request import ModelSource
from mrs.source import Checkpoint, find_selector, open_checkpoint
from mrs.source.header_cache import FOLDER
from support.hub_server import COMMIT, HubServer, header_blob

SHAPES = {f"layers.{i}.w": (4, 64) for i in range(4)}


@pytest.fixture
def hub(hub: HubServer) -> HubServer:
    """With one model."""
    hub.add(ID, {"config.json": b"{}", "model.safetensors": header_blob(SHAPES)})
    return hub


def opened(revision: str = "main") -> Checkpoint:
    return open_checkpoint(ModelSource(ID, "safetensors", revision=revision))


def archive() -> Path:
    (file,) = (user_cache_path("mrs") / FOLDER).iterdir()
    return file


def paths(hub: HubServer) -> list[str]:
    return [served.path for served in hub.log]


def test_a_second_plan_asks_for_the_revision_alone(hub: HubServer) -> None:
    first = opened()
    hub.log.clear()
    assert opened().tensors == first.tensors
    assert paths(hub) == [f"/api/models/{ID}/revision/main?blobs=true"]


def test_one_command_asks_for_the_revision_once(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The selector is found from the files before these are opened."""
    monkeypatch.setattr("mrs.source.hub.RECENT_S", 60)
    find_selector(ModelSource(ID, "safetensors"))
    opened()
    assert len(paths(hub)) == len(set(paths(hub))) + 1  # two ranges of the weights


def test_a_commit_is_not_asked_for_at_all(hub: HubServer) -> None:
    first = opened(COMMIT)
    hub.log.clear()
    again = opened(COMMIT)
    assert (again.tensors, again.files) == (first.tensors, first.files)
    assert hub.log == []


def test_another_commit_is_read_anew(hub: HubServer) -> None:
    opened()
    hub.add(
        ID, {"config.json": b"{}", "model.safetensors": header_blob({"w": (8,)})}, commit="f" * 40
    )
    assert opened().tensors.keys() == {"w"}
    assert opened(COMMIT).tensors.keys() == SHAPES.keys()


def test_a_model_that_is_gone_is_not_found(hub: HubServer) -> None:
    opened()
    hub.models.clear()
    with pytest.raises(NotReadable, match="no model"):
        opened()


def test_nothing_is_asked_offline(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    opened()
    hub.log.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NotReadable, match="HF_HUB_OFFLINE is set"):
        opened()
    assert hub.log == []


@pytest.mark.few(1)
@pytest.mark.parametrize("revision", ["main", COMMIT])
def test_damage_is_read_anew(hub: HubServer, revision: str) -> None:
    """Bytes all over the archive, changed alone, and the archive cut there."""
    expected = opened(revision).tensors
    intact = archive().read_bytes()
    for place in range(0, len(intact), max(len(intact) // 40, 1)):
        changed = bytearray(intact)
        changed[place] ^= 0xFF
        for damaged in (bytes(changed), intact[:place]):
            archive().write_bytes(damaged)
            assert opened(revision).tensors == expected


@pytest.mark.parametrize("revision", ["main", COMMIT])
@pytest.mark.parametrize(
    "name", ["0/", "0/config.json", "0/model.safetensors", "8/model.safetensors"]
)
def test_forged_bytes_are_read_anew(hub: HubServer, revision: str, name: str) -> None:
    """Whatever is not as it would have to be on the hub is asked for there."""
    expected = opened(revision).tensors
    forge(name, lambda data: b"\xff" * len(data))
    assert opened(revision).tensors == expected
    assert opened(revision).tensors == expected


def forge(name: str, change: Callable[[bytes], bytes]) -> None:
    with zipfile.ZipFile(archive()) as before:
        members = {member: before.read(member) for member in before.namelist()}
    assert name in members
    with zipfile.ZipFile(archive(), "w") as after:
        for member, data in members.items():
            after.writestr(member, change(data) if member == name else data)


def test_compressed_archives_are_refused(hub: HubServer) -> None:
    """They could hold far more than their size."""
    opened(COMMIT)
    with zipfile.ZipFile(archive(), "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("0/", bytes(10**7))
    hub.log.clear()
    opened(COMMIT)
    assert hub.log


def test_a_folder_that_cannot_be_written(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert opened().tensors.keys() == opened().tensors.keys() == SHAPES.keys()


def test_the_oldest_make_room(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    opened()
    first = archive()
    os.utime(first, (1, 1))
    monkeypatch.setattr("mrs.source.header_cache.MAX_FOLDER_BYTES", first.stat().st_size * 3 // 2)
    hub.models["someone/other"] = hub.models[ID]
    open_checkpoint(ModelSource("someone/other", "safetensors"))
    assert archive() != first


def test_what_is_too_much_is_not_kept(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrs.source.header_cache.MAX_ARCHIVE_BYTES", 100)
    opened()
    assert not (user_cache_path("mrs") / FOLDER).exists()
