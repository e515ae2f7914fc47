"""The calls into the `tokenizers` library that a model's files or a text can make fail.

The library is written in Rust, and its faults there (panics) are no Exceptions for Python: uncaught
they end the program, whatever it does besides.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypedDict

from mrs.errors import NotReadable, UsageError
from mrs.process.memory_room import MemoryRoom
from mrs.process.request_memory import ENCODED_BYTES
from mrs.process.work import current_work

if TYPE_CHECKING:
    import tokenizers

# Texts are encoded one by one. The library's threads would not help with that, would take memory
# that no plan counts, and would complain wherever the process forks.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

#: The most times longer than a text that a tokenizer may make it. Published ones make it twice as
#: long at most; a file of 300 bytes could make it 10 billion times as long.
_MOST_GROWTH = 1000
#: Texts of so few characters need none of it.
_SHORT_CHARACTERS = 2**14
_WAIT_S = 60.0


#: What helps if a file of the right form is refused.
_NEWER = (
    "if it was made for a newer version of the library tokenizers, install that, or give another "
    "file with -t"
)


class _Rewriting(TypedDict, total=False):
    """The sections of a tokenizer.json that rewrite texts."""

    normalizer: Any
    decoder: Any


@contextmanager
def backend_errors(
    what: str = "the tokenizer fails", *, where: str = "", hint: str = ""
) -> Iterator[None]:
    """Raises NotReadable for an error or a panic of the library; the block only calls it."""
    try:
        yield
    except BaseException as error:
        is_panic = type(error).__name__ == "PanicException"  # no module has the class
        if not (is_panic or isinstance(error, Exception)):
            raise
        raise NotReadable(f"{what}: {error}", where=where, hint=hint) from error


def parse_backend(text: str, *, where: str = "tokenizer.json") -> tokenizers.Tokenizer:
    """The tokenizer in the text of a tokenizer.json; `where` is its name in errors.

    Raises NotReadable if it is malformed or would make texts so long that no memory holds them.
    """
    import msgspec
    import tokenizers

    with backend_errors("not a tokenizer", where=where):
        sections = msgspec.json.decode(text, type=_Rewriting)
    for section in sections.values():
        if (growth := _growth(section)) > _MOST_GROWTH:
            raise NotReadable(
                f"the tokenizer would make a text {growth:.3g} times as long",
                where=where,
                hint=f"at most {_MOST_GROWTH} times is allowed",
            )
    with backend_errors("not a tokenizer", where=where, hint=_NEWER):
        return tokenizers.Tokenizer.from_str(text)


def _growth(section: Any) -> float:
    """How many times longer all steps of a normalizer or decoder together may make a text."""
    growth, steps = 1.0, [section]
    while steps:
        step = steps.pop()
        if isinstance(step, list):
            steps += step
        elif isinstance(step, dict):
            steps += step.values()
            growth *= _growth_of_step(step)
    return growth


def _growth_of_step(step: Mapping[str, Any]) -> float:
    pattern = step.get("pattern")
    added = step.get("prepend") if pattern is None else step.get("content")
    if not isinstance(added, str):
        return 1
    literal = pattern.get("String") if isinstance(pattern, dict) else None
    if isinstance(literal, str) and literal:
        return max(1, len(added) / len(literal))
    return 1 + len(added)  # at most once per character, as where a pattern matches nothing


def encode(
    backend: tokenizers.Tokenizer,
    text: str,
    *,
    add_special_tokens: bool,
    room: MemoryRoom | None = None,
) -> tokenizers.Encoding:
    """The tokens of `text`, without their places in it; other threads run meanwhile.

    A long text takes its memory from `room`, that of texts which are tokenized at the same time.
    The library cannot be interrupted: this raises Abandoned only before it begins. Raises
    UsageError for a lone surrogate, and NotReadable if the tokenizer fails.
    """
    current_work().check()
    require_characters(text)
    with (
        backend_errors(hint="change the text, or give another tokenizer.json with -t"),
        room_for(text, room),
    ):
        # The library's `encode` would keep Python's lock, so that all threads would wait for it.
        (encoding,) = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoding


def room_for(text: str, room: MemoryRoom | None) -> AbstractContextManager[None]:
    """The memory of a long text while it is tokenized; others wait for it."""
    if len(text) <= _SHORT_CHARACTERS or room is None or room.most_bytes is None:
        return nullcontext()
    needed = min(ENCODED_BYTES * len(text), room.most_bytes)
    return room.taken(needed, "long texts", _WAIT_S)


def join_pieces(backend: tokenizers.Tokenizer, pieces: Sequence[str]) -> str:
    """The text of vocabulary entries as the backend's decoder, which it must have, joins them."""
    with backend_errors("the tokenizer's decoder fails"):
        return str(backend.decoder.decode(pieces))


def require_characters(text: str) -> None:
    """Raises UsageError for a lone surrogate, half of a pair: no encoding can represent it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError("a text contains a lone surrogate, which is not a character") from error
