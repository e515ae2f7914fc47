"""Files that are written: what they contain, and that they load as --isq does."""

from __future__ import annotations

import io
import json
import os
import stat
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import tiny_model, write
from running import check_planned_bytes, load
from safetensors import safe_open
from test_uqff_reading import values

from mrs.errors import ExitCode, MrsError
from mrs.load import uqff_writer
from mrs.request import ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader
from mrs.run.write_uqff import quantize

UP = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dense")
    config, weights = tiny_model("qwen2", folder)
    write(folder / "model", config, weights)
    (folder / "model" / "tokenizer.json").write_text("{}")
    return folder / "model"


def request(model: Path, target: Path, **changed: Any) -> RunRequest:
    source = ModelSource(str(model), "safetensors")
    made = RunRequest(source, isq="q4k", write_uqff=str(target))
    return replace(made, **changed)


@pytest.mark.few(1)
@pytest.mark.parametrize("isq", ["q4_0", "q6k", "q8_0"])
def test_the_same_as_isq(isq: str, dense: Path, tmp_path: Path) -> None:
    paths = quantize(request(dense, tmp_path / "out", isq=isq))
    assert [path.name for path in paths] == [f"{isq}-0.uqff"]
    read = load(ModelSource(str(tmp_path / "out"), "safetensors", uqff=(isq,)), packs=False)
    expected = values(load(ModelSource(str(dense), "safetensors"), isq=isq, packs=False))
    ours = values(read)
    assert all(torch.equal(ours[name], expected[name]) for name in expected)
    check_planned_bytes(read)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"


def test_layers_describe_themselves(dense: Path, tmp_path: Path) -> None:
    (path,) = quantize(request(dense, tmp_path / "own.uqff"))
    assert path == tmp_path / "own-0.uqff"
    with safe_open(path, "pt") as file:
        assert file.metadata()["uqff.version"] == "1.2.0"
        version = [file.get_tensor(f"uqff.version.{part}") for part in ("major", "minor", "patch")]
        assert [each.item() for each in version] == [1, 2, 0]
        assert file.get_tensor(f"{UP}.format").item() == 0
        assert file.get_tensor(f"{UP}.dtype").item() == 12  # Q4_K in ggml
        assert file.get_tensor(f"{UP}.shape").tolist() == [384, 256]
        assert list(file.get_tensor(UP).shape) == [384 * 144]
        assert "model.layers.0.self_attn.q_proj.bias" in file.keys()  # noqa: SIM118
    with safe_open(tmp_path / "residual.safetensors", "pt") as file:
        assert all("norm" in name for name in file.keys())  # noqa: SIM118
    (output,) = json.loads((tmp_path / "uqff_report.json").read_text())["outputs"]
    assert (output["quant"], output["shards"]) == ("q4k", ["own-0.uqff"])
    # Rows of 384 are no blocks of 256.
    assert output["fallbacks"][0]["module"].endswith("down_proj")
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())


def test_shards_and_rows_at_a_time(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uqff_writer, "SHARD_BYTES", 100_000)
    parts: list[int] = []
    paths = quantize(
        request(dense, tmp_path / "out"), lambda progress: parts.append(progress.done_bytes)
    )
    assert len(paths) > 2
    assert parts == sorted(parts)
    assert parts[-1] > 0
    loaded = load(ModelSource(str(tmp_path / "out"), "safetensors", uqff=(paths[1].name,)))
    assert "Q4_K" in loaded.plan.weights_format


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    from support.model_files import SMALL, tensor_shapes

    config = {
        **SMALL, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
        "vocab_size": 64, "num_hidden_layers": 1,
    }  # fmt: skip
    weights = {name: torch.randn(shape) for name, shape in tensor_shapes(config).items()}
    write(tmp_path / "model", config, weights)
    return tmp_path / "model"


def test_experts_alone(mixture: Path, tmp_path: Path) -> None:
    quantize(request(mixture, tmp_path / "out", isq="q8_0", moqe=True))
    (output,) = json.loads((tmp_path / "out" / "uqff_report.json").read_text())["outputs"]
    assert output["quant"] == "q8_0"
    stored = {each["module"]: each["stored"] for each in output["layer_details"]}
    assert {"experts" in module for module, name in stored.items() if name == "q8_0"} == {True}
    assert stored["model.layers.0.self_attn.q_proj"] == "f32"


def test_by_the_importance_of_columns(dense: Path, tmp_path: Path) -> None:
    """The files have the weights that --isq makes with the same --imatrix."""
    counts = np.random.default_rng(0).uniform(0.01, 9, 256).astype("<f4")
    entry, file = b"blk.0.ffn_up.weight", tmp_path / "x.dat"
    head = struct.pack(f"<ii{len(entry)}sii", 1, len(entry), entry, 1, 256)
    file.write_bytes(head + counts.tobytes())
    asked = request(dense, tmp_path / "out", isq="q4k", imatrix=str(file))
    quantize(asked, loader=ModelLoader(asked))
    read = values(load(ModelSource(str(tmp_path / "out"), "safetensors", uqff=("q4k",))))
    weights = ModelLoader(replace(asked, write_uqff=None)).load_decoder(lambda progress: None)[1]
    plain = values(load(ModelSource(str(dense), "safetensors"), isq="q4k"))
    for name, ours in read.items():
        matrix = weights.matrix(name.removesuffix(".weight"))
        assert torch.equal(ours, matrix.rows(torch.arange(matrix.shape[0]), torch.float32)), name
        assert torch.equal(ours, plain[name]) == ("ffn.up" not in name), name


@pytest.mark.full
def test_by_a_text(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("the cat sat on the mat. " * 20)
    source = ModelSource("demo", "safetensors")
    asked = RunRequest(source, isq="q4_0", write_uqff=str(tmp_path / "a"), cpu=True)
    (plain,) = quantize(asked)
    asked = replace(asked, write_uqff=str(tmp_path / "b"), calibration_file=str(text))
    (weighed,) = quantize(asked, loader=ModelLoader(asked))
    assert plain.stat().st_size == weighed.stat().st_size
    assert plain.read_bytes() != weighed.read_bytes()


def test_others_may_read_the_files(dense: Path, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        quantize(request(dense, tmp_path / "out"))
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()}
    assert modes == {0o640}


def test_experts_are_stacked(mixture: Path, tmp_path: Path) -> None:
    (path,) = quantize(request(mixture, tmp_path / "out", isq="q8_0"))
    experts = "model.layers.0.block_sparse_moe.experts"
    with safe_open(path, "pt") as file:
        assert file.get_tensor(f"{experts}.down_proj.weight.shape").tolist() == [4, 32, 64]
    read = load(ModelSource(str(tmp_path / "out"), "safetensors", uqff=("q8_0",)), packs=False)
    model = ModelSource(str(mixture), "safetensors")
    expected = values(load(model, isq="q8_0", packs=False))
    ours = values(read)
    assert all(torch.equal(ours[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("changed", "exit_code", "word"),
    [
        ({"isq": None}, ExitCode.USAGE, "--isq"),
        ({"isq": "afq4"}, ExitCode.UNSUPPORTED, "afq4"),
        ({"isq": "fp8"}, ExitCode.UNSUPPORTED, "fp8"),
        ({"source": ModelSource("demo", "gguf")}, ExitCode.UNSUPPORTED, "safetensors"),
        ({"isq": "afq4"}, ExitCode.UNSUPPORTED, "--isq afq4 is not written"),
        ({"moqe": True}, ExitCode.USAGE, "experts"),
    ],
)
def test_what_is_not_written(
    changed: Any, exit_code: ExitCode, word: str, dense: Path, tmp_path: Path
) -> None:
    with pytest.raises(MrsError, match=word) as caught:
        quantize(request(dense, tmp_path / "out", **changed))
    assert caught.value.exit_code == exit_code
    assert not (tmp_path / "out").exists()


def test_a_damaged_report_is_replaced(dense: Path, tmp_path: Path) -> None:
    report = tmp_path / "uqff_report.json"
    report.write_text('{"outputs": [{"shards": 5}, {"shards": ["q4k-0.uqff", 1]}, 2]}')
    quantize(request(dense, tmp_path))
    shards = [each["shards"] for each in json.loads(report.read_text())["outputs"]]
    assert shards == [5, ["q4k-0.uqff"]]


def test_the_folder_of_another_model(dense: Path, tmp_path: Path) -> None:
    quantize(request(dense, tmp_path / "out"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(json.dumps({**config, "vocab_size": 1}))
    with pytest.raises(MrsError, match="another model"):
        quantize(request(dense, tmp_path / "out"))
    own = tmp_path / "own"
    own.mkdir()
    (own / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(MrsError, match="another model"):
        quantize(request(dense, own))
    assert (own / "config.json").read_text() == '{"model_type": "llama"}'
    (tmp_path / "file").write_text("")
    with pytest.raises(MrsError, match="cannot write"):
        quantize(request(dense, tmp_path / "file"))


def test_the_command_that_runs_the_files(dense: Path, tmp_path: Path) -> None:
    from mrs_cli.app import main
    from mrs_cli.environment import Environment

    out, folder = io.StringIO(), tmp_path / "of two words"
    words = ["quantize", "-m", str(dense), "--isq", "q8_0", "-o", str(folder)]
    assert main(words, Environment(io.StringIO(), out, io.StringIO())) == 0
    assert f"mrs -i -m '{folder}' -f q8_0-0.uqff" in out.getvalue()
