"""GLM-4.1V: GLM 4 with the rope and nearly the tower of Qwen2-VL."""

from __future__ import annotations

from mrs.architecture.vision.towers.glm_projector import GLM
from mrs.architecture.vision.towers.glm_tower import glm_family

FAMILY = glm_family("glm4v", "glm4v_text", token=151_343, gguf=GLM)
