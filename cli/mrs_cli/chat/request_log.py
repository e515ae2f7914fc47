"""The log of `--log`: every request and reply as a JSON line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TextIO

from mrs.errors import UsageError
from mrs.events import ReplyUsage
from mrs.process.files import PRIVATE
from mrs.request import Sampling
from mrs_cli.render.safe_text import json_text


class RequestLog:
    """Appends whole lines to a file, which is readable by its owner only if this makes it."""

    def __init__(self, file: TextIO, model_id: str) -> None:
        self._file = file
        self._model_id = model_id

    @classmethod
    def open(cls, path: str, model_id: str) -> RequestLog:
        """UsageError if the file cannot be written."""
        try:
            return cls(open(path, "a", 1, "utf-8", opener=_private), model_id)
        except OSError as error:
            raise UsageError(
                f"--log {path} cannot be written", where=error.strerror or ""
            ) from error

    def request(self, asked: str | Sequence[Mapping[str, Any]], sampling: Sampling) -> None:
        """`asked` is a prompt as text, or a conversation as messages."""
        kind = "prompt" if isinstance(asked, str) else "messages"
        self._write("request", {kind: asked, "sampling": asdict(sampling)})

    def response(self, text: str, reason: str, usage: ReplyUsage | None) -> None:
        counts = usage and asdict(usage)
        self._write("response", {"text": text, "finish_reason": reason, "usage": counts})

    def close(self) -> None:
        self._file.close()

    def _write(self, kind: str, facts: dict[str, Any]) -> None:
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "kind": kind, "model": self._model_id, **facts}
        self._file.write(json_text(line) + "\n")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, PRIVATE)
