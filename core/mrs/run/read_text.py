"""Reads the tokenizer and the chat template of a model that is loaded."""

from __future__ import annotations

from mrs.process.memory_room import MemoryRoom
from mrs.run.planned_model import PlannedModel
from mrs.text.text_processor import TextProcessor, read_text_processor


def read_text(model: PlannedModel, room: MemoryRoom | None = None) -> TextProcessor:
    """The model's files must be on this machine. Raises MrsError."""
    vision = model.planner.description.spec.vision
    video = vision.video if vision else None
    return read_text_processor(
        model.planner.checkpoint,
        chat_template=model.request.chat_template,
        jinja_explicit=model.request.jinja_explicit,
        placeholder=vision.placeholder if vision else None,
        video_placeholder=video.placeholder if video else None,
        video_token_id=video.token_id if video else None,
        image_token_id=vision.image_token_id if vision else None,
        image_edge=vision.edge if vision else None,
        hears=vision is not None and vision.audio_layout is not None,
        room=room,
    )
