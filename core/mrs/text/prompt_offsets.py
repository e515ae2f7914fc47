"""Where in the text of a prompt each of its tokens begins."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.text.stream_decoder import StreamDecoder
from mrs.text.tokenizer import Tokenizer


def prompt_offsets(tokenizer: Tokenizer, ids: Sequence[int], text: str | None) -> list[int]:
    """The characters before each token that are complete, as `Tokenizer.decode` shows them.

    `text` is what the ids were made of; None if they were given. A bos token is no part of a text
    that does not begin with it.
    """
    bos = tokenizer.text_of(tokenizer.bos_id)
    is_added = text is not None and bos is not None and not text.startswith(bos)
    hidden = tokenizer.bos_id if is_added else None
    decoder = StreamDecoder(tokenizer, shown=frozenset(tokenizer.control_ids))
    offsets, length = [], 0
    for index, token_id in enumerate(ids):
        offsets.append(length)
        if index or token_id != hidden:
            length += len(decoder.push(token_id))
    return offsets
