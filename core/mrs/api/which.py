"""Which model a `Runner` loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Any

from mrs.api.checks import Allowed, Kind, check_fields, of_type, one_of, require
from mrs.errors import UsageError
from mrs.request import Dtype, ModelSource, VisionRequest


class Architecture(Enum):
    """Families of models, for checkpoints that should be read as another one than they say."""

    DeepSeekV2 = "deepseek_v2"
    DeepSeekV3 = "deepseek_v3"
    DeepseekV2 = DeepSeekV2
    DeepseekV3 = DeepSeekV3
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


MultimodalArchitecture = VisionArchitecture


class ModelDType(Enum):
    """Types of the weights that are not quantized; a text such as `bf16` says the same."""

    Auto = "auto"
    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"


AnyDtype = ModelDType | Dtype
_DTYPES = one_of(*(each.value for each in ModelDType), *ModelDType)


class Which:
    """The ways to name a model: `Which.Plain(…)`, `Which.MultimodalPlain(…)`, `Which.GGUF(…)`.

    Their fields are those of the peer, in its order, and more by name; what is not supported may
    have its default value only. Raises UsageError and Unsupported.
    """

    @dataclass(frozen=True)
    class Plain:
        """A model of safetensors files: a hub id, a local folder, or `demo`."""

        model_id: str
        arch: Architecture | None = None
        tokenizer_json: str | None = None
        topology: None = None
        organization: None = None
        write_uqff: None = None
        from_uqff: None = None
        dtype: AnyDtype = "auto"
        imatrix: None = None
        calibration_file: None = None
        hf_cache_path: str | None = None
        matformer_config_path: None = None
        matformer_slice_name: None = None

        def __post_init__(self) -> None:
            check_fields(self, {"arch": _one_or_none(Architecture), "dtype": _DTYPES})

    @dataclass(frozen=True)
    class MultimodalPlain:
        """A model of safetensors files that sees: a hub id or a local folder.

        Pictures with an edge longer than `max_edge` pixels are made smaller, where the family
        takes any size. The plan counts with `max_num_images` images of `max_image_length` pixels
        a side; more and larger ones are shown all the same.
        """

        model_id: str
        arch: VisionArchitecture | None = None
        tokenizer_json: str | None = None
        topology: None = None
        write_uqff: None = None
        from_uqff: None = None
        dtype: AnyDtype = "auto"
        max_edge: int | None = None
        calibration_file: None = None
        imatrix: None = None
        hf_cache_path: str | None = None
        matformer_config_path: None = None
        matformer_slice_name: None = None
        organization: None = None
        encoder_cache_memory_bytes: None = None
        _: KW_ONLY
        max_num_images: int = 1
        max_image_length: int = 1024

        def __post_init__(self) -> None:
            check_fields(self, {"arch": _one_or_none(VisionArchitecture), "dtype": _DTYPES})

    VisionPlain = MultimodalPlain

    @dataclass(frozen=True)
    class GGUF:
        """A model of GGUF files: a hub id or a folder with file names, or one `.gguf` file.

        `tok_model_id` is a model whose tokenizer and chat template are used in place of those in
        the file. With `mmproj_filename`, a file beside the model's, it sees.
        """

        quantized_model_id: str
        quantized_filename: str | Sequence[str] = ()
        tok_model_id: str | None = None
        topology: None = None
        dtype: AnyDtype = "auto"
        _: KW_ONLY
        tokenizer_json: str | None = None
        mmproj_filename: str | None = None
        organization: None = None
        write_uqff: None = None
        imatrix: None = None
        calibration_file: None = None
        max_edge: int | None = None
        adapters: None = None
        max_adapters: int = 16
        max_rank: int = 256
        max_bytes: int = 8589934592
        hf_cache_path: str | None = None
        matformer_config_path: None = None
        matformer_slice_name: None = None
        encoder_cache_memory_bytes: None = None

        def __post_init__(self) -> None:
            check_fields(self, {"dtype": _DTYPES})
            if self.max_edge is not None and self.mmproj_filename is None:
                raise UsageError(
                    "max_edge is given, and nothing that sees", hint="name it in mmproj_filename"
                )


AnyWhich = Which.Plain | Which.MultimodalPlain | Which.GGUF
_WHICH = of_type(
    'Which.Plain(model_id="…"), Which.MultimodalPlain(…) or Which.GGUF(…)',
    *(Which.Plain, Which.MultimodalPlain, Which.GGUF),
)


def _one_or_none(kind: type[Enum]) -> Kind:
    return Allowed(
        f"None, or one of {kind.__name__}",
        lambda value: value is None or isinstance(value, kind),
    )


def check_which(which: Any) -> None:
    """UsageError unless it names a model."""
    require("which", which, _WHICH)


def dtype_of(which: AnyWhich) -> Dtype:
    """The type that was asked for, as requests spell it."""
    return which.dtype.value if isinstance(which.dtype, ModelDType) else which.dtype


def vision_request(which: AnyWhich) -> VisionRequest | None:
    """How the model sees; None for one that is loaded without its eyes."""
    if isinstance(which, Which.MultimodalPlain):
        return VisionRequest(which.max_edge, which.max_num_images, which.max_image_length)
    if isinstance(which, Which.GGUF) and which.mmproj_filename is not None:
        return VisionRequest(which.max_edge)
    return None


def model_source(which: AnyWhich, token_source: str) -> ModelSource:
    """Where the model comes from, as plans and loaders see it."""
    if not isinstance(which, Which.GGUF):
        return ModelSource(
            str(which.model_id),
            "safetensors",
            token_source=token_source,
            cache_path=path_text(which.hf_cache_path),
            tokenizer_json=path_text(which.tokenizer_json),
        )
    names = which.quantized_filename
    return ModelSource(
        str(which.quantized_model_id),
        "gguf",
        filenames=tuple(names.split() if isinstance(names, str) else names),
        token_source=token_source,
        cache_path=path_text(which.hf_cache_path),
        tokenizer_json=path_text(which.tokenizer_json),
        tokenizer_model_id=path_text(which.tok_model_id),
        mmproj=path_text(which.mmproj_filename),
    )


def path_text(given: str | None) -> str | None:
    """As text, which a `Path` is accepted for too."""
    return None if given is None else str(given)
