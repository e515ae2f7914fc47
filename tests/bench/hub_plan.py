"""Plan a model of 90,000 tensors on a hub: requests, bytes and processor seconds, twice.

    python tests/bench/hub_plan.py [--profile FILE]

The hub is served by this process, and `mrs plan --dry-run` runs in processes of its own, the
second time with the headers that the first one kept. The model has the shape of DeepSeek-V3 in
163 files of FP8; its weights do not exist.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from mrs.formats import FORMATS
from support.hub_server import Blob, HubServer
from support.model_files import tensor_shapes

MODEL_ID = "someone/large"
SHARDS = 163
TILE = 128
CONFIG: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [TILE, TILE]},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", help="write cProfile's statistics of the first plan there")
    profile = parser.parse_args().profile
    with HubServer() as hub, tempfile.TemporaryDirectory() as home:
        files, count = model_files()
        hub.add(MODEL_ID, files)
        print(f"{count} tensors in {SHARDS} files")
        for name in ("first plan", "second plan"):
            hub.log.clear()
            seconds = plan(hub.endpoint, home, profile if name == "first plan" else None)
            megabytes = hub.body_bytes / 1e6
            print(f"{name}: {len(hub.log)} requests, {megabytes:.1f} MB, {seconds:.2f} s of CPU")


def plan(endpoint: str, home: str, profile: str | None) -> float:
    """Processor seconds of one `mrs plan`."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": home, "XDG_CACHE_HOME": home}
    profiling = ["-m", "cProfile", "-o", profile] if profile else []
    command = ["-m", "mrs_cli", "plan", "--dry-run", "--device", "cpu=1500GiB", "-m", MODEL_ID]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *profiling, *command], env=environment, check=True, stdout=subprocess.PIPE
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def model_files() -> tuple[dict[str, bytes | Blob], int]:
    """The files of the model on the hub, and how many tensors these hold."""
    tensors = list(stored_tensors())
    each = -(-len(tensors) // SHARDS)
    weight_map, files = {}, dict[str, bytes | Blob]()
    for number in range(SHARDS):
        name = f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"
        held = tensors[number * each : (number + 1) * each]
        files[name] = header(held)
        weight_map |= dict.fromkeys((tensor for tensor, _, _ in held), name)
    files["config.json"] = json.dumps(CONFIG).encode()
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    return files, len(tensors)


def stored_tensors() -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Name, shape and dtype of each tensor, with the scales of those in FP8."""
    plain = ("embed_tokens", "lm_head", "mlp.gate.")
    for name, shape in tensor_shapes(CONFIG).items():
        if len(shape) < 2 or any(part in name for part in plain):
            yield name, shape, "BF16"
            continue
        yield name, shape, "F8_E4M3"
        tiles = -(-shape[0] // TILE), -(-shape[1] // TILE)
        yield f"{name}_scale_inv", tiles, "F32"


def header(tensors: list[tuple[str, tuple[int, ...], str]]) -> Blob:
    entries, offset = {}, 0
    for name, shape, dtype in tensors:
        end = offset + FORMATS[dtype].size_bytes(shape)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries).encode()
    return Blob(len(text).to_bytes(8, "little") + text, 8 + len(text) + offset)


if __name__ == "__main__":
    main()
