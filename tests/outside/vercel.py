"""Vercel's package `ai` against a server of the demo model.

    python tests/outside/vercel.py

Needs node and npm, which fetches the packages. Ends with exit code 0 if every check holds.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from serving import run, serving

SCRIPT = Path(__file__).with_suffix(".mjs")
PACKAGES = ("ai", "@ai-sdk/anthropic", "@ai-sdk/openai", "@ai-sdk/openai-compatible")


def main() -> int:
    with tempfile.TemporaryDirectory() as name, serving() as address:
        folder = Path(name)
        script = shutil.copy(SCRIPT, folder)
        if code := run("npm", "install", "--silent", "--no-audit", *PACKAGES, folder=folder):
            return code
        return run("node", script, address, folder=folder)


if __name__ == "__main__":
    sys.exit(main())
