"""Flags that go before the selector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mrs_cli.parsing.flags.no_effect_flags import NoEffectFlags
from mrs_cli.parsing.flags.option import (
    DEFAULTS,
    device_option,
    general_option,
    model_option,
    number,
    sampling_option,
)
from mrs_cli.parsing.flags.paged_flags import PagedFlags
from mrs_cli.parsing.flags.placement_flags import PlacementFlags
from mrs_cli.parsing.flags.prompt_flags import ChatFlags


@dataclass(frozen=True, eq=False, repr=False)
class PlanGlobalFlags(PagedFlags, PlacementFlags):
    """The global flags that `mrs plan` takes."""

    prefix_cache_n: Annotated[
        int | None,
        number(
            device_option,
            "prefix_cache_n",
            "N",
            "Number of past sequences in the prefix cache: a prompt that begins like one of them "
            "starts faster. 0 is off.",
        ),
    ] = None


@dataclass(frozen=True, eq=False, repr=False)
class BenchGlobalFlags(PagedFlags, PlacementFlags):
    """The global flags that `mrs bench` takes."""


@dataclass(frozen=True, eq=False, repr=False)
class LoadGlobalFlags(PlanGlobalFlags, NoEffectFlags):
    """The global flags of loading a model and answering with it."""

    max_seqs: Annotated[
        int | None,
        number(
            device_option, "max_seqs", "N", "Maximum number of sequences that run at the same time."
        ),
    ] = None
    prefix_cache_dir: Annotated[
        str | None,
        device_option(
            "--prefix-cache-dir",
            metavar="FOLDER",
            help="Also store the prefix cache in FOLDER, for later runs of the same model.",
        ),
    ] = None
    prefix_cache_dir_size: Annotated[
        str | None,
        device_option(
            "--prefix-cache-dir-size",
            metavar="SIZE",
            help="Maximum size of that folder, such as 512MiB; the least recently used sequences "
            "are deleted first.",
            show_default=DEFAULTS["prefix_cache_dir_size"],
        ),
    ] = None
    seed: Annotated[
        int | None, number(sampling_option, "seed", "N", "Sampling seed.", "-s", "random")
    ] = None
    chat_template: Annotated[
        str | None,
        model_option(
            "-c",
            "--chat-template",
            metavar="FILE",
            help="Chat template: a .jinja file, or a .json file like tokenizer_config.json.",
            show_default="the model's",
        ),
    ] = None
    jinja_explicit: Annotated[
        str | None,
        model_option(
            "-j",
            "--jinja-explicit",
            metavar="FILE",
            help="A .jinja chat template that overrides all others.",
        ),
    ] = None
    log: Annotated[
        str | None,
        general_option(
            "-l",
            "--log",
            metavar="FILE",
            help="Append every request and reply to FILE as JSON lines.",
        ),
    ] = None


@dataclass(frozen=True, eq=False, repr=False)
class GlobalFlags(LoadGlobalFlags, ChatFlags):
    """All global flags."""
