"""The fields of a request that say how replies are generated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any

from msgspec import Meta, Struct

from mrs.request import Sampling
from mrs.server.http.errors import ApiError

Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Positive = Annotated[int, Meta(ge=1)]
ShortText = Annotated[str, Meta(max_length=1000)]
Texts = Annotated[list[ShortText], Meta(max_length=64)]
Bias = Annotated[float, Meta(ge=-1e9, le=1e9)]

#: What a request without settings gets from a model that suggests none: the likeliest tokens.
_LIKELIEST = Sampling(
    temperature=0, top_k=None, top_p=1, min_p=0, frequency_penalty=0, presence_penalty=0
)


class StreamOptions(Struct, kw_only=True):
    """`include_usage` adds a last chunk without choices that has the usage."""

    include_usage: bool | None = None


class SamplingFields(Struct, kw_only=True):
    """Fields that chat completions and completions have in common; null is the same as absent.

    Without a value, settings are those that the model's files suggest; without these, the most
    likely tokens are chosen.

    temperature        0 chooses the most likely token
    n                  number of replies
    max_tokens         the most tokens of a reply
    stop               texts that end a reply and are not part of it
    logit_bias         token id (as a string) -> value that is added to its logit
    seed               the same request with the same seed gets the same reply
    truncate_sequence  drop the oldest part of a prompt that exceeds the context
    ignore_eos         no token ends a reply
    return_progress    a stream begins with the progress of loading, if the model has to be loaded
    cache_salt         only prompts with the same salt share cached prefixes
    adapter            the LoRA adapter of that name, which --lora loads
    """

    model: str | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Share | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=1e-3, le=1e3)] | None = None
    dry_multiplier: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    dry_base: Annotated[float, Meta(ge=1, le=1e6)] | None = None
    dry_allowed_length: Positive | None = None
    dry_sequence_breakers: Texts | None = None
    logit_bias: dict[str, Bias] | None = None
    seed: int | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    max_tokens: Positive | None = None
    stop: ShortText | Texts | None = None
    ignore_eos: bool | None = None
    truncate_sequence: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_progress: bool | None = None
    cache_salt: str | None = None
    adapter: ShortText | None = None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        """Whether the stream ends with a chunk that has the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wants_progress(self) -> bool:
        """Whether a stream begins before the model is loaded."""
        return bool(self.stream and self.return_progress)

    def check(self) -> None:
        """Raises ApiError for fields that contradict each other."""
        if self.stream_options is not None and not self.stream:
            raise ApiError(
                400, "stream_options needs a stream: add stream", "stream_options", "invalid_value"
            )

    def form(self) -> dict[str, Any]:
        """The fields of `Sampling` that give replies a form. Raises ApiError."""
        return {}

    def samplings(
        self, suggested: Mapping[str, Any], count: int, logprobs: int | None, max_tokens: int | None
    ) -> list[Sampling]:
        """The settings of each of `count` replies; the model suggests some. Raises ApiError."""
        given: dict[str, Any] = {
            each.name: value
            for each in fields(Sampling)
            if (value := getattr(self, each.name, None)) is not None
        }
        given |= {"logprobs": logprobs, "max_tokens": max_tokens, **self.form()}
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        given["stop"] = tuple(text for text in stop if text)
        if self.top_k is not None:
            given["top_k"] = max(self.top_k, 0)
        if self.dry_sequence_breakers is not None:
            given["dry_sequence_breakers"] = tuple(filter(None, self.dry_sequence_breakers))
        if self.logit_bias is not None:
            given["logit_bias"] = tuple(map(_bias, self.logit_bias.items()))
        common = replace(_LIKELIEST, **{**suggested, **given})
        return [replace(common, variant=index) for index in range(count)]


def _bias(item: tuple[str, float]) -> tuple[int, float]:
    token, value = item
    if not (token.isascii() and token.isdecimal() and len(token) < 10):
        raise ApiError(
            400,
            f'logit_bias has the key {token!r}: keys are token ids, such as "42"',
            "logit_bias",
            "invalid_value",
        )
    return int(token), value
