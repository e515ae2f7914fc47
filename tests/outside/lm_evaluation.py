"""lm-evaluation-harness against the server and against Python, beside transformers.

    python tests/outside/lm_evaluation.py [--limit SENTENCES] [MODEL.gguf ...]

Without a file it takes the published model of the tests. pip installs the harness into a virtual
environment of its own. The task is a hundred sentences with four endings each, in `lm_eval_task/`;
transformers computes the same weights in float32. Ends with exit code 0 if the accuracies are equal
within their standard error, and the log-likelihoods of endings as close as `compare.py` says.
"""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(1, str(TESTS))

from serving import serving, venv_with

from support.published_model import WHY_ABSENT, published_gguf

COMPARE = TESTS / "outside" / "lm_eval_task" / "compare.py"


def main() -> int:
    parser = ArgumentParser()
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("files", nargs="*", type=Path)
    asked = parser.parse_args()
    programs = venv_with("lm_eval[api]")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HF_HUB_OFFLINE": "1"}
    codes = []
    for file in asked.files or [published_gguf()]:
        if file is None:
            sys.exit(WHY_ABSENT)
        with serving("--cpu", "-m", str(file.parent), "-f", file.name) as address:
            command = [programs / "python", COMPARE, file, address, str(asked.limit)]
            codes.append(subprocess.run(command, env=environment, check=False).returncode)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
