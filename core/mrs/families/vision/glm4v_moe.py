"""GLM-4.5V and GLM-4.6V: GLM-4.1V's tower, and GLM 4.5 with its experts."""

from __future__ import annotations

from mrs.families.vision.glm4v import glm_family

FAMILY = glm_family("glm4v_moe", "glm4v_moe_text", token=151_363)
