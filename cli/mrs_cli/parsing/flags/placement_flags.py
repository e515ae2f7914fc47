"""Flags for placement and precision, which every command that loads or plans a model has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from mrs.request import Strategy
from mrs_cli.parsing import shell_completion
from mrs_cli.parsing.flags.flags import Flags
from mrs_cli.parsing.flags.option import DEFAULTS, FIRST, USUAL, device_option, model_option


@dataclass(init=False, eq=False, repr=False)
class PlacementFlags(Flags):
    """Where layers go, in which precision, and what the plan may use."""

    num_device_layers: Annotated[
        str | None,
        device_option(
            "-n",
            "--num-device-layers",
            "--device-layers",
            metavar="LAYERS",
            help="Number of layers on each accelerator; the rest go to the CPU. "
            '"16": on the first accelerator; "0:16;1:16": on accelerators 0 and 1.',
            show_default="automatic",
        ),
        USUAL,
    ] = None
    isq: Annotated[
        str | None,
        device_option(
            "--isq",
            "--quant",
            metavar="FORMAT",
            autocompletion=shell_completion.isq_formats,
            help="Quantize the weights while loading, such as q4k. Formats: q4_0 q4_1 q5_0 q5_1 "
            "q8_0 q2k q3k q4k q5k q6k, afq2 afq3 afq4 afq6 afq8 hqq4 hqq8 fp8 mxfp4, or a number "
            "of bits: 2 3 4 5 6 8.",
        ),
        FIRST,
    ] = None
    activations: Annotated[
        Literal["8", "16"] | None,
        device_option(
            "--activations",
            metavar="8|16",
            help="Significant bits of activations in products on the CPU. With 16, replies are "
            "almost those of float32, and prompts take up to twice the time.",
            show_default=str(DEFAULTS["activations"]),
        ),
    ] = None
    cpu: Annotated[bool, device_option("--cpu", help="Use the CPU only."), USUAL] = False
    strategy: Annotated[
        Strategy | None,
        device_option(
            "--strategy",
            metavar="|".join(get_args(Strategy)),
            case_sensitive=False,
            help="Fill one device after another, spread layers evenly, or place them for speed.",
            show_default=DEFAULTS["strategy"],
        ),
    ] = None
    disk_layers: Annotated[
        str | None,
        device_option(
            "--disk-layers",
            metavar="N|auto",
            help="Leave N layers of the CPU on disk, and read them again for each token; with auto "
            "as many as do not fit in memory, after tables of embeddings.",
            show_default="0",
        ),
    ] = None
    no_cpu_spill: Annotated[
        bool,
        device_option(
            "--no-cpu-spill",
            help="Fail if the accelerators cannot hold all layers, instead of using the CPU.",
        ),
    ] = False
    no_calibration: Annotated[
        bool,
        device_option(
            "--no-calibration", help="Ignore what earlier runs measured on this machine."
        ),
    ] = False
    plan_file: Annotated[
        str | None,
        device_option(
            "--plan",
            metavar="FILE",
            help="Run exactly the plan saved by mrs plan --json. Flags that contradict it are "
            "ignored with a warning.",
        ),
    ] = None
    no_kv_cache: Annotated[
        bool,
        device_option("--no-kv-cache", help="Compute the whole sequence again for every token."),
    ] = False
    token_source: Annotated[
        str | None,
        model_option(
            "--token-source",
            metavar="SOURCE",
            help="Source of the hub token: literal:VALUE, env:NAME, path:FILE, cache or none.",
            show_default=DEFAULTS["token_source"],
        ),
    ] = None
