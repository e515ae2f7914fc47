"""How a model scores a question and a document together, as far as its files say it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenScore:
    """score = logit of `yes_id` - logit of `no_id`, or the first alone without a `no_id`."""

    yes_id: int
    no_id: int | None = None


@dataclass(frozen=True)
class Ranking:
    """What comes with a reranker.

    tokens        the tokens of its answer; None for the words yes and no, or if it has a classifier
    instruction   the task, which the chat template gets as a system message
    begins_reply  whether the chat template has to begin the reply
    """

    tokens: TokenScore | None = None
    instruction: str | None = None
    begins_reply: bool = False
