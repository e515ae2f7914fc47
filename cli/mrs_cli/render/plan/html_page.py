"""A page of charts and a table in one file, which loads nothing and runs nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mrs_cli.render.own_files import replace_own_file
from mrs_cli.render.plan.chart import Series, line_chart
from mrs_cli.render.plan.plan_facts import PARTS
from mrs_cli.render.safe_text import one_line

FLAG = "--html"
#: What a page ends with, so that no other file is replaced.
END = "<!-- a page of mrs -->\n"
#: Widths of a chart in pixels, for a desktop and for a phone.
WIDE, NARROW = 760, 340
#: Bands of errors of more lines than these would hide each other.
MOST_BANDS = 2


class Bar(NamedTuple):
    """Memory by part, in bytes and in the order of `PARTS`; and what stands beside it."""

    name: str
    parts: Sequence[int]
    text: str


@dataclass(frozen=True)
class Page:
    """What a page shows; the first row of the table has its headings."""

    title: str
    subtitle: str
    series: Sequence[Series]
    bars: Sequence[Bar]
    table: Sequence[Sequence[str]]
    notes: Sequence[str]


def write_page(path: Path, page: Page) -> None:
    """Raises UsageError if the file cannot be written, or is none that was written here."""
    replace_own_file(path, html(page), END, "a page of mrs", FLAG)


def html(page: Page) -> str:
    from jinja2 import Environment, FileSystemLoader

    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=folder, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    style = (Path(__file__).parent / "page.css").read_text()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    with_bands = len(page.series) <= MOST_BANDS
    text = environment.get_template("page.html").render(
        page=page,
        style=style,
        digest=digest,
        charts=[
            (kind, line_chart(page.series, width, with_bands=with_bands))
            for kind, width in (("wide", WIDE), ("narrow", NARROW))
        ],
        bars=[_shares(bar) for bar in page.bars],
        parts=[name for name, _, _ in PARTS],
        line=one_line,
    )
    return f"{text.rstrip()}\n{END}"


def _shares(bar: Bar) -> tuple[Bar, list[tuple[int, float, float]]]:
    """The bar, and the number, the start and the length of its parts, as percentages."""
    total, start, shares = sum(bar.parts) or 1, 0.0, []
    for number, size in enumerate(bar.parts):
        length = 100 * size / total
        if size:
            shares.append((number, round(start, 2), round(length, 2)))
        start += length
    return bar, shares
