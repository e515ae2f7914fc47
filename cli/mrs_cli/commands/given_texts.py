"""The texts that a command gets as arguments, from a file or from standard input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from mrs.errors import NotReadable, UsageError
from mrs.process.encodings import first_text, text_of
from mrs_cli.environment import Environment
from mrs_cli.parsing.flags.embed_flags import TextFlags
from mrs_cli.parsing.model_requests import valid_text


def given_texts(environment: Environment, file: str | None, given: TextFlags) -> Iterable[str]:
    """The texts, or each line that is not empty. Raises UsageError and NotReadable."""
    if given.texts and file is not None:
        raise UsageError("both texts and --file are given", hint="give one of the two")
    if given.texts:
        return list(map(valid_text, given.texts))
    lines: Iterable[str] = _lines_of(environment.stdin)
    if file is not None:
        try:
            # `splitlines` would also end lines at characters that a pipe's lines contain.
            lines = text_of(Path(file).read_bytes(), file).replace("\r\n", "\n").split("\n")
        except OSError as error:
            raise NotReadable(
                "cannot read the texts", where=file, hint=error.strerror or ""
            ) from error
    elif environment.stdin.isatty():
        raise UsageError("no text is given", hint="give texts, --file FILE or a pipe")
    return (line.rstrip("\r\n") for line in lines if line.strip())


def _lines_of(stream: TextIO) -> Iterator[str]:
    for index, line in enumerate(stream):
        yield line if index else first_text(line, "standard input")
