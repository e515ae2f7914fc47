"""The official JavaScript package of OpenAI against a server of the demo model.

    python tests/outside/openai_javascript.py

Needs node and npm, which fetches the package. Ends with exit code 0 if every check holds.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from serving import run, serving

SCRIPT = Path(__file__).with_suffix(".mjs")


def main() -> int:
    with tempfile.TemporaryDirectory() as name, serving() as address:
        folder = Path(name)
        script = shutil.copy(SCRIPT, folder)
        if code := run("npm", "install", "--silent", "--no-audit", "openai", folder=folder):
            return code
        return run("node", script, address, folder=folder)


if __name__ == "__main__":
    sys.exit(main())
