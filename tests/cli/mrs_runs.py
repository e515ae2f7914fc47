"""What tests of the command line run and look at."""

from __future__ import annotations

import io
import re
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


def screen(codes: str, height: int, lines: tuple[str, ...] = ("",)) -> list[str]:
    """The lines that a terminal of `height` rows shows and has scrolled away, after `codes`.

    `lines` stood there before, the cursor in the last one. It knows the codes that a stream may
    use: newline, return, erase the line, up one line, the cursor.
    """
    lines, row = [*lines], len(lines) - 1
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", codes):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part == "\x1b[1A":
            row -= 1
            assert row > len(lines) - 1 - height, "drew above the top of the screen"
        elif part == "\r" or part in ("\x1b[?25l", "\x1b[?25h"):
            pass
        else:
            assert not part.startswith("\x1b") or part.endswith("m"), part
            lines[row] += "" if part.startswith("\x1b") else part
    return [line.rstrip() for line in lines]
