"""`mrs rerank`: documents by how well they answer a question, as JSON lines."""

from __future__ import annotations

import json
from contextlib import closing

from mrs.errors import ExitCode, UsageError
from mrs.request import RunRequest
from mrs_cli.commands.given_texts import given_texts
from mrs_cli.commands.loading import load_model
from mrs_cli.environment import Environment
from mrs_cli.exit import interruptible
from mrs_cli.parsing.flags.command_flags import OutputFlags
from mrs_cli.parsing.flags.embed_flags import RerankFlags, TextFlags
from mrs_cli.parsing.model_requests import valid_text


def run_rerank(
    environment: Environment,
    output: OutputFlags,
    flags: RerankFlags,
    given: TextFlags,
    request: RunRequest,
) -> ExitCode:
    """Prints a line for each document, best first. Raises UsageError without any."""
    if flags.query is None:
        raise UsageError("no question is given", hint='add --query "TEXT"')
    query, documents = valid_text(flags.query), list(given_texts(environment, flags.file, given))
    if not documents:
        raise UsageError("there is no text to rank", hint="give texts, --file FILE or a pipe")
    with closing(load_model(environment, request, quiet=output.quiet)) as model:
        with interruptible(environment):
            found = model.rank(
                query, documents, instruction=flags.instruction, truncate=flags.truncate
            )
        for index, score, _ in found[: flags.top_n]:
            line = {"index": index, "score": round(score, 6), "text": documents[index]}
            environment.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
    return ExitCode.DONE
