"""What tests of the command line run and look at."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field
from pathlib import Path

import fake_model

from mrs.request import RunRequest

FAKE_MRS = [sys.executable, str(Path(fake_model.__file__))]
REAL_MRS = [sys.executable, "-m", "mrs_cli"]
PROMPT = "\u203a "


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@dataclass
class Ran:
    """How a run of `mrs` inside this process ended, and the models that it loaded."""

    code: int
    out: str
    err: str
    models: list[fake_model.FakeModel] = field(default_factory=list)

    @property
    def request(self) -> RunRequest:
        return self.models[0].request
