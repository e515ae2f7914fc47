"""`mrs` whose steps take 10 ms and more, so that a test can act while a reply runs, and whose
start goes on for a while after the model is loaded."""

from __future__ import annotations

import sys
import time

from running_server import slow_down

from mrs.run.prompt_reader import PromptReader
from mrs_cli.app import main

if __name__ == "__main__":
    slow_down(0.01)
    prepare = PromptReader.prepare_grammars
    PromptReader.prepare_grammars = lambda self: (time.sleep(1), prepare(self))[1]  # type: ignore[method-assign]
    sys.exit(main())
