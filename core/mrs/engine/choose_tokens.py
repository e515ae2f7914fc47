"""Chooses the next tokens of a sequence from the logits of a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mrs.engine.sampling.candidates import NoProbabilities
from mrs.engine.sampling.processors import FloatArray
from mrs.engine.sampling.sampler import Proposal, SampledToken
from mrs.engine.sequence import Sequence


def choose_tokens(sequence: Sequence, rows: Iterable[FloatArray]) -> Iterator[SampledToken]:
    """Add the next tokens to a sequence: after its last token, and after each token of its draft.

    `rows` are their logits (V,). A row counts if all chosen tokens are those of the draft before
    it. So each token is chosen from the same logits as without, and with the same random number,
    unless its draft was drawn at random (`Sequence.proposals`): then it has the same distribution.
    """
    start = len(sequence.token_ids)
    for number, logits in enumerate(rows):
        chosen = sequence.token_ids[start:]
        if sequence.is_finished or chosen != sequence.draft[: len(chosen)]:
            return
        if len(chosen) == number:  # there are more if a grammar forced some
            proposal = sequence.proposals[number] if number < len(sequence.proposals) else None
            yield from choose_next(sequence, logits, proposal)


def choose_next(
    sequence: Sequence, logits: FloatArray, proposal: Proposal | None = None
) -> list[SampledToken]:
    """Add the next token after logits (V,) to a sequence, and those that it forces."""
    return _add(sequence, sequence.sampler(logits, proposal))


def add_token(sequence: Sequence, token_id: int) -> Iterator[SampledToken]:
    """Add the next token, which a device has chosen; -1 if the logits were not finite."""
    if token_id < 0:
        raise NoProbabilities
    yield from _add(sequence, sequence.sampler.accept(token_id))


def _add(sequence: Sequence, token: SampledToken) -> list[SampledToken]:
    """Add a token and those that it forces, and end the sequence if it is complete."""
    ids, sampler = sequence.token_ids, sequence.sampler
    ids.append(token.id)
    forced: list[SampledToken] = []
    is_complete = token.id in sequence.stop_ids
    if sampler.has_constraint and not is_complete:
        forced = sampler.forced(sequence.max_length - len(ids))
        ids += [each.id for each in forced]
        is_complete = sampler.is_complete
    if is_complete:
        sequence.finish("stop")
    elif len(ids) >= sequence.max_length:
        sequence.finish("length")
    return [token, *forced]
