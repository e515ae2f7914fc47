"""A prompt that is ready for the engine, and what its replies have to look like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mrs.architecture.pooler import TokenScore
from mrs.engine.image_input import ImageInput
from mrs.engine.sampling.processors import Constraint
from mrs.events import Event
from mrs.text.thought_tokens import ThoughtTokens


class ReplyCalls(Protocol):
    """Splits the text of a reply into content and calls of tools.

    The control tokens `shown` have to be in the text.
    """

    shown: frozenset[str]
    num_calls: int

    def push(self, text: str) -> Sequence[Event]:
        """What is certain with the next text."""

    def finish(self) -> Sequence[Event]:
        """What was held back."""


@dataclass(frozen=True)
class Prompt:
    """The token ids of a prompt, and its images at their positions.

    `opening` is text of the reply that the prompt already has. `is_chat` is false for a text to
    continue. `token_types` say to which of two texts each token belongs, if there are two. If it is
    `scored`, the logits of these tokens are its score, and there is no reply. Each reply gets a
    constraint of its own, finds calls of tools with an object of its own, and another follows its
    thoughts, if it may have any. With `has_grammar` the constraint says which texts it may have.
    """

    ids: Sequence[int]
    opening: str = ""
    images: Sequence[ImageInput] = ()
    is_chat: bool = False
    token_types: Sequence[int] = ()
    scored: TokenScore | None = None
    new_constraint: Callable[[], Constraint] | None = None
    has_grammar: bool = False
    new_calls: Callable[[], ReplyCalls] | None = None
    new_thoughts: Callable[[], ThoughtTokens] | None = None
