"""`mrs embed`: texts to embeddings, as JSON lines or as a NumPy file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

from mrs.errors import ExitCode, NotReadable, UsageError
from mrs.request import RunRequest
from mrs_cli.commands.given_texts import given_texts
from mrs_cli.commands.loading import load_model
from mrs_cli.environment import Embedding, Environment, Model
from mrs_cli.exit import interruptible
from mrs_cli.parsing.flags.command_flags import OutputFlags
from mrs_cli.parsing.flags.embed_flags import EmbedFlags, TextFlags

#: Texts that are embedded before their lines are printed.
_AT_A_TIME = 256


def run_embed(
    environment: Environment,
    output: OutputFlags,
    flags: EmbedFlags,
    given: TextFlags,
    request: RunRequest,
) -> ExitCode:
    """Embeds the texts that the flags name. Raises UsageError without any."""
    texts = given_texts(environment, flags.file, given)
    with closing(load_model(environment, request, quiet=output.quiet)) as model:
        model.require_embeddings(flags.dimensions)
        with interruptible(environment):
            embeddings = _embeddings(model, flags, texts)
            if flags.output is None:
                count = _print(environment, embeddings)
            else:
                count = _write(Path(flags.output), embeddings)
    if not count:
        raise UsageError("there is no text to embed", hint="give texts, --file FILE or a pipe")
    return ExitCode.DONE


def _embeddings(model: Model, flags: EmbedFlags, texts: Iterable[str]) -> Iterator[Embedding]:
    rest = iter(texts)
    while some := list(islice(rest, _AT_A_TIME)):
        yield from model.embed(
            some,
            prompt_name=flags.prompt_name,
            truncate=flags.truncate,
            dimensions=flags.dimensions,
        )


def _print(environment: Environment, embeddings: Iterable[Embedding]) -> int:
    """One JSON object for each text; returns how many."""
    count = 0
    for count, each in enumerate(embeddings, 1):
        values = [round(value, 9) for value in each.values]
        line = {"index": count - 1, "tokens": each.tokens, "embedding": values}
        environment.stdout.write(json.dumps(line) + "\n")
        environment.stdout.flush()
    return count


def _write(path: Path, found: Iterable[Embedding]) -> int:
    """A file of all embeddings; returns how many."""
    import numpy as np

    rows = [each.values for each in found]
    if rows:
        try:
            with path.open("wb") as file:
                np.save(file, np.array(rows, np.float32))
        except OSError as error:
            raise NotReadable(
                "cannot write the embeddings", where=str(path), hint=error.strerror or ""
            ) from error
    return len(rows)
