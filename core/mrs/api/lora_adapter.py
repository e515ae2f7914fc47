"""A LoRA adapter that requests choose by its alias."""

from __future__ import annotations

from dataclasses import dataclass

from mrs.request import AdapterRequest


@dataclass(frozen=True)
class LoraAdapter:
    """A PEFT adapter: `source` is a hub id or a local folder, `revision` one of the hub."""

    alias: str
    source: str
    revision: str | None = None

    def request(self) -> AdapterRequest:
        return AdapterRequest(str(self.source), self.alias, False, self.revision or "main")
