"""Log messages of the program and its libraries, as lines on standard error."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from mrs_cli.environment import Environment
from mrs_cli.render.error_lines import say


class _Lines(logging.Handler):
    """`mrs: warning: …`, one line per message."""

    def __init__(self, environment: Environment, level: int) -> None:
        super().__init__()
        self._environment = environment
        self._level = level

    def emit(self, record: logging.LogRecord) -> None:
        ours = record.name.partition(".")[0] == "mrs"
        if not ours and record.levelno < self._level:
            return
        say(self._environment, f"{record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def log_to_stderr(environment: Environment, *, quiet: bool, verbose: int) -> Iterator[None]:
    """Shows warnings; with -v also information and Python's warnings, with -vv everything.

    Libraries show warnings only, and with --quiet errors only.
    """
    level = logging.ERROR if quiet else logging.WARNING
    ours, handler = logging.getLogger("mrs"), _Lines(environment, level)
    level_before = ours.level
    ours.setLevel({0: level, 1: logging.INFO}.get(verbose, logging.DEBUG))
    logging.getLogger().addHandler(handler)
    try:
        with warnings.catch_warnings():
            if not verbose:
                warnings.simplefilter("ignore")
            yield
    finally:
        logging.getLogger().removeHandler(handler)
        ours.setLevel(level_before)
