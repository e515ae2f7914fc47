"""A saved plan is run exactly, or refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mrs.errors import DoesNotFit, MrsError, NotReadable, UsageError
from mrs.plan.report.document import dumps, to_document
from mrs.plan.report.replay import replay
from support.model_files import LLAMA_70B, write_headers

DEVICES = ("cuda:0=80GiB", "cuda:1=80GiB", "cpu=80GiB")


@pytest.fixture
def saved(llama_70b: Path, planner_of, tmp_path: Path) -> Callable[..., tuple[Path, Any]]:
    def save(**wishes: Any) -> tuple[Path, Any]:
        planner, request = planner_of(llama_70b, *DEVICES, **wishes)
        plan = planner.plan(request)
        path = tmp_path / "plan.json"
        path.write_text(dumps(to_document(plan)))
        return path, plan

    return save


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "wishes",
    [
        {"max_seq_len": 2048, "max_batch_size": 3},
        {"strategy": "spread"},
        {"layer_map": "1:30;0:40"},
        {"isq": "q4k", "dtype": "f16", "activations": 16},
    ],
)
def test_the_same_plan_comes_back(llama_70b: Path, planner_of, saved, wishes) -> None:
    """Whatever else the later command line says."""
    path, plan = saved(**wishes)
    planner, request = planner_of(llama_70b, *DEVICES, max_seq_len=99, isq="q8_0")
    assert replay(planner, request, path) == plan


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("wishes", "flag", "value"),
    [
        ({"max_seq_len": 99}, "--max-seq-len 99", "2048"),
        ({"max_batch_size": 3}, "--max-batch-size 3", "2"),
        ({"dtype": "f32"}, "--dtype f32", "f16"),
        ({"isq": "8"}, "--isq 8", "q4k"),
        ({"activations": 16}, "--activations 16", "8"),
        ({"strategy": "spread"}, "--strategy spread", "fill"),
        ({"layer_map": "1:40"}, "--num-device-layers 1:40", "80 layers on cuda:0"),
        ({"layer_map": "9:40"}, "--num-device-layers 9:40", "80 layers on cuda:0"),
    ],
)
def test_flags_that_contradict_the_plan_are_named(
    llama_70b: Path, planner_of, saved, caplog, wishes, flag: str, value: str
) -> None:
    same = {"max_seq_len": 2048, "max_batch_size": 2, "dtype": "f16", "isq": "q4k"}
    path, plan = saved(**same)
    planner, request = planner_of(llama_70b, *DEVICES, **same, layer_map="0:80")
    assert replay(planner, request, path) == plan
    assert not caplog.messages
    planner, request = planner_of(llama_70b, *DEVICES, **wishes)
    assert replay(planner, request, path) == plan
    assert caplog.messages == [f"{flag} is ignored: the plan in {path} has {value}"]


def test_a_plan_that_uses_the_cpu_against_no_cpu_spill(
    llama_70b: Path, planner_of, saved, caplog
) -> None:
    path, _ = saved(layer_map="0:20;1:20")
    planner, request = planner_of(llama_70b, *DEVICES, cpu_spill=False)
    replay(planner, request, path)
    where = "20 layers on cuda:0, 20 layers on cuda:1, 40 layers on cpu"
    assert caplog.messages == [f"--no-cpu-spill is ignored: the plan in {path} has {where}"]


def test_another_model(planner_of, saved, tmp_path: Path) -> None:
    path, _ = saved()
    other = write_headers(tmp_path / "other", {**LLAMA_70B, "vocab_size": 128000})
    planner, request = planner_of(other, *DEVICES)
    with pytest.raises(UsageError, match="another model"):
        replay(planner, request, path)


@pytest.mark.parametrize(
    "devices", [("cuda:0=80GiB", "cpu=64GiB"), ("cuda:0=80GiB", "cuda:1=40GiB", "cpu=64GiB")]
)
def test_other_hardware(llama_70b: Path, planner_of, saved, devices) -> None:
    path, _ = saved()
    planner, request = planner_of(llama_70b, *devices)
    with pytest.raises(UsageError, match="the plan needs cuda:1"):
        replay(planner, request, path)


def test_an_unused_device_may_go(llama_70b: Path, planner_of, saved) -> None:
    path, plan = saved()
    assert not plan.breakdowns[2].layers
    planner, request = planner_of(llama_70b, *DEVICES[:2])
    assert replay(planner, request, path).layer_devices == plan.layer_devices


def test_less_memory(llama_70b: Path, planner_of, saved) -> None:
    path, _ = saved()
    planner, request = planner_of(llama_70b, *DEVICES)
    from dataclasses import replace

    planner.devices[0] = replace(planner.devices[0], available_bytes=1 << 30)
    with pytest.raises(DoesNotFit, match="no longer fits"):
        replay(planner, request, path)


def test_other_kernels(planner_of, tmp_path: Path) -> None:
    """Weights were planned with the last rows padded, and this machine has no kernels for that."""
    folder = write_headers(tmp_path / "odd", {**LLAMA_70B, "vocab_size": 128250})
    planner, request = planner_of(folder, "cpu=256GiB", isq="q4k")
    path = tmp_path / "plan.json"
    path.write_text(dumps(to_document(planner.plan(request))))
    planner, request = planner_of(folder, "cpu=256GiB", cpu_packs=False)
    with pytest.raises(UsageError, match="plan again"):
        replay(planner, request, path)


def test_every_damage_is_an_error_of_ours(llama_70b: Path, planner_of, saved) -> None:
    path, _ = saved()
    planner, request = planner_of(llama_70b, *DEVICES)
    whole = json.loads(path.read_text())
    for text in ("", "[]", "{}", "null", path.read_text()[:1000], '{"version": 1}'):
        path.write_text(text)
        with pytest.raises(NotReadable):
            replay(planner, request, path)
    for key in ("model", "planned", "devices", "layers", "home"):
        for value in (None, [], {}, 3, "x", [[]], [{}], {"fingerprint": 3}):
            path.write_text(json.dumps({**whole, key: value}))
            with pytest.raises(MrsError):
                replay(planner, request, path)
    for number in (-1, 0, 1.5, "4", True, None, 10**30):
        planned = {**whole["planned"], "context_tokens": number}
        path.write_text(json.dumps({**whole, "planned": planned}))
        with pytest.raises(MrsError):
            replay(planner, request, path)
    path.unlink()
    with pytest.raises(NotReadable):
        replay(planner, request, path)
