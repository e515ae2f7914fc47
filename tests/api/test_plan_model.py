"""`plan_model` gives the numbers of `mrs plan` as a value, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest

import mrs
from mrs import Which, plan_model
from mrs.errors import UsageError

GPU = ["cuda:0=24GiB", "cpu=64GiB"]


def weight_bytes() -> int:
    """The tensors of the demo model's file, in bf16; norms are kept in float32."""
    content = (Path(mrs.__file__).parent / "demo/model/model.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    shapes = [each["shape"] for name, each in header.items() if name != "__metadata__"]
    return sum(prod(shape) * (4 if len(shape) == 1 else 2) for shape in shapes)


def test_a_plan_says_what_each_device_holds() -> None:
    plan = plan_model(Which.Plain("demo"), devices=GPU)
    assert plan.fits
    assert plan.missing_bytes == 0
    assert plan.layer_devices == ("cuda:0",) * 5
    gpu, cpu = plan.devices
    assert (gpu.label, gpu.layers, gpu.available_bytes) == ("cuda:0", 5, 24 * 2**30)
    assert (cpu.label, cpu.layers, cpu.weight_bytes) == ("cpu", 0, 0)
    assert gpu.weight_bytes == weight_bytes()
    low, expected, high = gpu.total_bytes
    assert gpu.weight_bytes + gpu.kv_bytes < low <= expected <= high
    assert 0 < plan.reply_tok_per_sec[0] < plan.reply_tok_per_sec[1]
    assert 0 < plan.prompt_tok_per_sec[0] < plan.prompt_tok_per_sec[1]


def test_layers_and_quantization_are_those_asked_for() -> None:
    plan = plan_model(
        Which.Plain("demo"), devices=GPU, device_map=["0:2"], in_situ_quant="q4k", max_seq_len=100
    )
    assert plan.layer_devices == ("cuda:0", "cuda:0", "cpu", "cpu", "cpu")
    assert "Q4_K" in plan.weights_format
    whole = plan_model(Which.Plain("demo"), devices=GPU, max_seq_len=200)
    assert whole.devices[0].kv_bytes > sum(device.kv_bytes for device in plan.devices)


def test_a_model_that_does_not_fit_has_a_plan_too() -> None:
    plan = plan_model(Which.Plain("demo"), devices=["cpu=1MiB"])
    assert not plan.fits
    assert plan.missing_bytes == plan.devices[0].missing_bytes > 0
    assert "does not fit" in repr(plan)


@pytest.mark.full
def test_it_needs_no_torch() -> None:
    code = (
        "import sys, mrs; plan = mrs.plan_model(mrs.Which.Plain('demo'), devices=['cpu=64GiB']);"
        "assert plan.fits and 'torch' not in sys.modules"
    )
    environment = {"PYTHONPATH": str(Path(mrs.__file__).parents[1]), "PATH": ""}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.parametrize(
    "settings", [{"devices": "cuda:0=24GiB"}, {"devices": ["nonsense"]}, {"max_seq_len": 0}]
)
def test_what_makes_no_sense_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        plan_model(Which.Plain("demo"), **settings)
