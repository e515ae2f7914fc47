"""One file for each family of models that see or hear: its tower, its projector, and its layout.

To add a family:

1. Write `core/mrs/families/vision/<model_type>.py` with a `FAMILY`: a `read` function from the
   configs to `Vision`, the names of the tensors, and `GGUF`, what mmproj files call them. The
   language model inside is of a text family. Towers, projectors and layouts of several families
   are in `architecture/vision/`; one that only this family has stands in its file:
2. A tower or projector is a frozen value with its `vision_slots`, and a module in `model/vision/`
   with an entry in `vision_module.py`. `AudioLayout` is that of models that hear, whose tower has
   its config under `audio_config`. Another layout says how many pixels, and how many rows of the
   prompt, an image becomes, and which image is the largest; a function in
   `media/image_processors.py` makes the pixels. Videos have a layout of their own
   (`architecture/vision/video_layouts.py`).
3. Add its cases to `tests/vision/vision_cases.py`: they compare pixels with transformers' (within
   a step of a byte), logits (within 1e-4), and the planned memory with that of a run.
"""
