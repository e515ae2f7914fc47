"""Memory and speed of a model in several processes, planned and measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mrs.units import human_bytes, rounded_rate
from mrs_cli.render.plan.machines_table import machines_document, machines_lines
from mrs_cli.render.plan.measured_table import byte_difference
from mrs_cli.render.safe_text import table

if TYPE_CHECKING:
    from mrs.distributed.measure import MeasuredRun


def processes_table(run: MeasuredRun) -> Iterator[str]:
    """A line for each term of each process, for each link, and for each rate."""
    rows = [("process", "term", "predicted", "measured", "difference")]
    for rank in run.ranks:
        for term, planned, measured in (
            ("weights", rank.planned.weight_bytes, rank.weight_bytes),
            ("all", rank.planned.total_bytes, rank.resident_bytes),
        ):
            texts = ("not known", "")
            if measured is not None:
                texts = human_bytes(measured), byte_difference(planned, measured)
            rows.append((rank.name, term, human_bytes(planned), *texts))
    yield from table(rows, right=range(2, 5))
    count = len(run.ranks)
    stages = len(run.links) or 1
    for number, link in enumerate(run.links):
        left, right = (n % stages * (count // stages) for n in (number, number + 1))
        yield (
            f"rank {left} to rank {right}: {1000 * link.latency_s:.3g} ms, "
            f"{human_bytes(round(link.bytes_per_s))} a second"
        )
    for number, sum_s in enumerate(run.sums_s):
        first = number * (count // stages)
        last = first + count // stages - 1
        yield f"a sum of ranks {first} to {last}: {1000 * sum_s:.3g} ms"
    fast, slow = (f"{1000 * each:.3g}" for each in run.planned_token_s)
    between = f", {1000 * run.between_s:.3g} ms of it between processes"
    yield f"a token: {fast} to {slow} ms predicted{between}; {1000 * run.token_s:.3g} ms measured"
    yield f"a prompt: {rounded_rate(run.prompt_tokens_per_s, 3)} tokens/s measured"
    if run.fastest is not None:
        yield "by these bandwidths and links, one sequence is the fastest so:"
        yield from machines_lines(run.fastest)


def processes_document(run: MeasuredRun) -> dict[str, Any]:
    return {
        "ranks": [{**each._asdict(), "planned": each.planned._asdict()} for each in run.ranks],
        "links": [
            {"latency_s": each.latency_s, "bytes_per_s": each.bytes_per_s} for each in run.links
        ],
        "sums_s": list(run.sums_s),
        "between_s": run.between_s,
        "planned_token_s": list(run.planned_token_s),
        "token_s": run.token_s,
        "prompt_tokens_per_s": run.prompt_tokens_per_s,
        "fastest": run.fastest and machines_document(run.fastest),
    }
