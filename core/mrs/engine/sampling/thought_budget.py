"""Ends the thought of a reply after so many tokens."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import takewhile

import numpy as np

from mrs.engine.sampling.processors import Constraint, FloatArray
from mrs.text.thought_tokens import ThoughtTokens

#: Bytes of a character after its first: so many tokens later, a divided character is complete.
_MOST_BYTES_LEFT = 3


class ThoughtBudget:
    """A constraint with the state of one reply, around what the reply has to match, if anything.

    After `most_tokens` in the thought, and those that complete a character, the tokens of one of
    `endings` follow: of the first that `form` allows. A thought that ends earlier is left as it is.
    Where thoughts may begin anew, they are ended at once, if possible by another ending.
    """

    def __init__(
        self,
        thoughts: ThoughtTokens,
        most_tokens: int,
        endings: Sequence[Sequence[int]],
        form: Constraint | None = None,
    ) -> None:
        self._thoughts = thoughts
        self._most_tokens = most_tokens
        self._endings = endings
        self._form = form
        #: The tokens that have to follow.
        self._forced: list[int] = []
        self._end_if_spent()

    @property
    def is_complete(self) -> bool:
        return self._form is not None and self._form.is_complete

    def __call__(self, logits: FloatArray) -> None:
        """Make the logits (V,) of tokens that may not follow minus infinity. Raises UsageError."""
        if self._forced:
            logits.fill(-np.inf)
            logits[self._forced[0]] = 0
        elif self._form is not None:
            self._form(logits)

    def append(self, token: int) -> None:
        """Add a token of the reply. Raises UsageError."""
        if self._form is not None:
            self._form.append(token)
        self._thoughts.push(token)
        if self._forced:
            del self._forced[0]
        else:
            self._end_if_spent()

    def forced_tokens(self) -> list[int]:
        if self._forced or self._form is None:
            return list(self._forced)
        return self._form.forced_tokens()

    def num_allowed(self, tokens: list[int]) -> int:
        """How many of these tokens can follow, up to the first that cannot."""
        allowed = self._num_unspent(tokens)
        return allowed if self._form is None else self._form.num_allowed(tokens[:allowed])

    def _num_unspent(self, tokens: list[int]) -> int:
        """How many of these tokens follow before others are forced; or are those forced now."""
        if self._forced:
            pairs = zip(tokens, self._forced, strict=False)
            return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        thoughts = copy(self._thoughts)
        for number, token in enumerate(tokens, 1):
            thoughts.push(token)
            if self._is_spent(thoughts):
                return number
        return len(tokens)

    def _is_spent(self, thoughts: ThoughtTokens) -> bool:
        over = thoughts.num_inside - self._most_tokens
        is_whole = not thoughts.is_divided or over >= _MOST_BYTES_LEFT
        return thoughts.is_inside and over >= 0 and is_whole

    def _end_if_spent(self) -> None:
        if self._is_spent(self._thoughts):
            fitting = (each for each in self._endings if self._fits(each))
            ending = next(fitting, self._endings[-1])
            self._endings = [*(each for each in self._endings if each != ending), ending]
            self._forced = list(ending)

    def _fits(self, ending: Sequence[int]) -> bool:
        return self._form is None or self._form.num_allowed(list(ending)) == len(ending)
