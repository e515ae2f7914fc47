"""The memory that requests share while their texts and images are read."""

from __future__ import annotations

from dataclasses import dataclass, field

from mrs.media.media_memory import MediaMemory
from mrs.process.memory_room import MemoryRoom


@dataclass(frozen=True)
class RequestMemory:
    """`texts` is taken while long texts are tokenized, `media` while images are opened.

    The owner of several models gives all of them the same one, and sets its limits; without a
    limit, there is none.
    """

    texts: MemoryRoom = field(default_factory=MemoryRoom)
    media: MediaMemory = field(default_factory=MediaMemory)
