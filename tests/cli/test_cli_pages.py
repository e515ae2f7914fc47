"""Pages of charts: one file that loads nothing, and that shows what the table says."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mrs_cli.render.plan.chart import Point, Series, line_chart
from mrs_cli.render.plan.html_page import NARROW, WIDE
from support.model_files import LLAMA_70B, write_headers

MACHINES = ("RTX 4090", "2x RTX 3090", "M2 Ultra 192GB", "Ryzen 9 9950X 256GB")


class Elements(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_headers(tmp_path_factory.mktemp("pages") / "a<b>&c", LLAMA_70B, 3))


@pytest.fixture
def page(run_mrs, model: str, tmp_path: Path) -> str:
    path = tmp_path / "fit.html"
    given = [word for machine in MACHINES for word in ("--on", machine)]
    ran = run_mrs("fit", "-m", model, *given, "--html", str(path))
    assert ran.code == 0
    assert "RTX 4090" in ran.out
    return path.read_text()


def test_a_page_loads_and_runs_nothing(page: str) -> None:
    found = Elements(page)
    assert not {"script", "link", "img", "iframe", "form", "base"} & {t for t, _ in found.elements}
    attributes = [name for _, each in found.elements for name in each]
    assert not {"src", "href", "style"} & set(attributes)
    assert not any(name.startswith("on") for name in attributes)
    style = page.partition("<style>")[2].partition("</style>")[0]
    assert not re.search(r"url\(|@import|https?:", style)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = [m["content"] for m in found.named("meta") if "http-equiv" in m]
    assert policy is not None
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'; ")


def test_a_page_has_a_line_and_a_bar_for_each_machine_that_has_room(page: str) -> None:
    found = Elements(page)
    labels = [str(each.get("aria-label")) for each in found.named("svg")]
    bars = [label for label in labels if "GiB of" in label]
    assert [bar.partition(", ")[0] for bar in bars] == list(MACHINES[1:])
    charts = [each for each in found.named("svg") if "Tokens" in str(each.get("aria-label"))]
    assert [int(each["width"] or 0) for each in charts] == [WIDE, NARROW]
    named = Elements(re.sub("<ul.*?</ul>", "", page, flags=re.DOTALL)).named("path")
    lines = [each for each in named if str(each.get("class")).startswith("line")]
    assert len(lines) == len(charts) * len(bars)
    assert "RTX 4090: q4k needs" in found.text
    assert "What fits: a<b>&c" in found.text


def test_a_plan_has_a_page_too(run_mrs, model: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    devices = ("--device", "2x RTX 3090", "--isq", "q4k")
    assert run_mrs("plan", "--dry-run", *devices, "-m", model, "--html", str(path)).code == 0
    found = Elements(path.read_text())
    assert "band f0" in [each.get("class") for each in found.named("path")], "its error"
    assert re.search(r"cuda:1\s+34\s", " ".join(found.text.split()))


def test_no_other_file_is_replaced(run_mrs, model: str, tmp_path: Path) -> None:
    path = tmp_path / "thesis.html"
    path.write_text("years of work")
    ran = run_mrs("fit", "-m", model, "--on", "H100", "--html", str(path))
    assert ran.code == 2
    assert "thesis.html exists and is not a page of mrs (--html)" in ran.err
    assert path.read_text() == "years of work"
    path.unlink()
    for _ in range(2):
        assert run_mrs("fit", "-m", model, "--on", "H100", "--html", str(path)).code == 0


def _series(*rates: float) -> Series:
    points = [Point(512 << n, 0.5 * rate, rate, 2 * rate) for n, rate in enumerate(rates)]
    return Series("a", points)


def test_a_faster_machine_is_higher_and_a_longer_context_further_right() -> None:
    chart = line_chart([_series(10, 9, 8), _series(20, 18)], 700, with_bands=False)
    (slow, fast) = chart.lines
    assert fast.ends[0][1] < slow.ends[0][1]
    assert slow.ends[1][0] == chart.right > fast.ends[1][0]
    assert not chart.is_logarithmic
    assert chart.upwards[0].text == "0"


def test_rates_that_differ_much_are_on_a_logarithmic_axis_inside_the_chart() -> None:
    chart = line_chart([_series(0.3, 0.2), _series(300, 290)], 340, with_bands=True)
    assert chart.is_logarithmic
    heights = [y for line in chart.lines for _, y, _ in line.ends]
    assert all(0 < y < chart.base for y in heights)
    assert len(chart.across) <= 340 / 50
