"""The encoder of spectrograms of Qwen3-ASR."""

from __future__ import annotations

from math import log

import torch
import torch.nn.functional as F
from torch import Tensor

from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.qwen3_asr import CHUNK, CHUNKS_AT_ONCE, HALVINGS, SpectrogramTower
from mrs.kernels.nonlinearities import activated
from mrs.model.model_weights import ModelWeights
from mrs.model.vision.encoder import build_layers


class SpectrogramTowerModule:
    """Encodes a spectrogram of any length."""

    def __init__(self, tower: SpectrogramTower, weights: ModelWeights) -> None:
        self._tower = tower
        names = [f"convolution.{index}" for index in range(HALVINGS)]
        self._convolutions = [
            (weights.vector(f"{name}.weight"), weights.vector(f"{name}.bias")) for name in names
        ]
        self._patches = weights.linear("patches")
        self._layers = build_layers(tower.layers, weights, "layer")
        self._norm = weights.norm("post_norm", tower.norm)

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """pixels (bands, frames) to (rows, hidden)."""
        x = self._embed(pixels, shape)
        window = self._tower.window_rows
        for layer in self._layers:
            x = layer(x, window_starts=range(window, shape.rows, window))
        return self._norm(x)

    def _embed(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """Some chunks at a time, (rows, hidden) with their positions."""
        frames = pixels.shape[1]
        chunk_rows = self._tower.layout.rows_of(CHUNK)
        positions = sinusoids(chunk_rows, self._tower.hidden_size).to(pixels)
        x = pixels.new_empty(shape.rows, self._tower.hidden_size)
        for start in range(0, frames, CHUNKS_AT_ONCE * CHUNK):
            part = pixels[:, start : start + CHUNKS_AT_ONCE * CHUNK]
            part = F.pad(part, (0, -part.shape[1] % CHUNK))  # the last chunk, with zeros
            rows = self._convolved(part) + positions
            first = start // CHUNK * chunk_rows
            x[first : first + rows.shape[0] * chunk_rows] = rows.flatten(0, 1)[: shape.rows - first]
        return x

    def _convolved(self, frames: Tensor) -> Tensor:
        """frames (bands, chunks * CHUNK) to (chunks, rows, hidden)."""
        x = frames.view(len(frames), -1, CHUNK).transpose(0, 1)[:, None]
        for weight, bias in self._convolutions:
            x = activated("gelu", F.conv2d(x, weight.to(x.dtype), bias.to(x.dtype), 2, 1))
        x = x.permute(0, 3, 1, 2).flatten(2)
        return self._patches(x.flatten(0, 1)).view(*x.shape[:2], -1)


def sinusoids(rows: int, hidden_size: int) -> Tensor:
    """Positions (rows, hidden_size): sines, then cosines, of waves of 2 pi to 20000 pi rows."""
    half = hidden_size // 2
    waves = torch.exp(-log(10_000) / (half - 1) * torch.arange(half).float())
    angles = torch.arange(rows)[:, None] * waves
    return torch.cat((angles.sin(), angles.cos()), dim=1)
