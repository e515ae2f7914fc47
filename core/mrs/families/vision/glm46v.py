"""GLM-4.6V-Flash: GLM-4.1V with another text for the time of a frame of a video."""

from __future__ import annotations

from mrs.families.vision.glm4v import glm_family

FAMILY = glm_family("glm46v", "glm4v_text", token=151_343)
