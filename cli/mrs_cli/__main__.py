"""The entry point of `mrs` and of `python -m mrs_cli`."""

from __future__ import annotations

import gc
import sys


def main() -> int:
    """Runs the command line; handles Ctrl-C while modules are imported, too."""
    try:
        from mrs_cli.app import main
    except KeyboardInterrupt:
        sys.stderr.write("mrs: interrupted\n")
        return 130
    try:
        return main()
    finally:
        gc.freeze()  # the end of the process frees what there is: nothing is left to search


if __name__ == "__main__":
    sys.exit(main())
