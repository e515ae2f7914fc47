"""Time a server with the HTTP interface of OpenAI: one stream alone, many at once, and the gaps.

    python tests/bench/server.py --folder FOLDER [--url URL] [--streams 16]

Without --url it serves FOLDER/model.Q4_K_M.gguf of the random Llama (random_llama.py) with `mrs`,
and compares the lone stream with `mrs bench`. With it, any other server that has loaded this file
is asked the same: start `llama-server` or `mistralrs-server` and pass its address.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import httpx

sys.path.insert(0, str(Path(__file__).parents[1] / "outside"))

from serving import serving

PROMPT_TOKENS, NEW_TOKENS, LONG_PROMPT_TOKENS = 128, 64, 512
FILE = "model.Q4_K_M.gguf"


class Stream(NamedTuple):
    """When each piece of a reply came, in seconds, and the tokens that the server counted.

    A token of the random model is often a part of a character, so pieces are fewer than tokens.
    """

    times_s: list[float]
    prompt_tokens: int
    new_tokens: int

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for a, b in zip(self.times_s, self.times_s[1:], strict=False)]

    @property
    def tokens_per_s(self) -> float:
        """The rate of the reply after its first piece, which is its first token."""
        return (self.new_tokens - 1) / (self.times_s[-1] - self.times_s[0])


def prompt(number: int, tokens: int) -> list[int]:
    """Token ids, because engines divide a random vocabulary's texts differently; each is new."""
    return [(number * 997 + 31 * i) % 30000 + 300 for i in range(tokens)]


async def ask(client: httpx.AsyncClient, number: int, tokens: int, new_tokens: int) -> Stream:
    body = {
        "model": "default", "prompt": prompt(number, tokens), "max_tokens": new_tokens,
        "temperature": 1.0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    times_s, usage = [], {}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                usage = chunk.get("usage") or usage
                if chunk["choices"]:
                    times_s.append(time.perf_counter())
    return Stream(times_s, usage["prompt_tokens"], usage["completion_tokens"])


async def measure(url: str, streams: int, rounds: int) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        await ask(client, 1, PROMPT_TOKENS, NEW_TOKENS)
        alone = [
            (await ask(client, 10 + n, PROMPT_TOKENS, NEW_TOKENS)).tokens_per_s
            for n in range(rounds)
        ]
        print(f"one stream: {statistics.median(alone):.1f} tokens a second")
        totals = []
        for n in range(rounds):
            start_s = time.perf_counter()
            numbers = range(100 * (n + 1), 100 * (n + 1) + streams)
            done = await asyncio.gather(
                *(ask(client, number, PROMPT_TOKENS, NEW_TOKENS) for number in numbers)
            )
            tokens = sum(each.prompt_tokens + each.new_tokens for each in done)
            totals.append(tokens / (time.perf_counter() - start_s))
        print(
            f"{streams} streams at once, {done[0].prompt_tokens} tokens of prompt and "
            f"{done[0].new_tokens} of reply: {statistics.median(totals):.0f} tokens a second in "
            "total"
        )
        replies = [asyncio.ensure_future(ask(client, 5000 + n, 16, 200)) for n in range(4)]
        await asyncio.sleep(1)
        for n in range(4):
            await ask(client, 6000 + n, LONG_PROMPT_TOKENS, 1)
        gaps_s = sorted(gap for reply in await asyncio.gather(*replies) for gap in reply.gaps_s)
        p95_s, most_s = gaps_s[int(0.95 * len(gaps_s))], gaps_s[-1]
        print(
            f"4 replies while prompts of {LONG_PROMPT_TOKENS} tokens arrive: the gap between "
            f"tokens is {1000 * p95_s:.0f} ms at the 95th percentile, {1000 * most_s:.0f} at most"
        )


def bench(folder: Path) -> float:
    """Tokens a second of a reply, as `mrs bench` measures them."""
    flags = ["-q", "--json", "-p", str(PROMPT_TOKENS), "-g", str(NEW_TOKENS), "-r", "3"]
    model = ["gguf", "-m", str(folder), "-f", FILE]
    command = [sys.executable, "-m", "mrs_cli", "bench", *flags, *model]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return float(report["decode_tokens_per_s"]["median"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("random-llama"))
    parser.add_argument("--url")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.url:
        asyncio.run(measure(arguments.url, arguments.streams, arguments.rounds))
        return
    print(f"mrs bench: {bench(arguments.folder):.1f} tokens a second")
    model = ("gguf", "-m", str(arguments.folder), "-f", FILE)
    with serving("--max-seqs", str(arguments.streams), "--max-seq-len", "1024", *model) as url:
        asyncio.run(measure(url, arguments.streams, arguments.rounds))


if __name__ == "__main__":
    main()
