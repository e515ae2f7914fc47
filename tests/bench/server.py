"""Time a server with the HTTP interface of OpenAI: one stream alone, many at once, and the gaps.

    python tests/bench/server.py --folder FOLDER [--url URL | --mistralrs] [--streams 16]

Without --url it serves FOLDER/model.Q4_K_M.gguf of the random Llama (random_llama.py) with `mrs`,
and compares the lone stream with `mrs bench`. With it, any other server that has loaded this file
is asked the same: start `llama-server` or `mistralrs-server` and pass its address. With --mistralrs
the Python package of mistral.rs, which has no server, streams as many replies without HTTP.
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
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1] / "outside"))

from serving import serving

PROMPT_TOKENS, NEW_TOKENS, ALONE_TOKENS, LONG_PROMPT_TOKENS = 128, 64, 128, 512
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


async def ask(url: str, number: int, tokens: int, new_tokens: int) -> Stream:
    """The stream of a greedy reply, as `mrs bench` computes it.

    Only times and bytes are noted while it comes, because on few cores a client that reads JSON
    takes the processor away from the server.
    """
    body = json.dumps({
        "model": "default", "prompt": prompt(number, tokens), "max_tokens": new_tokens,
        "temperature": 0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    })  # fmt: skip
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(
        f"POST /v1/completions HTTP/1.1\r\nhost: {address.netloc}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
    )
    received = []
    while content := await reader.read(1 << 16):
        received.append((time.perf_counter(), content))
    writer.close()
    return _stream(received)


def _stream(received: list[tuple[float, bytes]]) -> Stream:
    """The times of the events with choices; an event came with the last of its bytes."""
    times_s: list[float] = []
    usage: dict[str, int] = {}
    rest = b""
    for time_s, content in received:
        *lines, rest = (rest + content).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                event = json.loads(line.removeprefix(b"data: "))
                usage = event.get("usage") or usage
                times_s += [time_s] if event["choices"] else []
    if not times_s:
        raise RuntimeError(f"the server answered {b''.join(each for _, each in received)!r}")
    return Stream(times_s, usage["prompt_tokens"], usage["completion_tokens"])


async def measure(url: str, streams: int, rounds: int) -> None:
    await ask(url, 1, PROMPT_TOKENS, NEW_TOKENS)
    totals = []
    for n in range(rounds):
        start_s = time.perf_counter()
        numbers = range(100 * (n + 1), 100 * (n + 1) + streams)
        done = await asyncio.gather(
            *(ask(url, number, PROMPT_TOKENS, NEW_TOKENS) for number in numbers)
        )
        tokens = sum(each.prompt_tokens + each.new_tokens for each in done)
        totals.append(tokens / (time.perf_counter() - start_s))
    print(
        f"{streams} streams at once, {done[0].prompt_tokens} tokens of prompt and "
        f"{done[0].new_tokens} of reply: {statistics.median(totals):.0f} tokens a second in total"
    )
    replies = [asyncio.ensure_future(ask(url, 5000 + n, 16, 200)) for n in range(4)]
    await asyncio.sleep(1)
    for n in range(4):
        await ask(url, 6000 + n, LONG_PROMPT_TOKENS, 1)
    gaps_s = sorted(gap for reply in await asyncio.gather(*replies) for gap in reply.gaps_s)
    p95_s, most_s = gaps_s[int(0.95 * len(gaps_s))], gaps_s[-1]
    print(
        f"4 replies while prompts of {LONG_PROMPT_TOKENS} tokens arrive: the gap between "
        f"tokens is {1000 * p95_s:.0f} ms at the 95th percentile, {1000 * most_s:.0f} at most"
    )


def measure_mistralrs(folder: Path, streams: int, rounds: int) -> None:
    """One thread starts streams of chats and reads them, with a template that adds nothing.

    Prompts differ in length by up to 15 tokens: version 0.9.5 fails with equal ones.
    """
    from mistralrs import ChatCompletionRequest, Runner, Which

    template = folder / "contents.jinja"
    template.write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    model = Which.GGUF(tok_model_id=None, quantized_model_id=str(folder), quantized_filename=FILE)
    settings = {"max_seqs": streams, "prefix_cache_n": 0, "no_paged_attn": True}
    runner = Runner(which=model, jinja_explicit=str(template), **settings)

    def tokens_of(numbers: range) -> int:
        """Tokens of the prompts, and of replies as the lengths of streams."""
        lengths = [PROMPT_TOKENS - 8 + number % 16 for number in numbers]
        replies = []
        for number, length in zip(numbers, lengths, strict=True):
            text = " ".join(f"w{id - 300}" for id in prompt(number, length))
            request = ChatCompletionRequest(
                [{"role": "user", "content": text}], "default",
                max_tokens=NEW_TOKENS, temperature=0.0, stream=True,
            )  # fmt: skip
            replies.append(runner.send_chat_completion_request(request))
        return sum(lengths) + sum(1 for reply in replies for _ in reply)

    tokens_of(range(1))
    totals = []
    for n in range(rounds):
        start_s = time.perf_counter()
        tokens = tokens_of(range(100 * (n + 1), 100 * (n + 1) + streams))
        totals.append(tokens / (time.perf_counter() - start_s))
        print(f"mistral.rs, round {n + 1}: {tokens} tokens, {totals[-1]:.0f} a second")
    print(
        f"mistral.rs, {streams} streams at once: {statistics.median(totals):.0f} tokens a second "
        "in total"
    )


def alone(url: str, number: int) -> float:
    """Tokens a second of a reply without company."""
    return asyncio.run(ask(url, number, PROMPT_TOKENS, ALONE_TOKENS)).tokens_per_s


def bench(folder: Path) -> float:
    """Tokens a second of a reply, as `mrs bench` measures them."""
    flags = ["-q", "--json", "-p", str(PROMPT_TOKENS), "-g", str(ALONE_TOKENS), "-r", "3"]
    model = ["gguf", "-m", str(folder), "-f", FILE]
    command = [sys.executable, "-m", "mrs_cli", "bench", *flags, *model]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return float(report["decode_tokens_per_s"]["median"])


def compare_alone(url: str, folder: Path, rounds: int) -> None:
    """Print a lone stream's rate beside that of `mrs bench`, measured in turns.

    A round's rate of the stream is the mean of those before and after `mrs bench`.
    """
    alone(url, 1)
    streams, benches, shares = [], [], []
    for n in range(rounds):
        before, offline, after = alone(url, 10 + 2 * n), bench(folder), alone(url, 11 + 2 * n)
        streams.append((before + after) / 2)
        benches.append(offline)
        shares.append(streams[-1] / offline)
    print(
        f"one stream: {statistics.median(streams):.1f} tokens a second, mrs bench: "
        f"{statistics.median(benches):.1f}; {100 * statistics.median(shares):.1f} % of it "
        f"({100 * min(shares):.1f} to {100 * max(shares):.1f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("random-llama"))
    parser.add_argument("--url")
    parser.add_argument("--mistralrs", action="store_true")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.url:
        rates = [alone(arguments.url, 10 + n) for n in range(arguments.rounds)]
        print(f"one stream: {statistics.median(rates):.1f} tokens a second")
        asyncio.run(measure(arguments.url, arguments.streams, arguments.rounds))
        return
    if arguments.mistralrs:
        measure_mistralrs(arguments.folder, arguments.streams, arguments.rounds)
        return
    model = ("gguf", "-m", str(arguments.folder), "-f", FILE)
    flags = ("--max-seqs", str(arguments.streams), "--max-seq-len", "1024", "--speculate", "off")
    with serving(*flags, *model) as url:
        compare_alone(url, arguments.folder, arguments.rounds)
        asyncio.run(measure(url, arguments.streams, arguments.rounds))


if __name__ == "__main__":
    main()
