"""Colours: the sixteen of the terminal, which fit both light and dark screens."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.theme import Theme

from mrs_cli.environment import Environment

ACCENT = "cyan"
TEXT_COLUMNS = 100  # longer lines are hard to read

_THEME = Theme(
    {
        "accent": ACCENT,
        "quiet": "dim",
        "error": "red",
        "bar.complete": ACCENT,
        "bar.finished": ACCENT,
        "bar.pulse": ACCENT,
        "progress.download": "dim",
        "progress.data.speed": "dim",
        "markdown.h1": "bold",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "italic",
        "markdown.h5": "italic",
        "markdown.h6": "italic",
        "markdown.code": ACCENT,
        "markdown.code_block": "none",
        "markdown.block_quote": "italic",
        "markdown.item.bullet": ACCENT,
        "markdown.item.number": ACCENT,
        "markdown.hr": "dim",
        "markdown.link": "underline",
        "markdown.link_url": "dim",
        "markdown.table.header": "bold",
        "markdown.table.border": "dim",
    }
)


def console(environment: Environment, stream: TextIO, **options: object) -> Console:
    """A Rich console on `stream` that does not interpret strings."""
    return Console(
        file=stream,
        force_terminal=environment.can_animate(stream),
        no_color=not environment.has_colour(stream),
        theme=_THEME,
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=False,
        **options,  # type: ignore[arg-type]
    )
