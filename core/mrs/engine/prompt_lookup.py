"""Prompt lookup: drafts of a sequence's next tokens, found in its own prompt and reply."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import cycle, islice

import numpy as np

from mrs.sizes.draft_rows import MAX_DRAFT_ROWS

#: How many of the last tokens have to occur earlier, at first, and after drafts were rejected.
_LEAST_MATCH, _LONGEST_MATCH = 3, 8
#: Tokens of the first draft. With the token before it, native kernels compute 4 at once.
_FIRST_DRAFT = 3


class PromptLookup:
    """Drafts tokens for one sequence: those after the longest, latest occurrence of its last ones.

    Drafts get longer while all their tokens are accepted. After a draft of which none is, a longer
    occurrence is required, so that a text without repetitions gets hardly any drafts.

    Source: Saxena, "Prompt Lookup Decoding", 2023.
    """

    def __init__(self) -> None:
        self._ids = array("q")
        self._draft_tokens = _FIRST_DRAFT
        self._least_match = _LEAST_MATCH

    def draft(self, token_ids: Sequence[int], most_tokens: int) -> list[int]:
        """At most `most_tokens` that may follow `token_ids`, which extend those of earlier calls.

        None if the last tokens do not occur earlier.
        """
        self._ids.extend(token_ids[len(self._ids) :])
        start = self._find()
        if start is None:
            return []
        # If the occurrence overlaps the end, the text repeats itself and may go on so.
        return list(islice(cycle(self._ids[start:]), min(most_tokens, self._draft_tokens)))

    def learn(self, drafted: int, accepted: int) -> None:
        """Adapt later drafts to how many tokens of the last one were accepted."""
        if accepted == drafted:
            self._draft_tokens = min(2 * self._draft_tokens + 1, MAX_DRAFT_ROWS - 1)
        else:
            self._draft_tokens = max(_FIRST_DRAFT, accepted)
        self._least_match = _LEAST_MATCH if accepted else min(2 * self._least_match, _LONGEST_MATCH)

    def _find(self) -> int | None:
        """The position after the longest, latest occurrence of the last tokens, if long enough."""
        ids = np.asarray(self._ids)
        if len(ids) <= _LEAST_MATCH:
            return None
        matched, ends = 1, np.flatnonzero(ids[:-1] == ids[-1])
        while matched < _LONGEST_MATCH:
            long_enough = ends[ends >= matched]
            longer = long_enough[ids[long_enough - matched] == ids[-1 - matched]]
            if not len(longer):
                break
            matched, ends = matched + 1, longer
        return int(ends[-1]) + 1 if matched >= self._least_match else None
