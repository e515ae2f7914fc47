"""Flags of `mrs embed`, `mrs rerank` and `mrs classify`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Argument

from mrs_cli.parsing.flags.flags import Flags
from mrs_cli.parsing.flags.option import USUAL, prompt_option


@dataclass(init=False, eq=False, repr=False)
class EmbedFlags(Flags):
    """Where the texts come from, and what becomes of their embeddings."""

    file: Annotated[
        str | None,
        prompt_option("--file", metavar="FILE", help="Embed each line of FILE that is not empty."),
        USUAL,
    ] = None
    output: Annotated[
        str | None,
        prompt_option(
            "--output",
            metavar="FILE",
            help="Write all embeddings to FILE as a NumPy array of float32, one row for each text, "
            "instead of JSON lines to standard output.",
        ),
        USUAL,
    ] = None
    prompt_name: Annotated[
        str | None,
        prompt_option(
            "--prompt-name",
            metavar="NAME",
            help="The prompt of the model's files that goes before each text, such as query.",
            show_default="the one that the files say",
        ),
        USUAL,
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
class RerankFlags(Flags):
    """The question, where the documents come from, and how they are scored."""

    query: Annotated[
        str | None,
        prompt_option("--query", metavar="TEXT", help="The question that documents answer."),
        USUAL,
    ] = None
    file: Annotated[
        str | None,
        prompt_option(
            "--file", metavar="FILE", help="Each line of FILE that is not empty is a document."
        ),
        USUAL,
    ] = None
    instruction: Annotated[
        str | None,
        prompt_option(
            "--instruction",
            metavar="TEXT",
            help="What a good answer is, for models that read it.",
            show_default="as the model's files say",
        ),
    ] = None
    top_n: Annotated[
        int | None,
        prompt_option("--top-n", metavar="N", min=1, help="Print the best N documents only."),
        USUAL,
    ] = None
    truncate: Annotated[
        bool, prompt_option("--truncate", help="Leave out the end of a document that is too long.")
    ] = False


@dataclass(init=False, eq=False, repr=False)
class ClassifyFlags(Flags):
    """Where the texts come from, and what they form a pair with."""

    file: Annotated[
        str | None,
        prompt_option(
            "--file", metavar="FILE", help="Classify each line of FILE that is not empty."
        ),
        USUAL,
    ] = None
    text_pair: Annotated[
        str | None,
        prompt_option(
            "--text-pair",
            metavar="TEXT",
            help="The text that each text forms a pair with, for models of two texts, such as a "
            "hypothesis that may follow from them.",
        ),
        USUAL,
    ] = None
    truncate: Annotated[
        bool,
        prompt_option(
            "--truncate", help="Leave out the end of a text, or of its pair, that is too long."
        ),
    ] = False


@dataclass(init=False, eq=False, repr=False)
class TextFlags(Flags):
    """The texts to embed, to rank or to classify, after the model if no flag names it."""

    texts: Annotated[
        list[str] | None,
        Argument(
            rich_help_panel="Prompt",
            metavar="[MODEL] TEXT",
            help="The model, unless -m names it, and texts; without any, and without --file, each "
            "line of standard input.",
        ),
        USUAL,
    ] = None
