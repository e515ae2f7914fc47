"""Vocabularies of bytes with ranks, as tiktoken has them, spelled as byte-level BPE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from mrs.errors import NotReadable
from mrs.text.pre_tokenizers import PreTokenization
from mrs.text.tokenizer import byte_of_character
from mrs.text.vocabulary import Described, TokenType, Vocabulary

_UNREACHED = 1 << 60


@cache
def _spelling() -> dict[int, str]:
    return {byte: character for character, byte in byte_of_character().items()}


def spelled(token: bytes) -> str:
    """A token as byte-level vocabularies spell its bytes."""
    spelling = _spelling()
    return "".join([spelling[byte] for byte in token])


def merges_of_ranks(tokens: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """The merges that give the tokens which tiktoken gives, lowest rank (index) first.

    tiktoken joins the two neighbours that together have the lowest rank. Where a token arises, its
    bytes have been joined as they would be alone: so each token needs only the one merge with
    which its own bytes end.
    """
    ranks = {token: rank for rank, token in enumerate(tokens)}
    for rank, token in enumerate(tokens):
        if len(token) == 2:
            yield token[:1], token[1:]
        elif len(token) > 2 and len(parts := _joined(token, ranks, rank)) == 2:
            yield parts[0], parts[1]


def _joined(token: bytes, ranks: dict[bytes, int], below: int) -> list[bytes]:
    """The parts of a token after all joins of ranks lower than `below`."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        best, at = below, -1
        for i in range(len(parts) - 1):
            rank = ranks.get(parts[i] + parts[i + 1], _UNREACHED)
            if rank < best:
                best, at = rank, i
        if at < 0:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def described_ranks(
    tokens: Sequence[bytes],
    rules: PreTokenization,
    *,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
    roles: Mapping[str, str],
    where: str,
) -> Described:
    """A tokenizer of `tokens` by rank, with control tokens whose ids come before or after theirs.

    `roles` are texts by role; those without a token are left out.

    Raises NotReadable if two tokens are equal, or single bytes are missing.
    """
    if missing := {bytes([byte]) for byte in range(256)}.difference(tokens):
        raise NotReadable(f"no token for the byte {min(missing)!r}", where=where)
    texts = [*before, *map(spelled, tokens), *after]
    if twice := next((text for text, count in Counter(texts).items() if count > 1), None):
        raise NotReadable(f"two tokens have the text {twice!r}", where=where)
    control = TokenType.CONTROL
    types = [control] * len(before) + [TokenType.NORMAL] * len(tokens) + [control] * len(after)
    merges = [(spelled(left), spelled(right)) for left, right in merges_of_ranks(tokens)]
    known = {role: text for role, text in roles.items() if text in {*before, *after}}
    return Described(
        Vocabulary(texts, types), rules, merges, known, add_bos=rules.add_bos, where=where
    )
