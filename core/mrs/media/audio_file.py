"""Decodes an audio file with PyAV, within limits, to what models hear: 16 kHz, one channel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mrs.architecture.vision_spec import SAMPLES_PER_S
from mrs.errors import NotReadable
from mrs.media.av_container import av_container
from mrs.media.image_source import unreadable
from mrs.media.media_memory import MediaMemory
from mrs.process.request_memory import AUDIO_SECOND_BYTES
from mrs.request import Media

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: The only containers that are opened, see `mrs.media.video_file`.
_CONTAINERS = "wav,mp3,flac,ogg,mov,mp4,matroska,webm"
#: The only decoders, by FFmpeg's names, that read a stranger's bytes.
CODECS = ("pcm", "mp3", "flac", "vorbis", "opus", "aac", "alac")
_PCM = "u8,s16le,s24le,s32le,f32le,f64le,mulaw,alaw"
_DECODERS = ",".join(
    (
        *(f"pcm_{each}" for each in _PCM.split(",")),
        *CODECS[1:],
        "mp3float,libvorbis,libopus",
    )
)
_MOST_CHANNELS = 8
_KNOWN_RATES = (1000, 384_000)
#: Louder samples, as multiples of the loudest of files in integers, are not sound.
_LOUDEST = 1e6
#: Of a frame in the largest formats: FLAC's have up to 65535 samples in each of the channels,
#: in 4 bytes as decoded and as floating-point numbers.
_FRAME_BYTES = 2 * 4 * _MOST_CHANNELS * 2**16


@dataclass(frozen=True)
class AudioFacts:
    """What an audio file says of itself; its length in seconds is 0 if it does not say."""

    channels: int
    rate: int
    seconds: float


def read_facts(audio: Media) -> AudioFacts:
    """What the file says of itself, none of which is true for certain.

    Raises Unsupported without PyAV, and NotReadable with a line that names the file.
    """
    with _opened(audio) as (container, stream):
        context = stream.codec_context
        length_us = container.duration or 0
        return AudioFacts(context.channels, context.sample_rate, max(length_us, 0) / 1e6)


def read_samples(
    audio: Media,
    memory: MediaMemory,
    most_seconds: int,
    limit_hint: str = "cut it",
    *,
    second_bytes: int = AUDIO_SECOND_BYTES,
) -> NDArray[np.float32]:
    """The samples (N,) of all channels together, `SAMPLES_PER_S` a second, mostly between -1 and 1.

    Room for `most_seconds` is taken within `memory` before, whatever the file says of its length:
    `second_bytes` for each, with what is made of the samples. Raises as `read_facts` does, also for
    a file that is longer.
    """
    import numpy as np  # facts of a file need none

    most = most_seconds * SAMPLES_PER_S
    with memory.decoding():
        size_bytes = decoding_bytes(most_seconds, second_bytes)
        memory.take(audio, size_bytes + 2 * len(audio.content))
        samples, count = np.empty(most, np.float32), 0
        for piece in _pieces(audio):
            if count + len(piece) > most:
                reason = f"it is longer than {most_seconds:,} seconds"
                raise unreadable(audio.name, reason, limit_hint, "audio")
            samples[count : count + len(piece)] = piece
            count += len(piece)
    if not count:
        raise _unreadable(audio, "it has no sound")
    heard = samples[:count]
    if not (heard.max() <= _LOUDEST and heard.min() >= -_LOUDEST):  # NaN is neither
        raise _unreadable(audio, "it has samples that are not numbers, or far too loud")
    return heard


def decoding_bytes(seconds: int, second_bytes: int = AUDIO_SECOND_BYTES) -> int:
    """What a file of this length takes until it is a spectrogram, beside its own bytes."""
    return second_bytes * seconds + 4 * _FRAME_BYTES


def _pieces(audio: Media) -> Iterator[NDArray[np.float32]]:
    """The samples, at `SAMPLES_PER_S` and in one channel, a frame at a time."""
    with _opened(audio) as (container, stream):
        from av import AudioResampler

        resampler, frame = AudioResampler(format="fltp", rate=SAMPLES_PER_S), None
        for frame in container.decode(stream):
            _check(audio, len(frame.layout.channels), frame.sample_rate)
            frame.pts = None  # gaps between the times of frames are not filled
            yield from map(_mean, resampler.resample(frame))
        if frame is not None:
            yield from map(_mean, resampler.resample(None))


def _mean(frame: Any) -> NDArray[np.float32]:
    """The mean (N,) of the channels; the library would weigh them by where they are heard."""
    mean: NDArray[np.float32] = frame.to_ndarray().mean(axis=0)
    return mean


@contextmanager
def _opened(audio: Media) -> Iterator[tuple[Any, Any]]:
    """The container and its audio stream; its errors become NotReadable."""
    with av_container(audio, _CONTAINERS, _DECODERS, {}) as container:
        if not container.streams.audio:
            raise _unreadable(audio, "it has no sound")
        stream = container.streams.audio[0]
        context = stream.codec_context
        if context is None or not context.codec.canonical_name.startswith(CODECS):
            raise _unreadable(audio, f"it is in none of the formats {', '.join(CODECS)}")
        _check(audio, context.channels, context.sample_rate)
        yield container, stream


def _check(audio: Media, channels: int, rate: int) -> None:
    if not 0 < channels <= _MOST_CHANNELS:
        raise _unreadable(
            audio, f"it has {channels} channels, and at most {_MOST_CHANNELS} are read"
        )
    if not _KNOWN_RATES[0] <= rate <= _KNOWN_RATES[1]:
        raise _unreadable(audio, f"it has {rate:,} samples a second")


def _unreadable(audio: Media, reason: str) -> NotReadable:
    return unreadable(audio.name, reason, kind="audio")
