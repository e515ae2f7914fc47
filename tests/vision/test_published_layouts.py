"""Published models: how many rows pictures of known sizes take."""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.vision_family import VisionConfigs
from mrs.config.config import Config
from mrs.families.vision.phi3_v import FAMILY as PHI


def test_phi_3_5_vision() -> None:
    """Phi-3.5 Vision: 4 crops, 144 features each, and the sizes that its card tells."""
    where = "phi-3.5-vision"
    images = Config({**PHI.image_defaults, "num_crops": 4}, where)
    configs = VisionConfigs(Config({}, where), Config(PHI.tower_defaults, where), images)
    text = ModelSpec("phi3", 32_064, 3072, (), None, False, 131_072)  # type: ignore[arg-type]
    layout = PHI.read(configs, text).layout
    assert layout.shape(336, 336).rows == (4 + 1) * 144 + 1 + (2 + 1) * 12
    assert layout.shape(336, 1344).rows == (4 + 1) * 144 + 1 + (1 + 1) * 12
    assert layout.shape(336, 1344).pixels == (5, 3, 336, 336)
