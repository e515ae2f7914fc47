"""Draws what formats lose over the bytes of their weights, as an SVG file that loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from xml.sax.saxutils import escape

from mrs.plan.report.published_losses import DIVERGENCES, bits_of
from mrs.source.address import model_name
from mrs.units import human_bytes
from mrs_cli.render.own_files import replace_own_file
from mrs_cli.render.plan.chart import Scale, decades, path, steps
from mrs_cli.render.safe_text import one_line

if TYPE_CHECKING:
    from mrs.run.evaluation.evaluate import Report

#: What a plot ends with, so that no other file is replaced.
END = "<!-- a plot of mrs -->\n"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 70, 100, 56, 48
#: Divergences below this are drawn there: a logarithmic axis has no 0.
LEAST_NATS = 1e-8
_STYLE = (
    "svg{font:13px system-ui,sans-serif;--ink:#1d2129;--quiet:#5d6675;--rule:#dde1e7;--own:#2563c9}"
    "@media(prefers-color-scheme:dark){svg{--ink:#e6e9ef;--quiet:#9aa4b5;--rule:#333a46;"
    "--own:#6ea3f7}}"
    "text{fill:var(--ink)}.q{fill:var(--quiet)}.r{stroke:var(--rule)}"
    ".p{fill:none;stroke:var(--quiet);stroke-dasharray:5 4}.o{fill:none;stroke:var(--own)}"
    ".d{fill:var(--own)}.e{fill:var(--quiet)}"
)


class Dot(NamedTuple):
    """A format by name: its bytes, and its divergence in nats with the standard error."""

    name: str
    size_bytes: float
    nats: float
    error: float = 0.0


@dataclass(frozen=True)
class _Axes:
    x: Scale
    y: Scale


def write_plot(path: Path, report: Report) -> None:
    """Raises UsageError if the file cannot be written, or is none that was written here."""
    replace_own_file(path, plot(report), END, "a plot of mrs", "--plot")


def plot(report: Report) -> str:
    """The figures of a report with a reference, beside those that are published for Llama 3 8B."""
    own = [
        Dot(each.setting.name, each.weight_bytes, found.mean.value, found.mean.error or 0.0)
        for each in report.results
        if (found := each.divergence) is not None
    ]
    others = [
        Dot(name, bits_of(name) * report.parameters / 8, nats)
        for name, (_, nats) in DIVERGENCES.items()
    ]
    return "".join(_lines(report, own, others)) + END


def _lines(report: Report, own: Sequence[Dot], others: Sequence[Dot]) -> Iterator[str]:
    dots = [*own, *others]
    upwards = decades(
        max(LEAST_NATS, min(each.nats for each in dots)), max(each.nats for each in dots)
    )
    across = steps(max(each.size_bytes for each in dots))
    axes = _axes(across[-1], upwards[0], upwards[-1])
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img">\n<style>{_STYLE}</style>\n'
    )
    name = one_line(model_name(report.model_id))
    yield _text(LEFT, 20, f"{name}: divergence from {one_line(str(report.reference))}, nats")
    yield _text(
        LEFT, 38, "dashed: published for Llama 3 8B by llama.cpp, at its bits a weight", "q"
    )
    for nats in upwards:
        if log10(nats) == round(log10(nats)) or len(upwards) < 8:
            y = axes.y(nats)
            yield f'<line class="r" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>\n'
            yield _text(LEFT - 8, y + 4, f"{nats:g}", "q", "end")
    for size in across:
        yield _text(axes.x(size), HEIGHT - BOTTOM + 20, human_bytes(int(size)), "q", "middle")
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "weights", "q", "middle")
    yield from _series(others, axes, "p", "e")
    yield from _series(own, axes, "o", "d")
    yield "</svg>\n"


def _axes(most_bytes: float, least: float, most: float) -> _Axes:
    def x(size: float) -> float:
        return round(LEFT + size / most_bytes * (WIDTH - LEFT - RIGHT), 1)

    def y(nats: float) -> float:
        share = log10(max(nats, least) / least) / log10(most / least)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    return _Axes(x, y)


def _series(dots: Sequence[Dot], axes: _Axes, line: str, dot: str) -> Iterator[str]:
    """A line through the dots by their bytes, and each with its name and its standard error."""
    ordered = sorted(dots, key=lambda each: each.size_bytes)
    places = [(axes.x(each.size_bytes), axes.y(each.nats)) for each in ordered]
    yield f'<path class="{line}" d="{path(places)}"/>\n'
    for each, (x, y) in zip(ordered, places, strict=True):
        if each.error:
            low, high = axes.y(each.nats - each.error), axes.y(each.nats + each.error)
            yield f'<line class="{line}" x1="{x}" x2="{x}" y1="{low}" y2="{high}"/>\n'
        title = f"{each.name}: {each.nats:.3g} nats in {human_bytes(int(each.size_bytes))}"
        yield f'<circle class="{dot}" cx="{x}" cy="{y}" r="4">'
        yield f"<title>{escape(title)}</title></circle>\n"
        yield _text(x + 7, y - 6, each.name, "q" if dot == "e" else "")


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>\n'
