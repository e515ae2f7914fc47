"""The file of every request and response, as JSON lines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from mrs.errors import UsageError
from mrs.request import Message
from mrs_cli.render.safe_text import json_text


class RequestLog:
    """Appends to a file; each line is whole once written."""

    def __init__(self, file: TextIO, model_id: str) -> None:
        self._file = file
        self._model_id = model_id

    @classmethod
    def open(cls, path: str, model_id: str) -> RequestLog:
        """UsageError when the file cannot be written."""
        try:
            return cls(Path(path).open("a", encoding="utf-8", buffering=1), model_id)
        except OSError as error:
            raise UsageError(
                f"--log {path} cannot be written", where=error.strerror or ""
            ) from error

    def request(self, asked: str | Sequence[Message], sampling: dict[str, Any]) -> None:
        """A prompt as text, or a conversation as messages."""
        kind = "prompt" if isinstance(asked, str) else "messages"
        self._write("request", {kind: asked, "sampling": sampling})

    def response(self, text: str, reason: str, usage: dict[str, Any] | None) -> None:
        self._write("response", {"text": text, "finish_reason": reason, "usage": usage})

    def close(self) -> None:
        self._file.close()

    def _write(self, kind: str, facts: dict[str, Any]) -> None:
        time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        line = {"time": time, "kind": kind, "model": self._model_id, **facts}
        self._file.write(json_text(line) + "\n")
