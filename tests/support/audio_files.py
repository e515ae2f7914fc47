"""Writes small audio files: WAV by hand, other formats with PyAV."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from numpy.typing import NDArray

av = pytest.importorskip("av", reason="audio files need the package av")


def tone(seconds: float, rate: int = 16_000, hertz: float = 440.0) -> NDArray[np.float32]:
    """A tone that swells and fades."""
    t = np.arange(round(seconds * rate)) / rate
    swelling = 0.25 * (1.2 + np.sin(2 * np.pi * 1.3 * t))
    return (swelling * np.sin(2 * np.pi * hertz * t)).astype(np.float32)


def wav(
    samples: NDArray[np.float32],
    rate: int = 16_000,
    channels: int = 1,
    claimed_bytes: int | None = None,
) -> bytes:
    """A file of floating-point samples, which several `channels` have interleaved.

    It says that it has `claimed_bytes` of them.
    """
    data = samples.astype("<f4").tobytes()
    size = len(data) if claimed_bytes is None else claimed_bytes
    frame = 4 * channels
    form = struct.pack(
        "<HHIIHH", 3, channels, rate, (rate * frame) & 0xFFFFFFFF, frame & 0xFFFF, 32
    )
    head = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", size)
    return b"RIFF" + struct.pack("<I", (len(head) + size) & 0xFFFFFFFF) + head + data


def encoded(samples: NDArray[np.float32], container: str, codec: str, rate: int = 48_000) -> bytes:
    """A file of one channel in another format."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as opened:
        stream = opened.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
        frame.rate = rate
        for each in (frame, None):
            opened.mux(stream.encode(each))
    return file.getvalue()
