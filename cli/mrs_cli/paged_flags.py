"""Flags of the paged KV cache, and the request that they make."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from typer import Option

from mrs.errors import UsageError
from mrs.request import PagedRequest
from mrs_cli.settings import Setting

_cache = partial(Option, rich_help_panel="KV cache")
_TOKENS = Setting("pa_ctxt_len", whole=True, low=1)
_FRACTION = Setting("pa_gpu_mem_usage", high=1, above=True)
_MIB = Setting("pa_gpu_mem", whole=True, low=1)
_BLOCK = Setting("pa_blk_size", whole=True, low=1)


@dataclass(frozen=True, eq=False, repr=False)
class PagedFlags:
    """How large the KV cache may become, and what its blocks are."""

    paged_attn: Annotated[
        bool,
        _cache(
            "--paged-attn",
            help="Reserve the KV cache as a pool of blocks that all sequences share and that never "
            "grows; those that do not fit wait. This is the default where a size of it is given, "
            "and on CUDA where the first GPU holds model and pool.",
        ),
    ] = False
    no_paged_attn: Annotated[
        bool,
        _cache(
            "--no-paged-attn",
            help="Reserve no pool: the KV cache grows as it is needed. This is the default "
            "elsewhere, and where layers are on the CPU beside an accelerator.",
        ),
    ] = False
    pa_ctxt_len: Annotated[
        int | None,
        _cache(
            "--pa-ctxt-len",
            metavar="TOKENS",
            parser=_TOKENS.from_flag,
            help="Tokens that the pool holds. Goes before the other two sizes.",
        ),
    ] = None
    pa_gpu_mem_usage: Annotated[
        float | None,
        _cache(
            "--pa-gpu-mem-usage",
            metavar="X",
            parser=_FRACTION.from_flag,
            help="Part of a CUDA GPU's memory that weights, activations and pool take together, "
            "up to 1. Goes before --pa-gpu-mem.",
            show_default="0.9",
        ),
    ] = None
    pa_gpu_mem: Annotated[
        int | None,
        _cache(
            "--pa-gpu-mem",
            metavar="MIB",
            parser=_MIB.from_flag,
            help="Most MiB that the pool takes, on all devices together.",
        ),
    ] = None
    pa_blk_size: Annotated[
        int | None,
        _cache(
            "--pa-blk-size",
            metavar="8|16|32|64",
            parser=_BLOCK.from_flag,
            help="Tokens of a block.",
            show_default="64",
        ),
    ] = None
    pa_cache_type: Annotated[
        str | None,
        _cache(
            "--pa-cache-type",
            metavar="auto|f16|bf16|f32",
            help="Type of keys and values.",
            show_default="auto, as --dtype",
        ),
    ] = None


def paged_request(flags: PagedFlags) -> PagedRequest:
    """What the flags ask for. Raises UsageError and Unsupported."""
    if flags.paged_attn and flags.no_paged_attn:
        raise UsageError("--paged-attn and --no-paged-attn exclude each other", hint="give one")
    given: dict[str, Any] = {
        "block_tokens": flags.pa_blk_size,
        "cache_type": flags.pa_cache_type and flags.pa_cache_type.lower(),
    }
    return PagedRequest(
        pool=True if flags.paged_attn else False if flags.no_paged_attn else None,
        context_tokens=flags.pa_ctxt_len,
        memory_fraction=flags.pa_gpu_mem_usage,
        memory_mib=flags.pa_gpu_mem,
        **{name: value for name, value in given.items() if value is not None},
    )
