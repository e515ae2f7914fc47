"""System messages for templates that show only some of them, or none."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.request import Message, text_of


def count_systems(messages: Sequence[Message]) -> int:
    """The number of system messages at the beginning."""
    roles = [message["role"] for message in messages]
    return next((index for index, role in enumerate(roles) if role != "system"), len(roles))


def one_system(messages: Sequence[Message], count: int) -> list[Message]:
    """The messages, of which the first `count` are one."""
    return [_joined(messages[:count]), *messages[count:]]


def systems_in_user(messages: Sequence[Message]) -> list[Message]:
    """The messages without system messages, whose texts begin the next message of the user."""
    arranged: list[Message] = []
    waiting: list[Message] = []
    for message in messages:
        if message["role"] == "system":
            waiting.append(message)
        elif message["role"] == "user":
            arranged.append(_joined([*waiting, message]))
            waiting = []
        else:
            arranged.append(message)
    if waiting:
        arranged.append({**_joined(waiting), "role": "user"})
    return arranged


def _joined(messages: Sequence[Message]) -> Message:
    """The texts and images of all in the last of the messages."""
    joined: Message = {**messages[-1], "content": "\n\n".join(map(text_of, messages))}
    if images := [image for message in messages for image in message.get("images", ())]:
        joined["images"] = images
    return joined
