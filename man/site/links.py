"""The site's links out of the manual's folder: to the table of families, or to no page at all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
FAMILIES = "families.md"


def on_files(files: Files, config: Any) -> Files:
    """Adds the table of families, which the tests write."""
    table = ROOT / "tests" / FAMILIES
    files.append(File.generated(config, FAMILIES, abs_src_path=str(table)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Leads links to the table within the site; other files of the repository are only named."""
    markdown = markdown.replace(f"](../tests/{FAMILIES})", f"]({FAMILIES})")
    return re.sub(r"\[([^][]+)\]\(\.\./[^)]+\)", r"\1", markdown)
