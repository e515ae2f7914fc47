"""Writes the files into the repository below the folder given, or below the current one."""

import sys
from pathlib import Path

from mrs_cli.docs import documents

root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
if not (root / "man").is_dir():
    sys.exit(f"{root} has no manual: name the folder of the repository")
for path, text in documents(root).items():
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")
