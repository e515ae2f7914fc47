"""The vision module of a model: its tower and projector, one module class for each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from mrs.architecture.vision.patch_merger import PatchMerger
from mrs.architecture.vision.shared_projectors import (
    AdapterProjector,
    CropsProjector,
    FoldedMlpProjector,
    MlpProjector,
)
from mrs.architecture.vision.towers.clip_tower import ClipTower
from mrs.architecture.vision.towers.qwen_tower import QwenTower
from mrs.architecture.vision.towers.siglip2_tower import Siglip2Tower
from mrs.architecture.vision.towers.siglip_tower import SiglipTower
from mrs.architecture.vision_spec import ImageShape, Vision
from mrs.families.vision.gemma3 import PooledProjector
from mrs.families.vision.gemma4 import Gemma4Tower, ScaledPoolProjector
from mrs.families.vision.gemma4_unified import SquaresTower
from mrs.families.vision.glm4v import ConvolvedMerger
from mrs.families.vision.idefics2 import PerceiverProjector
from mrs.families.vision.idefics3 import FoldedProjector
from mrs.families.vision.internvl import InternVlTower
from mrs.families.vision.llama4 import Llama4Tower
from mrs.families.vision.llava_next import TilesProjector
from mrs.families.vision.mistral3 import MergingProjector, PixtralTower
from mrs.families.vision.mllama import LinearProjector, TilesTower
from mrs.families.vision.muse_glimmer import MuseTower
from mrs.families.vision.phi4_multimodal import Phi4Tower
from mrs.families.vision.qwen3_asr import SpectrogramTower
from mrs.families.vision.whisper import NoProjector, WindowTower
from mrs.model.model_weights import ModelWeights
from mrs.model.vision.clip import ClipTowerModule
from mrs.model.vision.gemma4 import Gemma4TowerModule, ScaledPoolProjectorModule
from mrs.model.vision.internvl import InternVlTowerModule
from mrs.model.vision.llama4 import Llama4TowerModule
from mrs.model.vision.muse import MuseTowerModule
from mrs.model.vision.perceiver import PerceiverProjectorModule
from mrs.model.vision.phi4 import Phi4TowerModule
from mrs.model.vision.pixtral import MergingProjectorModule, PixtralTowerModule
from mrs.model.vision.projectors import (
    AdapterProjectorModule,
    CropsProjectorModule,
    FoldedMlpProjectorModule,
    FoldedProjectorModule,
    LinearProjectorModule,
    MlpProjectorModule,
    PooledProjectorModule,
    TilesProjectorModule,
)
from mrs.model.vision.qwen import ConvolvedMergerModule, PatchMergerModule, QwenTowerModule
from mrs.model.vision.siglip import SiglipTowerModule
from mrs.model.vision.siglip2 import Siglip2TowerModule
from mrs.model.vision.spectrogram import SpectrogramTowerModule
from mrs.model.vision.squares import SquaresTowerModule
from mrs.model.vision.tiles_tower import TilesTowerModule
from mrs.model.vision.window import NoProjectorModule, WindowTowerModule


class TowerModule(Protocol):
    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """One image's pixels, of shape `shape.pixels`, to features (patches, output_size)."""


class ProjectorModule(Protocol):
    def __call__(self, features: Tensor, shape: ImageShape) -> Tensor:
        """The tower's features of one image (patches, output_size) to (rows, hidden)."""


_TOWERS: dict[type, Callable[[Any, ModelWeights], TowerModule]] = {
    ClipTower: ClipTowerModule,
    Gemma4Tower: Gemma4TowerModule,
    InternVlTower: InternVlTowerModule,
    Llama4Tower: Llama4TowerModule,
    MuseTower: MuseTowerModule,
    Phi4Tower: Phi4TowerModule,
    PixtralTower: PixtralTowerModule,
    QwenTower: QwenTowerModule,
    SiglipTower: SiglipTowerModule,
    Siglip2Tower: Siglip2TowerModule,
    SpectrogramTower: SpectrogramTowerModule,
    SquaresTower: SquaresTowerModule,
    TilesTower: TilesTowerModule,
    WindowTower: WindowTowerModule,
}
_PROJECTORS: dict[type, Callable[[Any, ModelWeights], ProjectorModule]] = {
    LinearProjector: LinearProjectorModule,
    MlpProjector: MlpProjectorModule,
    PatchMerger: PatchMergerModule,
    ConvolvedMerger: ConvolvedMergerModule,
    PerceiverProjector: PerceiverProjectorModule,
    FoldedProjector: FoldedProjectorModule,
    FoldedMlpProjector: FoldedMlpProjectorModule,
    PooledProjector: PooledProjectorModule,
    TilesProjector: TilesProjectorModule,
    CropsProjector: CropsProjectorModule,
    MergingProjector: MergingProjectorModule,
    AdapterProjector: AdapterProjectorModule,
    ScaledPoolProjector: ScaledPoolProjectorModule,
    NoProjector: NoProjectorModule,
}


class VisionModule:
    """Encodes one image at a time on `device`, with activations of `dtype`."""

    def __init__(
        self, vision: Vision, weights: ModelWeights, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.description = vision
        self._tower = _TOWERS[type(vision.tower)](vision.tower, weights)
        self._projector = _PROJECTORS[type(vision.projector)](vision.projector, weights)
        self._device, self._dtype = device, dtype

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """One image's pixels (`shape.pixels`) to its features (rows, hidden)."""
        features = self._tower(pixels.to(self._device, self._dtype), shape)
        return self._projector(features, shape)
