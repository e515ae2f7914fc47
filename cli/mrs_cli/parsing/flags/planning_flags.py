"""Flags for the workload to plan for; they go after the selector."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, get_args

from mrs.request import DEFAULT_SEQ_TOKENS, Dtype
from mrs_cli.parsing.flags.flags import Flags
from mrs_cli.parsing.flags.option import DEFAULTS, USUAL, device_option, model_option, number

_number = partial(number, device_option)


@dataclass(init=False, eq=False, repr=False)
class PlanningFlags(Flags):
    """The precision and the workload that a plan counts with."""

    dtype: Annotated[
        Dtype | None,
        device_option(
            "-d",
            "--dtype",
            metavar="|".join(get_args(Dtype)),
            case_sensitive=False,
            help="Data type of weights that are not quantized.",
            show_default=DEFAULTS["dtype"],
        ),
    ] = None
    topology: Annotated[
        str | None,
        device_option(
            "--topology",
            metavar="FILE",
            help="YAML file with the quantization (isq) and the device of layers, such as 0-8, and "
            "of tensors by regular expressions, such as /experts/.",
        ),
    ] = None
    organization: Annotated[
        str | None,
        device_option(
            "-o",
            "--organization",
            "--isq-organization",
            metavar="default|moqe",
            help="What --isq quantizes: all matrices, or with moqe only the experts of mixtures of "
            "experts.",
            show_default="default",
        ),
    ] = None
    imatrix: Annotated[
        str | None,
        device_option(
            "--imatrix",
            metavar="FILE",
            help="Importance matrix of llama.cpp (.dat, .gguf) or mistral.rs (.cimatrix): --isq "
            "loses less in columns that count more.",
        ),
    ] = None
    calibration_file: Annotated[
        str | None,
        device_option(
            "--calibration-file",
            metavar="FILE",
            help="Calibration text: measures which weights matter most before --isq quantizes.",
        ),
    ] = None
    n_cpu_moe: Annotated[
        int | None,
        device_option(
            "--n-cpu-moe",
            metavar="N",
            min=0,
            help="Put the experts of the first N layers on the CPU.",
        ),
    ] = None
    cpu_moe: Annotated[
        bool, device_option("--cpu-moe", help="Put the experts of all layers on the CPU.")
    ] = False
    lora: Annotated[
        list[str] | None,
        model_option(
            "--lora",
            metavar="NAME=ID",
            help="LoRA adapter (hub id or local folder) that requests choose by its name. May be "
            "given several times.",
        ),
    ] = None
    max_seq_len: Annotated[
        int | None,
        _number(
            "max_seq_len",
            "TOKENS",
            "Sequence length to plan for (a hint, not a limit).",
            default=str(DEFAULT_SEQ_TOKENS),
        ),
        USUAL,
    ] = None
    max_batch_size: Annotated[
        int | None,
        _number("max_batch_size", "N", "Batch size to plan for (a hint, not a limit)."),
    ] = None


@dataclass(init=False, eq=False, repr=False)
class ImageFlags(Flags):
    """The images and audio files that a plan counts with."""

    max_edge: Annotated[
        int | None,
        _number(
            "max_edge",
            "PIXELS",
            "Shrink images with a longer edge, for models that take images of any size.",
            "-e",
            "never shrink",
        ),
    ] = None
    max_num_images: Annotated[
        int | None,
        _number(
            "max_num_images",
            "N",
            "Images or audio files per sequence to plan for (a hint, not a limit).",
        ),
    ] = None
    max_image_length: Annotated[
        int | None,
        _number(
            "max_image_length",
            "PIXELS",
            "Edge length of images to plan for (a hint, not a limit).",
        ),
    ] = None
    max_audio_seconds: Annotated[
        int | None,
        _number(
            "max_audio_seconds",
            "SECONDS",
            "Longest audio file of a model that hears: planned for, and longer ones are refused.",
        ),
    ] = None
