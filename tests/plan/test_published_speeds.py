"""The model of time against rates that others published, with what is known of their engine."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from mrs.architecture.describe import describe
from mrs.devices.bandwidth import with_bandwidth
from mrs.devices.device import Device
from mrs.devices.parse import what_if_devices
from mrs.plan.cost import Work
from mrs.plan.planner import Planner
from mrs.plan.speed.rates import device_speed
from mrs.plan.speed.roofline import DeviceSpeed, SpeedEstimate
from mrs.request import ModelSource, RunRequest
from mrs.source.find import open_checkpoint
from support.model_files import GPT_OSS, LLAMA_70B, write_few_bits, write_headers

ROWS = [
    row
    for row in csv.DictReader(
        line
        for line in (Path(__file__).parent / "published_speeds.csv").read_text().splitlines()
        if not line.startswith("#")
    )
]
LLAMA_8B: dict[str, Any] = {
    **LLAMA_70B,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
MODELS: dict[str, dict[str, Any]] = {
    "Llama 3 8B": LLAMA_8B,
    "Llama 3 70B": LLAMA_70B,
    "Llama 2 7B": {
        **LLAMA_8B,
        "vocab_size": 32000,
        "intermediate_size": 11008,
        "num_key_value_heads": 32,
    },
    "gpt-oss 20B": {**GPT_OSS, "num_hidden_layers": 24, "num_key_value_heads": 8},
    "Gemma 3 4B": {
        "model_type": "gemma3_text",
        "vocab_size": 262144,
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 1024,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
    },
    "Qwen 3 30B A3B": {
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
    },
}
ISQ = {
    "Q4_K_M": "q4k",
    "Q5_K_M": "q5k",
    "Q8_0": "q8_0",
    "Q4_0": "q4_0",
    "F16": None,
    "MXFP4": "q8_0",
}
#: What is known of llama.cpp: the share of the bandwidth that it reads weights at, by the kind of
#: memory, from the slope between F16 and Q4_K_M of one card; the seconds of each step, from what is
#: left; and on Apple's GPUs the instructions of a lane for each quantized weight.
GDDR, HBM, UNIFIED = 0.9, 0.52, 0.85
STEP_SECONDS = {"llama.cpp 2024": 8.7e-6, "llama.cpp 2026": 5e-6}
APPLE_INSTRUCTIONS = 16.0
HBM_CARDS = re.compile(r"A100|H100")
#: The error that plans give for a card from the table.
ERROR, MOST_FACTOR = 0.35, 1.5


@cache
def work_of(folder: Path, model: str, isq: str | None) -> tuple[Work, SpeedEstimate]:
    """The work of a token on one device that holds the whole model."""
    config = MODELS[model]
    write = write_few_bits if "quantization_config" in config else write_headers
    headers = write(folder / model.replace(" ", "-"), config)
    request = RunRequest(ModelSource(str(headers), "safetensors"), isq=isq, max_seq_len=2048)
    checkpoint = open_checkpoint(request.source)
    devices = what_if_devices(["cuda:0=900GiB"])
    plan = Planner(checkpoint, describe(checkpoint), devices, cpu_packs=True).plan(request)
    assert plan.speed.only_device is not None
    return plan.speed.work[plan.speed.only_device], plan.speed


def predicted(row: dict[str, str], folder: Path) -> float:
    """Tokens a second of llama.cpp: our bytes, steps and cards, and its efficiency."""
    isq = ISQ[row["quantization"]]
    work, estimate = work_of(folder, row["model"], isq)
    count, _, name = row["card"].rpartition(" x ")
    kind = "metal" if name.startswith("M") else "cuda"
    speed = engine_speed(
        what_if_devices([f"{kind}:0={name}"])[0],
        work,
        STEP_SECONDS[row["engine"]],
        is_plain=row["quantization"] == "F16",
    )
    speeds = replace(estimate, work=(work,), devices=(speed,))
    hops = int(count or 1) if count else 0
    return 1 / (1 / speeds.decode_at(512).expected + hops * estimate.hop_seconds)


def engine_speed(device: Device, work: Work, step_seconds: float, *, is_plain: bool) -> DeviceSpeed:
    (device,) = with_bandwidth([device])
    ours = device_speed(device, "BF16", "", 2.0)
    share = UNIFIED if device.kind == "metal" else GDDR
    if HBM_CARDS.search(device.name):
        share = HBM
    read = share * ours.bandwidth_bytes_per_s
    if device.kind == "metal" and not is_plain:
        from mrs.devices.published_cards import published_card

        card = published_card(device.name)
        assert card is not None
        weights = work.weights + work.head_weights
        weights_per_s = card.instructions_per_s / APPLE_INSTRUCTIONS
        read = min(read, weights_per_s * work.weight_bytes / weights)
    return replace(ours, read_bytes_per_s=read, cache_bytes_per_s=read, step_seconds=step_seconds)


@pytest.fixture(scope="module")
def ratios(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    folder = tmp_path_factory.mktemp("published")
    return {
        f"{row['card']}, {row['model']}, {row['quantization']}": predicted(row, folder)
        / float(row["tokens_per_s"])
        for row in ROWS
    }


def test_published_rates_are_inside_the_error_that_plans_give(ratios: dict[str, float]) -> None:
    outside = {
        name: ratio for name, ratio in ratios.items() if not 1 / (1 + ERROR) < ratio < 1 + ERROR
    }
    assert len(ratios) > 60
    assert len(outside) <= 0.2 * len(ratios), outside


def test_no_published_rate_is_far_off(ratios: dict[str, float]) -> None:
    far = {name: r for name, r in ratios.items() if not 1 / MOST_FACTOR < r < MOST_FACTOR}
    assert not far


def test_the_model_of_time_leans_to_no_side(ratios: dict[str, float]) -> None:
    assert 0.93 < median(ratios.values()) < 1.07
