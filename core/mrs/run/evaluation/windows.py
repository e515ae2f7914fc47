"""The text of an evaluation, and the windows of it that are computed apart from each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mrs.errors import NotReadable, UsageError
from mrs.process.encodings import text_of
from mrs.source.reader import LocalFile, expanded
from mrs.text.tokenizer import Tokenizer
from mrs.units import MIB, human_bytes

#: Larger files are refused: their tokens would take days.
MAX_FILE_BYTES = 64 * MIB
#: The manual of mrs 0.1.0, which no model has been trained on. It stays as it is, so that figures
#: of different versions can be compared.
OWN_TEXT = Path(__file__).with_name("text.txt")


@dataclass(frozen=True)
class Work:
    """What is computed: which text, in windows of which length.

    `stride` is how many tokens the windows begin apart, and how many at the end of each are scored.
    By default they follow one another and the second half of each is scored, as llama-perplexity
    does. At most `most_windows` are computed.
    """

    text: str | None = None
    tokens: str | None = None
    context_tokens: int = 512
    stride: int | None = None
    most_windows: int | None = None

    def __post_init__(self) -> None:
        if self.text is not None and self.tokens is not None:
            raise UsageError("--text and --tokens exclude each other", hint="give one")
        if self.stride is not None and self.stride >= self.context_tokens:
            raise UsageError(
                f"a window of {self.context_tokens} tokens cannot score {self.stride} of them",
                where="--stride",
                hint=f"give at most {self.context_tokens - 1}",
            )

    @property
    def scored(self) -> int:
        """Tokens that are scored at the end of each window."""
        return self.stride or self.context_tokens - 1 - self.context_tokens // 2

    @property
    def step(self) -> int:
        """Tokens between the beginnings of two windows."""
        return self.stride or self.context_tokens

    @property
    def title(self) -> str:
        """What the text is, for people."""
        return self.text or self.tokens or "the built-in text"


@dataclass(frozen=True)
class Windows:
    """The windows of token ids, each with the bos token in the place of its first, if one is used.

    llama-perplexity replaces it, too: models are trained to see one there.
    """

    ids: Sequence[int]
    bos: Sequence[int]
    work: Work

    def __len__(self) -> int:
        count = max(0, (len(self.ids) - self.work.context_tokens) // self.work.step + 1)
        return min(count, self.work.most_windows or count)

    def __iter__(self) -> Iterator[list[int]]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> list[int]:
        first = index * self.work.step
        window = list(self.ids[first : first + self.work.context_tokens])
        return [*self.bos, *window[len(self.bos) :]]

    @property
    def digest(self) -> str:
        """A hash of all that is computed."""
        facts = [list(self), self.work.scored]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def read_windows(work: Work, tokenizer: Tokenizer, vocab_size: int) -> Windows:
    """The windows of a text or of a file of tokens. Raises UsageError and NotReadable."""
    bos_id = tokenizer.bos_id
    bos = [bos_id] if bos_id is not None and tokenizer.encode_prompt("")[:1] == [bos_id] else []
    if work.tokens is not None:
        ids = _read_ids(work.tokens, vocab_size)
    else:
        text = text_of(_content(work.text or str(OWN_TEXT)), work.title)
        ids = [*bos, *tokenizer.encode(text, allow_special=False)]
    windows = Windows(ids, bos, work)
    if not windows:
        raise UsageError(
            f"{len(ids)} tokens are fewer than a window of {work.context_tokens}",
            where=work.title,
            hint="give a longer text, or lower --context-length",
        )
    return windows


def _content(path: str) -> bytes:
    file = LocalFile(expanded(path))
    if file.size_bytes > MAX_FILE_BYTES:
        raise UsageError(
            f"{human_bytes(file.size_bytes)} are too much for an evaluation",
            where=path,
            hint=f"give up to {human_bytes(MAX_FILE_BYTES)}; 1 MiB takes a small model minutes",
        )
    return file.read(0, file.size_bytes)


def _read_ids(path: str, vocab_size: int) -> list[int]:
    """The token ids of a JSON array."""
    try:
        found = json.loads(_content(path))
    except (ValueError, RecursionError) as error:
        raise NotReadable(
            "the file of tokens is not JSON", where=path, hint="write [1, 2, 3]"
        ) from error
    if not isinstance(found, list) or not all(type(each) is int for each in found):
        raise NotReadable(
            "the file of tokens is not one array of whole numbers",
            where=path,
            hint="write [1, 2, 3]",
        )
    wrong = next((each for each in found if not 0 <= each < vocab_size), None)
    if wrong is not None:
        raise NotReadable(f"the model has no token {wrong}", where=path)
    return found
