"""The time of a token over a slow link, predicted by `mrs plan` and measured.

    python tests/outside/slow_link.py 40

A worker joins through a relay that holds each byte back for so many milliseconds. The prediction
has to be within 20 % of the measured time.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
MOST_ERROR = 0.2


class Relay:
    """Forwards connections to a port of this machine, both ways, after `delay_s`.

    Once `is_cut`, it forwards nothing, and ends no connection: as if the cable were pulled.
    """

    def __init__(self, port: int, delay_s: float) -> None:
        self._target, self._delay_s = ("127.0.0.1", port), delay_s
        self.is_cut = False
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._server.accept()
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            for one, other in ((near, far), (far, near)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                late: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
                threading.Thread(target=self._read, args=(one, late), daemon=True).start()
                threading.Thread(target=self._write, args=(late, other), daemon=True).start()

    def _read(self, source: socket.socket, late: SimpleQueue[tuple[float, bytes]]) -> None:
        data = b"-"
        while data:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            late.put((time.monotonic() + self._delay_s, data))

    def _write(self, late: SimpleQueue[tuple[float, bytes]], target: socket.socket) -> None:
        data = b"-"
        while data:
            due_s, data = late.get()
            time.sleep(max(0.0, due_s - time.monotonic()))
            if self.is_cut:
                continue
            try:
                if data:
                    target.sendall(data)
                else:
                    target.shutdown(socket.SHUT_WR)
            except OSError:
                return


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def main(delay_ms: float) -> int:
    port = free_port()
    relay = Relay(port, delay_ms / 1000)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/core:{ROOT}/cli"}
    program = [sys.executable, "-m", "mrs_cli"]
    worker = subprocess.Popen(
        [*program, "worker", "--once", "--join", f"127.0.0.1:{relay.port}"], env=environment
    )
    try:
        listen = ["--wait-for", "1", "--listen", f"127.0.0.1:{port}"]
        done = subprocess.run(
            [*program, "plan", "--json", "--cpu", *listen, "-m", "demo"],
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
        )
    finally:
        worker.terminate()
        worker.wait()
    run = json.loads(done.stdout)["processes"]
    fast, slow = run["planned_token_s"]
    planned_s, measured_s = (fast * slow) ** 0.5, run["token_s"]
    error = planned_s / measured_s - 1
    links = ", ".join(f"{1000 * each['latency_s']:.1f} ms" for each in run["links"])
    print(f"links: {links}; a token: {1000 * planned_s:.1f} ms predicted, ", end="")
    print(f"{1000 * measured_s:.1f} ms measured, {100 * error:+.1f} %")
    return 0 if abs(error) <= MOST_ERROR else 1


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:2])))
