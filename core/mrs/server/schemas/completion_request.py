"""The body of a completion request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, cast

from msgspec import Meta

from mrs.request import Sampling
from mrs.server.http.errors import ApiError
from mrs.server.schemas.structure import StructureFields, refuse

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Prompts = str | list[str | TokenId | list[TokenId]]
#: The most texts of a list in a request, as OpenAI has it for embeddings.
MOST_TEXTS = 2048

#: The length of a reply unless the request says so, as OpenAI has it.
_DEFAULT_TOKENS = 16


class CompletionRequest(StructureFields, kw_only=True):
    """Asks for the continuation of a text, of token ids, or of several of them.

    echo             whether the text before the continuation is returned, too
    logprobs         the number of candidates that are returned for each token; with echo, for those
                     of the prompt, too
    prompt_logprobs  the same for the tokens of the prompt alone, in a field of its own
    suffix           the text after the reply, for models that were trained to fill in the middle
    add_special_tokens  false leaves out the tokens that a prompt begins with, such as BOS
    best_of          number of replies to make; the n with the likeliest tokens are returned
    """

    prompt: Prompts
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    def check(self) -> None:
        super().check()
        is_asked = self.prompt_logprobs is not None
        refuse("prompt_logprobs", "prompt_logprobs with a stream", is_asked and self.stream)
        is_cut = bool(self.truncate_sequence) or self.truncate_prompt_tokens is not None
        scores = self.echoes_logprobs
        refuse("suffix", "echo of logprobs with suffix", scores and bool(self.suffix))
        refuse("echo", "echo of logprobs with a prompt that is cut", scores and is_cut)
        refuse("suffix", "suffix of a prompt that is cut", is_cut and bool(self.suffix))
        is_bare = bool(self.suffix) and self.add_special_tokens is False
        refuse("add_special_tokens", "add_special_tokens false with suffix", is_bare)
        refuse("best_of", "best_of below n", self.made < self.choices)
        refuse("best_of", "best_of with a stream", self.made > self.choices and self.stream)

    @property
    def made(self) -> int:
        """The replies that are made for each prompt, of which `choices` are returned."""
        return self.best_of or self.choices

    @property
    def prompts(self) -> list[str | list[int]]:
        """Every prompt, as text or as token ids. Raises ApiError."""
        return prompts_of(self.prompt, "prompt")

    def all_samplings(self, suggested: Mapping[str, Any]) -> list[Sampling]:
        ranks = self.made > self.choices and self.logprobs is None
        logprobs = 0 if ranks else self.logprobs
        max_tokens = _DEFAULT_TOKENS if self.max_tokens is None else self.max_tokens
        return [
            replace(each, prompt_logprobs=self.scores)
            for each in self.samplings(suggested, self.made, logprobs, max_tokens)
        ]

    @property
    def echoes_logprobs(self) -> bool:
        return bool(self.echo) and self.logprobs is not None

    @property
    def scores(self) -> int | None:
        """The number of candidates for each token of the prompt; None if it is not scored."""
        counts = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((each for each in counts if each is not None), default=None)


def prompts_of(given: Prompts, field: str) -> list[str | list[int]]:
    """Every prompt in a field: a text, token ids, or a list of these. Raises ApiError."""
    if isinstance(given, str):
        return [given]
    if len(given) > MOST_TEXTS and not isinstance(given[0], int):
        raise ApiError(
            400, f"{field} has more than {MOST_TEXTS} texts: send some", field, "invalid_value"
        )
    kinds = set(map(type, given))
    if kinds == {int}:
        return [cast(list[int], given)]
    prompts = [each for each in given if not isinstance(each, int)]
    if not prompts or int in kinds:
        raise ApiError(
            400,
            f"{field} is a list of neither texts nor token ids: give a text, or a list of one of "
            "these",
            field,
            "invalid_value",
        )
    return prompts
