"""Writes small videos with PyAV, which tests of videos need."""

from __future__ import annotations

import io
from fractions import Fraction

import numpy as np
import pytest

av = pytest.importorskip("av", reason="videos need the package av")


def video(
    seconds: float = 4.0,
    size: tuple[int, int] = (64, 48),
    rate: float = 10,
    container: str = "mp4",
    codec: str = "mpeg4",
    title: str | None = None,
    options: dict[str, str] | None = None,
) -> bytes:
    """A file whose pictures change from frame to frame; `size` is (width, height)."""
    file = io.BytesIO()
    width, height = size
    random = np.random.default_rng(7)
    ground = random.integers(0, 200, (height, width, 3))
    with av.open(file, "w", format=container) as out:
        if title is not None:
            out.metadata["title"] = title
        stream = out.add_stream(
            codec, rate=Fraction(rate).limit_denominator(1001), options=options or {}
        )
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for index in range(round(seconds * rate)):
            picture = np.roll(ground, index, axis=1) + index
            frame = av.VideoFrame.from_ndarray(picture.clip(0, 255).astype(np.uint8), "rgb24")
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return file.getvalue()


def frames_of(content: bytes) -> list[np.ndarray]:
    """All frames as (height, width, 3) bytes."""
    with av.open(io.BytesIO(content)) as file:
        return [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
