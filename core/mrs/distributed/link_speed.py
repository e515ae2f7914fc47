"""How fast the connection of two neighbours is: measured once, before the first step."""

from __future__ import annotations

import time

from mrs.distributed.protocol.channel import Channel
from mrs.distributed.protocol.messages import LinkSpeed, Ping, Pong

_PINGS = 4
_LONG_BYTES = 1 << 20


def measure_link(channel: Channel) -> LinkSpeed:
    """Send messages to a neighbour that echoes. Raises OSError, EOFError and Damaged."""
    there_and_back_s = min(_timed(channel) for _ in range(_PINGS))
    long_s = _timed(channel, memoryview(bytes(_LONG_BYTES)))
    return LinkSpeed(there_and_back_s / 2, _LONG_BYTES / max(long_s - there_and_back_s, 1e-6))


def echo_link(channel: Channel) -> None:
    """Answer a neighbour that measures. Raises OSError, EOFError and Damaged."""
    channel.most_data_bytes = _LONG_BYTES
    while True:
        ping, _ = channel.receive()
        if not isinstance(ping, Ping):
            raise channel.damaged(f"{type(ping).__name__} instead of Ping")
        channel.send(Pong())
        if ping.is_last:
            return


def _timed(channel: Channel, data: memoryview | None = None) -> float:
    """Seconds until the answer; a message with data is the last one."""
    start_s = time.perf_counter()
    channel.send(Ping(data is not None), data)
    pong, _ = channel.receive()
    if not isinstance(pong, Pong):
        raise channel.damaged(f"{type(pong).__name__} instead of Pong")
    return time.perf_counter() - start_s
