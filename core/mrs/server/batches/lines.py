"""The lines of a batch: which request each one makes."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta

BatchUrl = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
BATCH_URLS: tuple[BatchUrl, ...] = get_args(BatchUrl)
#: What a line has beside its body.
_HEAD_BYTES = 4096
#: Problems of one file that are told.
_MOST_PROBLEMS = 20


class BatchLine(msgspec.Struct, frozen=True, kw_only=True):
    """A request; its body is read by the route of its URL alone."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: BatchUrl
    body: msgspec.Raw

    @property
    def key(self) -> bytes:
        """Stands for the id in sets, which may have millions."""
        return key_of(self.custom_id)


def key_of(custom_id: str) -> bytes:
    return blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class BatchProblem(NamedTuple):
    """What is wrong with a line of a file, counted from 1."""

    line: int
    message: str
    code: str


@dataclass
class BatchSummary:
    """The lines of a file: how many, the keys of their ids, and some that stand for all.

    `sampled` are `stride` lines apart; `problems` are the first ones that were found.
    """

    most_sampled: int
    keys: set[bytes] = field(default_factory=set)
    sampled: list[BatchLine] = field(default_factory=list)
    stride: int = 1
    problems: list[BatchProblem] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.keys)

    def add(self, line: BatchLine) -> None:
        if self.count % self.stride == 0:
            self.sampled.append(line)
            if len(self.sampled) > self.most_sampled:
                del self.sampled[1::2]
                self.stride *= 2
        self.keys.add(line.key)


def summary_of(
    path: Path,
    most_body_bytes: int,
    *,
    most_lines: int | None = None,
    url: BatchUrl | None = None,
    most_sampled: int = 64,
) -> BatchSummary:
    """Reads a whole file; all lines ask for `url` if that is given. Raises OSError."""
    found = BatchSummary(most_sampled)
    for number, line in numbered_lines(path, most_body_bytes):
        problem = None
        if isinstance(line, BatchProblem):
            problem = line
        elif line.key in found.keys:
            text = f"the custom_id {line.custom_id[:100]!r} is that of an earlier line"
            problem = BatchProblem(number, text, "duplicate_custom_id")
        elif url is not None and line.url != url:
            text = f"its url is {line.url}, and the batch is for {url}"
            problem = BatchProblem(number, text, "mismatched_url")
        elif found.count == most_lines:
            problem = BatchProblem(number, f"only {most_lines} lines are taken", "too_many_lines")
        if problem is None and not isinstance(line, BatchProblem):
            found.add(line)
        elif problem is not None:
            found.problems.append(problem)
            if len(found.problems) == _MOST_PROBLEMS or problem.code == "too_many_lines":
                break
    return found


def numbered_lines(
    path: Path, most_body_bytes: int
) -> Iterator[tuple[int, BatchLine | BatchProblem]]:
    """Each line that is not empty, or what is wrong with it, by its number. Raises OSError."""
    most_bytes = most_body_bytes + _HEAD_BYTES
    with path.open("rb") as file:
        number = 0
        while data := file.readline(most_bytes + 1):
            number += 1
            if len(data) > most_bytes:
                text = f"it has more than {most_bytes} bytes"
                yield number, BatchProblem(number, text, "line_too_long")
                return
            if number == 1:
                data = data.removeprefix(codecs.BOM_UTF8)
            if data.strip():
                yield number, _read(number, data)


def lines_of(path: Path, most_body_bytes: int, done: set[bytes]) -> Iterator[BatchLine]:
    """The lines of a file without problems, but for those whose keys are `done`."""
    for _, line in numbered_lines(path, most_body_bytes):
        if isinstance(line, BatchLine) and line.key not in done:
            yield line


def _read(number: int, data: bytes) -> BatchLine | BatchProblem:
    try:
        return msgspec.json.decode(data, type=BatchLine)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$.")
        where = f"{place.rstrip('`')}: " if place else ""
        return BatchProblem(number, f"{where}{message[:1].lower()}{message[1:]}", "invalid_line")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return BatchProblem(number, f"it is not valid JSON: {error}", "invalid_json_line")
