"""Flags after the selector that name the model, a group for each selector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mrs_cli.parsing import shell_completion
from mrs_cli.parsing.flags.option import model_option
from mrs_cli.parsing.flags.planning_flags import ImageFlags

HUB_CACHE_DEFAULT = "from HF_HUB_CACHE or HF_HOME"


@dataclass(frozen=True, eq=False, repr=False)
class PlainFlags:
    """A text model in safetensors format."""

    model_id: Annotated[
        str,
        model_option(
            "-m",
            "--model-id",
            metavar="ID",
            autocompletion=shell_completion.plain_models,
            help="Model: hub id or its web address, local folder, or demo.",
        ),
    ]
    arch: Annotated[
        str | None,
        model_option(
            "-a",
            "--arch",
            metavar="NAME",
            autocompletion=shell_completion.architectures,
            help="Architecture.",
            show_default="from config.json",
        ),
    ] = None
    tokenizer_json: Annotated[
        str | None,
        model_option(
            "-t",
            "--tokenizer-json",
            metavar="FILE",
            help="Use this tokenizer.json instead of the model's.",
        ),
    ] = None
    hf_cache_path: Annotated[
        str | None,
        model_option(
            "--hf-cache-path",
            metavar="FOLDER",
            help="Hub cache.",
            show_default=HUB_CACHE_DEFAULT,
        ),
    ] = None


@dataclass(frozen=True, eq=False, repr=False)
class VisionFlags(ImageFlags, PlainFlags):
    """A vision model in safetensors format."""


@dataclass(frozen=True, eq=False, repr=False)
class GgufModelFlags:
    """The language model of a GGUF model."""

    quantized_model_id: Annotated[
        str,
        model_option(
            "-m",
            "--quantized-model-id",
            metavar="ID",
            autocompletion=shell_completion.gguf_models,
            help="Model: hub id or its web address, local folder, .gguf file, or demo.",
        ),
    ]
    quantized_filename: Annotated[
        list[str] | None,
        model_option(
            "-f",
            "--quantized-filename",
            metavar="FILE",
            help="File of the model; if it is split, the first file is enough.",
            show_default="the only model there",
        ),
    ] = None
    tok_model_id: Annotated[
        str | None,
        model_option(
            "-t",
            "--tok-model-id",
            metavar="ID",
            help="Take the tokenizer and the chat template from this model.",
            show_default="from the GGUF file",
        ),
    ] = None


@dataclass(frozen=True, eq=False, repr=False)
class GgufFlags(ImageFlags, GgufModelFlags):
    """A GGUF model, which may have a projector file for images."""

    mmproj: Annotated[
        str | None,
        model_option(
            "--mmproj",
            metavar="FILE",
            help="Projector file (mmproj), which makes this a vision model.",
            show_default="none, text only",
        ),
    ] = None
