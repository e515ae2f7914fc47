"""Text that is safe to show: text of models and files must not control the terminal."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from mrs.units import rounded_rate

if TYPE_CHECKING:
    from mrs.plan.speed.roofline import Rate

# Everything of Unicode category Cc except tab and newline: C0, DEL and C1.
_CONTROLS = dict.fromkeys(
    [*(code for code in range(0x20) if chr(code) not in "\t\n"), *range(0x7F, 0xA0)]
)
#: Characters that reverse what is around them: a line may look like another one.
_DIRECTIONS = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)])
#: An expected rate whose error is larger is shown as a range only.
LARGE_ERROR = 0.5
_CONTROL_IN_JSON = re.compile("[\x7f-\x9f]")


def printable(text: str) -> str:
    """`text` without control characters, except newline and tab; so it has no escape codes."""
    return text.translate(_CONTROLS)


def one_line(text: str) -> str:
    """`printable(text)` in one line, with single spaces and in one direction."""
    return " ".join(printable(text).translate(_DIRECTIONS).split())


def table(rows: Sequence[Sequence[str]], right: Container[int]) -> list[str]:
    """Lines of aligned columns; columns with an index in `right` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def json_text(value: object, indent: int | None = None) -> str:
    """`value` as JSON, one line without `indent`: readable letters, escaped control characters."""
    import json

    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _CONTROL_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def rate_range(low: float, high: float) -> str:
    """A range of tokens per second, with two digits each: `38\u201345`."""
    return f"{rounded_rate(low)}\u2013{rounded_rate(high)}"


def rate_with_error(rate: Rate) -> str:
    """An expected rate and its error: `38 tokens/s \u00b1 20 %`; a range if little is known."""
    error = rate.high / rate.expected - 1
    if error > LARGE_ERROR:
        return f"{rate_range(rate.low, rate.high)} tokens/s"
    return f"{rounded_rate(rate.expected)} tokens/s \u00b1 {round(100 * error)} %"
