"""The man pages and the completions: `python -m mrs_cli.docs` writes them.

Section 1 has a page for each command, made from the command tree; section 7 one for each page of
the manual, made from its Markdown.
"""

from __future__ import annotations

from pathlib import Path

from mrs_cli.commands.completions import completion
from mrs_cli.docs.command_pages import command_pages
from mrs_cli.docs.manual_pages import manual_pages

COMPLETIONS = {"bash": "mrs.bash", "zsh": "_mrs", "fish": "mrs.fish"}


def documents(root: Path) -> dict[str, str]:
    """Every generated file of the repository below `root`, by its path there."""
    manual = manual_pages(root / "man")
    return {
        **{f"man/{name}.1": page for name, page in command_pages(list(manual)).items()},
        **{f"man/{name}.7": page for name, page in manual.items()},
        **{f"completions/{name}": completion(shell) for shell, name in COMPLETIONS.items()},
    }
