"""Flags of `mrs batch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Argument

from mrs_cli.parsing import shell_completion
from mrs_cli.parsing.flags.flags import Flags
from mrs_cli.parsing.flags.option import USUAL, prompt_option


@dataclass(init=False, eq=False, repr=False)
class BatchFlags(Flags):
    """Where the answers go."""

    output: Annotated[
        str | None,
        prompt_option(
            "--output",
            metavar="FILE",
            help="Write answers to FILE, as JSON lines in the form of OpenAI's batches. Lines that "
            "have one there are not answered again.",
            show_default="NAME.output.jsonl beside NAME.jsonl",
        ),
        USUAL,
    ] = None
    error_file: Annotated[
        str | None,
        prompt_option(
            "--error-file",
            metavar="FILE",
            help="Write the errors of lines that failed to FILE. Delete it to try these again.",
            show_default="NAME.errors.jsonl beside NAME.jsonl",
        ),
        USUAL,
    ] = None


@dataclass(init=False, eq=False, repr=False)
class BatchWords(Flags):
    """The model and the file as words that are no flags."""

    words: Annotated[
        list[str] | None,
        Argument(
            rich_help_panel="Prompt",
            metavar="[MODEL] FILE",
            autocompletion=shell_completion.all_models,
            help="The model, unless -m names it, and the file of requests: one JSON object a line, "
            "with custom_id, method, url and body.",
        ),
    ] = None
