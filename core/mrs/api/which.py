"""Which model a `Runner` loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from mrs.errors import UsageError
from mrs.request import Dtype, ModelSource, VisionRequest


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


class VisionArchitecture(Enum):
    """Families of models that see, for checkpoints to be read as another one than they say."""

    Gemma3 = "gemma3"
    Idefics3 = "idefics3"
    LLaVA = "llava"
    LLaVANext = "llava_next"
    Mistral3 = "mistral3"
    Phi3V = "phi3_v"
    Qwen2VL = "qwen2_vl"
    Qwen2_5VL = "qwen2_5_vl"
    VLlama = "mllama"


class Which:
    """The ways to name a model: `Which.Plain(…)`, `Which.VisionPlain(…)` and `Which.GGUF(…)`."""

    @dataclass(frozen=True)
    class Plain:
        """A model of safetensors files: a hub id, a local folder, or `demo`."""

        model_id: str
        arch: Architecture | None = None
        tokenizer_json: str | None = None
        dtype: Dtype = "auto"
        hf_cache_path: str | None = None

    @dataclass(frozen=True)
    class VisionPlain:
        """A model of safetensors files that sees: a hub id or a local folder.

        Pictures with an edge longer than `max_edge` pixels are made smaller, where the family
        takes any size. The plan counts with `max_num_images` images of `max_image_length` pixels
        a side; more and larger ones are shown all the same.
        """

        model_id: str
        arch: VisionArchitecture | None = None
        tokenizer_json: str | None = None
        max_edge: int | None = None
        max_num_images: int = 1
        max_image_length: int = 1024
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


AnyWhich = Which.Plain | Which.VisionPlain | Which.GGUF


def vision_request(which: AnyWhich) -> VisionRequest | None:
    """How the model sees; None for one that is loaded without its eyes. Raises UsageError."""
    if not isinstance(which, Which.VisionPlain):
        return None
    for name in ("max_edge", "max_num_images", "max_image_length"):
        value = getattr(which, name)
        if value is not None and value < 1:
            raise UsageError(f"{name} {value} is out of range", hint="give a number from 1 up")
    return VisionRequest(which.max_edge, which.max_num_images, which.max_image_length)


def model_source(which: AnyWhich, token_source: str) -> ModelSource:
    """Where the model comes from, as plans and loaders see it."""
    if not isinstance(which, Which.GGUF):
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
