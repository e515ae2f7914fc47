"""Load a model in a process of its own, run what its plan counted with, and print what it took.

    python tests/memory/memory_run.py REQUEST.json

Prints JSON: the plan's bounds and, as the operating system counts, the process' peaks after
loading and at the end. With `"plan": true` in the request nothing is loaded.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from mrs.errors import DoesNotFit
from mrs.request import ModelSource, RunRequest, Sampling
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader

REPLY_TOKENS = 8


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def fill_context(model: LoadedModel, letter: str) -> None:
    """One sequence, from a prompt of one token a letter to its last planned token."""
    tokens = model.plan.workload.context_tokens - REPLY_TOKENS - 4
    sampling = Sampling(temperature=0, max_tokens=REPLY_TOKENS)
    for _ in model.stream_completion(letter * tokens, sampling):
        pass


def main() -> None:
    wish: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    path = Path(wish["model"])
    source = ModelSource(wish["model"], "gguf" if path.suffix == ".gguf" else "safetensors")
    request = RunRequest(
        source,
        dtype=wish.get("dtype", "auto"),
        isq=wish.get("isq"),
        max_seq_len=wish["tokens"],
        max_batch_size=wish["batch"],
        cpu=True,
        calibration=False,
        prefix_cache_n=0,
        disk_layers=wish.get("disk_layers"),
    )
    terms = ModelLoader(request).plan.breakdowns[-1]
    found = {
        "low": terms.total.low,
        "high": terms.total.high,
        "loading": terms.loading_bytes,
        "needed": terms.needed_bytes,
    }
    if not wish.get("plan"):
        try:
            model = ModelLoader(request).load()
        except DoesNotFit as error:
            print(error, file=sys.stderr)
            sys.exit(4)
        found["loaded_peak"] = peak_bytes()
        letters = "abcdefghijklmnop"[: wish["batch"]]
        threads = [threading.Thread(target=fill_context, args=(model, x)) for x in letters]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found["peak"] = peak_bytes()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
