"""Opening local models: which files, which tensors, which side files, which error."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from subprocess import run

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from mrs.errors import MrsError, NotReadable, Unsupported, UsageError
from mrs.request import Container, ModelSource
from mrs.source import Checkpoint, Weights, fetch, find_selector, locate, open_checkpoint

TENSORS = {
    f"model.layers.{i}.mlp.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4) + i
    for i in range(6)
}


def plain(folder: Path, name: str = "model.safetensors") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "x": 1.5}))
    save_file(TENSORS, folder / name)
    return folder


def sharded(folder: Path, *, index: bool = True) -> Path:
    """Three shards, as the model library saves them."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    weight_map = {}
    for shard in range(3):
        names = list(TENSORS)[shard::3]
        file = f"model-{shard + 1:05}-of-00003.safetensors"
        save_file({name: TENSORS[name] for name in names}, folder / file)
        weight_map |= dict.fromkeys(names, file)
    if index:
        text = json.dumps({"metadata": {"total_size": 288}, "weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(text)
    return folder


def write_gguf(path: Path, shards: int = 0) -> Path:
    writer = gguf.GGUFWriter(
        path, "llama", split_max_tensors=-(-len(TENSORS) // shards) if shards else 0
    )
    writer.add_block_count(6)
    for name, values in TENSORS.items():
        writer.add_tensor(name, values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def source(model_id: Path | str, container: Container = "safetensors", *files: str) -> ModelSource:
    return ModelSource(str(model_id), container, filenames=files)


def check_weights(checkpoint: Checkpoint) -> None:
    assert checkpoint.tensors.keys() == TENSORS.keys()
    assert checkpoint.total_bytes == 6 * 48
    assert checkpoint.is_local
    with Weights(checkpoint) as weights:
        for name, expected in TENSORS.items():
            found = np.empty(checkpoint.tensors[name].shape, np.float32)
            weights.read_into(found.data.cast("B"), checkpoint.tensors[name])
            np.testing.assert_array_equal(found, expected.numpy())


def test_one_safetensors_file(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(source(plain(tmp_path)))
    assert checkpoint.config == {"model_type": "llama", "x": 1.5}
    assert checkpoint.generation_config == {}
    assert [file.name for file in checkpoint.files] == ["model.safetensors"]
    assert checkpoint.files[0].size_bytes == (tmp_path / "model.safetensors").stat().st_size
    assert checkpoint.local_path("model.safetensors") == tmp_path / "model.safetensors"
    assert fetch(checkpoint) is checkpoint
    check_weights(checkpoint)


@pytest.mark.parametrize("name", ["weights.safetensors", "a-residual-model.safetensors"])
def test_any_single_safetensors_file_will_do(name: str, tmp_path: Path) -> None:
    check_weights(open_checkpoint(source(plain(tmp_path, name))))


@pytest.mark.parametrize("index", [True, False])
def test_shards(tmp_path: Path, index: bool) -> None:
    folder = sharded(tmp_path, index=index)
    save_file({"other": torch.zeros(1)}, folder / "consolidated.safetensors")
    checkpoint = open_checkpoint(source(folder))
    assert len(checkpoint.files) == 3
    check_weights(checkpoint)
    file = checkpoint.tensors["model.layers.1.mlp.weight"].file
    with safe_open(folder / file, "pt") as reference:
        assert "model.layers.1.mlp.weight" in reference.keys()  # noqa: SIM118 - no mapping


def test_side_files(tmp_path: Path) -> None:
    plain(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"é": 1}', "utf-8")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    (tmp_path / "other.json").write_text("{}")
    checkpoint = open_checkpoint(source(tmp_path))
    assert checkpoint.read_text("tokenizer.json") == '{"é": 1}'
    assert checkpoint.read_text("chat_template.jinja") is None
    assert checkpoint.generation_config == {"eos_token_id": [1, 2]}
    replaced = ModelSource(
        str(tmp_path), "safetensors", tokenizer_json=str(tmp_path / "other.json")
    )
    assert open_checkpoint(replaced).read_text("tokenizer.json") == "{}"


def test_a_gguf_has_side_files_only_from_a_tokenizer_model(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    (tmp_path / "tokenizer.json").write_text('"beside"')
    assert open_checkpoint(source(tmp_path, "gguf")).read_text("tokenizer.json") is None
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_text('"named"')
    named = ModelSource(str(tmp_path), "gguf", tokenizer_model_id=str(other))
    assert open_checkpoint(named).read_text("tokenizer.json") == '"named"'
    given = ModelSource(str(tmp_path), "gguf", tokenizer_json=str(other / "tokenizer.json"))
    assert open_checkpoint(given).read_bytes("tokenizer.json") == b'"named"'
    (other / "tokenizer.json").unlink()
    with pytest.raises(NotReadable, match=r"no tokenizer, which --tok-model-id .*tekken\.json"):
        open_checkpoint(named)
    (other / "tokenizer.model").write_bytes(b"\n\xff")
    assert open_checkpoint(named).read_bytes("tokenizer.model") == b"\n\xff"


def test_one_gguf_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    write_gguf(tmp_path / "mmproj-m.gguf")
    for asked in (
        source(tmp_path, "gguf"),
        source(tmp_path, "gguf", "m.gguf"),
        source(tmp_path / "m.gguf", "gguf"),
    ):
        checkpoint = open_checkpoint(asked)
        assert checkpoint.config["llama.block_count"] == 6
        assert [file.name for file in checkpoint.files] == ["m.gguf"]
        check_weights(checkpoint)


def test_gguf_shards(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", shards=3)
    files = [f"m-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    for asked in (
        source(tmp_path, "gguf"),
        source(tmp_path, "gguf", files[0]),
        source(tmp_path / files[0], "gguf"),
        source(tmp_path, "gguf", " ".join(files)),
        source(tmp_path, "gguf", files[2], files[0], files[1]),
    ):
        checkpoint = open_checkpoint(asked)
        assert sorted(file.name for file in checkpoint.files) == files
        assert checkpoint.config["llama.block_count"] == 6
        check_weights(checkpoint)


def test_a_name_with_spaces_and_a_folder_below(tmp_path: Path) -> None:
    (tmp_path / "Q8_0").mkdir()
    write_gguf(tmp_path / "Q8_0" / "my model.gguf")
    for asked in (source(tmp_path, "gguf"), source(tmp_path, "gguf", "Q8_0/my model.gguf")):
        check_weights(open_checkpoint(asked))


def test_selectors(tmp_path: Path) -> None:
    folder = plain(tmp_path / "plain")
    assert find_selector(source(folder)) == "plain"
    write_gguf(folder / "m.gguf")
    assert find_selector(source(folder)) == "plain"
    assert find_selector(source(folder, "safetensors", "m.gguf")) == "gguf"
    assert find_selector(source(folder / "m.gguf")) == "gguf"
    (folder / "config.json").write_text('{"vision_config": {}}')
    assert find_selector(source(folder)) == "vision-plain"
    (folder / "model.safetensors").unlink()
    assert find_selector(source(folder)) == "gguf"


def test_demos_are_inside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "DEMO_FOLDER", tmp_path)
    for name, folder in locate.DEMOS.items():
        fails(source(name), NotReadable, "not part of this installation")
        plain(tmp_path / folder)
        write_gguf(tmp_path / folder / f"{name}.gguf")
        for container in ("safetensors", "gguf"):
            checkpoint = open_checkpoint(source(name, container))
            assert checkpoint.model_id == name
            assert checkpoint.folder.label == name
            check_weights(checkpoint)


def fails(asked: ModelSource, kind: type[MrsError], *words: str) -> None:
    with pytest.raises(kind) as caught:
        open_checkpoint(asked)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_missing_places(tmp_path: Path) -> None:
    fails(source(tmp_path / "nowhere"), NotReadable, "no such folder", "nowhere")
    fails(source("./nowhere"), NotReadable, "no such folder")
    fails(source("a/b/c"), NotReadable, "no such folder")
    fails(source("x.gguf", "gguf"), NotReadable, "no such folder")
    fails(source(tmp_path), NotReadable, "no safetensors file")
    (tmp_path / "file").write_text("")
    fails(source(tmp_path / "file"), NotReadable, "neither a folder nor")


def test_missing_or_wrong_config(tmp_path: Path) -> None:
    plain(tmp_path)
    for text, words in {
        "{": "config.json is not valid JSON",
        "[]": "config.json is not a JSON object",
        '{"a":' * 100_000: "not valid JSON",
    }.items():
        (tmp_path / "config.json").write_text(text)
        fails(source(tmp_path), NotReadable, words)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{}")
    fails(source(tmp_path), NotReadable, "not UTF-8")
    (tmp_path / "config.json").unlink()
    fails(source(tmp_path), NotReadable, "no config.json")


def test_pickles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    fails(source(tmp_path), Unsupported, "pytorch_model.bin", "convert them to safetensors")
    fails(source(tmp_path, "gguf"), Unsupported, "pytorch_model.bin")


def test_the_other_selector_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    fails(source(tmp_path), NotReadable, "m.gguf", "gguf selector")
    folder = plain(tmp_path / "plain")
    fails(source(folder, "gguf"), NotReadable, "model.safetensors", "plain selector")


def test_gguf_files_that_need_naming(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf")
    write_gguf(tmp_path / "b.gguf", shards=3)
    fails(source(tmp_path, "gguf"), UsageError, "-f", "a.gguf", "b-00001-of-00003.gguf")
    fails(source(tmp_path, "gguf", "c.gguf"), NotReadable, "no file c.gguf", "a.gguf")
    fails(source(tmp_path, "gguf", "a.gguf a.gguf x.gguf"), NotReadable, "no file x.gguf")
    fails(
        source(tmp_path, "gguf", "b-00001-of-00003.gguf b-00002-of-00003.gguf"),
        NotReadable,
        "one of 3 shards, and 2",
    )
    fails(source(tmp_path, "gguf", "a.gguf b-00001-of-00003.gguf"), NotReadable, "shards")
    shutil.copy(tmp_path / "b-00002-of-00003.gguf", tmp_path / "b-00003-of-00003.gguf")
    fails(source(tmp_path, "gguf", "b-00001-of-00003.gguf"), NotReadable, "shards number")
    (tmp_path / "b-00002-of-00003.gguf").unlink()
    fails(source(tmp_path, "gguf", "b-00001-of-00003.gguf"), NotReadable, "b-00002-of-00003.gguf")


def test_big_endian_gguf_is_unsupported(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("x", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    fails(source(tmp_path, "gguf"), Unsupported, "big-endian", "m.gguf")


def test_an_index_that_is_wrong(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    first, second, _ = sorted(set(weight_map.values()))
    name = next(name for name, file in weight_map.items() if file == first)
    for changed, words in (
        ({name: second}, f"{second} lacks the tensor {name}"),
        ({"extra": first}, f"{first} lacks the tensor extra"),
        ({"extra": "model-00004-of-00004.safetensors"}, "model-00004-of-00004.safetensors listed"),
        ({"extra": "../model.safetensors"}, "outside the folder"),
        ({"extra": 3}, "no weight_map"),
        ({"extra": "x" * 5000}, "cannot read xxx"),
        ({"extra": "\ud800"}, "lone surrogate"),
    ):
        index.write_text(json.dumps({"weight_map": weight_map | changed}))
        fails(source(folder), NotReadable, words)
    index.write_text("{}")
    fails(source(folder), NotReadable, "no weight_map")
    index.unlink()
    (folder / first).unlink()
    fails(source(folder), NotReadable, first, "missing")


def test_truncated_files_name_themselves(tmp_path: Path) -> None:
    path = plain(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    fails(source(tmp_path), NotReadable, "truncated", "model.safetensors")
    path = write_gguf(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:-40])
    fails(source(path, "gguf"), NotReadable, "truncated", "m.gguf")


def test_a_file_that_shrinks_after_opening(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(source(plain(tmp_path)))
    tensor = checkpoint.tensors["model.layers.5.mlp.weight"]
    path = tmp_path / "model.safetensors"
    data = memoryview(bytearray(48))
    with Weights(checkpoint) as weights:
        weights.read_into(data, tensor)
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 1)
        with pytest.raises(NotReadable, match="now has"):
            weights.read_into(data, tensor)
    with pytest.raises(NotReadable, match="now has"), Weights(checkpoint) as weights:
        weights.read_into(data, tensor)


def test_parts_of_rows(tmp_path: Path) -> None:
    """Many short reads have the bytes and the errors of single ones."""
    checkpoint = open_checkpoint(source(plain(tmp_path)))
    info = checkpoint.tensors["model.layers.2.mlp.weight"]
    whole = bytearray(info.size_bytes)
    rows = np.empty((3, 8), np.uint8)
    with Weights(checkpoint) as weights:
        weights.read_into(memoryview(whole), info)
        weights.read_rows_into(rows, info, (32, 0, 4))
        assert rows.tobytes() == whole[32:40] + whole[:8] + whole[4:12]
        with pytest.raises(ValueError, match="no bytes"):
            weights.read_rows_into(rows, info, (0, 44, 0))
        path = tmp_path / "model.safetensors"
        with path.open("r+b") as file:
            file.truncate(info.offset_bytes + 36)
        with pytest.raises(NotReadable, match="now has"):
            weights.read_rows_into(rows, info, (0, 8, 32))


def test_a_part_of_a_tensor(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(source(plain(tmp_path)))
    info = checkpoint.tensors["model.layers.2.mlp.weight"]
    data = bytearray(16)
    with Weights(checkpoint) as weights:
        weights.read_into(memoryview(data), info, 16)
        with pytest.raises(ValueError, match="no bytes"):
            weights.read_into(memoryview(data), info, 40)
    assert data == TENSORS[info.name][1].numpy().tobytes()


def test_opening_imports_nothing_heavy(tmp_path: Path) -> None:
    """No torch, no hub library, no HTTP client for a local model."""
    plain(tmp_path)
    code = (
        "import sys; from mrs.source import open_checkpoint; from mrs.request import ModelSource;"
        "open_checkpoint(ModelSource(sys.argv[1], 'safetensors'));"
        "print([m for m in ('torch', 'numpy', 'huggingface_hub', 'http', 'ssl', 'gguf',"
        "'safetensors', 'asyncio') if m in sys.modules])"
    )
    done = run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
