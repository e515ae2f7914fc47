"""What a server needs on the host beside its model: the budget of all requests together.

The one declaration of these bytes: a plan adds them to the host's memory, and the server enforces
each part, in the place that `BOUNDS` names.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import prod
from typing import TYPE_CHECKING, Final

from mrs.process.request_memory import (
    AUDIO_SECOND_BYTES,
    COMPILING_BYTES,
    CONNECTION_BYTES,
    CUT_TEXT_BYTES,
    ENCODED_BYTES,
    LONGEST_RECORDING_S,
    PIXEL_BYTES,
    RECORDING_SECOND_BYTES,
    SPECTROGRAM_SECOND_BYTES,
    TOKEN_BYTES,
    TOKEN_TEXT_BYTES,
    WHOLE_TEXT_BYTES,
)
from mrs.request import ServerLoad
from mrs.units import MIB

if TYPE_CHECKING:
    from mrs.plan.memory.vision_sizes import PlannedImages

#: What each part bounds.
BOUNDS: Final = {
    "program": "the server's libraries and threads, the processes of chat templates and of trials"
    " of grammars, and a grammar while it is compiled",
    "connections": "buffers of open connections: how many there may be",
    "bodies": "requests that are read, and what they are decoded into, until they are answered",
    "texts": "templates and tokenizers at work: how many texts at once, and of which length",
    "prompts": "tokens of replies that run or wait",
    "decoding": "images, videos and audio files while they are decoded and resized",
    "decoded": "decoded images that are remembered",
    "pixels": "images and spectrograms as the model takes them, of requests and remembered ones",
    "grammars": "compiled grammars that are remembered",
    "responses": "stored responses",
    "unread": "replies that are not read yet, and whole ones until they are sent",
}
#: Libraries of the server, beyond those of any run.
_LIBRARIES_BYTES = 40 * MIB
#: The two processes that render chat templates.
_TEMPLATES_BYTES = 2 * 48 * MIB
#: The process that tries grammars: measured 30 MiB, and up to 68 with a grammar.
_TRIALS_BYTES = 30 * MIB + COMPILING_BYTES
#: The largest body is held as it came and as text, and others beside it.
_BODIES_AT_ONCE = 4
#: The largest image that is decoded, as `mrs.media.open_image` says, in pixels.
_MOST_PIXELS = 64 * MIB
_DECODED_BYTES = 64 * MIB
#: The largest audio file twice, as `mrs.media.read_media` says, and some frames of it.
_AUDIO_FILE_BYTES = (2 * 64 + 16) * MIB
_REMEMBERED_IMAGES = 16
#: Of the longest that are heard window by window; or many short ones.
_RECORDINGS_AT_ONCE = 2
_GRAMMARS_BYTES = 256 * MIB
_RESPONSES_BYTES = 32 * MIB
#: Of each reply that runs, and as much of finished ones.
_UNREAD_BYTES = MIB
_PROMPTS_BYTES = 32 * MIB
#: Parts that are never smaller.
_FIXED = ("program", "connections", "texts")
#: Memory that is short leaves at least this share of each part.
_LEAST_SHARE = 1 / 8
#: The share of the memory beside the model that requests may have.
_FREE_SHARE = 0.5


@dataclass(frozen=True)
class ServerBudget:
    """Bytes on the host, by part; `BOUNDS` says what each of them is."""

    program: int
    connections: int
    bodies: int
    texts: int
    prompts: int
    decoding: int
    decoded: int
    pixels: int
    grammars: int
    responses: int
    unread: int

    @property
    def parts(self) -> dict[str, int]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def shared_bytes(self) -> int:
        """What several models of one server need only once."""
        return self.total_bytes - self.pixels - self.grammars - self.prompts

    @property
    def least(self) -> ServerBudget:
        """The smallest budget that a server starts with."""
        return self._scaled(_LEAST_SHARE)

    def within(self, free_bytes: int) -> ServerBudget:
        """The budget, lowered to its share of the memory that the model leaves free."""
        elastic = self.total_bytes - self._fixed_bytes
        room = _FREE_SHARE * free_bytes - self._fixed_bytes
        return self._scaled(max(_LEAST_SHARE, min(1.0, room / elastic)))

    @property
    def _fixed_bytes(self) -> int:
        return sum(self.parts[name] for name in _FIXED)

    def _scaled(self, share: float) -> ServerBudget:
        parts = self.parts.items()
        return replace(self, **{name: int(share * n) for name, n in parts if name not in _FIXED})


def server_budget(
    load: ServerLoad, max_seqs: int, context_tokens: int, images: PlannedImages | None
) -> ServerBudget:
    """The budget of a server that has enough memory.

    `context_tokens` are those of the model, and `images` those that its plan allows for.
    """
    pixels = 0 if images is None else 4 * prod(images.largest.pixels)
    recordings = 0 if images is None else 4 * _RECORDINGS_AT_ONCE * images.recorded
    return ServerBudget(
        program=_LIBRARIES_BYTES + _TEMPLATES_BYTES + _TRIALS_BYTES + COMPILING_BYTES,
        connections=load.max_connections * CONNECTION_BYTES,
        bodies=_BODIES_AT_ONCE * load.max_body_bytes,
        texts=texts_bytes(context_tokens),
        prompts=max(_PROMPTS_BYTES, max_seqs * context_tokens * TOKEN_BYTES),
        decoding=_decoding_bytes(images),
        decoded=_DECODED_BYTES if images and images.kind == "image" else 0,
        pixels=(_REMEMBERED_IMAGES + max_seqs) * pixels + recordings,
        grammars=_GRAMMARS_BYTES,
        responses=_RESPONSES_BYTES,
        unread=2 * max_seqs * _UNREAD_BYTES,
    )


def least_bodies_bytes(load: ServerLoad) -> int:
    """What bodies may take before the model is planned: it is in the budget of every plan."""
    return int(_LEAST_SHARE * _BODIES_AT_ONCE * load.max_body_bytes)


def _decoding_bytes(images: PlannedImages | None) -> int:
    """What the largest image, or the longest audio file, takes while it is decoded."""
    if images is None:
        return 0
    if images.kind == "audio":
        second = SPECTROGRAM_SECOND_BYTES if images.recorded else RECORDING_SECOND_BYTES
        recording = second * LONGEST_RECORDING_S
        return max(AUDIO_SECOND_BYTES * images.edge, recording) + _AUDIO_FILE_BYTES
    return PIXEL_BYTES * _MOST_PIXELS


def texts_bytes(context_tokens: int) -> int:
    """What tokenizing a text needs, of the longest that is read; others wait meanwhile."""
    longest = max(CUT_TEXT_BYTES, TOKEN_TEXT_BYTES * context_tokens)
    return ENCODED_BYTES * min(longest, WHOLE_TEXT_BYTES)
