"""What a prompt begins with, as keys that other prompts with the same beginning share."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import NamedTuple

#: Characters of a link, and roughly how many of them make a token of what people write.
_LINK_CHARACTERS = 2048
_CHARACTERS_PER_TOKEN = 4
#: What is longer than so many links is told apart by these only.
_MOST_LINKS = 256


class Link(NamedTuple):
    """Stands for all of a prompt up to a place, and says how many tokens that is."""

    key: bytes
    num_tokens: int


class PrefixChain(NamedTuple):
    """The links of a prompt, each of which has all before it in its key, and all its tokens."""

    links: tuple[Link, ...]
    num_tokens: int

    def num_links(self, has: Callable[[bytes], bool]) -> int:
        """How many links there are until the first whose key is not had, as none after it is."""
        return bisect_left(self.links, True, key=lambda link: not has(link.key))


def chain_of(texts: Iterable[str], salt: str = "") -> PrefixChain:
    """The chain of a prompt of these texts: messages, say, with their roles.

    A text is its own link or several, so that a conversation has those of its earlier turns. Texts
    of another `salt` share none.
    """
    digest = hashlib.blake2b(salt.encode(), digest_size=16)
    links, num_characters = list[Link](), 0
    for text in texts:
        for start in range(0, len(text), _LINK_CHARACTERS):
            piece = text[start : start + _LINK_CHARACTERS]
            digest.update(piece.encode("utf-8", "surrogatepass"))
            num_characters += len(piece)
            if len(links) < _MOST_LINKS:
                links.append(Link(digest.digest(), _tokens(num_characters)))
        digest.update(b"\xff")  # no part of UTF-8: the ends of texts count
    return PrefixChain(tuple(links), _tokens(num_characters))


def _tokens(num_characters: int) -> int:
    return -(-num_characters // _CHARACTERS_PER_TOKEN)
