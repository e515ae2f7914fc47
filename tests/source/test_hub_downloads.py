"""Models of a hub that are downloaded, interrupted, resumed, or used offline."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hub_models import ID, TOKEN, fails, source, tensors, tiny_files
from safetensors.torch import save

from mrs.errors import NotReadable
from mrs.request import ModelSource
from mrs.source import Weights, fetch, open_checkpoint
from support.hub_server import COMMIT, HubServer, Served, header_blob


def test_download(hub: HubServer, tmp_path: Path) -> None:
    """Only the files that a run needs; afterwards they are found in the cache."""
    hub.add(ID, tiny_files(), token=TOKEN)
    asked = source(token_source=f"literal:{TOKEN}", cache_path=str(tmp_path / "cache"))
    progress: list[tuple[int, int]] = []
    checkpoint = fetch(asked, lambda done, total: progress.append((done, total)))
    assert checkpoint.is_local
    assert checkpoint.read_text("tokenizer.json") == '{"tok": 1}'
    assert checkpoint.generation_config == {"eos_token_id": 2}
    with Weights(checkpoint) as weights:
        for name, expected in tensors().items():
            found = np.empty((4, 64), np.float32)
            weights.read_into(found.data.cast("B"), checkpoint.tensors[name])
            np.testing.assert_array_equal(found, expected.numpy())
    assert not [s for s in hub.log if "pytorch_model" in s.path or "README" in s.path]
    assert {s.authorization for s in hub.log if s.place == "cdn"} == {None}
    total = sum(len(f) for n, f in tiny_files().items() if n.endswith(("json", "safetensors")))
    assert (progress[0], progress[-1]) == ((0, total), (total, total))
    assert progress == sorted(progress)
    folder = checkpoint.local_path("model.safetensors").parent
    assert folder.is_relative_to(tmp_path / "cache" / "models--someone--tiny" / "snapshots")

    hub.log.clear()
    again = open_checkpoint(asked)
    assert again.is_local
    assert again.tensors == checkpoint.tensors
    assert [urls.path.partition("?")[0] for urls in hub.log] == [f"/api/models/{ID}/revision/main"]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("there", "read"),
    [
        (["tekken.json", "params.json"], ["tekken.json"]),
        (["tokenizer.model", "added_tokens.json"], ["tokenizer.model", "added_tokens.json"]),
        (["tiktoken.model", "tokenization_kimi.py"], ["tiktoken.model"]),
        (["vocab.json", "merges.txt"], ["vocab.json", "merges.txt"]),
        (["tokenizer.json", "tokenizer.model", "merges.txt", "vocab.json"], ["tokenizer.json"]),
        (["sentencepiece.bpe.model"], ["sentencepiece.bpe.model"]),
        (["vocab.txt"], ["vocab.txt"]),
        ([], []),
    ],
)
def test_the_files_of_a_tokenizer_are_downloaded(
    hub: HubServer, there: list[str], read: list[str]
) -> None:
    """Those that it is read from, whichever they are, and they count in the size."""
    others = {n: b for n, b in tiny_files().items() if n != "tokenizer.json"}
    hub.add(ID, {**others, **{name: name.encode() + b"\xff" for name in there}})
    progress: list[tuple[int, int]] = []
    checkpoint = fetch(source(), lambda done, total: progress.append((done, total)))
    for name in there:
        expected = name.encode() + b"\xff" if name in read else None
        assert checkpoint.read_bytes(name) == expected
    folder = checkpoint.local_path("model.safetensors").parent
    sizes = (path.stat().st_size for path in folder.iterdir())
    assert progress[-1][1] == sum(sizes)


@pytest.mark.full
def test_a_long_download_reports_its_progress(hub: HubServer) -> None:
    hub.add(ID, {"config.json": b"{}", "model.safetensors": header_blob({"w": (22_000_000,)})})
    hub.pause_s = 0.25
    progress: list[tuple[int, int]] = []
    fetch(source(), lambda done, total: progress.append((done, total)))
    total = progress[-1][1]
    assert total > 44_000_000
    assert progress == sorted(progress)
    assert len({done for done, _ in progress if 0 < done < total}) >= 3


def test_offline(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(ID, tiny_files())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    fails(NotReadable, source(), "HF_HUB_OFFLINE is set", f"{ID} is not downloaded", "mrs list")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    expected = fetch(source())
    assert expected.notes == ()
    hub.log.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "yes")
    checkpoint = fetch(source())
    assert checkpoint.tensors == expected.tensors
    assert checkpoint.notes == ()  # that is what the variable asks for
    assert hub.log == []


def test_no_network(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(ID, tiny_files())
    expected = fetch(source())
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    checkpoint = open_checkpoint(source())
    assert checkpoint.tensors == expected.tensors
    assert "no answer from 127.0.0.1:9" in checkpoint.notes[0]
    assert "Errno" not in checkpoint.notes[0]
    fails(NotReadable, ModelSource("someone/else", "safetensors"), "no answer from 127.0.0.1:9")


def test_a_download_continues_with_the_missing_file(hub: HubServer) -> None:
    """The second shard fails for good at first; the first one is not sent twice."""
    shards = {
        f"model-0000{i + 1}-of-00002.safetensors": save({f"w{i}": torch.ones(9)}) for i in (0, 1)
    }
    hub.add(ID, shards | {"config.json": b"{}"})
    first, second = shards
    hub.trouble = lambda served: 404 if second in served.path and served.begin is None else 0
    with pytest.raises(NotReadable, match=ID):
        fetch(source())
    assert [s.status for s in hub.served(first) if s.begin is None] == [200]
    hub.log.clear()
    hub.trouble = lambda served: 0
    assert fetch(source()).tensors.keys() == {"w0", "w1"}
    assert not [s for s in hub.served(first) if s.begin is None]


def test_a_broken_connection_is_resumed(hub: HubServer) -> None:
    """The library asks for the missing rest of a file whose connection broke."""
    hub.add(ID, {"config.json": b"{}", "model.safetensors": header_blob({"w": (15_000_000,)})})
    downloads = itertools.count()

    def trouble(served: Served) -> int:
        is_download = served.place == "cdn" and served.begin is None and served.method == "GET"
        return -1 if is_download and next(downloads) == 0 else 0

    hub.trouble = trouble
    checkpoint = fetch(source())
    assert checkpoint.is_local
    assert 0 < (hub.served("model.safetensors")[-1].begin or 0) < checkpoint.files[0].size_bytes


def is_a_download(served: Served) -> bool:
    return served.place == "cdn" and served.begin is None and served.method == "GET"


def test_a_file_that_is_damaged_on_its_way_is_downloaded_again(hub: HubServer) -> None:
    """One bit of a weight is wrong: the size is right, and so is the header."""
    hub.add(ID, tiny_files())
    downloads = itertools.count()
    hub.spoils = lambda served: is_a_download(served) and next(downloads) == 0
    checkpoint = fetch(source())
    assert len([s for s in hub.served("model.safetensors") if is_a_download(s)]) == 2
    expected = tiny_files()["model.safetensors"]
    assert checkpoint.local_path("model.safetensors").read_bytes() == expected


def test_a_file_that_is_damaged_twice_is_named_and_removed(hub: HubServer) -> None:
    hub.add(ID, tiny_files())
    hub.spoils = is_a_download
    with pytest.raises(
        NotReadable, match=r"model\.safetensors of someone/tiny was damaged"
    ) as caught:
        fetch(source())
    assert "SHA-256" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not open_checkpoint(source()).is_local
    hub.spoils = lambda served: False
    expected = tiny_files()["model.safetensors"]
    assert fetch(source()).local_path("model.safetensors").read_bytes() == expected


def test_hashes_of_a_commit_are_kept_with_its_listing(hub: HubServer) -> None:
    """A commit is not listed a second time; its files are verified nonetheless."""
    hub.add(ID, tiny_files())
    asked = source(revision=COMMIT)
    open_checkpoint(asked)
    hub.log.clear()
    hub.spoils = is_a_download
    with pytest.raises(NotReadable, match="damaged twice"):
        fetch(asked)
    assert not [s for s in hub.log if s.path.endswith("?blobs=true")]


@pytest.mark.full
def test_an_interrupt_stops_the_download(hub: HubServer, tmp_path: Path) -> None:
    """Ctrl-C while a file is under way ends the download instead of waiting for the file."""
    hub.add(ID, {"config.json": b"{}", "model.safetensors": header_blob({"w": (30_000_000,)})})
    interrupted = threading.Event()

    def trouble(served: Served) -> int:
        if served.place == "cdn" and served.begin is None and not interrupted.is_set():
            interrupted.set()
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.3)  # the client is interrupted before it gets a byte
        return 0

    hub.trouble = trouble
    before = threading.enumerate()
    with pytest.raises(KeyboardInterrupt):
        fetch(source())
    assert interrupted.is_set()
    for thread in threading.enumerate():
        if thread not in before and "Pool" in thread.name:
            thread.join()
    assert not list(tmp_path.rglob("model.safetensors"))
    assert fetch(source()).is_local
    assert list(tmp_path.rglob("model.safetensors"))


def test_download_of_a_gguf_and_its_tokenizer(hub: HubServer, gguf_file: bytes) -> None:
    hub.add(ID, {"m.gguf": gguf_file, "n.gguf": b"", "config.json": b"{}"})
    hub.add("someone/base", tiny_files())
    asked = source("gguf", filenames=("m.gguf",), tokenizer_model_id="someone/base")
    checkpoint = fetch(asked)
    assert checkpoint.is_local
    assert checkpoint.read_text("tokenizer.json") == '{"tok": 1}'
    assert len(checkpoint.tensors) == 100
    assert not hub.served("n.gguf", "hub")
    assert not hub.served("model.safetensors", "hub")


def test_missing_space_is_reported_before_the_download(hub: HubServer) -> None:
    large = header_blob({"w": (2**45, 2**10)})
    hub.add(ID, {"config.json": b"{}", "model.safetensors": large})
    with pytest.raises(NotReadable, match="needs 65536 TiB"):
        fetch(source())
