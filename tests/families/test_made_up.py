"""Families with a field that no fast path knows are computed slowly, and right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_up_families import (
    FABLE,
    MADE_UP,
    MYTH,
    MadeUp,
    build_package,
    true_logits,
    write_gguf,
    write_model,
)
from safetensors.torch import load_file
from torch import Tensor

from support.suites import first

#: How far logits may be from the truth, over the largest one: 8 bits may choose other experts.
TOLERANCES = {"f32": 1e-4, "two processes": 1e-4, "shares": 1e-4, "bf16": 0.04, "q8_0": 0.08}
IDS = [(7 * n * n + 3 * n) % 160 for n in range(40)]


def _run(
    family: MadeUp, folder: Path, ways: str, *, path: str = "", knows_shares: bool = False
) -> tuple[dict[str, Tensor], dict[str, Tensor], str]:
    """The model's tensors, the logits of each way, and why there are none."""
    build_package(family, folder / "package", knows_shares=knows_shares)
    tensors = write_model(family, folder / "model")
    if family.gguf:
        write_gguf(folder / "model" / "model.gguf", family.name, tensors, family.gguf)
    out = folder / "out.safetensors"
    program = Path(__file__).with_name("made_up_run.py")
    environment = {**os.environ, "PYTHONPATH": str(folder / "package")}
    if path:
        environment["MRS_CPU_PATH"] = path
    words = [str(folder / "model"), str(out), ways, ",".join(map(str, IDS))]
    done = subprocess.run(
        [sys.executable, str(program), *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    refused = folder / "refused.txt"
    made = load_file(out) if out.exists() else {}
    return tensors, made, refused.read_text() if refused.exists() else ""


def _check(family: MadeUp, tensors: dict[str, Tensor], made: dict[str, Tensor]) -> None:
    truth = true_logits(family, tensors, IDS)
    plain = true_logits(family, tensors, IDS, plain=True)
    largest = truth.abs().max()
    assert made
    for way, logits in made.items():
        off = (logits - truth).abs().amax(1) / largest
        tolerance = TOLERANCES[way.partition(".")[0]]
        assert off.median() < tolerance, way
        assert tolerance > 1e-3 or off.max() < tolerance, way
        # What nothing has ignored.
        assert (logits - plain).abs().amax(1).median() / largest > 3 * off.median(), way


@pytest.mark.full
@pytest.mark.parametrize("family", first(1, MADE_UP), ids=lambda family: family.name)
def test_all_ways_to_compute_it_are_right(family: MadeUp, tmp_path: Path) -> None:
    is_of_layers = family.owner != "ModelSpec"
    ways = ["one", *["two"] * is_of_layers, *["gguf"] * bool(family.gguf)]
    tensors, made, refused = _run(family, tmp_path, ",".join(ways))
    assert not refused
    assert len(made) == 9 + is_of_layers + 2 * bool(family.gguf)
    _check(family, tensors, made)


@pytest.mark.full
@pytest.mark.parametrize("path", ["portable", "torch"])
def test_other_instructions_compute_it_too(path: str, tmp_path: Path) -> None:
    tensors, made, refused = _run(FABLE, tmp_path, "one", path=path)
    assert not refused
    _check(FABLE, tensors, made)


@pytest.mark.full
def test_other_processes_refuse_a_field_of_the_model(tmp_path: Path) -> None:
    _, made, refused = _run(MYTH, tmp_path, "two")
    assert not made
    assert "--workers cannot compute 'embedding_gain'" in refused


@pytest.mark.full
@pytest.mark.parametrize("family", first(1, MADE_UP), ids=lambda family: family.name)
def test_shares_are_refused_until_they_know_the_field(family: MadeUp, tmp_path: Path) -> None:
    _, made, refused = _run(family, tmp_path, "shares")
    assert not made
    assert repr(family.field_name) in refused
    assert ("--workers" in refused) == (family.owner != "ModelSpec")


@pytest.mark.full
@pytest.mark.parametrize("family", first(1, MADE_UP), ids=lambda family: family.name)
def test_shares_that_know_the_field_are_right(family: MadeUp, tmp_path: Path) -> None:
    tensors, made, refused = _run(family, tmp_path, "shares", knows_shares=True)
    assert not refused
    _check(family, tensors, made)
