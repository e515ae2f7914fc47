"""Allows only tokens that the grammar of a reply lets follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mrs.errors import UsageError

if TYPE_CHECKING:
    import llguidance

#: Of a text that a grammar leaves no choice about, in bytes or tokens: each step of the reply reads
#: what is left of it.
MOST_FORCED = 2**14
_REFUSED = np.float32(-np.inf)


class GrammarMask:
    """A logits processor with the state of one reply, applied after all others.

    With `is_greedy` the mask is computed only if the likeliest token is not allowed.
    """

    def __init__(self, matcher: llguidance.LLMatcher, *, is_greedy: bool = False) -> None:
        self._matcher = matcher
        self._is_greedy = is_greedy

    @property
    def is_complete(self) -> bool:
        """Whether no token but an end token can follow."""
        return self._matcher.is_stopped()

    def __call__(self, logits: npt.NDArray[np.float32]) -> None:
        """Make the logits (V,) of tokens that are not allowed minus infinity. Raises UsageError."""
        if self._is_greedy and self._matcher.validate_tokens([int(logits.argmax())]):
            return
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        is_allowed = np.unpackbits(mask, count=len(logits), bitorder="little")
        np.putmask(logits, is_allowed == 0, _REFUSED)

    def append(self, token: int) -> None:
        """Add a token of the reply. Raises UsageError if the grammar is too complex to go on."""
        self._matcher.consume_token(token)
        self._check()

    def num_allowed(self, tokens: list[int]) -> int:
        """How many of these tokens can follow, up to the first that cannot."""
        return self._matcher.validate_tokens(tokens)

    def forced_tokens(self) -> list[int]:
        """The only tokens that can follow, as the tokenizer divides their text. Often none.

        Raises UsageError for very many.
        """
        tokens = self._matcher.compute_ff_tokens()
        if len(tokens) > MOST_FORCED:
            raise UsageError(
                f"the reply cannot follow its grammar: more than {MOST_FORCED} tokens without a "
                "choice",
                hint="repeat less, or give a shorter text",
            )
        return tokens

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UsageError(
                f"the reply cannot follow its grammar: {self._matcher.get_error()[:200]}",
                hint="give a simpler grammar",
            )
