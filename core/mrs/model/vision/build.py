"""From a description to the part that sees: one entry a kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from mrs.architecture.vision.shared_projectors import LinearProjector, MlpProjector
from mrs.architecture.vision.towers.clip_tower import ClipTower
from mrs.architecture.vision.towers.mllama_tower import TilesTower
from mrs.architecture.vision.towers.qwen_tower import PatchMerger, QwenTower
from mrs.architecture.vision.towers.siglip_tower import SiglipTower
from mrs.architecture.vision_spec import ImageShape, Vision
from mrs.families.vision.gemma3 import PooledProjector
from mrs.families.vision.idefics3 import FoldedProjector
from mrs.families.vision.llava_next import TilesProjector
from mrs.families.vision.mistral3 import MergingProjector, PixtralTower
from mrs.families.vision.phi3_v import CropsProjector
from mrs.model.vision.clip import ClipTowerPart
from mrs.model.vision.mllama import TilesTowerPart
from mrs.model.vision.pixtral import MergingProjectorPart, PixtralTowerPart
from mrs.model.vision.projectors import (
    CropsProjectorPart,
    FoldedProjectorPart,
    LinearProjectorPart,
    MlpProjectorPart,
    PooledProjectorPart,
    TilesProjectorPart,
)
from mrs.model.vision.qwen import PatchMergerPart, QwenTowerPart
from mrs.model.vision.siglip import SiglipTowerPart
from mrs.model.weights import ModelWeights


class TowerPart(Protocol):
    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """One picture's pixels, of shape `shape.pixels`, to (patches, width)."""


class ProjectorPart(Protocol):
    def __call__(self, seen: Tensor, shape: ImageShape) -> Tensor:
        """What the tower saw of one picture to (rows, hidden)."""


_TOWERS: dict[type, Callable[[Any, ModelWeights], TowerPart]] = {
    ClipTower: ClipTowerPart,
    PixtralTower: PixtralTowerPart,
    QwenTower: QwenTowerPart,
    SiglipTower: SiglipTowerPart,
    TilesTower: TilesTowerPart,
}
_PROJECTORS: dict[type, Callable[[Any, ModelWeights], ProjectorPart]] = {
    LinearProjector: LinearProjectorPart,
    MlpProjector: MlpProjectorPart,
    PatchMerger: PatchMergerPart,
    FoldedProjector: FoldedProjectorPart,
    PooledProjector: PooledProjectorPart,
    TilesProjector: TilesProjectorPart,
    CropsProjector: CropsProjectorPart,
    MergingProjector: MergingProjectorPart,
}


class VisionPart:
    """Sees one picture at a time, with activations of `dtype` on the device of its weights."""

    def __init__(
        self, vision: Vision, weights: ModelWeights, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.description = vision
        self._tower = _TOWERS[type(vision.tower)](vision.tower, weights)
        self._projector = _PROJECTORS[type(vision.projector)](vision.projector, weights)
        self._device, self._dtype = device, dtype

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """One picture's pixels (`shape.pixels`) to its features (rows, hidden)."""
        seen = self._tower(pixels.to(self._device, self._dtype), shape)
        return self._projector(seen, shape)
