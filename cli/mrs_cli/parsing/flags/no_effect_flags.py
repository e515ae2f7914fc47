"""Flags of mistral.rs that are accepted, so that its scripts run, and that change nothing here."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated

from typer import Option

from mrs.request import RunRequest
from mrs_cli.parsing.flags.flags import Flags

_ignored = partial(Option, hidden=True)


@dataclass(init=False, eq=False, repr=False)
class NoEffectFlags(Flags):
    """Flags without effect; `NO_EFFECT` has the reason of each."""

    max_num_batched_tokens: Annotated[int | None, _ignored("--max-num-batched-tokens")] = None
    max_decode_steps_before_prefill: Annotated[
        int | None, _ignored("--max-decode-steps-before-prefill")
    ] = None
    prompt_batchsize: Annotated[int | None, _ignored("--prompt-batchsize")] = None
    throughput: Annotated[bool, _ignored("--throughput")] = False
    enable_lora: Annotated[bool, _ignored("--enable-lora")] = False
    lora_max_adapters: Annotated[int | None, _ignored("--lora-max-adapters")] = None
    lora_max_rank: Annotated[int | None, _ignored("--lora-max-rank")] = None
    lora_max_bytes: Annotated[int | None, _ignored("--lora-max-bytes")] = None
    no_ui: Annotated[bool, _ignored("--no-ui")] = False
    no_readme: Annotated[bool, _ignored("--no-readme")] = False


#: Why each of these flags has no effect.
NO_EFFECT = {
    "--max-num-batched-tokens": "a forward pass computes at most 512 tokens of prompts",
    "--max-decode-steps-before-prefill": "every step decodes all replies and computes a part of a "
    "prompt; see --target-inter-token-ms",
    "--prompt-batchsize": "prompts are computed in chunks of at most 512 tokens",
    "--throughput": "-v prints the speed of each reply",
    "--enable-lora": "each --lora NAME=ID loads an adapter",
    **dict.fromkeys(
        ("--lora-max-adapters", "--lora-max-rank", "--lora-max-bytes"),
        "the plan counts the adapters that --lora names, and there are no others",
    ),
    "--isq": "weights in UQFF files are quantized already",
    "-o moqe": "it says what --isq quantizes, and weights are not quantized while loading",
    "--no-readme": "mrs quantize writes no README",
    "--no-ui": "the page at / is part of the server, and needs the key as any client does",
}


def without_effect(flags: NoEffectFlags, request: RunRequest) -> list[str]:
    """One line for each flag that was given and has no effect."""
    names = {f"--{each.name.replace('_', '-')}": each for each in fields(NoEffectFlags)}
    found = [flag for flag, each in names.items() if getattr(flags, each.name) != each.default]
    if request.source.uqff and getattr(flags, "isq", None) is not None:
        found.append("--isq")
    if request.moqe and request.isq is None:
        found.append("-o moqe")
    return [f"{flag} has no effect: {NO_EFFECT[flag]}" for flag in found]
