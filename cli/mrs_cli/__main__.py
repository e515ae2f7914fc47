"""`python -m mrs_cli`."""

from __future__ import annotations

import sys

from mrs_cli.app import main

sys.exit(main())
