"""Measure what drafts save: replies to two texts, in turns with drafts and without."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from mrs.events import Finished
from mrs.request import Message, Sampling

if TYPE_CHECKING:
    from mrs.events import ReplyUsage
    from mrs.run.loaded_model import LoadedModel

#: Tokens of each reply, if it does not end earlier.
REPLY_TOKENS = 192
_CODE = '''\
def read_table(path, separator=","):
    """The rows of a file, as dictionaries with the names of the first line."""
    rows = []
    with open(path, encoding="utf-8") as file:
        names = [name.strip() for name in next(file).split(separator)]
        for number, line in enumerate(file, start=2):
            values = [value.strip() for value in line.split(separator)]
            if len(values) != len(names):
                raise ValueError(f"line {number} has {len(values)} values")
            rows.append(dict(zip(names, values)))
    return rows
'''
#: What is asked, by the name of the row: drafts of a head do well in any text that its model knows,
#: and prompt lookup in those that repeat the prompt.
TEXTS = {
    "code edit": f"Rename `rows` to `records` in this function. Print all of it.\n\n{_CODE}",
    "question": "What is a cache, and why does it make computers faster?",
}


@dataclass(frozen=True)
class DraftedReplies:
    """Replies to one text: medians of tokens per second, and of the quotients of the pairs.

    Tokens are counted as the first, second and so on of their drafts.
    """

    text: str
    tokens: int
    plain_tokens_per_s: float
    drafted_tokens_per_s: float
    gain: float
    drafted_by_position: tuple[int, ...]
    accepted_by_position: tuple[int, ...]


def measure_drafts(model: LoadedModel, rounds: int, warmup: int) -> list[DraftedReplies]:
    """The replies of `rounds` pairs to each text, after those for warming up. Raises MrsError."""
    return [_measure(model, name, text, rounds, warmup) for name, text in TEXTS.items()]


def _measure(model: LoadedModel, name: str, text: str, rounds: int, warmup: int) -> DraftedReplies:
    pairs = []
    for _ in range(warmup + rounds):
        plain = _reply(model, text, has_drafts=False)
        pairs.append((plain, _reply(model, text, has_drafts=True)))
    pairs = pairs[warmup:]
    rates = [[each.completion_tokens_per_s for each in pair] for pair in pairs]
    drafted = [each for _, each in pairs]
    return DraftedReplies(
        name,
        drafted[0].completion_tokens,
        statistics.median(plain for plain, _ in rates),
        statistics.median(with_drafts for _, with_drafts in rates),
        statistics.median(b / a if a else 1.0 for a, b in rates),
        _sums([each.drafted_by_position for each in drafted]),
        _sums([each.accepted_by_position for each in drafted]),
    )


def _reply(model: LoadedModel, text: str, *, has_drafts: bool) -> ReplyUsage:
    model.engine.use_drafts(wanted=has_drafts)
    sampling = Sampling(temperature=0, max_tokens=REPLY_TOKENS)
    if model.has_chat_template:
        reply = model.stream_chat([Message(role="user", content=text)], sampling)
    else:
        reply = model.stream_completion(text, sampling)
    [end] = (event for event in reply if isinstance(event, Finished))
    return end.usage


def _sums(counts: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))
