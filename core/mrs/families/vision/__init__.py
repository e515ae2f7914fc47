"""One small file for each family of vision models.

To add a family:

1. Write `core/mrs/families/vision/<model_type>.py` with a `FAMILY`: a `read` function from the
   configs to `Vision` (a tower, a projector, a layout of images), and the names of their tensors.
   The language model inside is of a text family.
2. A new kind of tower or projector is a frozen value with its `vision_slots`, and a module in
   `core/mrs/model/vision/`, with an entry in `vision_module.py`. A new layout, in
   `core/mrs/architecture/vision/layouts/`, says into which pixels and how many rows of the prompt
   an image becomes, and which is the largest. What makes the pixels is a function in
   `core/mrs/media/`, with an entry in `image_processors.py`. A model that takes videos has a
   layout of them, too (`video_layouts.py`). Its form in mmproj files is a `GgufProjector`.
3. Add its cases to `tests/vision/vision_cases.py`: they compare pixels with transformers' (within
   a step of a byte), logits (within 1e-4), and the planned memory with that of a run.
"""
