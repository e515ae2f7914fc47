"""The log probabilities of a prompt, in the form of vLLM."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from mrs.engine.prompt_scores import ScoredToken
from mrs.engine.reply_events import ReplyEvents
from mrs.text.tokenizer import Tokenizer


class PromptLogprob(Struct, frozen=True, kw_only=True):
    """The log probability of a token after the tokens before it; the likeliest has rank 1."""

    logprob: float
    rank: int
    decoded_token: str


#: For each token of a prompt, by id: its own log probability, and those of the likeliest tokens.
#: The first token has none.
PromptLogprobs = list[dict[int, PromptLogprob] | None]


def prompt_logprobs(events: ReplyEvents) -> PromptLogprobs | UnsetType:
    """Unset if they were not asked for."""
    scores = events.sequence.prompt_scores
    if scores is None:
        return UNSET
    return [None, *(_entry(each, events.tokenizer) for each in scores.tokens)]


def _entry(token: ScoredToken, tokenizer: Tokenizer) -> dict[int, PromptLogprob]:
    ranked = [(token.rank, token.id, token.logprob)]
    top = enumerate(token.top, 1)
    ranked += [(rank, id, value) for rank, (id, value) in top if id != token.id]
    return {
        id: PromptLogprob(
            logprob=value, rank=rank, decoded_token=tokenizer.label(id).decode("utf-8", "replace")
        )
        for rank, id, value in ranked
    }
