"""Send 1,000 hostile requests to a server in a control group of its planned memory and 10 %.

    python tests/bench/hostile.py [--model demo] [--count 1000] [--seed 0] [--limit-mib N]

Each request is first sent alone, for its processor time and its growth of the peak of memory, then
over several connections at once beside a neighbour with a short question, who has a process of its
own. Linux only; without a control group, the peak of resident memory is compared with the same
bound. Ends with exit code 0 if nothing was killed, every request had a proper answer, each refusal
took at most 1 s of processor time, and the neighbour waited at most twice as long as with an honest
one beside it: in half of the cases, in 99 of 100, and at worst. Both have their turns in rounds of
the same length, so that what else the machine does falls on both alike.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.hostile.server import ROOM, Server, planned_bytes, server_within
from support.hostile.suite import hostile_requests
from support.hostile.trial import Neighbour, Outcome, Strangers

MIB = 2**20
REFUSAL_S, STALL = 1.0, 2.0
#: Shares of a neighbour's asks, by their time: 1 is the worst.
SHARES = (0.5, 0.95, 0.99, 1.0)
#: Requests that are made before they are sent, so that making them takes no time of the neighbour.
ROUND = 50
CONNECTIONS = 4
SHOWN = 12


def print_alone(outcomes: Sequence[Outcome]) -> None:
    print(f"\nalone: {dict(sorted(Counter(each.status for each in outcomes).items()))}")
    for title, refused in (("refusals", True), ("answers", False)):
        chosen = [each for each in outcomes if each.is_refusal == refused]
        print(f"most processor time of {len(chosen)} {title}:")
        for each in sorted(chosen, key=lambda each: -each.processor_s)[:SHOWN]:
            print(f"  {each.processor_s:6.2f} s  {each.status}  {each.name}")
    print("most growth of the peak:")
    for each in sorted(outcomes, key=lambda each: -each.grown_bytes)[:SHOWN]:
        print(f"  {each.grown_bytes / MIB:6.0f} MiB  {each.status}  {each.name}")


def share_of(seconds: Sequence[float], share: float) -> float:
    """The time that so large a share of all is below, or the longest one."""
    return sorted(seconds)[min(int(share * len(seconds)), len(seconds) - 1)]


def print_neighbour(beside: dict[str, Neighbour]) -> None:
    columns = " ".join(f"{f'{share:.0%} s':>8}" for share in SHARES)
    print(f"\n{'neighbour':<20} {'asks':>5} {columns}  statuses")
    for name, each in beside.items():
        times = " ".join(f"{share_of(each.seconds, share):>8.3f}" for share in SHARES)
        print(f"{name:<20} {len(each.seconds):>5} {times}  {dict(each.statuses)}")


def stalls(honest: Neighbour, hostile: Neighbour) -> list[str]:
    """Which shares of the asks took more than twice as long beside hostile requests."""
    times = {
        share: (share_of(honest.seconds, share), share_of(hostile.seconds, share))
        for share in SHARES
    }
    return [
        f"the neighbour was stalled: {share:.0%} within {long_s:.3f} s, {usual_s:.3f} s without"
        for share, (usual_s, long_s) in times.items()
        if long_s > STALL * usual_s
    ]


def in_company(
    server: Server, count: int, seed: int, tokens: int
) -> tuple[list[Outcome], dict[str, Neighbour]]:
    """What came of the requests, and a neighbour's asks beside an honest one and beside them."""
    strangers, outcomes = Strangers(server), list[Outcome]()
    other, honest, hostile = (Neighbour(server.address, tokens) for _ in range(3))
    requests = hostile_requests(count, seed)
    while some := list(islice(requests, ROUND)):
        server.settled_s()
        start_s = time.monotonic()
        with hostile.asking():
            outcomes += strangers.at_once(some, CONNECTIONS)
        took_s = time.monotonic() - start_s
        server.settled_s()
        with other.asking(), honest.asking():
            time.sleep(took_s)
    return outcomes, {"beside an honest one": honest, "beside strangers": hostile}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-mib", type=int, help="instead of the planned memory and 10 %%")
    parser.add_argument("--tokens", type=int, default=64, help="of each of the neighbour's replies")
    chosen = parser.parse_args()
    limit_bytes = (chosen.limit_mib or 0) * MIB or int(planned_bytes(chosen.model) * (1 + ROOM))
    with server_within(limit_bytes, chosen.model) as server:
        where = "in a control group" if server.is_in_group else "measured only"
        print(f"{chosen.model}: limit {limit_bytes / MIB:.0f} MiB, {where}")
        first = Neighbour(server.address, chosen.tokens)
        for _ in range(30):
            first.ask()
        print(f"peak before: {server.peak_bytes() / MIB:.0f} MiB", flush=True)
        outcomes = list[Outcome]()
        for each in Strangers(server).alone(hostile_requests(chosen.count, chosen.seed)):
            outcomes.append(each)
            if each.fault or (each.is_refusal and each.processor_s > REFUSAL_S):
                print(f"FAULT: {each.name}: {each.fault or each.processor_s}", flush=True)
        print_alone(outcomes)
        print(f"peak: {server.peak_bytes() / MIB:.0f} MiB, kills: {server.kills}", flush=True)
        others, beside = in_company(server, chosen.count, chosen.seed, chosen.tokens)
        outcomes += others
        print_neighbour(beside)
        peak_bytes = server.peak_bytes()
        print(f"peak: {peak_bytes / MIB:.0f} MiB, kills: {server.kills}")
        faults = [f"{each.name}: {each.fault}" for each in outcomes if each.fault]
        faults += [
            f"{each.name}: {each.processor_s:.2f} s of processor time to refuse it"
            for each in outcomes
            if each.is_refusal and each.processor_s > REFUSAL_S
        ]
        if not server.is_alive or server.kills:
            faults.append("a process was killed")
        if peak_bytes > limit_bytes:
            faults.append("more resident memory than the bound")
        faults += stalls(*beside.values())
        if any(each.answers != first.answers for each in beside.values()):
            faults.append("the neighbour got other answers in company")
        if "Traceback" in (log := server.log()):
            faults.append(f"a traceback: {log[-2000:]}")
    print(f"\n{len(faults)} faults", *sorted(faults), sep="\n  ")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
