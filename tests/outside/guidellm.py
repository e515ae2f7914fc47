"""guidellm, a load generator, against a server of the demo model.

    python tests/outside/guidellm.py [STREAMS]

pip installs it into a virtual environment of its own. STREAMS requests run at once, for twenty
seconds; ends with exit code 0 if none fails.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from serving import run, serving, venv_with

from mrs.source.locate import DEMO_FOLDER, DEMOS


def main() -> int:
    streams = sys.argv[1] if len(sys.argv) > 1 else "8"
    programs = venv_with("guidellm")
    with tempfile.TemporaryDirectory() as name, serving("--max-queue", "64") as address:
        report = Path(name) / "benchmarks.json"
        code = run(
            programs / "guidellm", "run", "--disable-progress",
            "--backend", f"kind=openai_http,target={address},model=demo",
            "--tokenizer", f"kind=huggingface_auto,model={DEMO_FOLDER / DEMOS['demo']}",
            "--data", "kind=synthetic_text,prompt_tokens=128,output_tokens=32",
            "--profile", f"kind=concurrent,streams={streams}",
            "--constraint", "kind=max_duration,seconds=20",
            "--output", f"kind=json,path={report}", "--output", "kind=console",
        )  # fmt: skip
        if code:
            return code
        (benchmark,) = json.loads(report.read_text())["benchmarks"]
    return int(benchmark["metrics"]["request_totals"]["errored"] > 0)


if __name__ == "__main__":
    sys.exit(main())
