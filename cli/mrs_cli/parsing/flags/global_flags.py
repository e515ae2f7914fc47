"""Flags that go before the selector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, get_args

from mrs.request import Speculation
from mrs_cli.parsing.flags.cluster_flags import ClusterFlags
from mrs_cli.parsing.flags.config_flags import ConfigFlags
from mrs_cli.parsing.flags.no_effect_flags import NoEffectFlags
from mrs_cli.parsing.flags.option import (
    DEFAULTS,
    device_option,
    general_option,
    model_option,
    number,
    setting_option,
)
from mrs_cli.parsing.flags.paged_flags import PagedFlags
from mrs_cli.parsing.flags.placement_flags import PlacementFlags
from mrs_cli.parsing.flags.prompt_flags import ChatFlags


@dataclass(init=False, eq=False, repr=False)
class PlanGlobalFlags(PagedFlags, PlacementFlags, ClusterFlags, ConfigFlags):
    """The global flags that `mrs plan` takes."""

    prefix_cache_n: Annotated[
        int | None,
        number(
            device_option,
            "prefix_cache_n",
            "N",
            "Number of past sequences that the prefix cache keeps: a prompt that begins like one "
            "of them starts faster. 0 is off. On a CPU, the cache may take the memory of that many "
            "sequences of the planned length and one of the whole context, but at most half of the "
            "free memory.",
        ),
    ] = None
    prefix_cache_size: Annotated[
        str | None,
        device_option(
            "--prefix-cache-size",
            metavar="SIZE",
            help="The most memory of the prefix cache on all devices together, such as 2GiB; never "
            "more than is free.",
            show_default="half of what is free at most",
        ),
    ] = None
    draft_model: Annotated[
        str | None,
        device_option(
            "--draft-model",
            metavar="MODEL",
            help="A smaller model with the same vocabulary that drafts the next tokens, of which "
            "the model computes several at a time: a hub id, a folder, a .gguf file or demo.",
            show_default="none",
        ),
    ] = None
    mtp: Annotated[
        bool,
        device_option(
            "--mtp",
            help="Draft the next tokens with the draft head in the model's own files even where "
            "the plan expects no gain of it. Replies are the same, but take other random tokens at "
            "a temperature without a seed.",
        ),
    ] = False
    no_mtp: Annotated[
        bool,
        device_option(
            "--no-mtp", help="Leave the model's own draft head aside. Default on accelerators."
        ),
    ] = False


@dataclass(init=False, eq=False, repr=False)
class BenchGlobalFlags(PagedFlags, PlacementFlags, ClusterFlags, ConfigFlags):
    """The global flags that `mrs bench` takes."""


@dataclass(init=False, eq=False, repr=False)
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
    speculate: Annotated[
        Speculation | None,
        device_option(
            "--speculate",
            metavar="|".join(get_args(Speculation)),
            case_sensitive=False,
            help="Compute several tokens at a time where a reply repeats earlier text: drafts come "
            "from its prompt and itself (ngram). Replies are the same.",
            show_default=DEFAULTS["speculate"],
        ),
    ] = None
    seed: Annotated[int | None, setting_option("seed", "-s")] = None
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
            help="Append every request and reply to FILE as JSON lines; not for a server.",
        ),
    ] = None


@dataclass(init=False, eq=False, repr=False)
class GlobalFlags(LoadGlobalFlags, ChatFlags):
    """All global flags."""
