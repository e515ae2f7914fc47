"""Flags of the paged KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from typer import Option

from mrs_cli.parsing.flags.flags import Flags
from mrs_cli.parsing.setting_kinds import NumberSetting

_option = partial(Option, rich_help_panel="KV cache")
_TOKENS = NumberSetting("pa_ctxt_len", whole=True, low=1)
_FRACTION = NumberSetting("pa_gpu_mem_usage", high=1, above=True)
_MIB = NumberSetting("pa_gpu_mem", whole=True, low=1)
_BLOCK = NumberSetting("pa_blk_size", whole=True, low=1)


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
            parser=_TOKENS.from_flag,
            help="Size of the pool in tokens; overrides the other two sizes.",
        ),
    ] = None
    pa_gpu_mem_usage: Annotated[
        float | None,
        _option(
            "--pa-gpu-mem-usage",
            "--pa-memory-fraction",
            metavar="X",
            parser=_FRACTION.from_flag,
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
            parser=_MIB.from_flag,
            help="Maximum size of the pool in MiB, on all devices together.",
        ),
    ] = None
    pa_blk_size: Annotated[
        int | None,
        _option(
            "--pa-blk-size",
            "--pa-block-size",
            metavar="8|16|32|64",
            parser=_BLOCK.from_flag,
            help="Tokens per block.",
            show_default="64",
        ),
    ] = None
    pa_cache_type: Annotated[
        str | None,
        _option(
            "--pa-cache-type",
            metavar="auto|f16|bf16|f32|f8e4m3",
            help="Data type of keys and values; f8e4m3 is for NVIDIA GPUs.",
            show_default="auto: f16 if a model is quantized and on the CPU, else like --dtype",
        ),
    ] = None
