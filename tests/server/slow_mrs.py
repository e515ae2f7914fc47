"""`mrs` that waits for its test: replies of more than a few tokens go on once it stops, in steps of
10 ms and more, and its start goes on for a while after the model is loaded."""

from __future__ import annotations

import sys
import threading
import time
from itertools import count

from running_server import slow_down

from mrs.run.prompt_reader import PromptReader
from mrs.server.serve import Server
from mrs_cli.app import main
from support.engine_steps import before_each_step

#: More than a start and a reply of one token take, fewer than those that a test interrupts.
FREE_STEPS = 20


def hold_steps_until_it_stops() -> None:
    drain, drains, steps = Server._drain, threading.Event(), count()

    def hold() -> None:
        if next(steps) >= FREE_STEPS:
            drains.wait(120)

    def told(server: Server) -> None:
        drain(server)
        drains.set()

    before_each_step(hold)
    Server._drain = told  # type: ignore[method-assign]


if __name__ == "__main__":
    slow_down(0.01)
    hold_steps_until_it_stops()
    prepare = PromptReader.prepare_grammars
    PromptReader.prepare_grammars = lambda self: (time.sleep(1), prepare(self))[1]  # type: ignore[method-assign]
    sys.exit(main())
