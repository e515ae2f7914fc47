"""Sessions of heads and workers in which one process changes one message that it sends.

A program: `python mutated_sessions.py KINDS SEED COUNT`, where KINDS is JSON with what `Kind` has
for each name. Real heads and lasting workers talk to each other over sockets; one of them lies once
in each session, whose number is the seed of the lie. The last line is a JSON report.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import resource
import signal
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from mrs.distributed.protocol import failures

# Tests do not wait as long as people do. The other modules read these when they are imported.
failures.SILENCE_S, failures.BEAT_S = 2.5, 0.3
failures.CONNECT_LIMIT_S, failures.STEP_LIMIT_S = 3.0, 2.0
failures.LOAD_LIMIT_S = 6.0

import msgspec
import numpy as np
import torch
from clusters import cluster_decoder, free_port, request_for
from mutated_steps import _INTS
from test_exact import logits_of

from mrs.distributed import stage, tensor_parallel
from mrs.distributed import worker as worker_module
from mrs.distributed.protocol.channel import _LENGTHS, Channel
from mrs.distributed.protocol.messages import Beat, Challenge, Hello, Message, Proof
from mrs.distributed.protocol.secret import VARIABLE
from mrs.distributed.worker import WorkerSettings, run_worker
from mrs.errors import MrsError
from mrs.request import RunRequest, VisionRequest
from mrs.run.model_loader import ModelLoader

#: What processes need is imported before they start: meanwhile they would be silent.
_IMPORTED = tensor_parallel, stage, worker_module, ModelLoader
#: A session that takes longer hangs: all limits above together are shorter.
_LIMIT_S = 45
_GREETING = (Hello, Challenge, Proof)
_SECRET = b"0123456789abcdef" * 3
_POOL: tuple[Any, ...] = (
    *(None, True, -1, 0, 1 << 62, 1.5, float("nan"), float("inf"), -1e300, "", "x" * 3000),
    *("a\nb\x1b[31m\u2028c", "../../etc/passwd", "/dev/zero", b"", bytes(64), [], {}, [[[[]]]]),
    *([0] * 70_000, {"type": "Beat"}, "::1", "127.0.0.1", "cuda:7", "/proc/self/fd/0"),
)


class Kind(NamedTuple):
    """A model, and how many ranks share it in groups of how many."""

    folder: str
    ranks: int
    size: int = 1
    has_images: bool = False

    def request(self, port: int) -> RunRequest:
        limits = VisionRequest(max_num_images=2, max_image_length=128)
        changes: dict[str, Any] = {"vision": limits} if self.has_images else {}
        request = request_for(Path(self.folder), port, self.ranks - 1, **changes)
        assert request.cluster is not None
        cluster = replace(request.cluster, group_size=self.size, wait_limit_s=20)
        return replace(request, cluster=cluster)


class Lies:
    """What all processes of a test know: who lies, with which message, and what has become of it.

    The memory has: seed, liar (-1 for none), number of the message or signal, whether it is a
    signal; then for each process the messages and signals of its session, and what it has changed.
    """

    def __init__(self, ranks: int) -> None:
        self._memory = mmap.mmap(-1, 4096)
        self._values = np.frombuffer(self._memory, np.int64)
        self._own, self._ranks = 0, ranks
        self._session = -1

    def begin(self, seed: int, liar: int, number: int, *, is_signal: bool) -> None:
        self._values[:4] = seed, liar, number, is_signal
        self._values[4:400] = 0

    def counts(self, rank: int) -> tuple[int, int]:
        return int(self._values[10 + 2 * rank]), int(self._values[11 + 2 * rank])

    @property
    def has_lied(self) -> bool:
        return bool(self._values[4])

    def join(self, rank: int) -> None:
        """Be this rank, and send through this object."""
        self._own = rank
        send, forward = Channel.send, Channel.signal

        def changed(channel: Channel, message: Message, data: memoryview | None = None) -> None:
            if isinstance(message, (Beat, *_GREETING)) or not self._is_due(is_signal=False):
                return send(channel, message, data)
            return self._lie(channel, message, data, send)

        def signal_once(channel: Channel) -> None:
            if not self._is_due(is_signal=True):
                return forward(channel)
            self._values[4] = 1
            for _ in range(2 * (int(self._values[0]) % 2)):  # none, or one too many
                forward(channel)

        Channel.send, Channel.signal = changed, signal_once  # type: ignore[method-assign]

    def _is_due(self, *, is_signal: bool) -> bool:
        at = 10 + 2 * self._own + is_signal
        self._values[at] += 1
        wanted = (self._own, int(self._values[at]), is_signal)
        return not self._values[4] and tuple(self._values[1:4]) == wanted

    def _lie(
        self,
        channel: Channel,
        message: Message,
        data: memoryview | None,
        send: Callable[[Channel, Message, memoryview | None], None],
    ) -> None:
        self._values[4] = 1
        chance = random.Random(int(self._values[0]))
        body = msgspec.msgpack.encode(message)
        content = b"" if data is None else bytes(data)
        kind, lengths = chance.randrange(16), None
        if kind == 0:
            return  # not sent at all
        if kind == 1:
            send(channel, message, data)  # and once more
        elif kind == 2:
            body = _damaged(chance, body)
        elif kind == 3:
            body = b"\x82\xa4type" + bytes([0xA4]) + b"Beat\xa1x" + b"\x91" * 200_000
        elif kind == 4:
            head = b"\x82\xa4type\xa5Ready\xa6caches\xdd" + struct.pack(">I", (1 << 32) - 1)
            body = head if chance.randrange(2) else b"\x82\xa4type\xa4Step\xa6wanted" + head[-5:]
        elif kind == 5:
            most = chance.choice((1 << 16, 1 << 20, 1 << 26, (1 << 32) - 1))
            lengths = _LENGTHS.pack(most, chance.choice((0, 1 << 20, 1 << 40, (1 << 64) - 1)))
        elif kind in (6, 7) and content:
            content = _content(chance, content)
        else:
            given = msgspec.msgpack.decode(body)
            with suppress(msgspec.MsgspecError, OverflowError, TypeError):
                body = msgspec.msgpack.encode(changed_value(chance, given))
        _send_frame(channel, body, content, lengths)


def _send_frame(channel: Channel, body: bytes, data: bytes, lengths: bytes | None) -> None:
    """A frame with the seal of a peer that has the secret."""
    head = (lengths or _LENGTHS.pack(len(body), len(data))) + body
    with channel._lock:
        seal = channel._seal(channel._keys[0], channel._sent, head, memoryview(data))
        channel._sent += 1
        channel._socket.sendall(head + data + seal)


def _damaged(chance: random.Random, body: bytes) -> bytes:
    """Some bytes changed, or fewer of them."""
    values = bytearray(body)
    for _ in range(chance.randrange(1, 5)):
        values[chance.randrange(len(values))] = chance.randrange(256)
    return bytes(
        values[: chance.randrange(1, len(values) + 1)] if chance.randrange(3) == 0 else values
    )


def _content(chance: random.Random, content: bytes) -> bytes:
    """Hidden states that are no numbers, or not as many."""
    kind = chance.randrange(6)
    values = np.frombuffer(content[: len(content) // 4 * 4], np.float32).copy()
    if kind < 4 and len(values):
        bad = (float("nan"), float("inf"), -float("inf"), 3e38)[kind]
        values[chance.randrange(len(values)) if chance.randrange(2) else slice(None)] = bad
        return values.tobytes()
    return content[: chance.randrange(len(content))] if kind == 4 else content + bytes(4096)


def changed_value(chance: random.Random, value: Any) -> Any:
    """One thing in it is missing, twice, of another type, or out of range."""
    if isinstance(value, dict) and value and chance.randrange(12):
        name, kind = chance.choice(list(value)), chance.randrange(14)
        if kind == 0:
            return {key: each for key, each in value.items() if key != name}
        if kind == 1:
            return {**value, "further": 1}
        return {**value, name: changed_value(chance, value[name])}
    if isinstance(value, list) and value and chance.randrange(8):
        at, kind = chance.randrange(len(value)), chance.randrange(5)
        new = (
            []
            if kind == 0
            else [value[at]] * 2
            if kind == 1
            else [changed_value(chance, value[at])]
        )
        return [*value[:at], *new, *value[at + 1 :]]
    if isinstance(value, bytes) and value[:1] == b"{" and chance.randrange(8):
        return msgspec.json.encode(changed_value(chance, msgspec.json.decode(value)))
    if isinstance(value, bytes) and value and chance.randrange(4):
        return _damaged(chance, value) if chance.randrange(2) else value + bytes(8)
    if isinstance(value, int) and not isinstance(value, bool) and chance.randrange(4):
        return chance.choice((value + 1, value - 1, 2 * value, -value, *_INTS))
    return chance.choice(_POOL)


def work(rank: int, port: int, lies: Lies, log: Path) -> None:
    """A lasting worker, in a process of its own."""
    lies.join(rank)
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    planners: dict[RunRequest, Any] = {}

    def planner(request: RunRequest) -> Any:
        key = msgspec.json.encode(request)
        if key not in planners:
            planners.clear()
            planners[key] = ModelLoader(request).planner  # type: ignore[index]
        return planners[key]  # type: ignore[index]

    worker_module._DIAL_AGAIN_S = 0.02
    with log.open("a") as file:
        os.dup2(file.fileno(), 2)

        def say(text: str) -> None:
            file.write(f"{json.dumps(text)}\n")
            file.flush()

        settings = WorkerSettings(("127.0.0.1", port), _SECRET, access=None, name=f"w{rank}")
        run_worker(settings, say, planner)


def session(kind: Kind, request: RunRequest) -> str:
    """What becomes of a head that computes some steps."""
    try:
        with cluster_decoder(request) as (decoder, _):
            if kind.has_images:
                _see(kind, decoder)
            else:
                logits_of(decoder)
    except MrsError as error:
        text = str(error)
        return f"other: several lines: {text!r}" if "\n" in text else f"refused: {text}"
    except Exception as error:  # noqa: BLE001 - a person would see a traceback
        return f"other: {failures.words_for(error)}"
    return "computed"


_SHOWN: list[Any] = []


def _see(kind: Kind, decoder: Any) -> None:
    from vision_running import Conversation

    for ids, shown in _SHOWN:
        Conversation(SimpleDecoder(decoder), 7).feed(ids, shown)  # type: ignore[arg-type]


class SimpleDecoder(NamedTuple):
    decoder: Any


def prepare_images(kind: Kind) -> None:
    """Two prompts with images for the model that `vision_reference` makes."""
    from vision_cases import CASES
    from vision_reference import make_vision_reference
    from vision_running import load_vision_model

    case = next(each for each in CASES if each.family == "qwen3_vl")
    truth = make_vision_reference(case, Path(kind.folder))
    model = load_vision_model(truth.folder)
    _SHOWN[:] = [
        (each.ids, model.shown(each.text, each.images)[1])
        for each in (truth.prompts[2], truth.prompts[0])
    ]


class Processes:
    """The workers of a kind, each started again when it has ended."""

    def __init__(self, kind: Kind, port: int, lies: Lies, folder: Path) -> None:
        self._start = lambda rank: _forked(lambda: work(rank, port, lies, self.log(rank)))
        self._folder = folder
        self.pids = {rank: 0 for rank in range(1, kind.ranks)}
        self.ends: list[str] = []
        self.peak_bytes = 0
        for rank in self.pids:
            self.pids[rank] = self._start(rank)

    def log(self, rank: int) -> Path:
        return self._folder / f"worker{rank}.log"

    def check(self, what: str) -> None:
        for rank, pid in self.pids.items():
            self.peak_bytes = max(self.peak_bytes, _peak_bytes(pid))
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.ends.append(
                    f"{what}: worker {rank} by {status & 127 or f'code {status >> 8}'}"
                )
                self.pids[rank] = self._start(rank)

    def end(self) -> None:
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _peak_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


def _forked(do: Callable[[], None]) -> int:
    pid = os.fork()
    if not pid:
        try:
            do()
        finally:
            os._exit(77)
    return pid


def run(name: str, kind: Kind, seeds: Sequence[int], folder: Path) -> dict[str, Any]:
    """What became of all sessions with a lie; a signal costs a process, not the report."""
    port, lies = free_port(), Lies(kind.ranks)
    request = kind.request(port)
    if kind.has_images:
        prepare_images(kind)
    processes = Processes(kind, port, lies, folder)
    honest = _honest(kind, request, lies)
    assert honest.found[-1][1] == "computed", honest
    processes.check("the first honest head")
    counts = [lies.counts(rank) for rank in range(kind.ranks)]
    said: Counter[str] = Counter()
    others: list[str] = []
    head_bytes, rest = honest.peak_bytes, [_lie_of(seed, counts) for seed in seeds]
    first_bytes = processes.peak_bytes, head_bytes
    while rest:
        done = _in_child(kind, request, lies, rest, processes)
        head_bytes = max(head_bytes, done.peak_bytes)
        for lie, (has_lied, outcome) in zip(rest, done.found, strict=False):
            said[outcome.split(":")[0] if has_lied else "not reached"] += 1
            if outcome.startswith("other"):
                others.append(f"{lie}: {outcome}")
            if os.environ.get("MUTATED_TEXTS"):
                print(lie, outcome, file=sys.stderr)
        rest = rest[len(done.found) :]
        if done.status:
            processes.ends.append(f"{rest[0]}: head by signal {done.status & 127}")
            said["hangs" if done.status & 127 == signal.SIGALRM else "signals"] += 1
            rest = rest[1:]
    time.sleep(0.5)
    processes.check("the end")
    last = _honest(kind, request, lies)
    processes.check("a last honest head")
    if last.found[-1][1] != "computed":
        others.append(f"a last honest head: {last.found}")
    processes.end()
    lines = [
        line for rank in processes.pids for line in processes.log(rank).read_text().split("\n")
    ]
    texts = [json.loads(line) for line in lines if line.startswith('"')]
    others += [f"worker: {text}" for text in texts if "\n" in text or "internal error" in text]
    others += [f"worker prints {line}" for line in lines if line and not line.startswith('"')]
    return {
        "kind": name,
        **said,
        "worker errors": sum(text.startswith("error: ") for text in texts),
        "worker MiB": [first_bytes[0] >> 20, processes.peak_bytes >> 20],
        "head MiB": [first_bytes[1] >> 20, head_bytes >> 20],
        "ends": processes.ends,
        "others": others,
    }


_Lie = tuple[int, int, int, bool]


def _lie_of(seed: int, counts: Sequence[tuple[int, int]]) -> _Lie:
    """Who lies in the session of a seed, and with which of its messages or signals."""
    chance = random.Random(seed)
    liar = chance.randrange(len(counts))
    is_signal = counts[liar][1] > 0 and chance.randrange(8) == 0
    count = counts[liar][is_signal]
    first = chance.randrange(2) == 0  # half of them before the first steps
    return seed, liar, chance.randrange(min(count, 6) if first else count) + 1, is_signal


class _Done(NamedTuple):
    found: list[tuple[bool, str]]
    status: int
    peak_bytes: int


def _honest(kind: Kind, request: RunRequest, lies: Lies) -> _Done:
    """A session without a lie; a busy machine may be silent for too long."""
    for _ in range(5):
        done = _in_child(kind, request, lies, [(0, -1, 0, False)])
        if done.found[-1][1] == "computed":
            break
    return done


def _in_child(
    kind: Kind,
    request: RunRequest,
    lies: Lies,
    given: Sequence[_Lie],
    processes: Processes | None = None,
) -> _Done:
    """Sessions of heads in a process of their own, until it ends."""
    reading, writing = os.pipe()

    def heads() -> None:
        os.close(reading)
        lies.join(0)
        with os.fdopen(writing, "w", 1) as out:
            for seed, liar, number, is_signal in given:
                lies.begin(seed, liar, number, is_signal=is_signal)
                signal.alarm(_LIMIT_S)
                outcome = session(kind, request)
                signal.alarm(0)
                out.write(f"{json.dumps([lies.has_lied, outcome])}\n")
            peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
            out.write(f"{peak_bytes}\n")
        os._exit(0)

    pid = _forked(heads)
    os.close(writing)
    found: list[tuple[bool, str]] = []
    peak_bytes = 0
    with os.fdopen(reading) as lines:
        for line in lines:
            value = json.loads(line)
            if isinstance(value, int):
                peak_bytes = value
                continue
            found.append((value[0], value[1]))
            if processes is not None:
                processes.check(str(given[len(found) - 1]))
    return _Done(found, os.waitpid(pid, 0)[1], peak_bytes)


def main(kinds: dict[str, list[Any]], seed: int, count: int) -> None:
    import tempfile

    torch.set_num_threads(1)
    os.environ[VARIABLE] = _SECRET.decode()
    reports = []
    for number, (name, values) in enumerate(kinds.items()):
        first, since_s = seed + 100_000 * number, time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            report = run(name, Kind(*values), range(first, first + count), Path(folder))
        report["seconds"] = round(time.monotonic() - since_s, 1)
        reports.append(report)
        print({**report, "others": report["others"][:8]}, file=sys.stderr, flush=True)
    print(json.dumps(reports))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
