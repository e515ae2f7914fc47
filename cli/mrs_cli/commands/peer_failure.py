"""The program ends with one line when a worker of its model fails, whatever it waits for."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, cast

from mrs.errors import MrsError
from mrs_cli.environment import Environment, Model
from mrs_cli.render.error_lines import show_error

if TYPE_CHECKING:
    from mrs.run.loaded_model import LoadedModel

#: So long a reply that is under way may take to raise the error itself.
_GRACE_S = 1.0


def end_with_peers(environment: Environment, model: Model) -> None:
    """Let the failure of a worker end the program.

    The main thread gets the error as an exception. A server has loaded the model in another thread:
    it ends at once, after its requests have got their errors.
    """
    cluster = cast("LoadedModel", model).cluster
    assert cluster is not None
    rendezvous = cluster.rendezvous
    failures: list[MrsError] = []
    is_main = threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGUSR2")

    def raise_failure(signum: int, frame: FrameType | None) -> None:
        if not rendezvous.is_closed:
            raise failures[0]

    def end(error: MrsError) -> None:
        failures.append(error)
        time.sleep(_GRACE_S)
        if rendezvous.is_closed:
            return
        if is_main:
            signal.pthread_kill(cast(int, threading.main_thread().ident), signal.SIGUSR2)
            return
        show_error(environment, error)
        rendezvous.close()
        os._exit(error.exit_code)

    if is_main:
        signal.signal(signal.SIGUSR2, raise_failure)
    rendezvous.on_failure = end
