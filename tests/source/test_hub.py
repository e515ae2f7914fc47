"""Models on a hub whose headers are read by ranges of bytes, or that cannot be read."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hub_models import ID, TOKEN, fails, source, tiny_files
from platformdirs import user_cache_path

from mrs.errors import NotReadable, Unsupported, UsageError
from mrs.source import find_selector, open_checkpoint
from mrs.source.header_cache import FOLDER
from mrs.source.hub_settings import find_token
from support.hub_server import Blob, HubServer, Served, header_blob


def header_cache_folder() -> Path:
    return user_cache_path("mrs") / FOLDER


def test_planning_a_70b_model_transfers_headers_only(hub: HubServer) -> None:
    """30 shards of 140 GB: their headers alone, each byte once, no byte of a weight."""
    weight_map, files = {}, {}
    for shard in range(30):
        name = f"model-{shard + 1:05}-of-00030.safetensors"
        shapes = {f"model.layers.{shard}.{part}.weight": (8192, 28672) for part in range(10)}
        files[name] = header_blob(shapes)
        weight_map |= dict.fromkeys(shapes, name)
    index = json.dumps({"weight_map": weight_map}).encode()
    hub.add(ID, files | {"config.json": b"{}", "model.safetensors.index.json": index})
    checkpoint = open_checkpoint(source())
    assert not checkpoint.is_local
    assert len(checkpoint.tensors) == 300
    assert checkpoint.total_bytes == 300 * 8192 * 28672 * 2
    heads = {name: len(file.head) for name, file in files.items()}
    for name, head_bytes in heads.items():
        assert [(s.begin, s.end) for s in hub.served(name)] == [(0, 8), (8, head_bytes)]
    assert sum(s.body_bytes for s in hub.log if s.place == "cdn") == sum(heads.values())
    assert hub.body_bytes < 200_000
    with pytest.raises(NotReadable, match="not been downloaded"):
        checkpoint.local_path("model-00001-of-00030.safetensors")


def test_a_web_address_names_a_model(hub: HubServer) -> None:
    hub.add(ID, tiny_files())
    checkpoint = open_checkpoint(replace(source(), model_id=f"{hub.endpoint}/{ID}"))
    assert (checkpoint.source.model_id, len(checkpoint.tensors)) == (ID, 4)
    fails(NotReadable, replace(source(), model_id=f"{hub.endpoint}/{ID}/tree/v2"), "revision v2")


def test_a_long_index_is_left_out(hub: HubServer) -> None:
    """The headers of a whole set of shards say what a 5 MB index would."""
    files = {f"model-0000{i}-of-00002.safetensors": header_blob({f"w{i}": (8,)}) for i in (1, 2)}
    index = b'{"weight_map": {"w1": "model-00001-of-00002.safetensors"}}' + b" " * 5_000_000
    hub.add(ID, files | {"config.json": b"{}", "model.safetensors.index.json": index})
    assert open_checkpoint(source()).tensors.keys() == {"w1", "w2"}
    assert hub.body_bytes < 10_000


def test_a_gguf_file_by_ranges(hub: HubServer, gguf_file: bytes) -> None:
    hub.add(ID, {"Q8/m.gguf": gguf_file, "README.md": b""})
    checkpoint = open_checkpoint(source("gguf"))
    assert checkpoint.config["tokenizer.ggml.tokens"][29_999] == "token29999"
    assert len(checkpoint.tensors) == 100
    data_offset = min(tensor.offset_bytes for tensor in checkpoint.tensors.values())
    ranges = [(s.begin or 0, s.end or 0) for s in hub.served("m.gguf")]
    assert max(end for _, end in ranges) <= data_offset
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))
    assert len(hub.served("m.gguf", "hub")) == 1  # redirected once, then straight to the CDN
    assert len(ranges) < 50


def test_the_token_is_sent_to_the_hub_only(hub: HubServer) -> None:
    hub.add(ID, tiny_files(), token=TOKEN)
    checkpoint = open_checkpoint(source(token_source=f"literal:{TOKEN}"))
    assert len(checkpoint.tensors) == 4
    assert {s.authorization for s in hub.log if s.place == "hub"} == {f"Bearer {TOKEN}"}
    assert {s.authorization for s in hub.log if s.place == "cdn"} == {None}
    assert hub.served("model.safetensors")


def test_token_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text(" hf_file\n")
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "NOT_SET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "nowhere"))
    assert find_token("cache") is None
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("MINE", "hf_mine")
    assert find_token("cache") == "hf_file"
    assert find_token("literal:a:b") == "a:b"
    assert find_token("env:MINE") == "hf_mine"
    assert find_token(f"path:{file}") == "hf_file"
    assert find_token("none") is None
    monkeypatch.setenv("HF_TOKEN", "hf_env")
    assert find_token("cache") == "hf_env"
    for wrong in ("", "literal:", "env:NOT_SET", f"path:{tmp_path}/absent", "keyring", "none:x"):
        with pytest.raises(UsageError, match="token-source"):
            find_token(wrong)
    with pytest.raises(UsageError, match="invalid characters") as caught:
        find_token(f"literal:{TOKEN}\nHost: elsewhere")
    assert TOKEN not in str(caught.value)


def test_errors_name_the_reason(hub: HubServer) -> None:
    fails(NotReadable, source(), "no model someone/tiny", "on this machine", "HF_TOKEN")
    hub.add(ID, tiny_files(), token=TOKEN)
    fails(NotReadable, source(), "no model someone/tiny", "no token was sent")
    fails(NotReadable, source(token_source="literal:wrong"), "a token was sent")
    hub.add(ID, tiny_files(), token=TOKEN, is_gated=True)
    fails(NotReadable, source(), "gated", "accept its terms", "HF_TOKEN")
    hub.add(ID, tiny_files())
    fails(NotReadable, source(revision="v2"), "revision v2")
    fails(NotReadable, source("gguf"), "plain selector")
    hub.add(ID, {"config.json": b"{}", "pytorch_model.bin": b"", "a.pth": b""})
    fails(Unsupported, source(), "pytorch_model.bin", "a.pth", "convert them to safetensors")
    hub.add(ID, {"a.gguf": b"", "b.gguf": b""})
    fails(UsageError, source("gguf"), "a.gguf, b.gguf", "-f")
    fails(NotReadable, source("gguf", filenames=("c.gguf",)), "no file c.gguf", "a.gguf")


def test_a_listing_that_is_no_listing(hub: HubServer) -> None:
    for commit, name in (("../..", "a"), ("0" * 40, "../a"), ("0" * 40, "/etc/passwd")):
        hub.add(ID, {name: b""}, commit=commit)
        fails(NotReadable, source(), "the hub")


def test_selector_of_a_hub_model(hub: HubServer, gguf_file: bytes) -> None:
    hub.add(ID, tiny_files())
    assert find_selector(source()) == "plain"
    hub.add(ID, tiny_files() | {"config.json": b'{"vision_config": {}}'})
    assert find_selector(source()) == "vision-plain"
    hub.add(ID, {"m.gguf": gguf_file})
    assert find_selector(source()) == "gguf"


def test_a_server_without_ranges(
    hub: HubServer, gguf_file: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small offsets are read through; the rest of the file is left on the wire."""
    hub.obeys_ranges = False
    hub.add(ID, tiny_files() | {"m.gguf": gguf_file})
    assert len(open_checkpoint(source()).tensors) == 4
    assert len(open_checkpoint(source("gguf")).tensors) == 100
    monkeypatch.setattr("mrs.source.hub.MAX_SKIPPED_BYTES", 7)
    shutil.rmtree(header_cache_folder())
    fails(NotReadable, source(), "does not serve ranges")


def test_files_shorter_than_listed(hub: HubServer) -> None:
    model = hub.add(ID, tiny_files())
    cut = Blob(b"\x40", 8)

    def trouble(served: Served) -> int:
        if served.place == "cdn":
            model.files["model.safetensors"] = cut
        return 0

    hub.trouble = trouble
    fails(NotReadable, source(), "shorter than its listed")


def test_a_passing_error_is_retried(hub: HubServer) -> None:
    """One 503, one body cut in half and one expired address: each is tried again."""
    hub.add(ID, tiny_files())
    answers = iter([503, 0, 0, 0, -1])
    hub.trouble = lambda served: next(answers, 0)
    assert len(open_checkpoint(source()).tensors) == 4
    assert next(answers, None) is None

    hub.log.clear()
    shutil.rmtree(header_cache_folder())

    def expire(served: Served) -> int:
        if served.place == "cdn" and served.begin and not hub.signature:
            hub.signature = 1
        return 0

    hub.trouble = expire
    assert len(open_checkpoint(source()).tensors) == 4
    assert [s.status for s in hub.served("model.safetensors")] == [206, 403, 206]


@pytest.mark.full
def test_a_lasting_error_is_reported(hub: HubServer) -> None:
    hub.add(ID, tiny_files())
    hub.trouble = lambda served: 500 if served.place == "cdn" else 0
    fails(NotReadable, source(), "answered 500", "model.safetensors")


@pytest.mark.parametrize("address", ["localhost:80", "ftp://x", "http://", "http://a b/"])
def test_an_endpoint_that_is_no_address(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    fails(UsageError, source(), "HF_ENDPOINT")


@pytest.mark.parametrize("location", ["ftp://x/y", "http://[", "http://a:b/"])
def test_redirects_that_lead_nowhere(hub: HubServer, location: str) -> None:
    model = hub.add(ID, tiny_files())
    model.location = location
    fails(NotReadable, source(), "redirects to an invalid address")


def test_a_redirect_loop_ends(hub: HubServer) -> None:
    model = hub.add(ID, tiny_files())
    model.location = "?again"
    fails(NotReadable, source(), "more than 10 redirects")
