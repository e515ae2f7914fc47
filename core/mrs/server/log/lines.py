"""One line for each request, for people or as JSON, and one for a busy server every 5 seconds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from mrs.server.log.record import RequestRecord

if TYPE_CHECKING:
    from mrs.engine.engine import EngineStats

#: Seconds between two lines about a busy server.
STATUS_SECONDS = 5.0
#: Seconds in which at most one line tells of problems, however many there are.
PROBLEM_SECONDS = 1.0
#: Requests of probes, which come every few seconds, and files of the chat page.
_SILENT = re.compile(r"/health|/ready|/metrics|/page/.*")

_WORD = re.compile(r"[^\s=\"]+")

Say = Callable[[str], None]


class RequestLog:
    """Writes lines with `say`; with `as_json` each is an object.

    With `only_problems` there are none about requests and busy models.
    """

    def __init__(self, say: Say, *, as_json: bool, only_problems: bool = False) -> None:
        self._say = say
        self._as_json = as_json
        self._only_problems = only_problems
        self._problems, self._problem_s = 0, -PROBLEM_SECONDS
        self._before: dict[str, tuple[float, EngineStats]] = {}

    def request(self, record: RequestRecord) -> None:
        """The line of a request that has ended."""
        if self._only_problems or _SILENT.fullmatch(record.path):
            return
        fields: dict[str, Any] = {
            "id": record.id,
            "method": record.method,
            "path": record.path,
            "status": record.status,
            "seconds": round(record.seconds, 4),
        }
        if record.replies:
            fields |= {
                "model": record.model,
                "prompt_tokens": record.prompt_tokens,
                "cached_tokens": record.cached_tokens,
                "completion_tokens": record.completion_tokens,
                "first_token_s": round(record.first_token_s, 4),
                "tokens_per_s": round(record.tokens_per_s, 2),
                "finish": ",".join(sorted({each.reason for each in record.replies})),
            }
        self._write("request", fields)

    def status(self, model: str, stats: EngineStats) -> None:
        """The line of a model that is busy, or was at the last call."""
        now_s, before = time.monotonic(), self._before.get(model)
        self._before[model] = (now_s, stats)
        if self._only_problems or before is None:
            return
        if (stats.running, stats.waiting) == (0, 0) == before[1][:2]:
            return
        new_tokens = max(stats.computed_tokens - before[1].computed_tokens, 0)  # less: a reload
        rate = new_tokens / (now_s - before[0])
        known = stats.cached_tokens + stats.computed_tokens
        fields = {
            "model": model,
            "running": stats.running,
            "waiting": stats.waiting,
            "computed_tokens_per_s": round(rate, 1),
            "cached_share": round(stats.cached_tokens / known, 3) if known else 0.0,
            "preempted": stats.preempted,
        }
        self._write("status", fields)

    def problem(self, text: str) -> None:
        """The line of something that keeps the server from its work; strangers may cause it.

        `count` are the problems since the last line, this one included.
        """
        self._problems += 1
        now_s = time.monotonic()
        if now_s - self._problem_s >= PROBLEM_SECONDS:
            self._write("problem", {"message": text, "count": self._problems})
            self._problems, self._problem_s = 0, now_s

    def _write(self, kind: str, fields: dict[str, Any]) -> None:
        if self._as_json:
            line = {"event": kind, "time": round(time.time(), 3), **fields}
            self._say(msgspec.json.encode(line).decode())
        else:
            values = " ".join(f"{name}={_word(value)}" for name, value in fields.items())
            self._say(f"{time.strftime('%H:%M:%S')} {kind} {values}")


def _word(value: object) -> str:
    """A value in quotes unless it is one word, so that a client's path cannot add further ones."""
    text = str(value)
    return text if _WORD.fullmatch(text) else msgspec.json.encode(text).decode()
