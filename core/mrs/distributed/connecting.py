"""How the head connects all ranks with each other, once they have loaded their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from mrs.distributed.further_layers import Connections, Neighbours, RemoteRank
from mrs.distributed.group_meeting import lead_group, measure_sum
from mrs.distributed.head import Head, Member
from mrs.distributed.link_speed import echo_link, measure_link
from mrs.distributed.protocol.channel import GREETING_BYTES, Channel, Damaged
from mrs.distributed.protocol.failures import (
    CONNECT_LIMIT_S,
    LOAD_LIMIT_S,
    STEP_LIMIT_S,
    PeerFailed,
)
from mrs.distributed.protocol.messages import (
    Connect,
    Connected,
    LayerCacheInfo,
    LinkSpeed,
    OfNeighbour,
    Ready,
)
from mrs.distributed.rank_group import Group

#: A layer has two caches if it attends and has a state as well.
_MOST_CACHES = 4


def connect(head: Head, group_size: int, width: int, device: torch.device) -> Connections:
    """Wait for all workers, and connect stages of `group_size` ranks. Raises MrsError.

    `width` are the values of a token's hidden states. `device` is that of this process.
    """
    ranks = _loaded(head, group_size)
    shares, others = ranks[: group_size - 1], ranks[group_size - 1 :]
    _tell_addresses(head, group_size)
    sides = head.attached(len(shares) + (2 if others else 0))
    if sides.keys() != {*range(1, group_size), *(("left", "right") if others else ())}:
        raise PeerFailed("a connection from before a failure has come instead of a neighbour's")
    try:  # one link and one group after another, so that each is measured alone
        group, sum_s = _group(sides, group_size, width, device)
        first = _measured(sides) if others else None
    except (OSError, EOFError) as error:
        raise head.reason(error) from error
    answers = [_connected(member, group_size, len(head.members)) for member in head.members]
    sums_s = [sum_s, *(each.sum_s for each in answers[group_size - 1 :: group_size])]
    if first is None:
        return Connections(group, shares, None, sums_s)
    links = [first, *(each.right for each in answers if each.right)]
    return Connections(
        group, shares, Neighbours(others, sides["right"], sides["left"], links), sums_s
    )


def _loaded(head: Head, group_size: int) -> list[RemoteRank]:
    """All workers, once they have loaded their weights."""
    found = []
    for member in head.members:
        ready = member.link.take(Ready, LOAD_LIMIT_S)
        _require_caches(member, ready.caches)
        member.caches, member.weight_bytes = ready.caches, ready.weight_bytes
        member.link.doing = "before the first step"
        is_share = member.rank % group_size > 0
        found.append(RemoteRank(member.link, member.layers, member.caches, is_share=is_share))
    return found


def _tell_addresses(head: Head, group_size: int) -> None:
    addresses = [None, *((each.host, each.join.port) for each in head.members)]
    for member in head.members:
        first = member.rank - member.rank % group_size
        right = addresses[first + group_size] if first + group_size < len(addresses) else None
        member.link.send(Connect(addresses[first : member.rank], right))


def _group(
    sides: Mapping[str | int, Channel], group_size: int, width: int, device: torch.device
) -> tuple[Group | None, float]:
    """The group of the head and the seconds of its sums, if it has one."""
    if group_size == 1:
        return None, 0.0
    group = lead_group({rank: sides[rank] for rank in range(1, group_size)}, device)
    return group, measure_sum(group, width)


def _measured(sides: Mapping[str | int, Channel]) -> LinkSpeed:
    """The speed of the link to the right, after which all other stages measure theirs."""
    for side in ("left", "right"):
        sides[side].expect(OfNeighbour, GREETING_BYTES)
    first = measure_link(sides["right"])
    echo_link(sides["left"])
    for side in ("left", "right"):
        sides[side].set_limit(STEP_LIMIT_S)
    return first


def _require_caches(member: Member, caches: Sequence[LayerCacheInfo]) -> None:
    """Raises Damaged for caches that no layers have."""
    if not len(member.layers) <= len(caches) <= _MOST_CACHES * len(member.layers):
        count = len(member.layers)
        raise _wrong(member, "Ready", "caches", f"{len(caches)} of {count} layers")
    for index, each in enumerate(caches):
        owner = caches[each.owner] if each.owner < index else None
        if each.kind == "shared" and (owner is None or owner.kind != "blocks"):
            raise _wrong(member, "Ready", "caches", f"cache {index} is that of {each.owner}")
        if each.kind == "blocks" and not each.size_bytes:
            raise _wrong(member, "Ready", "caches", f"cache {index} has blocks of 0 bytes")


def _connected(member: Member, group_size: int, workers: int) -> Connected:
    """The answer of a worker once all are connected. Raises MrsError."""
    answer = member.link.take(Connected, CONNECT_LIMIT_S)
    has_right = member.rank % group_size == 0 and workers >= group_size
    if has_right != (answer.right is not None):
        raise _wrong(member, "Connected", "right", f"{answer.right}")
    return answer


def _wrong(member: Member, message: str, field: str, where: str) -> Damaged:
    return Damaged(f"{member.name}: a {message}'s {field!r} contradicts its layers", where=where)
