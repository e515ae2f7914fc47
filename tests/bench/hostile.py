"""Send 1,000 hostile requests to a server in a control group of its planned memory and 10 %.

    python tests/bench/hostile.py [--model demo] [--count 1000] [--seed 0] [--limit-mib N]

Each request is first sent alone, for its processor time and its growth of the peak of memory, then
over several connections at once beside a neighbour with a short question, who has a process of its
own. Linux only; without a control group, the peak of resident memory is compared with the same
bound. Ends with exit code 0 if nothing was killed, every request had a proper answer, each refusal
took at most 1 s of processor time, and the neighbour waited at most twice the longest time that it
waited alone in 99 of 100 cases, and never for STALL_S more: so long one piece of work can take that
nothing divides, such as the decoding of a body, or an image.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.hostile.server import ROOM, Server, planned_bytes, server_within
from support.hostile.suite import hostile_requests
from support.hostile.trial import Neighbour, Outcome, Strangers

MIB = 2**20
REFUSAL_S, STALL, STALL_S = 1.0, 2.0, 0.5
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
    """The time that so large a share of all is below."""
    return sorted(seconds)[int(share * len(seconds))]


def print_neighbour(alone: Neighbour, beside: Neighbour) -> None:
    columns = f"{'asks':>5} {'median s':>9} {'95 % s':>8} {'99 % s':>8} {'worst s':>8}  statuses"
    print(f"\n{'neighbour':<12} {columns}")
    for name, each in (("alone", alone), ("in company", beside)):
        high, higher = share_of(each.seconds, 0.95), share_of(each.seconds, 0.99)
        print(
            f"{name:<12} {len(each.seconds):>5} {statistics.median(each.seconds):>9.3f} "
            f"{high:>8.3f} {higher:>8.3f} {max(each.seconds):>8.3f}  {dict(each.statuses)}"
        )
    print(f"ratio of the worst: {max(beside.seconds) / max(alone.seconds):.2f}")


def in_company(server: Server, count: int, seed: int, neighbour: Neighbour) -> list[Outcome]:
    strangers, outcomes = Strangers(server), list[Outcome]()
    requests = hostile_requests(count, seed)
    while some := list(islice(requests, ROUND)):
        server.settled_s()
        with neighbour.asking():
            outcomes += strangers.at_once(some, CONNECTIONS)
    return outcomes


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
        alone = Neighbour(server.address, chosen.tokens)
        for _ in range(30):
            alone.ask()
        alone.seconds.clear()
        for _ in range(100):
            alone.ask()
        print(f"peak before: {server.peak_bytes() / MIB:.0f} MiB", flush=True)
        outcomes = list[Outcome]()
        for each in Strangers(server).alone(hostile_requests(chosen.count, chosen.seed)):
            outcomes.append(each)
            if each.fault or (each.is_refusal and each.processor_s > REFUSAL_S):
                print(f"FAULT: {each.name}: {each.fault or each.processor_s}", flush=True)
        print_alone(outcomes)
        print(f"peak: {server.peak_bytes() / MIB:.0f} MiB, kills: {server.kills}", flush=True)
        beside = Neighbour(server.address, chosen.tokens)
        outcomes += in_company(server, chosen.count, chosen.seed, beside)
        print_neighbour(alone, beside)
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
        most_s = STALL * max(alone.seconds)
        if share_of(beside.seconds, 0.99) > most_s or max(beside.seconds) > most_s + STALL_S:
            faults.append("the neighbour was stalled")
        if alone.answers != beside.answers:
            faults.append("the neighbour got other answers in company")
        if "Traceback" in (log := server.log()):
            faults.append(f"a traceback: {log[-2000:]}")
    print(f"\n{len(faults)} faults", *sorted(faults), sep="\n  ")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
