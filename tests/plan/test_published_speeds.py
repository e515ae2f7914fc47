"""The model of time against rates that others published, with what is known of their engine."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest

from mrs.architecture.describe import describe
from mrs.devices.bandwidth import with_bandwidth
from mrs.devices.device import Device
from mrs.devices.parse import what_if_devices
from mrs.devices.published_cards import find_card, published_card
from mrs.devices.published_processors import published_processor
from mrs.plan.cost import Work
from mrs.plan.planner import Planner
from mrs.plan.speed.rates import device_speed
from mrs.plan.speed.roofline import DeviceSpeed, Rate, SpeedEstimate
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
    "Llama 3.2 3B": {
        **LLAMA_70B,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
    "Qwen 3 8B": {
        **LLAMA_8B,
        "vocab_size": 151936,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
    },
    "Qwen 2.5 7B": {
        **LLAMA_8B,
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
    "Qwen 2.5 14B": {
        **LLAMA_8B,
        "vocab_size": 152064,
        "hidden_size": 5120,
        "intermediate_size": 13824,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
    },
    "Phi 4": {
        **LLAMA_8B,
        "vocab_size": 100352,
        "hidden_size": 5120,
        "intermediate_size": 17920,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 10,
    },
    "Mixtral 8x7B": {
        **LLAMA_8B,
        "model_type": "mixtral",
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "gpt-oss 20B": {**GPT_OSS, "num_hidden_layers": 24, "num_key_value_heads": 8},
    "gpt-oss 120B": {
        **GPT_OSS,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "num_local_experts": 128,
    },
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
    "Q6_K": "q6k",
    "Q8_0": "q8_0",
    "Q4_0": "q4_0",
    "F16": None,
    "MXFP4": "q8_0",
}
#: What is known of llama.cpp: the share of the bandwidth that it reads weights at, by the kind of
#: memory, from the slope between F16 and Q4_K_M of one card; the seconds of each step, from what is
#: left; and on Apple's GPUs the instructions of a lane for each quantized weight.
GDDR, HBM, UNIFIED = 0.9, 0.52, 0.85
STEP_SECONDS = {"llama.cpp 2024": 8.7e-6, "llama.cpp 2026": 5e-6, "MLX 2026": 5e-6}
APPLE_INSTRUCTIONS = 16.0
HBM_CARDS = re.compile(r"A100|H100|MI[0-9]+")
#: No row may be further off, for makers whose error is not wider than this.
MOST_FACTOR = 1.5
LEAST_INSIDE = 0.8
MAKERS = ("NVIDIA", "AMD", "Apple", "Intel", "CPU")


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


def predicted(row: dict[str, str], folder: Path) -> Rate:
    """Tokens a second of another engine: our bytes, steps and devices, and its efficiency."""
    isq = ISQ[row["quantization"]]
    work, estimate = work_of(folder, row["model"], isq)
    count, _, name = row["card"].rpartition(" x ")
    if published_processor(name) is not None:
        name += " 900GB"
    device = what_if_devices([name])[0]
    if row["memory_gb_per_s"]:
        device = replace(device, bandwidth_bytes_per_s=float(row["memory_gb_per_s"]) * 1e9)
    speed = engine_speed(
        device, work, STEP_SECONDS[row["engine"]], is_plain=row["quantization"] == "F16"
    )
    speeds = replace(estimate, work=(work,), devices=(speed,))
    hops = int(count or 1) if count else 0
    expected = 1 / (1 / speeds.decode_at(512).expected + hops * estimate.hop_seconds)
    return Rate.of(expected, speed.decode_error)


def engine_speed(device: Device, work: Work, step_seconds: float, *, is_plain: bool) -> DeviceSpeed:
    (device,) = with_bandwidth([device])
    if device.kind == "cpu":
        return device_speed(device, "Q4_K", "", 0.6)
    ours = device_speed(device, "BF16", "", 2.0)
    share = UNIFIED if device.shares_host_memory else GDDR
    if HBM_CARDS.search(device.name):
        share = HBM
    read = share * ours.bandwidth_bytes_per_s
    if device.kind == "metal" and not is_plain:
        card = published_card(device.name)
        assert card is not None
        weights = work.weights + work.head_weights
        weights_per_s = card.instructions_per_s / APPLE_INSTRUCTIONS
        read = min(read, weights_per_s * work.weight_bytes / weights)
    return replace(ours, read_bytes_per_s=read, cache_bytes_per_s=read, step_seconds=step_seconds)


class Row(NamedTuple):
    """A published rate, and what the model of time says."""

    name: str
    maker: str
    is_fitted: bool
    published: float
    predicted: Rate

    @property
    def ratio(self) -> float:
        return self.predicted.expected / self.published

    @property
    def is_inside(self) -> bool:
        return self.predicted.low < self.published < self.predicted.high


def maker_of(name: str) -> str:
    card = find_card(name)
    return "CPU" if card is None else card.maker


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    folder = tmp_path_factory.mktemp("published")
    return [
        Row(
            f"{row['source']}: {row['card']}, {row['model']}, {row['quantization']}",
            maker_of(row["card"].rpartition(" x ")[2]),
            row["fitted"] == "yes",
            float(row["tokens_per_s"]),
            predicted(row, folder),
        )
        for row in ROWS
    ]


def test_the_rows_that_nothing_was_fitted_to_are_many_and_of_all_makers(rows: list[Row]) -> None:
    held_out = [row for row in rows if not row.is_fitted]
    assert len(held_out) >= 60
    assert {row.maker for row in held_out} == set(MAKERS)


@pytest.mark.parametrize("is_fitted", [True, False])
def test_published_rates_are_inside_the_error_that_plans_give(
    rows: list[Row], is_fitted: bool
) -> None:
    for maker in MAKERS:
        own = [row for row in rows if row.maker == maker and row.is_fitted == is_fitted]
        outside = [row for row in own if not row.is_inside]
        assert len(outside) <= (1 - LEAST_INSIDE) * len(own), outside


def test_no_published_rate_is_far_off(rows: list[Row]) -> None:
    for row in rows:
        most = max(MOST_FACTOR, row.predicted.high / row.predicted.expected)
        assert 1 / most < row.ratio < most, row


def test_the_model_of_time_leans_to_no_side(rows: list[Row]) -> None:
    assert 0.93 < median(row.ratio for row in rows if row.is_fitted) < 1.07
    assert 0.9 < median(row.ratio for row in rows if not row.is_fitted) < 1.1
