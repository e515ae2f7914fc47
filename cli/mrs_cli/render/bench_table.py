"""What `mrs bench` found, as a small table."""

from __future__ import annotations

from collections.abc import Iterator

from mrs.bench import Report, Spread
from mrs.units import human_bytes
from mrs_cli.render.safe_text import one_line


def bench_lines(report: Report) -> Iterator[str]:
    """A heading, one aligned row a figure (median, lowest to highest), then what was used."""
    work = report.work
    yield one_line(report.summary)
    yield f"{report.kernels} · {work.rounds} rounds after a warm-up"
    yield ""
    rows = [
        (f"prompt of {work.prompt_tokens}", *_rate(report.prompt_tokens_per_s), "tokens/s"),
        (f"reply of {work.new_tokens}", *_rate(report.decode_tokens_per_s), "tokens/s"),
        ("weights read", *_gigabytes(report.decode_bytes_per_s), "GB/s"),
    ]
    if report.read_bytes_per_s is not None and report.read_share is not None:
        rows.append(("plain read", *_gigabytes(report.read_bytes_per_s), "GB/s"))
        share = report.read_share
        median, low, high = (f"{100 * s:.0f}" for s in (share.median, share.low, share.high))
        rows.append(("share of it", median, low, high, "%"))
    for name, median, low, high, unit in rows:
        yield f"{name:<16}{median:>8}  ({low} to {high}) {unit}"
    yield ""
    yield f"{'loaded in':<16}{report.load_s:>8.1f}  s"
    if report.peak_bytes:
        yield f"{'peak memory':<16}{human_bytes(report.peak_bytes):>8}"


def _rate(rates: Spread) -> tuple[str, str, str]:
    low, median, high = (
        f"{rate:.1f}" if rate < 99.95 else f"{rate:.0f}"
        for rate in (rates.low, rates.median, rates.high)
    )
    return median, low, high


def _gigabytes(rates: Spread) -> tuple[str, str, str]:
    low, median, high = (f"{rate / 1e9:.1f}" for rate in (rates.low, rates.median, rates.high))
    return median, low, high
