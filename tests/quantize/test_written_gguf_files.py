"""GGUF files that `mrs quantize` writes: formats, metadata, and what is refused."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from checkpoints import tiny_model, write
from running import Conversation, check_planned_bytes, load
from test_uqff_reading import values

from mrs.errors import MrsError, Unsupported, UsageError
from mrs.formats import FORMATS
from mrs.load import gguf_writer
from mrs.quantization.gguf_mixes import Place, mixed_format
from mrs.request import AdapterRequest, ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader
from mrs.run.write_gguf import quantize_gguf
from mrs.run.write_uqff import quantize
from mrs_cli.app import main


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dense")
    config, weights = tiny_model("qwen2", folder)
    write(folder / "model", config, weights)
    return folder / "model"


def request(model: Path | str, **changed: Any) -> RunRequest:
    container = "gguf" if str(model).endswith(".gguf") else "safetensors"
    return RunRequest(ModelSource(str(model), container), **changed)


def types(path: Path) -> dict[str, str]:
    return {each.name: each.tensor_type.name for each in gguf.GGUFReader(path).tensors}


def metadata(path: Path) -> dict[str, Any]:
    fields = gguf.GGUFReader(path).fields
    return {key: each.contents() for key, each in fields.items() if not key.startswith("GGUF.")}


def weights_of(path: Path | str, **changed: Any) -> dict[str, torch.Tensor]:
    asked = request(path, **changed)
    return values(load(asked.source, isq=asked.isq, packs=False))


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "isq", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2k", "q3k", "q4k", "q5k", "q6k", "mxfp4"]
)
def test_the_same_weights_as_isq(isq: str, dense: Path, tmp_path: Path) -> None:
    (path,) = quantize_gguf(request(dense, isq=isq), tmp_path / "x.gguf")
    ours, expected = weights_of(path), weights_of(dense, isq=isq)
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[name], expected[name]) for name in expected)
    check_planned_bytes(load(request(path).source, packs=False))
    assert types(path)["blk.0.attn_norm.weight"] == "F32"


@pytest.mark.parametrize("dtype", ["auto", "f16", "bf16", "f32"])
def test_unquantized(dtype: str, dense: Path, tmp_path: Path) -> None:
    (path,) = quantize_gguf(request(dense, dtype=dtype), tmp_path / "x.gguf")
    expected = "F32" if dtype == "auto" else dtype.upper()
    assert types(path)["blk.0.attn_q.weight"] == expected
    assert metadata(path)["general.file_type"] == {"F32": 0, "F16": 1, "BF16": 32}[expected]


def test_a_permuted_model(tmp_path: Path) -> None:
    """The toy is a Llama: in GGUF files, rows of its queries and keys are in another order."""
    (path,) = quantize_gguf(request("demo", isq="q8_0"), tmp_path / "toy.gguf")
    source, quantized = request("demo").source, load(request(path).source, packs=False)
    loaded = quantized, load(source, isq="q8_0", packs=False)
    ours, expected = (Conversation(each.decoder).feed(range(5, 25)) for each in loaded)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-3)
    ours, expected = (values(each)["layers.0.mixer.q.weight"] for each in loaded)
    assert not torch.equal(ours, expected)
    assert torch.equal(ours.sort(dim=0).values, expected.sort(dim=0).values)


def test_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    target = tmp_path / "toy.gguf"
    words = ["quantize", "-m", "demo", "--isq", "Q4_K_M", "-o", str(target)]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert f"mrs run {target}" in out
    assert "llama.cpp's mix" not in err  # it is that mix here
    assert metadata(target)["general.file_type"] == 15


def test_mixes_are_those_of_llama_cpp() -> None:
    """Of a model of 32 layers, as its published files have them."""
    usual = FORMATS["Q4_K"]

    def more(mix: str, tensor: str, **changed: Any) -> list[int]:
        places = [Place(index, 32, **changed) for index in range(32)]
        return [p.index for p in places if mixed_format(mix, tensor, usual, p) is not usual]

    some = [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]
    assert more("Q4_K_M", "blk.0.attn_v.weight") == some
    assert more("Q4_K_M", "blk.0.ffn_down.weight") == some
    assert more("Q4_K_M", "blk.0.ffn_down_exps.weight") == some
    assert more("Q4_K_M", "blk.0.ffn_up.weight") == []
    assert more("Q4_K_S", "blk.0.ffn_down.weight") == [0, 1, 2, 3]
    assert more("Q5_K_S", "blk.0.attn_v.weight") == []
    assert more("Q4_K_M", "blk.0.attn_k.weight", experts=8) == [*range(32)]
    assert more("Q4_K_M", "blk.0.attn_k.weight", experts=64) == []
    place = Place(5, 32)
    names = [mixed_format("Q3_K_M", f"blk.5.{kind}.weight", FORMATS["Q3_K"], place).name
             for kind in ("attn_v", "attn_output", "ffn_down", "ffn_gate")]  # fmt: skip
    assert names == ["Q4_K", "Q4_K", "Q4_K", "Q3_K"]


def test_a_mix_in_a_file(dense: Path, tmp_path: Path) -> None:
    (path,) = quantize_gguf(request(dense, isq="Q4_K_M"), tmp_path / "x.gguf")
    found = types(path)
    # The first of one layer is among those with more bits; rows of 384 are no blocks of 256.
    assert {name: found[f"blk.0.{name}.weight"] for name in ("attn_v", "attn_q", "ffn_down")} == {
        "attn_v": "Q6_K", "attn_q": "Q4_K", "ffn_down": "Q8_0",
    }  # fmt: skip
    assert (found["output.weight"], found["token_embd.weight"]) == ("Q6_K", "Q4_K")
    assert metadata(path)["general.file_type"] == 15


def test_a_gguf_file_is_quantized_again(dense: Path, tmp_path: Path) -> None:
    """Its metadata stay as they are, whatever they say; so do tensors that are no matrices."""
    (first,) = quantize_gguf(request(dense), tmp_path / "a.gguf")
    (path,) = quantize_gguf(request(first, isq="q8_0"), tmp_path / "b.gguf")
    (direct,) = quantize_gguf(request(dense, isq="q8_0"), tmp_path / "c.gguf")
    old, new = metadata(first), metadata(path)
    assert new.pop("general.file_type") == 7
    old.pop("general.file_type")
    assert new == old
    again, straight = gguf.GGUFReader(path).tensors, gguf.GGUFReader(direct).tensors
    for one, other in zip(again, straight, strict=True):
        assert one.name == other.name
        np.testing.assert_array_equal(one.data, other.data)


def test_fewer_bits_in_the_file_stay(
    dense: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (first,) = quantize_gguf(request(dense, isq="q4_0"), tmp_path / "a.gguf")
    (path,) = quantize_gguf(request(first, isq="q8_0"), tmp_path / "b.gguf")
    assert types(path) == types(first)
    assert any("already Q4_0 in the file" in record.message for record in caplog.records)


def test_experts_and_importance(tmp_path: Path) -> None:
    """Each expert is quantized by the importance of its own columns, in one tensor of all."""
    from support.model_files import SMALL, tensor_shapes

    config = {
        **SMALL, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
        "vocab_size": 64, "num_hidden_layers": 1,
    }  # fmt: skip
    weights = {name: torch.randn(shape) for name, shape in tensor_shapes(config).items()}
    write(tmp_path / "model", config, weights)
    columns = config["hidden_size"]
    counts = np.random.default_rng(0).uniform(0.01, 9, (4, columns)).astype("<f4")
    entry, file = b"blk.0.ffn_up_exps.weight", tmp_path / "x.dat"
    head = struct.pack(f"<ii{len(entry)}sii", 1, len(entry), entry, 1, 4 * columns)
    file.write_bytes(head + counts.tobytes())
    asked = request(tmp_path / "model", isq="q4_0", imatrix=str(file))
    (weighed,) = quantize_gguf(asked, tmp_path / "a.gguf", loader=ModelLoader(asked))
    (plain,) = quantize_gguf(replace(asked, imatrix=None), tmp_path / "b.gguf")
    pairs = zip(gguf.GGUFReader(weighed).tensors, gguf.GGUFReader(plain).tensors, strict=True)
    other = {one.name for one, two in pairs if not np.array_equal(one.data, two.data)}
    assert other == {"blk.0.ffn_up_exps.weight"}
    loaded = load(request(plain).source)
    assert loaded.description.spec.layers[0].feed_forward.routing.experts == 4


def test_a_quantized_checkpoint_keeps_its_codes(tmp_path: Path) -> None:
    """Four bits of GPTQ are those of Q4_0 or Q4_1: no weight changes."""
    from checkpoints import make_checkpoint
    from scheme_cases import SCHEMES

    scheme = next(each for each in SCHEMES if each.id.endswith("sym"))
    made = make_checkpoint(scheme, "qwen2", tmp_path / "made")
    (path,) = quantize_gguf(request(made.packed), tmp_path / "x.gguf")
    ours, expected = weights_of(path), weights_of(made.packed)
    for name in expected:
        torch.testing.assert_close(ours[name], expected[name], rtol=2e-2, atol=2e-3)
    assert types(path)["blk.0.ffn_up.weight"] in ("Q4_0", "Q4_1")


def test_an_old_file_stays_until_the_new_one_is_whole(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "x.gguf"
    target.write_bytes(b"old")

    def broken(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf_writer, "requantize", broken)
    with pytest.raises(KeyboardInterrupt):
        quantize_gguf(request(dense, isq="q8_0"), target)
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]
    assert target.read_bytes() == b"old"
    monkeypatch.undo()
    quantize_gguf(request(dense, isq="q8_0"), target)
    assert types(target)["blk.0.attn_q.weight"] == "Q8_0"


@pytest.mark.parametrize("source", ["safetensors", "gguf"])
def test_shards_are_the_same_model(source: str, dense: Path, tmp_path: Path) -> None:
    """Each has at most the size that was asked for, and llama.cpp's keys with its types."""
    (whole,) = quantize_gguf(request(dense, isq="q8_0"), tmp_path / "whole.gguf")
    asked = request(dense if source == "safetensors" else whole, isq="q8_0")
    largest = max(int(each.n_bytes) for each in gguf.GGUFReader(whole).tensors)
    limit = largest + 8192
    paths = quantize_gguf(asked, tmp_path / "x.gguf", max_shard_bytes=limit)
    count = len(paths)
    assert count > 2
    assert [each.name for each in paths] == [
        f"x-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)
    ]
    readers = [gguf.GGUFReader(path) for path in paths]
    for number, (path, reader) in enumerate(zip(paths, readers, strict=True)):
        assert path.stat().st_size <= limit or len(reader.tensors) == 1
        keys = [reader.fields[f"split.{key}"] for key in ("no", "count", "tensors.count")]
        assert [key.types[0].name for key in keys] == ["UINT16", "UINT16", "INT32"]
        tensors = len(gguf.GGUFReader(whole).tensors)
        assert [key.contents() for key in keys] == [number, count, tensors]
    ours, expected = weights_of(paths[0]), weights_of(whole)
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[name], expected[name]) for name in expected)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_file_that_is_small_enough_is_one(dense: Path, tmp_path: Path) -> None:
    (path,) = quantize_gguf(request(dense), tmp_path / "x.gguf", max_shard_bytes=1 << 40)
    assert path.name == "x.gguf"
    assert "split.count" not in metadata(path)


def test_old_shards_stay_until_all_new_ones_are_whole(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = quantize_gguf(request(dense, isq="q8_0"), tmp_path / "x.gguf", max_shard_bytes=1)
    before = {path.name: path.read_bytes() for path in paths}
    encode, calls = gguf_writer.requantize, []

    def broken(*given: Any) -> Any:
        calls.append(given)
        if len(calls) > 5:
            raise KeyboardInterrupt
        return encode(*given)

    monkeypatch.setattr(gguf_writer, "requantize", broken)
    with pytest.raises(KeyboardInterrupt):
        quantize_gguf(request(dense, isq="q4_0"), tmp_path / "x.gguf", max_shard_bytes=1)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_shards_are_no_mixture_of_two_runs(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends while files get their names leaves none that loads."""
    paths = quantize_gguf(request(dense, isq="q8_0"), tmp_path / "x.gguf", max_shard_bytes=1)
    rename, calls = Path.replace, []

    def broken(self: Path, target: Path) -> Path:
        if self.parent.name.startswith(".x.gguf") and target.parent == tmp_path:
            calls.append(target)
            if len(calls) > 3:
                raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(KeyboardInterrupt):
        quantize_gguf(request(dense, isq="q4_0"), tmp_path / "x.gguf", max_shard_bytes=1)
    monkeypatch.undo()
    assert not paths[0].exists()
    with pytest.raises(MrsError):
        weights_of(paths[1])


def test_progress_ends_with_the_size_of_the_file(dense: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    (path,) = quantize_gguf(
        request(dense), tmp_path / "x.gguf", lambda p: seen.append((p.done_bytes, p.total_bytes))
    )
    size = path.stat().st_size
    assert seen[-1] == (size, size)
    assert seen == sorted(seen)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"isq": "afq4"}, "not a type of GGUF files"),
    "adapters": ({"adapters": (AdapterRequest("x"),)}, "with adapters"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, dense: Path, tmp_path: Path) -> None:
    changed, message = REFUSED[name]
    with pytest.raises(Unsupported, match=message):
        quantize_gguf(request(dense, **changed), tmp_path / "x.gguf")
    assert not list(tmp_path.iterdir())


def test_targets_that_cannot_be(dense: Path, tmp_path: Path) -> None:
    (path,) = quantize_gguf(request(dense), tmp_path / "x.gguf")
    before = path.read_bytes()
    with pytest.raises(UsageError, match="read from this file"):
        quantize_gguf(request(path, isq="q8_0"), path)
    assert path.read_bytes() == before
    with pytest.raises(UsageError, match="no such folder"):
        quantize_gguf(request(dense), tmp_path / "none" / "x.gguf")
    (tmp_path / "y.gguf").mkdir()
    with pytest.raises(UsageError, match="it is a folder"):
        quantize_gguf(request(dense), tmp_path / "y.gguf")


def test_uqff_is_no_gguf(dense: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="writes no GGUF file"):
        quantize(request(dense, isq="q8_0", write_uqff=str(tmp_path / "x.gguf")))
    assert not list(tmp_path.iterdir())
