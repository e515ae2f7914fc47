"""How the head connects all ranks with each other, once they have loaded their weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mrs.distributed.channel import Channel
from mrs.distributed.failures import PeerFailed
from mrs.distributed.further_layers import Connections, Neighbours, RemoteRank
from mrs.distributed.group_meeting import lead_group, measure_sum
from mrs.distributed.head import Head
from mrs.distributed.link_speed import echo_link, measure_link
from mrs.distributed.messages import Connect, Connected, LinkSpeed, Ready
from mrs.distributed.rank_group import Group


def connect(
    head: Head, group_size: int, width: int, most_bytes: int, device: torch.device
) -> Connections:
    """Wait for all workers, and connect stages of `group_size` ranks. Raises MrsError.

    `width` are the values of a token's hidden states; `most_bytes` limits the states of a step.
    `device` is that of this process.
    """
    ranks = _loaded(head, group_size)
    shares, others = ranks[: group_size - 1], ranks[group_size - 1 :]
    _tell_addresses(head, group_size)
    sides = head.attached(len(shares) + (2 if others else 0))
    if sides.keys() != {*range(1, group_size), *(("left", "right") if others else ())}:
        raise PeerFailed("a connection from before a failure has come instead of a neighbour's")
    try:  # one link and one group after another, so that each is measured alone
        group, sum_s = _group(sides, group_size, width, device)
        first = _measured(sides, most_bytes) if others else None
    except (OSError, EOFError) as error:
        raise head.reason(error) from error
    answers = [member.link.take(Connected) for member in head.members]
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
        ready = member.link.take(Ready)
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


def _measured(sides: Mapping[str | int, Channel], most_bytes: int) -> LinkSpeed:
    """The speed of the link to the right, after which all other stages measure theirs."""
    sides["left"].most_data_bytes = most_bytes
    first = measure_link(sides["right"])
    echo_link(sides["left"])
    return first
