"""Configurations and tensors that no program writes: refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from mrs.architecture.describe import describe
from mrs.errors import MrsError, NotReadable
from mrs.request import ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader
from mrs.source.find import open_checkpoint
from mrs.source.locate import DEMO_FOLDER


@pytest.fixture
def vision_model(tmp_path: Path) -> Path:
    """A copy of the vision demo model, to be damaged."""
    return Path(shutil.copytree(DEMO_FOLDER / "vision_model", tmp_path / "model"))


def refusal(folder: Path) -> str:
    with pytest.raises(MrsError) as caught:
        describe(open_checkpoint(ModelSource(str(folder), "safetensors")), with_vision=True)
    said = str(caught.value)
    assert "\n" not in said
    return said


def changed(file: Path, *keys: str, value: Any) -> None:
    content = json.loads(file.read_text())
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("value", [3, ["llama"], {}])
def test_a_model_type_must_be_a_string(vision_model: Path, value: object) -> None:
    changed(vision_model / "config.json", "text_config", "model_type", value=value)
    assert refusal(vision_model).startswith(f"model_type = {value!r} is not a string (")


ODD_LISTS = ["x", 1, [1], [0.5] * 4, ["a"] * 3, [None] * 3, [[1]] * 3, [float("nan")] * 3, {"a": 1}]


@pytest.mark.parametrize("key", ["image_mean", "image_std"])
@pytest.mark.parametrize("value", ODD_LISTS, ids=str)
def test_means_that_are_no_three_numbers(vision_model: Path, key: str, value: object) -> None:
    changed(vision_model / "preprocessor_config.json", key, value=value)
    assert key in refusal(vision_model)


@pytest.mark.parametrize("key", ["size", "crop_size"])
@pytest.mark.parametrize("value", ["x", [1], True, 0, 2.5, {"height": "x"}, 2**31, 10**18], ids=str)
def test_sizes_that_are_none(vision_model: Path, key: str, value: object) -> None:
    changed(vision_model / "preprocessor_config.json", key, value=value)
    refusal(vision_model)


def test_a_deviation_of_nothing(vision_model: Path) -> None:
    changed(vision_model / "preprocessor_config.json", "image_std", value=[0, 1, 1])
    assert refusal(vision_model).startswith("image_std = 0")


def test_more_heads_than_numbers(vision_model: Path) -> None:
    changed(vision_model / "config.json", "vision_config", "num_attention_heads", value=10**6)
    assert "smaller than the number of heads" in refusal(vision_model)


def gguf_demo(path: Path, name: str, data: np.ndarray, kind: gguf.GGMLQuantizationType) -> str:
    """The demo model as a GGUF file, with another tensor in the place of one."""
    demo = gguf.GGUFReader(DEMO_FOLDER / "model" / "demo.gguf")
    writer = gguf.GGUFWriter(path, "llama")
    for field in demo.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(field.name, field.contents())
        else:
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for tensor in demo.tensors:
        stored = (data, kind) if tensor.name == name else (tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, stored[0], raw_dtype=stored[1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def test_a_vector_in_blocks(tmp_path: Path) -> None:
    """Type 17 has blocks of 256 numbers in 74 bytes."""
    block = np.zeros(74, np.uint8)
    kind = gguf.GGMLQuantizationType.IQ2_XS
    path = gguf_demo(tmp_path / "m.gguf", "output_norm.weight", block, kind)
    with pytest.raises(NotReadable, match=r"the vector 'output_norm\.weight' is quantized"):
        ModelLoader(RunRequest(ModelSource(path, "gguf"))).load()


def test_an_embedding_without_dimensions(tmp_path: Path) -> None:
    number = np.zeros((), np.float32)
    kind = gguf.GGMLQuantizationType.F32
    path = gguf_demo(tmp_path / "m.gguf", "token_embd.weight", number, kind)
    with pytest.raises(NotReadable, match=r"'token_embd\.weight' has shape \[\], expected"):
        ModelLoader(RunRequest(ModelSource(path, "gguf"))).load()


def test_an_embedding_with_fewer_rows_than_the_tokenizer_has_tokens(tmp_path: Path) -> None:
    from mrs.request import Sampling
    from mrs.run.model_loader import ModelLoader

    rows = np.zeros((300, 256), np.float32)
    kind = gguf.GGMLQuantizationType.F32
    path = gguf_demo(tmp_path / "m.gguf", "token_embd.weight", rows, kind)
    model = ModelLoader(RunRequest(ModelSource(path, "gguf"))).load()
    try:
        with pytest.raises(NotReadable, match="but the model has only 300: use the tokenizer"):
            model.stream_chat([{"role": "user", "content": "Who are you?"}], Sampling())
    finally:
        model.close()
