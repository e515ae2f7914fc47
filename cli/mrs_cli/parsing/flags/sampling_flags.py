"""Flags that say how the tokens of a reply are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from mrs_cli.parsing.flags.flags import Flags
from mrs_cli.parsing.flags.option import number, sampling_option
from mrs_cli.parsing.flags.prompt_flags import PromptFlags

_number = partial(number, sampling_option)


@dataclass(init=False, eq=False, repr=False)
class SamplingFlags(Flags):
    """Settings of the sampler; these flags go before or after the selector."""

    max_tokens: Annotated[
        int | None,
        _number("max_tokens", "N", "Maximum tokens of a reply.", default="until the model stops"),
    ] = None
    temperature: Annotated[
        float | None,
        _number("temperature", "X", "Randomness, 0 to 2; 0 always takes the most likely token."),
    ] = None
    top_k: Annotated[
        int | None, _number("top_k", "N", "Sample from the N most likely tokens; 0 is off.")
    ] = None
    top_p: Annotated[
        float | None,
        _number(
            "top_p",
            "X",
            "Sample from the most likely tokens whose probabilities sum up to X; 1 is off.",
        ),
    ] = None
    min_p: Annotated[
        float | None,
        _number(
            "min_p", "X", "Drop tokens less likely than X times the most likely one; 0 is off."
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        _number(
            "repetition_penalty",
            "X",
            "Divide the logits of tokens that occurred before by X; 1 is off.",
        ),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        _number(
            "frequency_penalty",
            "X",
            "Subtract X from a token's logit each time the reply uses it, -2 to 2; 0 is off.",
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        _number(
            "presence_penalty",
            "X",
            "Subtract X from the logits of tokens that the reply has used, -2 to 2; 0 is off.",
        ),
    ] = None
    dry_multiplier: Annotated[
        float | None,
        _number(
            "dry_multiplier", "X", "Strength of the DRY penalty for repeated phrases; 0 is off."
        ),
    ] = None
    dry_base: Annotated[
        float | None,
        _number("dry_base", "X", "Each further token of a phrase multiplies the penalty by X."),
    ] = None
    dry_allowed_length: Annotated[
        int | None,
        _number("dry_allowed_length", "N", "Phrases of fewer than N tokens have no penalty."),
    ] = None
    dry_sequence_breakers: Annotated[
        list[str] | None,
        sampling_option(
            "--dry-sequence-breaker",
            metavar="TEXT",
            help="TEXT ends a phrase. May be given several times.",
            show_default='newline : " *',
        ),
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        sampling_option(
            "--logit-bias",
            metavar="TOKEN=X",
            help="Add X to the logit of the token with this id. May be given several times.",
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        sampling_option(
            "--stop", metavar="TEXT", help="End the reply before TEXT. May be given several times."
        ),
    ] = None
    adapter: Annotated[
        str | None,
        sampling_option(
            "--adapter",
            metavar="NAME",
            help="Use the adapter of this name, which --lora loads.",
            show_default="the model without one",
        ),
    ] = None
    grammar: Annotated[
        str | None,
        sampling_option(
            "--grammar",
            metavar="KIND:TEXT",
            help="Let replies match a grammar: regex:TEXT, lark:TEXT, json_schema:TEXT, "
            "json_object (any JSON object), or the path of a .lark or .json file.",
        ),
    ] = None
    json_schema: Annotated[
        str | None,
        sampling_option(
            "--json-schema",
            metavar="FILE",
            help="Let replies be JSON that matches the schema in FILE.",
        ),
    ] = None


@dataclass(init=False, eq=False, repr=False)
class AskFlags(SamplingFlags, PromptFlags):
    """What to ask, and how to choose the reply's tokens."""
