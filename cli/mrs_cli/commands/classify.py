"""`mrs classify`: the class of each text, as JSON lines."""

from __future__ import annotations

import json
from contextlib import closing
from itertools import islice

from mrs.errors import ExitCode, UsageError
from mrs.request import RunRequest
from mrs_cli.commands.given_texts import given_texts
from mrs_cli.commands.loading import load_model
from mrs_cli.environment import Environment
from mrs_cli.exit import interruptible
from mrs_cli.parsing.flags.command_flags import OutputFlags
from mrs_cli.parsing.flags.embed_flags import ClassifyFlags, TextFlags
from mrs_cli.parsing.model_requests import valid_text

#: Texts that are classified before their lines are printed.
_AT_A_TIME = 256


def run_classify(
    environment: Environment,
    output: OutputFlags,
    flags: ClassifyFlags,
    given: TextFlags,
    request: RunRequest,
) -> ExitCode:
    """Prints a line for each text, in order. Raises UsageError without any."""
    texts = iter(given_texts(environment, flags.file, given))
    pair, count = flags.text_pair and valid_text(flags.text_pair), 0
    with closing(load_model(environment, request, quiet=output.quiet)) as model:
        model.require_classes()
        with interruptible(environment):
            while some := list(islice(texts, _AT_A_TIME)):
                for found in model.classify(some, text_pair=pair, truncate=flags.truncate):
                    shares = found.probabilities.items()
                    probabilities = {label: round(value, 6) for label, value in shares}
                    line = {"index": count, "label": found.label, "probabilities": probabilities}
                    environment.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
                    count += 1
                environment.stdout.flush()
    if not count:
        raise UsageError("there is no text to classify", hint="give texts, --file FILE or a pipe")
    return ExitCode.DONE
