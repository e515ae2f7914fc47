"""Two models of which only one fits in memory, asked in turns by several clients.

    python tests/outside/two_models.py MODEL.gguf [REQUESTS]

The server is in a memory control group (needs Linux, and root). Both models are MODEL.gguf, which
should have 100 MB or more. Ends with exit code 0 if each of REQUESTS (24 by default) is answered
whole by the model that it names, and the two are never loaded at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from serving import server_process

sys.path.insert(0, str(Path(__file__).parents[1]))

from memory.memory_group import memory_group

NAMES = ("first", "second")
CLIENTS = 6
#: What the server needs for its requests, and the plan for what it does not know.
SPARE_BYTES = 64 * 2**20


def needed_bytes(file: Path) -> int:
    """The most that the plan expects for one of the models."""
    model = ["gguf", "-m", str(file.parent), "-f", file.name]
    command = [sys.executable, "-m", "mrs_cli", "plan", "--json", "--cpu", *model]
    plan = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return int(plan["devices"][0]["bytes"]["total"]["high"])


def ask(url: str, number: int) -> bool:
    """Whether a request for one of the models gets a whole reply from it."""
    name = NAMES[number % 2]
    body = {"messages": f"Hi {number}", "model": name, "max_tokens": 12, "ignore_eos": True}
    if number % 3:
        reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=600)
        found = reply.json()
        is_whole = found.get("choices", [{}])[0].get("finish_reason") == "length"
        return is_whole and found["model"] == name and found["usage"]["completion_tokens"] == 12
    body |= {"stream": True, "return_progress": True, "stream_options": {"include_usage": True}}
    text = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=600).text
    *events, usage, done = text.strip().split("\n\n")
    count = json.loads(usage.removeprefix("data: ")).get("usage", {}).get("completion_tokens")
    return done == "data: [DONE]" and count == 12 and all(f'"{name}"' in each for each in events)


def watch(url: str, is_over: threading.Event, seen: list[tuple[str, ...]]) -> None:
    """Adds the names of the loaded models to `seen`, each time that they change."""
    while not is_over.wait(0.02):
        models = httpx.get(f"{url}/v1/models", timeout=600).json()["data"]
        loaded = tuple(each["id"] for each in models if each["status"] == "loaded")
        if loaded and seen[-1:] != [loaded]:
            seen.append(loaded)


def main() -> int:
    file, count = Path(sys.argv[1]).absolute(), int(sys.argv[2]) if len(sys.argv) > 2 else 24
    source = {"quantized_model_id": str(file.parent), "quantized_filename": file.name}
    limit_bytes = needed_bytes(file) + SPARE_BYTES
    with tempfile.TemporaryDirectory() as folder, memory_group(limit_bytes) as group:
        assert group is not None, "no control group could be made"
        config = Path(folder) / "models.json"
        config.write_text(json.dumps({each: {"Gguf": source, "alias": each} for each in NAMES}))
        flags = ("--cpu", "multi-model", "--config", str(config))
        with server_process(*flags, group=group) as (_, url):
            is_over, seen = threading.Event(), list[tuple[str, ...]]()
            watcher = threading.Thread(target=watch, args=(url, is_over, seen))
            watcher.start()
            with ThreadPoolExecutor(CLIENTS) as clients:
                answered = sum(clients.map(lambda number: ask(url, number), range(count)))
            is_over.set()
            watcher.join()
    print(f"{limit_bytes >> 20} MiB: {answered} of {count} answered; loaded in turn:")
    print(*map("+".join, seen))
    return 0 if answered == count and {*seen} == {("first",), ("second",)} else 1


if __name__ == "__main__":
    sys.exit(main())
