"""Strangers at the listeners of coordinator and worker, in processes that may have few threads.

A program: `python listener_flood.py CONNECTIONS THREADS`. Each listener is a child of its own, in a
control group that allows it so many tasks (or with RLIMIT_NPROC as another user), and gets so many
connections: closed at once, half-sent or too long frames, a wrong secret, and silence.
Then a right peer joins. The last line is a JSON report with figures from outside.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import socket
import struct
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from mrs.distributed.coordinator import Arrivals
from mrs.distributed.protocol.handshake import Listener, dial
from mrs.distributed.protocol.link import FROM_COORDINATOR, FROM_WORKER, Link
from mrs.distributed.protocol.messages import Attach, Beat, DeviceReport, Join
from mrs.errors import MrsError

_SECRET = b"0123456789abcdef" * 3
_GROUPS = Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")
#: Open at the same time, and a few more than a listener greets at a time.
_MOST_OPEN = 200
_NOBODY = 65534
_JOIN = Join("w", "cpu", DeviceReport("cpu", "CPU", 1 << 30, 1e9), 1)


def limit_tasks(most: int) -> str:
    """This process may have so many tasks, the ones it has included; says how."""
    for root in _GROUPS:
        folder = root / f"mrs-flood-{os.getpid()}"
        with suppress(OSError):
            if not (root / "pids.max").exists() and not (root / "cgroup.procs").exists():
                continue
            folder.mkdir()
            (folder / "pids.max").write_text(str(most))
            (folder / "cgroup.procs").write_text(str(os.getpid()))
            return f"pids.max of {root}"
    if os.getuid() == 0:
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    return "RLIMIT_NPROC"


def serve(of: str, threads: int, out: int) -> None:
    """A listener as coordinator or worker has it; says what arrives, and what a link needs."""
    how = limit_tasks(threads)
    listener = Listener(("127.0.0.1", 0), _SECRET)
    arrivals = Arrivals(listener) if of == "head" else None
    say = os.fdopen(out, "w", 1).write
    say(f"{json.dumps([listener.address[1], how])}\n")
    if arrivals is not None:
        channel, message = arrivals.joining.get(timeout=600)
        expected = FROM_WORKER
    else:
        from mrs.distributed.protocol.handshake import FirstMessages

        found = FirstMessages(listener).next(600)
        assert found is not None
        (channel, message), expected = found, FROM_COORDINATOR
    say(f"{json.dumps(type(message).__name__)}\n")
    links = []
    try:
        for _ in range(threads):  # two threads each, until there are no more
            links.append(Link(channel, "a peer", lambda link, error: None, expected))
    except MrsError as error:
        say(f"{json.dumps([len(links), str(error)])}\n")
    os._exit(0)


def annoy(address: tuple[str, int], count: int, chance: random.Random) -> None:
    """So many strangers, the last of which stay until this ends."""
    open_ones: deque[socket.socket] = deque()
    for _ in range(count):
        stranger = socket.create_connection(address, timeout=60)
        open_ones.append(stranger)
        with suppress(OSError):
            match chance.randrange(5):
                case 0:
                    stranger.sendall(struct.pack("<IQ", 4000, 0) + b"x" * chance.randrange(4000))
                case 1:
                    stranger.sendall(struct.pack("<IQ", (1 << 32) - 1, (1 << 64) - 1))
                case 2:
                    stranger.sendall(os.urandom(200))
                case 3:
                    open_ones.pop().close()
        if len(open_ones) > _MOST_OPEN:
            open_ones.popleft().close()


def flood(of: str, connections: int, threads: int) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        try:
            serve(of, threads, writing)
        finally:
            os._exit(77)
    os.close(writing)
    with os.fdopen(reading) as lines:
        port, how = json.loads(lines.readline())
        before = _status(pid)
        since_s = time.monotonic()
        with suppress(MrsError):
            dial(("127.0.0.1", port), _SECRET + b"another")
        annoy(("127.0.0.1", port), connections, random.Random(1))
        after = _status(pid)
        peer = dial(("127.0.0.1", port), _SECRET)
        peer.send(_JOIN if of == "head" else Attach(1, "group"))
        peer.send(Beat("x"))
        arrived = json.loads(lines.readline() or "null")
        links = json.loads(lines.readline() or "null")
    _, status = os.waitpid(pid, 0)
    for root in _GROUPS:
        with suppress(OSError):
            (root / f"mrs-flood-{pid}").rmdir()
    return {
        "listener": of,
        "connections": connections,
        "limit": f"{threads} by {how}",
        "threads": [before["Threads"], after["Threads"]],
        "MiB": [before["VmRSS"] >> 10, after["VmRSS"] >> 10],
        "descriptors": after["files"],
        "seconds": round(time.monotonic() - since_s, 1),
        "arrived": arrived,
        "links": links,
        "status": status,
    }


def _status(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {
        name: int(line.split()[1])
        for line in lines
        for name in ("Threads", "VmRSS")
        if line.startswith(name)
    }
    return {**found, "files": len(os.listdir(f"/proc/{pid}/fd"))}  # noqa: PTH208


def main(connections: int, threads: int) -> None:
    signal.alarm(900)
    reports = [flood(of, connections, threads) for of in ("head", "worker")]
    print(json.dumps(reports))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
