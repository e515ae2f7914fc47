"""Log-mel spectrograms of audio: what feature extractors of transformers compute."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mrs.architecture.vision_spec import SAMPLES_PER_S, LogMel

#: Frames of which the spectrum is computed at once: it has more values than what is kept.
FRAMES_AT_ONCE = 1024
#: Bands of the mel scale as Slaney's Auditory Toolbox has it: linear below this frequency in Hz,
#: where a mel is 200 / 3 Hz, and logarithmic above it, 27 mels for each factor of 6.4.
_CORNER_HZ, _LINEAR_HZ, _LOG_STEP = 1000.0, 200.0 / 3, np.log(6.4) / 27
_LEAST_POWER = 1e-10
#: Below the loudest frame by more than 80 dB is silence.
_RANGE = 8.0


def log_mel(samples: NDArray[np.float32], spectrogram: LogMel, least: int = 0) -> Tensor:
    """The spectrogram (bands, N // hop) of samples (N,), in float32.

    With fewer than `least` samples, silence follows.
    """
    count, window, hop = max(len(samples), least), spectrogram.window, spectrogram.hop
    frames = count // hop
    curve = torch.hann_window(window)
    bands = _bands(spectrogram)
    logs = torch.empty(spectrogram.bands, frames)
    for start in range(0, frames, FRAMES_AT_ONCE):
        part = slice(start, min(start + FRAMES_AT_ONCE, frames))
        # Frames have their times in their middles.
        first = start * hop - window // 2
        heard = _mirrored(
            samples, count, range(first, first + (part.stop - start - 1) * hop + window)
        )
        spectrum = torch.fft.rfft(torch.from_numpy(heard).unfold(0, window, hop) * curve)
        power = spectrum.real.square() + spectrum.imag.square()
        logs[:, part] = (bands @ power.T).clamp_(min=_LEAST_POWER).log10_()
    return logs.clamp_(min=float(logs.max()) - _RANGE).add_(4.0).div_(4.0)


def _mirrored(samples: NDArray[np.float32], count: int, at: range) -> NDArray[np.float32]:
    """The samples `at` these places, of `count` that end in silence and are mirrored at both ends.

    Without a copy of all of them: recordings are long.
    """
    if at.start >= 0 and at.stop <= len(samples):
        return samples[at.start : at.stop]
    places = (count - 1) - np.abs((count - 1) - np.abs(np.arange(at.start, at.stop)))
    heard = np.zeros(len(at), np.float32)
    known = places < len(samples)
    heard[known] = samples[places[known]]
    return heard


@lru_cache(maxsize=4)
def _bands(spectrogram: LogMel) -> Tensor:
    """The share of each frequency in each band (bands, window / 2 + 1): triangles of equal area."""
    edges = _hertz(np.linspace(0.0, _mels(SAMPLES_PER_S / 2), spectrogram.bands + 2))
    frequencies = np.linspace(0.0, SAMPLES_PER_S / 2, spectrogram.window // 2 + 1)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising = (frequencies - low) / (middle - low)
    falling = (high - frequencies) / (high - middle)
    triangles = np.maximum(0.0, np.minimum(rising, falling)) * 2.0 / (high - low)
    return torch.from_numpy(triangles.astype(np.float32))


def _mels(hertz: float) -> float:
    """A frequency above the corner on the mel scale."""
    return float(_CORNER_HZ / _LINEAR_HZ + np.log(hertz / _CORNER_HZ) / _LOG_STEP)


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    corner = _CORNER_HZ / _LINEAR_HZ
    above = _CORNER_HZ * np.exp(_LOG_STEP * (mels - corner))
    return np.where(mels < corner, mels * _LINEAR_HZ, above)
