"""Flags of `mrs` and of the commands `plan`, `bench` and `cache` themselves, and of output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer
from typer import Argument

from mrs_cli.parsing.flags.flags import Flags
from mrs_cli.parsing.flags.model_flags import HUB_CACHE_DEFAULT
from mrs_cli.parsing.flags.option import (
    FIRST,
    USUAL,
    general_option,
    model_option,
    planning_option,
    timing_option,
)

Html = Annotated[
    str | None,
    planning_option(
        "--html",
        metavar="FILE",
        help="Write charts and the figures to this page, too: a file that loads nothing.",
    ),
    USUAL,
]


@dataclass(init=False, eq=False, repr=False)
class OutputFlags(Flags):
    """What is printed, and in which form; these flags go before or after the selector."""

    json: Annotated[
        bool,
        general_option("--json", help="Print one JSON object per reply, plan or table."),
        USUAL,
    ] = False
    quiet: Annotated[
        bool, general_option("-q", "--quiet", help="Print replies and errors only.")
    ] = False
    verbose: Annotated[
        int,
        general_option(
            "-v",
            "--verbose",
            count=True,
            help="Print more on standard error; -vv adds tracebacks.",
            show_default=False,
        ),
        USUAL,
    ] = 0


@dataclass(init=False, eq=False, repr=False)
class PlanFlags(Flags):
    """Flags of `mrs plan`."""

    dry_run: Annotated[
        bool,
        planning_option(
            "--dry-run", help="Read file headers only: no download, no loading, no measuring."
        ),
        USUAL,
    ] = False
    device: Annotated[
        list[str] | None,
        planning_option(
            "--device",
            metavar="DEVICE",
            help="Plan for this device, even if this machine lacks it. Give its memory "
            "(cuda:0=24GiB, cpu=64GiB or cuda:1=16GiB,bandwidth=448GB/s) or its name "
            '("RTX 4090", "2x RTX 3090" or "M4 Max 64GB"). Implies --dry-run. May be given several '
            "times.",
        ),
        USUAL,
    ] = None
    machine: Annotated[
        list[str] | None,
        planning_option(
            "--machine",
            metavar="MACHINE",
            help="Plan over machines, of which the first is the coordinator: "
            "NAME=cuda:0=24GiB,cpu=64GiB,link=10Gbit/s,latency=0.1ms. With "
            "nodes=2 its CPU has two memory nodes. Implies --dry-run. May be given several times.",
        ),
    ] = None
    html: Html = None
    solve: Annotated[
        str | None, planning_option("--solve", metavar="GOAL", help="The old name of mrs fit.")
    ] = None


@dataclass(init=False, eq=False, repr=False)
class FitFlags(Flags):
    """Flags of `mrs fit`."""

    on: Annotated[
        list[str] | None,
        planning_option(
            "--on",
            metavar="MACHINE",
            help='Answer for this machine instead: "RTX 4090", "2x RTX 3090 + cpu=64GiB", '
            '"M4 Max 64GB". May be given several times.',
        ),
        USUAL,
    ] = None
    html: Html = None
    device: Annotated[
        list[str] | None,
        planning_option(
            "--device",
            metavar="DEVICE",
            help="A device of one machine, as mrs plan takes it, instead of --on.",
        ),
    ] = None


@dataclass(init=False, eq=False, repr=False)
class QuantizeFlags(Flags):
    """Flags of `mrs quantize`."""

    output: Annotated[
        str | None,
        model_option(
            "-o",
            "--output",
            metavar="PATH",
            help="A .gguf file; a folder for UQFF files; or a .uqff file, whose shards get "
            "numbers.",
        ),
        USUAL,
    ] = None

    bits: Annotated[
        float | None,
        model_option(
            "--bits",
            metavar="BITS",
            min=1,
            max=32,
            help="Bits a weight of a GGUF file, on average: each matrix gets the format that "
            "loses least on the text of --calibration-file.",
        ),
        USUAL,
    ] = None
    size: Annotated[
        str | None,
        model_option("--size", metavar="SIZE", help="The same for a file of this size, as 18GiB."),
    ] = None
    fit: Annotated[
        str | None,
        model_option(
            "--fit",
            metavar="MACHINE",
            help='The same for the weights that fit a machine, such as "RTX 4090".',
        ),
    ] = None
    max_shard_size: Annotated[
        str | None,
        model_option(
            "--max-shard-size",
            metavar="SIZE",
            help="Write a larger GGUF file in shards of at most this size, such as 4GiB.",
        ),
    ] = None

    @property
    def writes_gguf(self) -> bool:
        """Whether the output is a GGUF file."""
        return (self.output or "").endswith(".gguf")


@dataclass(init=False, eq=False, repr=False)
class EvalFlags(Flags):
    """Flags of `mrs eval`."""

    reference: Annotated[
        str | None,
        timing_option(
            "--reference",
            metavar="exact|none|MODEL",
            help="What the model is compared with: its own weights computed in float32 (exact), "
            "another model with the same vocabulary, or nothing: perplexity alone.",
            show_default="exact",
        ),
        USUAL,
    ] = None
    text: Annotated[
        str | None,
        timing_option(
            "--text",
            metavar="FILE",
            help="Text to compute.",
            show_default="a text that comes with mrs",
        ),
        USUAL,
    ] = None
    tokens: Annotated[
        str | None,
        timing_option(
            "--tokens", metavar="FILE", help="Token ids to compute instead: a JSON array."
        ),
    ] = None
    context_length: Annotated[
        int,
        timing_option(
            "--context-length",
            "--ctx-size",
            metavar="N",
            min=2,
            help="Tokens of a window. Windows are computed apart from each other.",
        ),
        USUAL,
    ] = 512
    stride: Annotated[
        int | None,
        timing_option(
            "--stride",
            metavar="N",
            min=1,
            help="Tokens between the beginnings of windows; the last N of each are scored.",
            show_default="windows follow each other, and the second half of each is scored",
        ),
        USUAL,
    ] = None
    windows: Annotated[
        int | None,
        timing_option(
            "--windows",
            "--chunks",
            metavar="N",
            min=1,
            help="The most windows.",
            show_default="all of the text",
        ),
        USUAL,
    ] = None
    cache_types: Annotated[
        str | None,
        timing_option(
            "--cache-types",
            metavar="TYPES",
            help="Types of keys and values, such as f16,f32: each is tried with each --isq.",
            show_default="that of --pa-cache-type",
        ),
    ] = None
    plot: Annotated[
        str | None,
        timing_option(
            "--plot",
            metavar="FILE.svg",
            help="Draw the divergence over the bytes of the weights, too.",
        ),
        USUAL,
    ] = None


@dataclass(init=False, eq=False, repr=False)
class DoctorFlags(Flags):
    """Flags of `mrs doctor`."""

    gpu: Annotated[
        bool,
        general_option("--gpu", help="Run the kernels of each GPU, and check nothing else."),
        USUAL,
    ] = False


@dataclass(init=False, eq=False, repr=False)
class CacheFlags(Flags):
    """Flags of `mrs cache`."""

    hf_cache_path: Annotated[
        str | None,
        general_option(
            "--hf-cache-path",
            "--hf-cache",
            metavar="FOLDER",
            help="Hub cache.",
            show_default=HUB_CACHE_DEFAULT,
        ),
        USUAL,
    ] = None
    prefix_cache_dir: Annotated[
        str | None,
        general_option(
            "--prefix-cache-dir", metavar="FOLDER", help="Prefix cache.", show_default="none"
        ),
    ] = None


@dataclass(init=False, eq=False, repr=False)
class DeleteFlags(Flags):
    """Flags of `mrs cache delete`."""

    model_id: Annotated[
        str | None,
        general_option("-m", "--model-id", metavar="ID", help="Hub id of the model."),
        USUAL,
    ] = None
    yes: Annotated[bool, general_option("-y", "--yes", help="Delete without asking."), USUAL] = (
        False
    )


@dataclass(init=False, eq=False, repr=False)
class ServerWords(Flags):
    """The servers of `mrs stop`."""

    servers: Annotated[
        list[str] | None,
        Argument(
            rich_help_panel="Server",
            metavar="[PID|MODEL|all]...",
            help="Which servers, if several run.",
        ),
        USUAL,
    ] = None


@dataclass(init=False, eq=False, repr=False)
class SessionWords(Flags):
    """The words of `mrs sessions`."""

    words: Annotated[
        list[str] | None,
        Argument(
            rich_help_panel="Prompt",
            metavar="[WORDS]...",
            help="Only sessions with all of these words.",
        ),
        USUAL,
    ] = None


@dataclass(init=False, eq=False, repr=False)
class ShellFlags(Flags):
    """The shell of `mrs completions`."""

    shell: Annotated[
        Literal["bash", "zsh", "fish"],
        Argument(rich_help_panel="General", metavar="bash|zsh|fish", help="Shell."),
        USUAL,
    ]


@dataclass(init=False, eq=False, repr=False)
class BenchFlags(Flags):
    """Flags of `mrs bench`."""

    prompt_tokens: Annotated[
        int,
        timing_option(
            "-p",
            "--prompt-tokens",
            "--n-prompt",
            "--prompt-len",
            metavar="N",
            min=1,
            help="Tokens of the prompt.",
        ),
        USUAL,
    ] = 512
    new_tokens: Annotated[
        int,
        timing_option(
            "-g",
            "--new-tokens",
            "--n-gen",
            "--gen-len",
            metavar="N",
            min=2,
            help="Tokens of the reply (-n is for layers).",
        ),
        USUAL,
    ] = 64
    rounds: Annotated[
        int,
        timing_option(
            "-r",
            "--rounds",
            "--repetitions",
            "--iterations",
            metavar="N",
            min=1,
            help="Number of rounds that count.",
        ),
        USUAL,
    ] = 3
    warmup: Annotated[
        int, timing_option("--warmup", metavar="N", min=0, help="Rounds before those that count.")
    ] = 1
    depth: Annotated[
        int,
        timing_option(
            "--depth",
            metavar="N",
            min=0,
            help="Tokens that precede the prompt and are not measured.",
        ),
    ] = 0
    concurrency: Annotated[
        int,
        timing_option(
            "-c",
            "--concurrency",
            metavar="N",
            min=1,
            help="Sequences at the same time; speeds are those of all together.",
        ),
        USUAL,
    ] = 1
    drafts: Annotated[
        bool,
        timing_option(
            "--drafts",
            help="Also measure replies with drafts of tokens and without: how many are accepted "
            "by their position, and what they gain. Later plans know it.",
        ),
    ] = False


def _show_version(given: bool) -> None:
    if given:
        import mrs_cli

        typer.echo(f"mrs {mrs_cli.version()}")
        raise typer.Exit


@dataclass(frozen=True)
class RootFlags:
    """Flags of `mrs` itself."""

    version: Annotated[
        bool,
        general_option(
            "-V",
            "--version",
            help="Show the version and exit.",
            is_eager=True,
            callback=_show_version,
        ),
        FIRST,
    ] = False
