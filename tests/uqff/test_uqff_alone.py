"""The only UQFF file in a folder needs no name, and another quantization of it is refused aloud."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from safetensors.torch import save_file

from mrs.errors import NotReadable
from mrs.request import ModelSource, RunRequest
from mrs.source.find import open_checkpoint
from mrs_cli.parsing.uqff_requests import with_uqff


@pytest.fixture
def folder(uqff_models, tmp_path: Path) -> Path:
    return Path(shutil.copytree(uqff_models("Q4_0").packed, tmp_path / "model"))


def request_of(folder: Path, **changes: object) -> RunRequest:
    request = RunRequest(ModelSource(str(folder), "safetensors"), **changes)
    return with_uqff(request, None, None)


def test_it_is_taken(folder: Path) -> None:
    source = request_of(folder).source
    (name,) = source.uqff
    assert name.endswith(".uqff")
    assert name in [file.name for file in open_checkpoint(source).files]


def test_one_of_two_has_to_be_named(folder: Path) -> None:
    first = next(folder.glob("*.uqff"))
    shutil.copy(first, folder / "other-0.uqff")
    source = request_of(folder).source
    assert source.uqff == ()
    with pytest.raises(NotReadable, match="which UQFF file"):
        open_checkpoint(source)


def test_whole_weights_come_first(folder: Path) -> None:
    save_file({}, folder / "model.safetensors")
    assert request_of(folder).source.uqff == ()


def test_another_quantization_has_no_effect_and_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert request_of(folder, isq="q8_0").isq is None
    assert "--isq q8_0 has no effect" in caplog.text
