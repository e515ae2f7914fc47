"""What the program and its libraries log, as lines on standard error."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from mrs_cli.environment import Environment
from mrs_cli.render.error_lines import say


class _Lines(logging.Handler):
    """`mrs: warning: …`, one line a message."""

    def __init__(self, environment: Environment, least: int) -> None:
        super().__init__()
        self._environment = environment
        self._least = least

    def emit(self, record: logging.LogRecord) -> None:
        ours = record.name.partition(".")[0] == "mrs"
        if not ours and record.levelno < self._least:
            return
        say(self._environment, f"{record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def listening(environment: Environment, *, quiet: bool, verbose: int) -> Iterator[None]:
    """Shows warnings; with -v also information and Python's warnings, with -vv everything.

    Of other libraries only warnings are shown, and none with --quiet.
    """
    least = logging.ERROR if quiet else logging.WARNING
    ours, handler = logging.getLogger("mrs"), _Lines(environment, least)
    level_before = ours.level
    ours.setLevel({0: least, 1: logging.INFO}.get(verbose, logging.DEBUG))
    logging.getLogger().addHandler(handler)
    try:
        with warnings.catch_warnings():
            if not verbose:
                warnings.simplefilter("ignore")
            yield
    finally:
        logging.getLogger().removeHandler(handler)
        ours.setLevel(level_before)
