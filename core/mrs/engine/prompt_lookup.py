"""Prompt lookup: drafts of a sequence's next tokens, found in its own prompt and reply."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import cycle, islice

from mrs.graph.step_rows import MAX_DRAFT_ROWS
from mrs.plan.speed.roofline import ROWS_TOGETHER

#: How many of the last tokens have to occur earlier, at first, and after drafts were rejected.
_LEAST_MATCH, _LONGEST_MATCH = 3, 8
#: Tokens of the first draft: with the token before it, those that kernels compute together.
_FIRST_DRAFT = ROWS_TOGETHER - 1
#: Earlier occurrences that are compared, the latest first.
_MOST_OCCURRENCES = 32
#: Token ids are searched as integers of so many bytes, which takes less time than an index of them.
_ID_BYTES = array("i").itemsize


class PromptLookup:
    """Drafts tokens for one sequence: those after the longest, latest occurrence of its last ones.

    Drafts get longer while all their tokens are accepted. After a draft of which none is, a longer
    occurrence is required, so that a text without repetitions gets hardly any drafts.

    Source: Saxena, "Prompt Lookup Decoding", 2023.
    """

    def __init__(self) -> None:
        self._ids = bytearray()
        self._draft_tokens = _FIRST_DRAFT
        self._least_match = _LEAST_MATCH

    def draft(self, token_ids: Sequence[int], most_tokens: int) -> list[int]:
        """At most `most_tokens` that may follow `token_ids`, which extend those of earlier calls.

        None if the last tokens do not occur earlier.
        """
        self._ids += array("i", token_ids[len(self._ids) // _ID_BYTES :])
        start = self._find(token_ids)
        if start is None:
            return []
        # If the occurrence overlaps the end, the text repeats itself and may go on so.
        return list(islice(cycle(token_ids[start:]), min(most_tokens, self._draft_tokens)))

    def learn(self, drafted: int, accepted: int) -> None:
        """Adapt later drafts to how many tokens of the last one were accepted."""
        if accepted == drafted:
            self._draft_tokens = min(2 * self._draft_tokens + 1, MAX_DRAFT_ROWS - 1)
        else:
            self._draft_tokens = _FIRST_DRAFT + accepted // ROWS_TOGETHER * ROWS_TOGETHER
        self._least_match = _LEAST_MATCH if accepted else min(2 * self._least_match, _LONGEST_MATCH)

    def _find(self, token_ids: Sequence[int]) -> int | None:
        """The position after the longest, latest occurrence of the last tokens, if long enough."""
        best, longest = None, self._least_match - 1
        last = self._ids[-_LEAST_MATCH * _ID_BYTES :]
        before = len(self._ids) - 1
        for _ in range(_MOST_OCCURRENCES * _ID_BYTES):
            at = self._ids.rfind(last, 0, before)
            if at < 0 or len(token_ids) <= _LEAST_MATCH:
                break
            before = at + len(last) - 1
            if at % _ID_BYTES:  # parts of other tokens
                continue
            end = at // _ID_BYTES + _LEAST_MATCH
            matched = _common_end(token_ids, end)
            if matched > longest:
                best, longest = end, matched
            if matched == _LONGEST_MATCH:
                break
        return best


def _common_end(token_ids: Sequence[int], end: int) -> int:
    """How many of the last tokens are those before `end`, at most `_LONGEST_MATCH`."""
    most = min(end, _LONGEST_MATCH)
    pairs = zip(range(end - 1, end - most - 1, -1), range(1, most + 1), strict=True)
    return next((back - 1 for at, back in pairs if token_ids[at] != token_ids[-back]), most)
