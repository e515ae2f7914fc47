"""`mrs` whose steps take 10 ms and more, so that a test can act while a reply runs."""

from __future__ import annotations

import sys

from running_server import slow_down

from mrs_cli.app import main

if __name__ == "__main__":
    slow_down(0.01)
    sys.exit(main())
