"""Flags of the paged KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from typer import Option

from mrs.request import CACHE_TYPES
from mrs.request.setting_kinds import Number
from mrs_cli.parsing.flags.flags import Flags
from mrs_cli.parsing.flags.option import flag_parser

_option = partial(Option, rich_help_panel="KV cache")
_POSITIVE = Number(1, whole=True)
_CACHE_TYPES = "|".join(CACHE_TYPES)
_FRACTION = Number(0, 1, above=True)


@dataclass(init=False, eq=False, repr=False)
class PagedFlags(Flags):
    """The size of the KV cache, and its blocks."""

    paged_attn: Annotated[
        bool,
        _option(
            "--paged-attn",
            help="Reserve the KV cache as a pool of blocks, which all sequences share; sequences "
            "that do not fit wait. Default if a size is given, and on CUDA if the first GPU holds "
            "model and pool.",
        ),
    ] = False
    no_paged_attn: Annotated[
        bool,
        _option(
            "--no-paged-attn",
            help="Reserve no pool: the KV cache grows as needed. Default in all other cases.",
        ),
    ] = False
    pa_ctxt_len: Annotated[
        int | None,
        _option(
            "--pa-ctxt-len",
            "--pa-context-len",
            metavar="TOKENS",
            parser=flag_parser("pa_ctxt_len", _POSITIVE),
            help="Size of the pool in tokens; overrides the other two sizes.",
        ),
    ] = None
    pa_gpu_mem_usage: Annotated[
        float | None,
        _option(
            "--pa-gpu-mem-usage",
            "--pa-memory-fraction",
            metavar="X",
            parser=flag_parser("pa_gpu_mem_usage", _FRACTION),
            help="Share of a CUDA GPU's memory for weights, activations and pool together, up to "
            "1; overrides --pa-gpu-mem.",
            show_default="0.9",
        ),
    ] = None
    pa_gpu_mem: Annotated[
        int | None,
        _option(
            "--pa-gpu-mem",
            "--pa-memory-mb",
            metavar="MIB",
            parser=flag_parser("pa_gpu_mem", _POSITIVE),
            help="Maximum size of the pool in MiB, on all devices together.",
        ),
    ] = None
    pa_blk_size: Annotated[
        int | None,
        _option(
            "--pa-blk-size",
            "--pa-block-size",
            metavar="8|16|32|64",
            parser=flag_parser("pa_blk_size", _POSITIVE),
            help="Tokens per block; q8_0 and q4_0 need 64.",
            show_default="64",
        ),
    ] = None
    pa_cache_type: Annotated[
        str | None,
        _option(
            "--pa-cache-type",
            metavar=_CACHE_TYPES,
            help="Data type of keys and values; f8e4m3 is for NVIDIA GPUs, q8_0 and q4_0 for CPUs.",
            show_default="auto: f16 if a model is quantized and on the CPU, f32 there with "
            "--activations 16, else like --dtype",
        ),
    ] = None
    cache_type_k: Annotated[
        str | None,
        _option(
            "-ctk",
            "--cache-type-k",
            metavar=_CACHE_TYPES,
            help="Data type of keys alone; keys and values are both quantized or of one type.",
            show_default="that of --pa-cache-type",
        ),
    ] = None
    cache_type_v: Annotated[
        str | None,
        _option(
            "-ctv",
            "--cache-type-v",
            metavar=_CACHE_TYPES,
            help="Data type of values alone.",
            show_default="that of --pa-cache-type",
        ),
    ] = None
