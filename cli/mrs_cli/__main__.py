"""`python -m mrs_cli`, and where the installed `mrs` begins."""

from __future__ import annotations

import sys


def main() -> int:
    """Runs the command line; Ctrl-C while it is still being imported ends it like any other."""
    try:
        from mrs_cli.app import main
    except KeyboardInterrupt:
        sys.stderr.write("mrs: interrupted\n")
        return 130
    return main()


if __name__ == "__main__":
    sys.exit(main())
