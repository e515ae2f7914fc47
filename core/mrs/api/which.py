"""Which model a `Runner` loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from mrs.request import Dtype, ModelSource


class Architecture(Enum):
    """Families of models, for checkpoints that should be read as another one than they say."""

    DeepSeekV2 = "deepseek_v2"
    DeepSeekV3 = "deepseek_v3"
    Gemma = "gemma"
    Gemma2 = "gemma2"
    Gemma3 = "gemma3_text"
    GLM4 = "glm4"
    GptOss = "gpt_oss"
    Granite = "granite"
    Lfm2 = "lfm2"
    Llama = "llama"
    Llama3_2Vision = "mllama_text_model"
    Mistral = "mistral"
    Mixtral = "mixtral"
    Phi2 = "phi"
    Phi3 = "phi3"
    Phi3_5MoE = "phimoe"
    Qwen2 = "qwen2"
    Qwen2Moe = "qwen2_moe"
    Qwen3 = "qwen3"
    Qwen3Moe = "qwen3_moe"
    Qwen3Next = "qwen3_next"
    SmolLm3 = "smollm3"
    Starcoder2 = "starcoder2"


class Which:
    """The ways to name a model: `Which.Plain(…)` and `Which.GGUF(…)`."""

    @dataclass(frozen=True)
    class Plain:
        """A model of safetensors files: a hub id, a local folder, or `demo`."""

        model_id: str
        arch: Architecture | None = None
        tokenizer_json: str | None = None
        dtype: Dtype = "auto"
        hf_cache_path: str | None = None

    @dataclass(frozen=True)
    class GGUF:
        """A model of GGUF files: a hub id or a folder with file names, or one `.gguf` file.

        `tok_model_id` is a model whose tokenizer and chat template are used in place of those in
        the file.
        """

        quantized_model_id: str
        quantized_filename: str | Sequence[str] = ()
        tok_model_id: str | None = None
        dtype: Dtype = "auto"


def model_source(which: Which.Plain | Which.GGUF, token_source: str) -> ModelSource:
    """Where the model comes from, as plans and loaders see it."""
    if isinstance(which, Which.Plain):
        return ModelSource(
            which.model_id,
            "safetensors",
            token_source=token_source,
            cache_path=which.hf_cache_path,
            tokenizer_json=which.tokenizer_json,
        )
    names = which.quantized_filename
    return ModelSource(
        which.quantized_model_id,
        "gguf",
        filenames=tuple(names.split() if isinstance(names, str) else names),
        token_source=token_source,
        tokenizer_model_id=which.tok_model_id,
    )
