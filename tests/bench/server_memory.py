"""Memory of `mrs serve` over many requests of all kinds, beside what its plan says.

    python tests/bench/server_memory.py [--model demo] [--requests 2000]

The memory is that of all its processes, as the system counts it: proportional set size, and the
largest resident set of the server itself. The exit code is 1 if it exceeds the plan.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("outside", "")]

from serving import server_process

from support.varied_requests import peak_bytes, resident_bytes, send_all, varied_requests

MIB = 2**20


def planned(model: str) -> dict[str, int]:
    """The plan of the server, in bytes."""
    command = [sys.executable, "-m", "mrs_cli", "plan", "run", "-m", model, "--dry-run", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    server = json.loads(run.stdout)["server"]
    assert isinstance(server, dict)
    return server


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo", choices=["demo", "demo-vision"])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    has_images = arguments.model == "demo-vision"
    requests = varied_requests(arguments.requests, images=has_images, seed=arguments.seed)
    plan = planned(arguments.model)
    start_s = time.monotonic()
    with server_process("-m", arguments.model) as (process, url):
        before = resident_bytes(process.pid)
        most = before

        def note(number: int) -> None:
            nonlocal most
            now = resident_bytes(process.pid)
            most = max(most, now)
            if (number + 1) % max(arguments.requests // 20, 1) == 0:
                peak = peak_bytes(process.pid)
                print(
                    f"{number + 1:6} requests  {now / MIB:7.0f} MiB  peak {peak / MIB:7.0f} MiB  "
                    f"{time.monotonic() - start_s:5.0f} s",
                    flush=True,
                )

        statuses = send_all(url, requests, note)
        peak = max(most, peak_bytes(process.pid))
    print(f"statuses {dict(sorted(statuses.items()))}")
    print(
        f"before {before / MIB:.0f} MiB, peak {peak / MIB:.0f} MiB, "
        f"planned {plan['host_bytes'] / MIB:.0f} MiB"
    )
    return int(peak > plan["host_bytes"])


if __name__ == "__main__":
    sys.exit(main())
