"""The files of the demo models: text in `model/`, text and images in `vision_model/`."""
