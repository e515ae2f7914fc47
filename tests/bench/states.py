"""Measure random models of each kind of recurrent state against the limits of the machine.

    python tests/bench/states.py FOLDER [--kinds mamba2 delta kda conv] [--isq q4k] [--layers 16]

Prints replies as a share of what a plain read of weights and caches would reach, and prompts as a
share of the rate of a Llama with as many bytes of weights. Models are written to FOLDER once, in
bf16; one of 16 layers has about a billion parameters.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from mrs.request import ModelSource, RunRequest
from mrs.run.bench import BenchSettings, bench
from support.byte_tokenizer import byte_tokenizer
from support.model_files import write_model

DENSE = "dense"
_SIZES: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
#: The config of each kind, whose states have the sizes of published models.
KINDS: dict[str, dict[str, Any]] = {
    DENSE: {"model_type": "llama"},
    "mamba2": {
        "model_type": "granitemoehybrid",
        "num_local_experts": 0,
        "shared_intermediate_size": 8192,
        "mamba_n_heads": 64,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
    },
    "delta": {
        "model_type": "qwen3_5_text",
        "head_dim": 128,
        "num_attention_heads": 16,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
    "kda": {
        "model_type": "kimi_linear",
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "linear_num_heads": 16,
        "linear_head_dim": 128,
    },
    "conv": {"model_type": "lfm2", "block_auto_adjust_ff_dim": False},
}
#: What `layer_types` call the layers with a state.
STATE_LAYERS = {"mamba2": "mamba", "conv": "conv"}


def config_of(kind: str, layers: int) -> dict[str, Any]:
    """Every fourth layer has attention."""
    config = {**_SIZES, "num_hidden_layers": layers, **KINDS[kind]}
    if kind != DENSE:
        state = STATE_LAYERS.get(kind, "linear_attention")
        kinds = [state if layer % 4 < 3 else "full_attention" for layer in range(layers)]
        config |= {"layer_types": kinds, "mlp_layer_types": ["dense"] * layers}
    return config


def folder_of(parent: Path, kind: str, layers: int) -> Path:
    """The model's folder, written unless it exists."""
    folder = parent / f"{kind}-{layers}"
    if not (folder / "tokenizer.json").exists():
        write_model(folder, config_of(kind, layers), "BF16", std=None)
        settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kinds", nargs="*", default=[kind for kind in KINDS if kind != DENSE])
    parser.add_argument("--isq")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    work = BenchSettings(rounds=arguments.rounds)
    dense_bytes_per_s = 0.0
    for kind in [DENSE, *arguments.kinds]:
        folder = folder_of(arguments.folder, kind, arguments.layers)
        source = ModelSource(str(folder), "safetensors")
        report = bench(RunRequest(source, isq=arguments.isq), work)
        reply, prompt = report.decode_tokens_per_s.high, report.prompt_tokens_per_s.high
        assert report.read_share is not None
        dense_bytes_per_s = dense_bytes_per_s or prompt * report.token_bytes
        share = prompt * report.token_bytes / dense_bytes_per_s
        print(
            f"{kind:7} {report.token_bytes / 1e6:6.0f} MB + {report.cache_bytes / 1e6:3.0f} MB"
            f" of caches  replies {reply:6.1f}/s, {report.read_share.median:4.0%} of the read"
            f"  prompts {prompt:7.1f}/s, {share:4.0%} of dense",
            flush=True,
        )


if __name__ == "__main__":
    main()
