"""The demo models: their files in `model/` and `vision_model/`, and the programs that make them."""
