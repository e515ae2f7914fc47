"""Which model a `Runner` loads, and with which type and vision settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Any

from mrs.api.architectures import (
    Architecture,
    EmbeddingArchitecture,
    ModelDType,
    VisionArchitecture,
)
from mrs.api.checks import check_fields
from mrs.api.field_types import Allowed, FieldType, of_type, one_of, require
from mrs.api.given_fields import GivenFields
from mrs.api.lora_adapter import LoraAdapter
from mrs.errors import UsageError
from mrs.request import AdapterRequest, Dtype, ModelSource, RunRequest, VisionRequest
from mrs.source.address import split_names

AnyDtype = ModelDType | Dtype
_DTYPES = one_of(*(each.value for each in ModelDType), *ModelDType)


class Which:
    """The kinds of models: `Plain`, `MultimodalPlain`, `Embedding`, `GGUF` and `Lora`.

    Their fields and the order of these are those of the Python package mistralrs, and some more as
    keyword arguments; a field that is not supported accepts its default value only. Raises
    UsageError and Unsupported.
    """

    @dataclass(frozen=True, repr=False)
    class Plain(GivenFields):
        """A text model in safetensors files: a hub id, a local folder, or `demo`."""

        model_id: str
        arch: Architecture | None = None
        tokenizer_json: str | None = None
        topology: None = None
        organization: None = None
        write_uqff: str | None = None
        from_uqff: str | Sequence[str] | None = None
        dtype: AnyDtype = "auto"
        imatrix: str | None = None
        calibration_file: str | None = None
        hf_cache_path: str | None = None
        matformer_config_path: None = None
        matformer_slice_name: None = None

        def __post_init__(self) -> None:
            check_fields(self, {"arch": _one_or_none(Architecture), "dtype": _DTYPES})

    @dataclass(frozen=True, repr=False)
    class MultimodalPlain(GivenFields):
        """A vision model in safetensors files: a hub id or a local folder.

        Images with an edge longer than `max_edge` pixels are scaled down, if the architecture
        accepts images of any size. The plan reserves memory for `max_num_images` images of
        `max_image_length` x `max_image_length` pixels; requests may have more and larger ones. Of
        a model that hears it does so for audio files of `max_audio_seconds`, the longest that it
        accepts.
        """

        model_id: str
        arch: VisionArchitecture | None = None
        tokenizer_json: str | None = None
        topology: None = None
        write_uqff: str | None = None
        from_uqff: str | Sequence[str] | None = None
        dtype: AnyDtype = "auto"
        max_edge: int | None = None
        calibration_file: str | None = None
        imatrix: str | None = None
        hf_cache_path: str | None = None
        matformer_config_path: None = None
        matformer_slice_name: None = None
        organization: None = None
        encoder_cache_memory_bytes: None = None
        _: KW_ONLY
        max_num_images: int = 1
        max_image_length: int = 1024
        max_audio_seconds: int = 120

        def __post_init__(self) -> None:
            check_fields(self, {"arch": _one_or_none(VisionArchitecture), "dtype": _DTYPES})

    VisionPlain = MultimodalPlain

    @dataclass(frozen=True, repr=False)
    class Lora(GivenFields):
        """A text model in safetensors files, with `adapters` among which requests choose.

        The limits of adapters have no effect: all of them are loaded with the model.
        """

        model_id: str
        adapters: Sequence[LoraAdapter] | None = None
        arch: Architecture | None = None
        tokenizer_json: str | None = None
        topology: None = None
        write_uqff: str | None = None
        from_uqff: str | Sequence[str] | None = None
        dtype: AnyDtype = "auto"
        hf_cache_path: str | None = None
        max_adapters: int = 16
        max_rank: int = 256
        max_bytes: int = 8589934592

        def __post_init__(self) -> None:
            check_fields(self, {"arch": _one_or_none(Architecture), "dtype": _DTYPES})

    @dataclass(frozen=True, repr=False)
    class Embedding(GivenFields):
        """A model that makes embeddings of texts: a hub id or a local folder."""

        model_id: str
        arch: EmbeddingArchitecture | None = None
        tokenizer_json: str | None = None
        topology: None = None
        write_uqff: str | None = None
        from_uqff: str | Sequence[str] | None = None
        dtype: AnyDtype = "auto"
        hf_cache_path: str | None = None
        imatrix: str | None = None
        calibration_file: str | None = None

        def __post_init__(self) -> None:
            check_fields(self, {"arch": _one_or_none(EmbeddingArchitecture), "dtype": _DTYPES})

    @dataclass(frozen=True, repr=False)
    class GGUF(GivenFields):
        """A model in GGUF files: a hub id or folder and file names, or the path of one file.

        `tok_model_id` is a model whose tokenizer and chat template replace those of the file.
        `mmproj_filename` is the file with the vision tower, in the same folder; it makes this a
        vision model. Requests choose among `adapters`; their limits have no effect, as they are
        all loaded with the model.
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
        imatrix: str | None = None
        calibration_file: str | None = None
        max_edge: int | None = None
        adapters: Sequence[LoraAdapter] | None = None
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
                    "max_edge needs a vision model", hint="name its file in mmproj_filename"
                )


AnyWhich = Which.Plain | Which.MultimodalPlain | Which.Embedding | Which.GGUF | Which.Lora
_WHICH = of_type(
    'Which.Plain(model_id="…"), Which.MultimodalPlain(…), Which.Embedding(…), Which.GGUF(…) or '
    "Which.Lora(…)",
    *(Which.Plain, Which.MultimodalPlain, Which.Embedding, Which.GGUF, Which.Lora),
)


def _one_or_none(enum: type[Enum]) -> FieldType:
    return Allowed(
        f"None, or one of {enum.__name__}",
        lambda value: value is None or isinstance(value, enum),
    )


def check_which(which: Any) -> None:
    """Raise UsageError unless `which` is one of the classes in `Which`."""
    require("which", which, _WHICH)


def dtype_of(which: AnyWhich) -> Dtype:
    """The requested type of the weights, as a `RunRequest` spells it."""
    return which.dtype.value if isinstance(which.dtype, ModelDType) else which.dtype


def vision_request(which: AnyWhich) -> VisionRequest | None:
    """The vision settings; None if the model is loaded without vision support."""
    if isinstance(which, Which.MultimodalPlain):
        return VisionRequest(
            which.max_edge, which.max_num_images, which.max_image_length, which.max_audio_seconds
        )
    if isinstance(which, Which.GGUF) and which.mmproj_filename is not None:
        return VisionRequest(which.max_edge)
    return None


def adapters_of(which: AnyWhich) -> tuple[AdapterRequest, ...]:
    """The adapters among which requests choose."""
    given = which.adapters if isinstance(which, (Which.Lora, Which.GGUF)) else None
    return tuple(each.request() for each in given or ())


def model_source(which: AnyWhich, token_source: str) -> ModelSource:
    """Where the model comes from, as a `RunRequest` has it."""
    if not isinstance(which, Which.GGUF):
        return ModelSource(
            str(which.model_id),
            "safetensors",
            token_source=token_source,
            cache_path=path_text(which.hf_cache_path),
            tokenizer_json=path_text(which.tokenizer_json),
            uqff=_uqff_names(which.from_uqff),
        )
    names = which.quantized_filename
    return ModelSource(
        str(which.quantized_model_id),
        "gguf",
        filenames=split_names(names) if isinstance(names, str) else tuple(names),
        token_source=token_source,
        cache_path=path_text(which.hf_cache_path),
        tokenizer_json=path_text(which.tokenizer_json),
        tokenizer_model_id=path_text(which.tok_model_id),
        mmproj=path_text(which.mmproj_filename),
    )


def model_request(
    which: AnyWhich, in_situ_quant: str | int | None, token_source: str
) -> RunRequest:
    """The model that `which` names and how it is stored; all other settings have their defaults."""
    source = model_source(which, token_source)
    arch = None if isinstance(which, Which.GGUF) else which.arch
    return RunRequest(
        source,
        arch=None if arch is None else arch.value,
        dtype=dtype_of(which),
        isq=isq_format(in_situ_quant, source),
        imatrix=path_text(getattr(which, "imatrix", None)),
        vision=vision_request(which),
        adapters=adapters_of(which),
    )


def _uqff_names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    return tuple(given.split(";")) if isinstance(given, str) else tuple(map(str, given))


def path_text(given: str | None) -> str | None:
    """A path as a string; `given` may be a `Path` despite its type."""
    return None if given is None else str(given)


def layer_map(given: Sequence[str] | str | int | None) -> str | None:
    """`device_map` as `-n` spells it; None to place layers automatically."""
    if given is None or isinstance(given, (str, int)):
        return None if given is None else str(given)
    return ";".join(given)


def isq_format(given: str | int | None, source: ModelSource) -> str | None:
    """`in_situ_quant` as `--isq` spells it (`4bit` is `4`); weights in UQFF files keep theirs."""
    if given is None or source.uqff:
        return None
    return str(given).strip().lower().removesuffix("bit").rstrip("-_ ")
