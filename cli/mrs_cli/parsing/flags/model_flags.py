"""Flags after the selector that name the model, a group for each selector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from mrs_cli.parsing import shell_completion
from mrs_cli.parsing.flags.flags import Flags
from mrs_cli.parsing.flags.option import FIRST, USUAL, model_option
from mrs_cli.parsing.flags.planning_flags import ImageFlags

HUB_CACHE_DEFAULT = "from HF_HUB_CACHE or HF_HOME"
FROM_UQFF_HELP = (
    "UQFF file in the model's folder, or its quantization, such as q4k; of several shards, name "
    "the first."
)
WRITE_UQFF_HELP = (
    "Write the weights, quantized by --isq, before the model runs: a folder, or a .uqff file whose "
    "shards get numbers."
)
Format = Literal["plain", "gguf"]


@dataclass(init=False, eq=False, repr=False)
class PlainFlags(Flags):
    """A text model in safetensors format."""

    model_id: Annotated[
        str,
        model_option(
            "-m",
            "--model-id",
            metavar="ID",
            autocompletion=shell_completion.plain_models,
            help="Hub id, web address, folder or demo.",
        ),
        USUAL,
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
            "--tokenizer",
            metavar="FILE",
            help="Use the tokenizer in this file, such as tokenizer.json or tekken.json.",
        ),
    ] = None
    hf_cache_path: Annotated[
        str | None,
        model_option(
            "--hf-cache-path",
            "--hf-cache",
            metavar="FOLDER",
            help="Hub cache.",
            show_default=HUB_CACHE_DEFAULT,
        ),
    ] = None
    from_uqff: Annotated[
        list[str] | None,
        model_option("-f", "--from-uqff", metavar="FILE", help=FROM_UQFF_HELP),
        USUAL,
    ] = None
    write_uqff: Annotated[
        str | None,
        model_option("-w", "--write-uqff", metavar="PATH", help=WRITE_UQFF_HELP),
    ] = None


@dataclass(init=False, eq=False, repr=False)
class VisionFlags(ImageFlags, PlainFlags):
    """A vision model in safetensors format."""


@dataclass(init=False, eq=False, repr=False)
class GgufModelFlags(Flags):
    """The language model of a GGUF model."""

    quantized_model_id: Annotated[
        str,
        model_option(
            "-m",
            "--quantized-model-id",
            metavar="ID",
            autocompletion=shell_completion.gguf_models,
            help="Hub id, web address, folder, .gguf file or demo.",
        ),
        USUAL,
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
        USUAL,
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


@dataclass(init=False, eq=False, repr=False)
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
        USUAL,
    ] = None


_ADAPTER_HELP = "LoRA adapter: hub id or local folder; several are separated by ; or given again."


@dataclass(init=False, eq=False, repr=False)
class LoraFlags(PlainFlags):
    """A text model in safetensors format, and the adapters that are added to its weights."""

    arch: Annotated[
        str | None,
        model_option(
            "--arch",
            metavar="NAME",
            autocompletion=shell_completion.architectures,
            help="Architecture.",
            show_default="from config.json",
        ),
    ] = None
    adapters: Annotated[
        list[str] | None,
        model_option(
            "-a", "--adapter-model-id", "--adapters-model-id", metavar="ID", help=_ADAPTER_HELP
        ),
        USUAL,
    ] = None


@dataclass(init=False, eq=False, repr=False)
class LoraGgufFlags(GgufFlags):
    """A GGUF model, and the adapters that are added to its weights."""

    adapters: Annotated[
        list[str] | None,
        model_option(
            "-a", "--adapters-model-id", "--adapter-model-id", metavar="ID", help=_ADAPTER_HELP
        ),
        USUAL,
    ] = None


@dataclass(init=False, eq=False, repr=False)
class AnyModelFlags(ImageFlags):
    """A model whose kind its files tell."""

    model_id: Annotated[
        str | None,
        model_option(
            "-m",
            "--model-id",
            metavar="ID",
            autocompletion=shell_completion.all_models,
            help="Hub id, web address, folder, .gguf file or demo.",
        ),
        FIRST,
    ] = None
    filename: Annotated[
        list[str] | None,
        model_option(
            "-f",
            "--filename",
            "--quantized-file",
            metavar="FILE",
            help="GGUF or UQFF file of the model; if it is split, the first file is enough. "
            "Without -m, the path of a file.",
            show_default="the only model there",
        ),
        USUAL,
    ] = None
    arch: Annotated[
        str | None,
        model_option(
            "-a",
            "--arch",
            metavar="NAME",
            autocompletion=shell_completion.architectures,
            help="Architecture of a model in safetensors format.",
            show_default="from config.json",
        ),
    ] = None
    tokenizer_json: Annotated[
        str | None,
        model_option(
            "-t",
            "--tokenizer",
            "--tokenizer-json",
            metavar="FILE",
            help="Use the tokenizer in this file, such as tokenizer.json or tekken.json.",
        ),
    ] = None
    tok_model_id: Annotated[
        str | None,
        model_option(
            "--tok-model-id",
            metavar="ID",
            help="Take the tokenizer and the chat template of a GGUF model from this model.",
        ),
    ] = None
    mmproj: Annotated[
        str | None,
        model_option(
            "--mmproj",
            metavar="FILE",
            help="Projector file (mmproj), which makes a GGUF model a vision model.",
            show_default="the one beside the model, if it fits",
        ),
    ] = None
    format: Annotated[
        Format | None,
        model_option(
            "--format",
            metavar="|".join(get_args(Format)),
            case_sensitive=False,
            help="Format of the model's files: safetensors (plain) or GGUF.",
            show_default="by the files",
        ),
    ] = None
    hf_cache_path: Annotated[
        str | None,
        model_option(
            "--hf-cache-path",
            "--hf-cache",
            metavar="FOLDER",
            help="Hub cache.",
            show_default=HUB_CACHE_DEFAULT,
        ),
    ] = None
    from_uqff: Annotated[
        list[str] | None,
        model_option("--from-uqff", metavar="FILE", help=FROM_UQFF_HELP),
    ] = None
    write_uqff: Annotated[
        str | None,
        model_option("-w", "--write-uqff", metavar="PATH", help=WRITE_UQFF_HELP),
    ] = None
