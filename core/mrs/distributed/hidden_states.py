"""Hidden states between neighbours: rows of float32, whose shape both sides know."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.distributed.protocol.channel import Channel
from mrs.distributed.protocol.messages import Hidden


def send_hidden(channel: Channel, number: int, x: Tensor) -> None:
    """Send x (N, hidden) of step `number`. Raises OSError."""
    x = x.to("cpu", torch.float32).contiguous()
    data = x.view(torch.uint8).numpy().data.cast("B") if x.numel() else None
    channel.send(Hidden(number, x.shape[0]), data)


def receive_hidden(channel: Channel, number: int, shape: tuple[int, int]) -> Tensor:
    """The hidden states of step `number`, of this shape. Raises OSError, EOFError and Damaged."""
    channel.most_data_bytes = 4 * shape[0] * shape[1]
    message, data = channel.receive()
    if not isinstance(message, Hidden) or (message.number, message.rows) != (number, shape[0]):
        raise channel.damaged(f"{message} instead of {shape[0]} rows of step {number}")
    if len(data) != 4 * shape[0] * shape[1]:
        raise channel.damaged(f"{len(data)} bytes instead of {shape[0]} rows of {shape[1]} values")
    return torch.frombuffer(data, dtype=torch.float32).view(shape)
