"""Cuts a long recording where it is quiet, into files that a model can hear one after another."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mrs.architecture.vision_spec import SAMPLES_PER_S
from mrs.media.audio_file import read_samples
from mrs.media.media_memory import MediaMemory
from mrs.process.request_memory import LONGEST_RECORDING_S, RECORDING_SECOND_BYTES
from mrs.request import Media

#: A piece ends in its last third, where this many samples are the quietest.
_QUIET_SAMPLES = SAMPLES_PER_S // 10


@dataclass(frozen=True)
class AudioPiece:
    """A part of a recording as a file, and where it begins and ends, in seconds."""

    start_s: float
    end_s: float
    audio: Media


def cut_audio(audio: Media, memory: MediaMemory, piece_s: int) -> list[AudioPiece]:
    """The pieces of a recording, none longer than `piece_s` seconds.

    They have 16 bits a sample; a recording of one piece stays as it is. Raises NotReadable, also
    for one that is longer than `LONGEST_RECORDING_S`.
    """
    with memory.decoding():
        samples = read_samples(
            audio, memory, LONGEST_RECORDING_S, second_bytes=RECORDING_SECOND_BYTES
        )
        ranges = list(_ranges(samples, piece_s * SAMPLES_PER_S))
        if len(ranges) == 1:
            return [AudioPiece(0.0, len(samples) / SAMPLES_PER_S, audio)]
        return [
            AudioPiece(
                part.start / SAMPLES_PER_S,
                part.stop / SAMPLES_PER_S,
                Media.of(audio.name, _wav(samples[part.start : part.stop]), "audio"),
            )
            for part in ranges
        ]


def _ranges(samples: NDArray[np.float32], most: int) -> Iterator[range]:
    start = 0
    while len(samples) - start > most:
        earliest = start + most * 2 // 3
        loudness = np.add.accumulate(samples[earliest : start + most].astype(np.float64) ** 2)
        windows = loudness[_QUIET_SAMPLES:] - loudness[:-_QUIET_SAMPLES]
        end = earliest + int(windows.argmin()) + _QUIET_SAMPLES // 2
        yield range(start, end)
        start = end
    yield range(start, len(samples))


def _wav(samples: NDArray[np.float32]) -> bytes:
    """A WAV file of one channel; what is louder than the loudest that 16 bits can say is cut."""
    data = (samples.clip(-1, 1) * 32767).round().astype("<i2").tobytes()
    form = struct.pack("<HHIIHH", 1, 1, SAMPLES_PER_S, 2 * SAMPLES_PER_S, 2, 16)
    head = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data"
    size = struct.pack("<I", len(data))
    return b"RIFF" + struct.pack("<I", len(head) + 4 + len(data)) + head + size + data
