"""Log-mel spectrograms of audio: what feature extractors of transformers compute."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
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
    whole = F.pad(torch.from_numpy(samples), (0, max(least - len(samples), 0)))
    half, hop = spectrogram.window // 2, spectrogram.hop
    frames = len(whole) // hop
    # Frames have their times in their middles; the audio is mirrored at both ends.
    mirrored = F.pad(whole[None], (half, half), mode="reflect")[0]
    windows = mirrored.unfold(0, spectrogram.window, hop)[:frames]
    curve = torch.hann_window(spectrogram.window)
    bands = _bands(spectrogram)
    logs = torch.empty(spectrogram.bands, frames)
    for start in range(0, frames, FRAMES_AT_ONCE):
        part = slice(start, start + FRAMES_AT_ONCE)
        spectrum = torch.fft.rfft(windows[part] * curve)
        power = spectrum.real.square() + spectrum.imag.square()
        logs[:, part] = (bands @ power.T).clamp_(min=_LEAST_POWER).log10_()
    return logs.clamp_(min=float(logs.max()) - _RANGE).add_(4.0).div_(4.0)


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
