"""Reads the tokenizer and the chat template of a model that is loaded."""

from __future__ import annotations

from mrs.process.memory_room import MemoryRoom
from mrs.run.model_loader import ModelLoader
from mrs.text.text_processor import TextProcessor, read_text_processor


def read_text(loader: ModelLoader, room: MemoryRoom | None = None) -> TextProcessor:
    """The model's files must be on this machine. Raises MrsError."""
    vision = loader.planner.description.spec.vision
    video = vision.video if vision else None
    return read_text_processor(
        loader.planner.checkpoint,
        chat_template=loader.request.chat_template,
        jinja_explicit=loader.request.jinja_explicit,
        placeholder=vision.placeholder if vision else None,
        video_placeholder=video.placeholder if video else None,
        video_token_id=video.token_id if video else None,
        image_token_id=vision.image_token_id if vision else None,
        image_edge=vision.edge if vision else None,
        room=room,
    )
