"""Flags of `mrs embed`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Argument

from mrs_cli.parsing.flags.flags import Flags
from mrs_cli.parsing.flags.option import prompt_option


@dataclass(init=False, eq=False, repr=False)
class EmbedFlags(Flags):
    """Where the texts come from, and what becomes of their embeddings."""

    file: Annotated[
        str | None,
        prompt_option("--file", metavar="FILE", help="Embed each line of FILE that is not empty."),
    ] = None
    output: Annotated[
        str | None,
        prompt_option(
            "--output",
            metavar="FILE",
            help="Write all embeddings to FILE as a NumPy array of float32, one row for each text, "
            "instead of JSON lines to standard output.",
        ),
    ] = None
    prompt_name: Annotated[
        str | None,
        prompt_option(
            "--prompt-name",
            metavar="NAME",
            help="The prompt of the model's files that goes before each text, such as query.",
            show_default="the one that the files say",
        ),
    ] = None
    truncate: Annotated[
        bool, prompt_option("--truncate", help="Leave out the end of a text that is too long.")
    ] = False
    dimensions: Annotated[
        int | None,
        prompt_option(
            "--dimensions",
            metavar="N",
            min=1,
            help="Shorten embeddings to the first N values, if the model's config.json says that "
            "they suffice.",
        ),
    ] = None


@dataclass(init=False, eq=False, repr=False)
class TextFlags(Flags):
    """The texts to embed."""

    texts: Annotated[
        list[str] | None,
        Argument(
            rich_help_panel="Prompt",
            metavar="TEXT",
            help="Texts; without any, and without --file, each line of standard input.",
        ),
    ] = None
