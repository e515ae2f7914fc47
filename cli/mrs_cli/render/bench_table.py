"""The result of `mrs bench` as a table."""

from __future__ import annotations

from collections.abc import Iterator

from mrs.run.bench import Report, Spread
from mrs.units import human_bytes
from mrs_cli.render.safe_text import one_line
from mrs_cli.render.statistics import acceptance_shares


def bench_lines(report: Report) -> Iterator[str]:
    """A heading, a row for each figure (median, lowest to highest), then load time and memory."""
    work = report.work
    yield one_line(report.summary)
    rounds = "1 round" if work.rounds == 1 else f"{work.rounds} rounds"
    warmup = "a warm-up" if work.warmup == 1 else f"{work.warmup} for warming up"
    shape = [f"{work.concurrency} sequences"] if work.concurrency > 1 else []
    shape += [f"after {work.depth} tokens"] if work.depth else []
    yield " · ".join([f"{report.kernels} kernels", f"{rounds} after {warmup}", *shape])
    yield ""
    rows = [
        (f"prompt, {work.prompt_tokens} tokens", *_rate(report.prompt_tokens_per_s), "tokens/s"),
        (f"reply, {work.new_tokens} tokens", *_rate(report.decode_tokens_per_s), "tokens/s"),
        ("weights and caches", *_billions(report.decode_bytes_per_s), "GB/s"),
    ]
    if report.read_bytes_per_s is not None and report.read_share is not None:
        rows.append(("memory bandwidth", *_billions(report.read_bytes_per_s), "GB/s"))
        rows.append(("bandwidth used", *_percent(report.read_share), "%"))
    if report.peak_products_per_s is not None and report.peak_share is not None:
        rows.append(("peak of products", *_billions(report.peak_products_per_s), "billion/s"))
        rows.append(("peak used by prompts", *_percent(report.peak_share), "%"))
    for name, median, low, high, unit in rows:
        yield f"{name:<20} {median:>7}  ({low} to {high}) {unit}"
    for each in report.drafts:
        yield ""
        yield (
            f"{each.text:<20} {_one_rate(each.plain_tokens_per_s):>7}  without drafts, "
            f"{_one_rate(each.drafted_tokens_per_s)} with them: {each.gain:.2f} times as fast"
        )
        shares = acceptance_shares(each.drafted_by_position, each.accepted_by_position)
        yield f"{'accepted':<20} {shares + ' by position' if shares else 'nothing was drafted'}"
    yield ""
    yield f"{'load time':<20}{report.load_s:>8.1f}  s"
    if report.peak_bytes:
        yield f"{'peak memory':<20}{human_bytes(report.peak_bytes):>8}"


def _rate(rates: Spread) -> tuple[str, str, str]:
    low, median, high = map(_one_rate, (rates.low, rates.median, rates.high))
    return median, low, high


def _one_rate(rate: float) -> str:
    return f"{rate:.1f}" if rate < 99.95 else f"{rate:.0f}"


def _billions(rates: Spread) -> tuple[str, str, str]:
    low, median, high = (f"{rate / 1e9:.1f}" for rate in (rates.low, rates.median, rates.high))
    return median, low, high


def _percent(shares: Spread) -> tuple[str, str, str]:
    low, median, high = (f"{100 * share:.0f}" for share in (shares.low, shares.median, shares.high))
    return median, low, high
