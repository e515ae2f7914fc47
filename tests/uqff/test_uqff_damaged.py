"""Files that are truncated, inconsistent, of other versions or kinds are refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from running import load
from safetensors.torch import load_file, save_file
from uqff_models import source, version, write_uqff

from mrs.errors import ExitCode, MrsError

UP = "model.layers.0.mlp.up_proj.weight"


def refused(folder: Path, exit_code: ExitCode, *words: str, name: str = "m-0.uqff") -> None:
    with pytest.raises(MrsError) as caught:
        load(source(folder, name))
    assert caught.value.exit_code == exit_code
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def changed(made: Path, folder: Path, tensors: dict[str, Any]) -> Path:
    """A copy with other tensors, and without those that are None."""
    stored = {**load_file(made / "m-0.uqff"), **tensors}
    config = json.loads((made / "config.json").read_text())
    layers = {
        name: each
        for name, each in stored.items()
        if each is not None and not name.startswith("uqff.")
    }
    write_uqff(folder, config, layers, load_file(made / "residual.safetensors"))
    return folder


def u8(value: int) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.uint8)


def u32(*values: int) -> torch.Tensor:
    return torch.tensor(values if len(values) > 1 else values[0], dtype=torch.uint32)


@pytest.mark.parametrize(
    ("kind", "role", "replacement", "word"),
    [
        ("Q4_0", "", None, "missing"),
        ("Q4_0", ".shape", None, "missing"),
        ("Q4_0", ".dtype", u32(8), "bytes"),
        ("Q4_0", ".dtype", torch.zeros(9), "expected integers"),
        ("Q4_0", ".dtype", None, "by its kind"),
        ("Q4_0", ".shape", u32(384, 255), "Q4_0"),
        ("Q4_0", ".shape", u32(768, 128), "[768, 128]"),
        ("Q4_0", ".format", u8(4), "by its tensors"),
        ("Q4_0", ".format", torch.zeros(0, dtype=torch.uint8), "expected integers"),
        ("Q8_1", ".shape", u32(384, 288), "bytes"),
        ("HQQ 4-bit", ".zeros", None, "by its kind"),
        ("HQQ 4-bit", ".group_size", u32(32), "groups of 32"),
        ("HQQ 4-bit", ".scales", torch.zeros(3, 512), "shape"),
        ("FP8", ".dequant_w_scale", torch.zeros(3), "dequant_w_scale"),
        ("AFQ 4-bit", ".bits", u8(8), "words"),
        ("AFQ 4-bit", ".scales", torch.zeros(384, 4), "biases"),
        ("F8Q8", "", torch.zeros(33, dtype=torch.uint8), "bytes"),
        ("MXFP4", ".scales", torch.zeros(384, 7, dtype=torch.uint8), "scales"),
    ],
)
def test_tensors(
    kind: str, role: str, replacement: Any, word: str, uqff_models, tmp_path: Path
) -> None:
    folder = changed(uqff_models(kind).packed, tmp_path / "x", {UP + role: replacement})
    refused(folder, ExitCode.NOT_READABLE, "up_proj", word)


@pytest.mark.parametrize(
    ("kind", "role", "value", "word"),
    [
        ("Q4_0", ".format", u8(7), "kind 7"),
        ("Q4_0", ".dtype", u32(99), "type 99"),
        ("HQQ 4-bit", ".bits", u8(3), "3 bits"),
        ("HQQ 4-bit", ".axis", u8(1), "axis 1"),
    ],
)
def test_kinds_that_are_not_read(
    kind: str, role: str, value: Any, word: str, uqff_models, tmp_path: Path
) -> None:
    folder = changed(uqff_models(kind).packed, tmp_path / "x", {UP + role: value})
    refused(folder, ExitCode.UNSUPPORTED, "up_proj", word)


@pytest.mark.parametrize(
    ("tensors", "exit_code", "word"),
    [
        (version(major=2), ExitCode.UNSUPPORTED, "UQFF 2.2.0"),
        (version(minor=3), ExitCode.UNSUPPORTED, "UQFF 1.3.0"),
        ({}, ExitCode.NOT_READABLE, "no version"),
        ({"uqff.version.major": u32(1)}, ExitCode.NOT_READABLE, "version"),
        ({"0": u8(0), "1": u8(0)}, ExitCode.UNSUPPORTED, "UQFF 0.x"),
    ],
)
def test_versions(
    tensors: Any, exit_code: ExitCode, word: str, uqff_models, tmp_path: Path
) -> None:
    folder = changed(uqff_models("Q4_0").packed, tmp_path / "x", {})
    layers = {} if "0" in tensors else load_file(folder / "m-0.uqff")
    kept = {name: each for name, each in layers.items() if not name.startswith("uqff.")}
    save_file({**kept, **tensors}, folder / "m-0.uqff")
    refused(folder, exit_code, word)


def test_files(uqff_models, tmp_path: Path) -> None:
    made = uqff_models("Q4_0").packed
    folder = changed(made, tmp_path / "x", {})
    refused(folder, ExitCode.NOT_READABLE, "no file q4k", "there are m-0.uqff", name="q4k")
    with pytest.raises(MrsError) as caught:
        load(source(folder, "m-0.uqff", "other-3.uqff"))
    assert "other-3.uqff" in str(caught.value)
    (folder / "m-2.uqff").write_bytes((folder / "m-0.uqff").read_bytes())
    refused(folder, ExitCode.NOT_READABLE, "no file m-1.uqff")
    (folder / "m-2.uqff").rename(folder / "m-1.uqff")
    refused(folder, ExitCode.NOT_READABLE, "is both in m-0.uqff and m-1.uqff")
    (folder / "m-1.uqff").unlink()
    data = (folder / "m-0.uqff").read_bytes()
    (folder / "m-0.uqff").write_bytes(data[: len(data) // 2])
    refused(folder, ExitCode.NOT_READABLE, "truncated")
    (folder / "m-0.uqff").write_bytes(data)
    (folder / "further" / "files").mkdir(parents=True)
    shutil.copy(folder / "m-0.uqff", folder / "further" / "files")
    load(source(folder, "further/files/m-0.uqff"))
    (folder / "residual.safetensors").unlink()
    refused(folder, ExitCode.NOT_READABLE, "no file residual.safetensors")


def test_the_config_of_another_model(uqff_models, tmp_path: Path) -> None:
    folder = changed(uqff_models("Q4_0").packed, tmp_path / "x", {})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 512}))
    refused(folder, ExitCode.NOT_READABLE, "shape")
